"""Find slow kernels: operators that this runtime executes much slower than an equivalent spelling.

    python -m benchmarks.kernels.slow_kernels --write

Spellings come from three sources: the table of identities, the bodies by which the standard defines operators, and the rules
of the catalogue, read in both directions. All spellings of one computation are run on the same inputs, checked to be equal,
and timed in turns, with the runtime's own optimisations on. A kernel is slow if its spelling takes `SLOW` times as long as the
fastest, by the least time of each, which a busy machine disturbs least; a finding counts if it is large and found at several
sizes. Then ortfuse optimises the slow spelling, and the result is timed in turns with both: its ratio is what is left.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import typer
from rich.console import Console
from rich.progress import track

from benchmarks.kernels.identities import ANY, IMAGES, identities
from benchmarks.kernels.layer_identities import layer_identities
from benchmarks.results import Results
from ortfuse.api.optimize import optimize
from ortfuse.errors import OrtfuseError
from ortfuse.pipeline import load_catalogue
from ortfuse.runtime.session import Session
from ortfuse.targets import Target
from ortfuse.targets.processor import processor_kind
from ortfuse.targets.rule_speedups import sizes_text
from ortfuse.verification.rule_tests.build_instances import Builder
from ortfuse.verification.rule_tests.run_instance import rewrite

SLOW = 1.5
"""From this ratio of times on a spelling is reported."""

LEVEL = 1.2
"""Up to this ratio of times the result is level with the fastest spelling."""

OPSET = 22
"""The version of ai.onnx that spellings are written in."""

FAR = 2e-3
"""The largest difference between results of two spellings, relative to the largest number."""

Model = onnx.ModelProto | ir.Model


@dataclass(frozen=True)
class Candidate:
    """Spellings of one computation, by what they are; made when they are needed, as they hold weights."""

    operator: str
    size: str
    source: str
    spellings: Mapping[str, Model]


@dataclass(frozen=True)
class Finding:
    """The times of one computation in its slowest and its fastest spelling."""

    operator: str
    size: str
    source: str
    ratio: float
    slow: str
    fast: str
    microseconds: Mapping[str, float]
    left: float | None = None
    """The time of the slow spelling after ortfuse over the time of the fast one; `None` if it was not optimised."""


def from_identities(only: str = "") -> Iterator[Candidate]:
    """The table of identities."""
    known = (*identities(), *layer_identities())
    for identity in [identity for identity in known if only in identity.operator.lower()]:
        models = {}
        for body in identity.spellings:
            text = (
                f'<ir_version: 10, opset_import: ["": {OPSET}, "com.microsoft": 1]> '
                f"g ({identity.inputs}) => (y) <{identity.constants}> {{ {body} }}"
            )
            models[body] = _with_weights(onnx.parser.parse_model(text))
        yield Candidate(identity.operator, identity.size, "identity", models)


def _with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The inputs that are not called x or c become constants, as the weights of a model are."""
    random = np.random.default_rng(1)
    for value in [value for value in model.graph.input if value.name not in ("x", "c")]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = (random.standard_normal(shape) / max(1, shape[0]) ** 0.5).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        model.graph.input.remove(value)
    return model


def from_bodies(only: str = "") -> Iterator[Candidate]:
    """Operators of one input that the standard defines by a body of others."""
    for schema in onnx.defs.get_all_schemas():
        single = schema.min_input == 1 and len(schema.outputs) == 1 and not schema.domain and not schema.deprecated
        required = any(attribute.required for attribute in schema.attributes.values())
        if not single or required or only not in schema.name.lower():
            continue
        for size in (*ANY, *IMAGES[1:2]):
            yield from _with_body(schema.name, size)


def _with_body(name: str, size: str) -> Iterator[Candidate]:
    """An operator with its attributes at their defaults, and the same as a function of the model, which the runtime inlines."""
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [int(dim) for dim in size.split(",")])
    node = onnx.helper.make_node(name, ["x"], ["y"])
    body = _body(node, kind)
    if body is None:
        return
    plain = _model([node], kind)
    body.domain, body.name = "spelled", name
    call = onnx.helper.make_node(name, ["x"], ["y"], domain="spelled")
    for key, attribute in onnx.defs.get_schema(name, OPSET).attributes.items():
        if key in body.attribute and attribute.default_value.name:
            call.attribute.append(attribute.default_value)
    yield Candidate(name, size, "body", {name: plain, "its body": _model([call], kind, body)})


