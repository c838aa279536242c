"""The standard's own tests: each that the runtime executes must come out the same after `optimize` with every pass.

    python -m benchmarks.trust.standard               # everything; writes the summary
    python -m benchmarks.trust.standard simple light  # these kinds, without storing figures

The tests are those of `onnx.backend.test`, of every kind: node, simple, pytorch-operator, pytorch-converted, and real, which
are the "light" models of the onnx package: published networks whose weights are made by ConstantOfShape. The package gives no
inputs for those; they are random here, and each network is also run with random weights. `tests/test_standard.py` runs a sample.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from rich.progress import track

from benchmarks.results import Results
from ortfuse import optimize
from ortfuse.errors import VerificationError
from ortfuse.verification import Session

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
LIGHT = "light"
NEWEST_IR = 11
NOT_EXECUTED = "the runtime does not execute the original"

Inputs = dict[str, Any]


class Case(NamedTuple):
    """A test: its model, and the sets of inputs by name that it is run on."""

    kind: str
    name: str
    model: Callable[[], onnx.ModelProto]
    inputs: Callable[[onnx.ModelProto], list[Inputs]]


def cases() -> list[Case]:
    """Every test of the installed onnx package."""
    stored = [*_stored(), *_light()]
    known = {(case.kind, case.name) for case in stored}
    return [*(case for case in _generated() if (case.kind, case.name) not in known), *stored]


def _generated() -> Iterator[Case]:
    """The tests that the package makes itself."""
    from onnx.backend.test.case import model, node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [*node.collect_testcases(None), *model.collect_testcases()]
    for case in found:
        if case.model is not None:
            yield Case(case.kind, case.name, lambda case=case: case.model, lambda model, case=case: _given(case, model))


def _given(case: Any, model: onnx.ModelProto) -> list[Inputs]:
    names = [value.name for value in model.graph.input]
    return [
        {name: _plain(array) for name, array in zip(names, arrays, strict=False) if array is not None}
        for arrays, _ in case.data_sets
    ]


def _plain(given: Any) -> Any:
    """An input as the runtime takes it: some tests have numpy's scalars, or tensors of types that numpy lacks."""
    if isinstance(given, list):
        return [_plain(one) for one in given]
    return onnx.numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else np.asarray(given)


def _stored() -> Iterator[Case]:
    """The tests that come as files."""
    for path in sorted(DATA.glob("*/*/model.onnx")):
        yield Case(
            path.parts[-3],
            path.parts[-2],
            lambda path=path: onnx.load(path),
            lambda model, path=path: _read(path.parent, model),
        )


def _read(folder: Path, model: onnx.ModelProto) -> list[Inputs]:
    return [
        {
            value.name: _array(data / f"input_{number}.pb", value.type)
            for number, value in enumerate(model.graph.input)
            if (data / f"input_{number}.pb").exists()
        }
        for data in sorted(folder.glob("test_data_set_*"))
    ]


def _array(path: Path, kind: onnx.TypeProto) -> Any:
    proto: Any
    if kind.HasField("sequence_type"):
        proto, convert = onnx.SequenceProto(), onnx.numpy_helper.to_list
    elif kind.HasField("optional_type"):
        proto, convert = onnx.OptionalProto(), onnx.numpy_helper.to_optional
    else:
        proto, convert = onnx.TensorProto(), onnx.numpy_helper.to_array
    proto.ParseFromString(path.read_bytes())
    return convert(proto)


def _light() -> Iterator[Case]:
    """Published networks with weights that are filled in: as they come, and with random ones.

    As they come, all weights of a tensor are one number, and so are all outputs, whatever the image.
    """
    for path in sorted((DATA / LIGHT).glob("*.onnx")):
        yield Case(LIGHT, path.stem, lambda path=path: onnx.load(path), _random)
        yield Case(LIGHT, f"{path.stem}_random", lambda path=path: _with_weights(onnx.load(path)), _random)


def _with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace ConstantOfShape by random weights, positive in vectors, and remove a final Softmax, which would hide most."""
    graph, rng = model.graph, np.random.default_rng(0)
    shapes = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "ConstantOfShape"]:
        shape = shapes[node.input[0]].tolist()
        fan_in = np.prod(shape[1:])
        weights = rng.standard_normal(shape) * np.sqrt(2 / fan_in) if len(shape) > 1 else rng.uniform(0.5, 1.5, shape)
        graph.initializer.append(onnx.numpy_helper.from_array(weights.astype(np.float32), node.output[0]))
        graph.node.remove(node)
    last = graph.node[-1]
    if last.op_type == "Softmax":
        graph.output[0].name = last.input[0]
        graph.output[0].type.tensor_type.ClearField("shape")
        graph.node.remove(last)
    model.ir_version = 8  # in which initializers need not be inputs
    return model


def _random(model: onnx.ModelProto) -> list[Inputs]:
    """Two sets of random images, of a batch each as the model declares."""
    filled = {tensor.name for tensor in model.graph.initializer}
    values = [value for value in model.graph.input if value.name not in filled]
    shapes = {value.name: [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim] for value in values}
    return [
        {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        for rng in map(np.random.default_rng, range(2))
    ]


def same(one: Any, other: Any) -> bool:
    """Whether two outputs (arrays, sequences, optionals) are the same within rounding."""
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    if one is None or other is None:
        return one is other
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    coarse = one.dtype.name == "bfloat16"
    if one.dtype.kind != "f" and not coarse:
        return bool(np.array_equal(one, other))
    near = 1e-2 if coarse else 2e-3 if one.dtype.itemsize == 2 else 1e-5
    one, other = one.astype(np.float64), other.astype(np.float64)
    scale = float(np.abs(one[np.isfinite(one)]).max(initial=0.0)) or 1.0
    return bool(np.allclose(one, other, rtol=20 * near, atol=near * scale, equal_nan=True))


def verdict(case: Case) -> str:
    """`same`, `differs`, or that the runtime does not execute the original."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model())
    # The package marks what it makes with its newest IR version, which the runtime need not know yet.
    model.ir_version = min(model.ir_version, NEWEST_IR)
    before, given = _session(model), case.inputs(model)
    expected = [] if before is None else [outputs for one in given if (outputs := _run(before, one)) is not None]
    if not expected or len(expected) < len(given):
        return NOT_EXECUTED
    after = Session(optimize(model, level="all").model.SerializeToString(), optimise=False)
    return (
        "same"
        if all(_kept(outputs, after.run(one)) for one, outputs in zip(given, expected, strict=True))
        else "differs"
    )


def _session(model: onnx.ModelProto) -> Session | None:
    try:
        return Session(model.SerializeToString(), optimise=False)
    except VerificationError:
        return None


def _run(session: Session, inputs: Inputs) -> dict[str, Any] | None:
    try:
        return session.run(inputs)
    except VerificationError:
        return None


def _kept(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return before.keys() == after.keys() and all(same(before[name], after[name]) for name in before)


def main(kinds: list[str]) -> int:
    """Run the tests of some kinds, or all; the exit code is 1 if one differs."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    broken = []
    for case in track([case for case in cases() if not kinds or case.kind in kinds], description="tests"):
        answer = verdict(case)
        found[case.kind][answer] += 1
        if answer == "differs":
            broken.append(f"{case.kind} {case.name}")
    result = {
        "tests": {kind: dict(counts) for kind, counts in found.items()},
        "broken": broken,
    }
    if not kinds:
        Results("trust.standard").store("python -m benchmarks.trust.standard", result)
    print(json.dumps(result, indent=1))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
