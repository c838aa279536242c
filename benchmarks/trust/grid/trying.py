"""Try a cell: facts, folded constants and the optimised model must agree with the runtime."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import onnx_ir as ir

from benchmarks.trust.grid.cells import Cell
from benchmarks.trust.grid.judge import Judge, identical
from benchmarks.trust.standard import same
from ortfuse import optimize
from ortfuse.analysis.facts import Facts
from ortfuse.errors import OrtfuseError
from ortfuse.io.convert_model_objects import enter
from ortfuse.runtime.session import Session
from ortfuse.targets import Target
from ortfuse.transforms import Context
from ortfuse.transforms.cleanup.constant_folding import ConstantFolding

FACTS, FOLDED, OPTIMISED, RAISED, REFUSED = "facts", "folding", "optimising", "raised", "refused"


_MOST_SHOWN = 3
"""Elements of a sequence that are looked at."""

Runs = list[tuple[dict[str, Any], dict[str, int], dict[str, Any]]]


@dataclass(frozen=True)
class Failure:
    """A failure of a cell: its kind and the details."""

    kind: str
    details: str


def failures(cell: Cell) -> list[Failure] | None:
    """Return the failures of a cell; `None` if the runtime does not run it."""
    session, runs = _executed(cell.model, cell)
    if session is None or not runs:
        return None
    model = _typed(cell.model, runs[0][2])
    if any(not output.type.HasField("tensor_type") for output in model.graph.output):
        apart = _taken_apart(model, runs)
        opened, found_apart = _executed(apart, cell)
        if opened is not None and found_apart:
            model, session, runs = apart, opened, found_apart
    checks = [_facts, _folding if cell.constant else _optimising]
    found = []
    for check in checks:
        try:
            found += check(model, session, runs)
        except OrtfuseError as error:
            found.append(Failure(REFUSED, f"{check.__name__[1:]}: {error}"))
        except Exception:
            found.append(Failure(RAISED, f"{check.__name__[1:]}: {traceback.format_exc(limit=-3)}"))
    return found


def _executed(model: onnx.ModelProto, cell: Cell) -> tuple[Session | None, Runs]:
    session = _session(model)
    if session is None:
        return None, []
    found = [(feeds, sizes, _run(session, feeds)) for feeds, sizes in cell.runs]
    return session, [(feeds, sizes, results) for feeds, sizes, results in found if results is not None]


def _taken_apart(model: onnx.ModelProto, runs: Runs) -> onnx.ModelProto:
    """The model with what is in the sequences and optionals that it returns, and their lengths, as more results."""
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    for output in model.graph.output:
        name, kind = output.name, output.type
        if kind.HasField("optional_type"):
            kind = kind.optional_type.elem_type
            name = _shown(opened, kind, "OptionalGetElement", f"{name}.held", name)
        found = [results[output.name] for _, _, results in runs]
        if all(isinstance(one, list) for one in found):
            _shown(opened, _INT64, "SequenceLength", f"{name}.length", name)
            kind = kind.sequence_type.elem_type
            known = kind.tensor_type.elem_type
            for place in range(min(_MOST_SHOWN, *map(len, found)) if known else 0):
                opened.graph.initializer.append(onnx.numpy_helper.from_array(np.array(place), f"{name}.place{place}"))
                _shown(opened, kind, "SequenceAt", f"{name}.{place}", name, f"{name}.place{place}")
    return opened


_INT64 = onnx.helper.make_tensor_type_proto(onnx.TensorProto.INT64, None)


def _shown(model: onnx.ModelProto, kind: onnx.TypeProto, op_type: str, name: str, *operands: str) -> str:
    """Add a node whose result is one of the model's; returns its name."""
    model.graph.node.append(onnx.helper.make_node(op_type, operands, [name]))
    model.graph.output.append(onnx.helper.make_value_info(name, kind))
    return name


def _session(model: onnx.ModelProto) -> Session | None:
    try:
        return Session(model.SerializeToString(), optimise=False, threads=1, lean=True)
    except OrtfuseError:
        return None


def _run(session: Session, feeds: dict[str, Any]) -> dict[str, Any] | None:
    try:
        return session.run(feeds)
    except OrtfuseError:
        return None