def _body(node: onnx.NodeProto, kind: onnx.TypeProto) -> onnx.FunctionProto | None:
    """The function that defines an operator; `None` if there is none."""
    try:
        schema = onnx.defs.get_schema(node.op_type, OPSET)
    except onnx.defs.SchemaError:
        return None
    if schema.has_context_dependent_function:
        types = [kind.SerializeToString()]
        made = schema.get_context_dependent_function_with_opset_version(OPSET, node.SerializeToString(), types)
        return onnx.FunctionProto.FromString(made) if made else None
    return schema.function_body if schema.has_function else None


def _model(nodes: list[onnx.NodeProto], kind: onnx.TypeProto, *functions: onnx.FunctionProto) -> onnx.ModelProto:
    graph = onnx.helper.make_graph(
        nodes, "g", [onnx.helper.make_value_info("x", kind)], [onnx.helper.make_empty_tensor_value_info("y")]
    )
    imports = {
        "": OPSET,
        **{key.domain: key.version or 1 for function in functions for key in function.opset_import if key.domain},
    }
    if functions:
        imports["spelled"] = 1
    return onnx.helper.make_model(
        graph,
        functions=functions,
        opset_imports=[onnx.helper.make_opsetid(*item) for item in imports.items()],
        ir_version=10,
    )


def from_rules(only: str = "") -> Iterator[Candidate]:
    """Both sides of each rule that names typical sizes."""
    for rule in [rule for rule in load_catalogue([]).rules() if only in rule.name]:
        for number, typical in enumerate(rule.test.typical):
            instance = Builder(rule, number, ir.DataType.FLOAT, rule.test.opset or 23, typical=True).instance()
            rewritten = rewrite(rule, instance.model, Target())
            if not rewritten.hits or rewritten.error:
                continue
            for model in (instance.model, rewritten.model):
                for name in [name for name, value in model.graph.initializers.items() if not value.uses()]:
                    del model.graph.initializers[name]
            name, text = next(item for item in typical.items() if isinstance(item[1], str))
            first = {name: tuple(int(dim) for dim in text.split())}
            made = " ".join(node.op_type for node in rewritten.model.graph)
            yield Candidate(rule.name, sizes_text(first), "rule", {rule.formula: instance.model, made: rewritten.model})


def measure(candidate: Candidate, rounds: int, threads: int) -> Finding | None:
    """Time the spellings in turns; `None` if fewer than two run and agree."""
    sessions: dict[str, Session] = {}
    feeds: dict[str, Any] | None = None
    wanted: Any = None
    for text, model in candidate.spellings.items():
        try:
            session = _session(model, threads)
            feeds = feeds or _inputs(model)
            found = next(iter(session.run(feeds).values()))
        except OrtfuseError:
            continue
        wanted = found if wanted is None else wanted
        if _agree(wanted, found):
            sessions[text] = session
    if len(sessions) < 2 or feeds is None:
        return None
    least = _least_times(sessions, feeds, rounds)
    slow, fast = max(least, key=lambda text: least[text]), min(least, key=lambda text: least[text])
    rounded = {text: round(1e6 * value, 1) for text, value in least.items()}
    ratio = round(least[slow] / least[fast], 2)
    left = None
    if ratio >= SLOW:
        made = _session(optimize(candidate.spellings[slow]).model, threads)
        again = _least_times({"slow": sessions[slow], "made": made, "fast": sessions[fast]}, feeds, rounds)
        left = round(again["made"] / again["fast"], 2)
    return Finding(candidate.operator, candidate.size, candidate.source, ratio, slow, fast, rounded, left)


def _least_times(sessions: Mapping[str, Session], feeds: Mapping[str, Any], rounds: int) -> dict[str, float]:
    """The least time of each session in seconds, run in turns that each starts once."""
    times: dict[str, list[float]] = {text: [] for text in sessions}
    names = list(sessions)
    for index in range(rounds):
        for text in names[index % len(names) :] + names[: index % len(names)]:
            times[text].append(_time(sessions[text], feeds))
    return {text: min(values) for text, values in times.items()}


def _session(model: Model, threads: int) -> Session:
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return Session(source, threads=threads, isolated=False)


def _inputs(model: Model) -> dict[str, Any]:
    """Numbers for the inputs, the same for all spellings."""
    graph = model.graph if isinstance(model, onnx.ModelProto) else ir.to_proto(model).graph
    random = np.random.default_rng(0)
    held = {tensor.name for tensor in graph.initializer}
    made: dict[str, Any] = {}
    for value in graph.input:
        if value.name not in held:
            kind = value.type.tensor_type
            shape = [dim.dim_value or 1 for dim in kind.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            floating = np.issubdtype(dtype, np.floating)
            made[value.name] = (random.standard_normal(shape) if floating else random.integers(0, 2, shape)).astype(
                dtype
            )
    return made


def _agree(one: Any, other: Any) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    finite = np.isfinite(one) & np.isfinite(other)
    scale = float(np.abs(one[finite]).max(initial=1e-6))
    near = np.abs(one[finite] - other[finite]).max(initial=0.0) <= FAR * scale
    return bool(near and np.array_equal(np.isfinite(one), np.isfinite(other)))


def _time(session: Session, feeds: dict[str, Any]) -> float:
    session.run(feeds)
    started = time.perf_counter()
    for _ in range(3):
        session.run(feeds)
    return (time.perf_counter() - started) / 3


def main(
    only: Annotated[str, typer.Argument(help="Operators or rules whose name contains this.")] = "",
    rounds: int = 30,
    threads: int = 2,
    write: Annotated[bool, typer.Option(help="Write the summary.")] = False,
) -> None:
    """Measure all candidates, print the slow kernels, slowest first."""
    if only and write:
        raise typer.BadParameter("the summary is about all operators; leave out --write or the name")
    measured = []
    for source in (from_identities, from_bodies, from_rules):
        for candidate in track(source(only.lower()), f"Measuring, {source.__name__.replace('_', ' ')}"):
            measured.append(measure(candidate, rounds, threads))
    found = sorted((one for one in measured if one is not None), key=lambda one: -one.ratio)
    slow = [one for one in found if one.ratio >= SLOW]
    console = Console(width=180)
    for one in slow:
        console.print(
            f"{one.ratio:6.2f} -> {one.left}  {one.operator} {one.size} ({one.source}): {one.slow}  >  {one.fast}",
            markup=False,
        )
    rows = [asdict(one) for one in slow]
    level = len(slow) - len(still_slow(rows))
    console.print(
        f"{len(measured)} computations, {len(found)} in spellings that agree, {len(slow)} slow, "
        f"{level} of them level after ortfuse"
    )
    if write:
        command = f"python -m benchmarks.kernels.slow_kernels --rounds {rounds} --threads {threads} --write"
        counts = {"threads": threads, "computations": len(measured), "measured": len(found)}
        Results("kernels.slow_kernels", processor=processor_kind()).store(
            command, {**counts, **brief(rows)}, raw={"slow": rows}
        )


def brief(slow: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the summary: the number of slow kernels, and operator by operator those that the result still has.

    Of each operator the slowest size is listed, with the ratio of the times before and after ortfuse.
    """
    left = still_slow(slow)
    slowest: dict[str, list[Any]] = {}
    for one in sorted(left, key=lambda one: -one["ratio"]):
        slowest.setdefault(one["operator"], [one["size"], one["ratio"], one["left"]])
    return {"slow kernels": len(slow), "level after ortfuse": len(slow) - len(left), "left": slowest}


def still_slow(slow: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the findings that ortfuse does not bring to the level of the fastest spelling."""
    return [one for one in slow if one["left"] is None or one["left"] >= LEVEL]


if __name__ == "__main__":
    typer.run(main)