def _typed(model: onnx.ModelProto, results: dict[str, Any]) -> onnx.ModelProto:
    """The model with the element types of its outputs, which every model has."""
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    optionals = _optionals(model)
    for output in typed.graph.output:
        array = results[output.name]
        if output.name in optionals:
            output.type.CopyFrom(optionals[output.name])
        elif isinstance(array, np.ndarray | np.generic):
            kind = onnx.TensorProto.STRING
            if array.dtype.kind not in "OSU":
                kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            output.type.tensor_type.elem_type = kind
        elif isinstance(array, list) and array and isinstance(array[0], np.ndarray):
            kind = onnx.helper.np_dtype_to_tensor_dtype(array[0].dtype)
            output.type.sequence_type.elem_type.tensor_type.elem_type = kind
    return typed


def _optionals(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """The types of results that are optionals, which the runtime gives as what they hold; without fields if not known."""
    makers = [node for node in model.graph.node if node.op_type in ("Optional", "Identity", "If", "Loop")]
    if not makers:
        return {}  # ONNX crashes on some operators without optionals
    made = {name for node in makers if node.op_type == "Optional" for name in node.output}
    types = {output.name: output.type for output in onnx.shape_inference.infer_shapes(model).graph.output}
    return {name: kind for name, kind in types.items() if name in made or kind.HasField("optional_type")}


def _facts(proto: onnx.ModelProto, session: Session, runs: Runs) -> list[Failure]:
    """Every fact about the outputs holds for what they really are."""
    model = ir.from_proto(proto)
    facts, wrong = Facts(model), dict[str, None]()
    for _, sizes, results in runs:
        judge = Judge(facts, sizes)
        for value in model.graph.outputs:
            real = results[value.name or ""]
            if isinstance(real, np.ndarray | np.generic):
                judge.judge(value, np.asarray(real))
        wrong.update(dict.fromkeys(_types_of_narrow(model, facts, proto)))
        wrong.update(dict.fromkeys(f"{sizes}: {one}" if len(runs) > 1 else one for one in judge.wrong))
    return [Failure(FACTS, one) for one in list(wrong)[:2]]


def _types_of_narrow(model: ir.Model, facts: Facts, proto: onnx.ModelProto) -> list[str]:
    """Return wrong element types of inner values, which are declared, so that the runtime has checked them."""
    declared = {one.name: one.type.tensor_type.elem_type for one in proto.graph.value_info}
    values = [value for node in model.graph for value in node.outputs if value.name in declared]
    return [
        f"{value.name}: dtype {facts.dtype(value)}, really {ir.DataType(declared[value.name or ''])}"
        for value in values
        if facts.dtype(value) not in (None, declared[value.name or ""])
    ]


def _folding(proto: onnx.ModelProto, session: Session, runs: Runs) -> list[Failure]:
    """Folded constants have the bits that the runtime computes."""
    model, _ = enter(proto)
    ConstantFolding().run(Context(model, Facts(model), Target()))
    found = []
    ((_, _, results),) = runs
    for output in model.graph.outputs:
        if output.const_value is None:
            continue
        folded, real = output.const_value.numpy(), np.asarray(results[output.name or ""])
        if not identical(folded, real):
            again = _run(session, {}) or {}
            why = (
                "" if identical(real, np.asarray(again.get(output.name or ""))) else " (which differs from run to run)"
            )
            found.append(Failure(FOLDED, f"{output.name}: {_short(folded)}, really{why} {_short(real)}"))
    return found


def _optimising(proto: onnx.ModelProto, session: Session, runs: Runs) -> list[Failure]:
    """The optimised model computes the same."""
    result = optimize(proto, level="all").model
    after = _session(result)
    if after is None:
        return [Failure(OPTIMISED, "does not load")]
    for feeds, _, results in runs:
        found = _run(after, feeds)
        if found is None:
            return [Failure(OPTIMISED, "does not run")]
        for name, expected in results.items():
            if name not in found or not same(expected, found[name]):
                again = _run(session, feeds) or {}
                if same(expected, again.get(name)):
                    return [Failure(OPTIMISED, f"{name}: {_short(found.get(name))}, was {_short(expected)}")]
    return []


def _short(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return repr(value)[:80]
    return f"{value.dtype}{list(value.shape)} {' '.join(map(str, value.reshape(-1)[:12].tolist()))}"
