"""Random control flow: If, Loop and Scan, nested in each other, optimised and compared at several sizes.

    python -m benchmarks.trust.control --count 300 --write

Bodies capture outer values. Trip counts are known, given, zero or decided by the condition; loops end early, carry tensors that
grow, lists and optional values, and stack scan outputs. Each result is checked by ONNX, loaded and compared with the original at
all sizes at which that runs.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Annotated, Any

import numpy as np
import onnx
import onnx_ir as ir
import typer

import ortfuse
from benchmarks.results import Results
from ortfuse.errors import OrtfuseError
from ortfuse.runtime.session import Session

TYPES = {
    "number": "float",
    "vector": "float[n]",
    "matrix": "float[m, n]",
    "open": "float[?]",
    "rows": "float[?, n]",
    "count": "int64",
    "truth": "bool",
    "list": "seq(float[n])",
    "maybe": "optional(float[n])",
}
"""The kinds of values, with their types."""

FEEDS = ((3, 2, 2, True), (1, 1, 0, False), (2, 4, 5, True), (4, 3, 1, False))
"""Sizes m and n, the trip count, and a condition."""

_ABSENT, _NOTHING = "absent", "Nothing"
"""Stand in the text for an operand that is left out, and for an Optional without an element."""

_DEEPEST, _TOLERANCE = 2, 1e-4


class NoneError(Exception):
    """There is no operand of the kind that is needed."""


class Writer:
    """Writes the nodes of a graph; what is written outside of it can be used in it."""

    def __init__(self, choose: random.Random, names: count[int], outer: Writer | None = None) -> None:
        self.choose, self.names, self.outer = choose, names, outer
        self.depth = 0 if outer is None else outer.depth + 1
        self.lines: list[str] = []
        self.values: list[tuple[str, str]] = [] if outer is None else list(outer.values)

    def name(self) -> str:
        """A name that nothing else has."""
        return f"v{next(self.names)}"

    def put(self, kind: str, text: str) -> str:
        """Write a node with a result of a kind."""
        made = self.name()
        self.lines.append(f"{made} = {text}")
        self.values.append((made, kind))
        return made

    def some(self, kind: str) -> str:
        """A value of a kind, the latest ones more often."""
        found = [name for name, own in self.values if own == kind]
        if not found:
            raise NoneError(kind)
        return self.choose.choice(found[-3:] if self.choose.random() < 0.6 else found)

    def any_of(self, *kinds: str) -> tuple[str, str]:
        """A value of one of the kinds, and the kind."""
        kind = self.choose.choice(kinds)
        return self.some(kind), kind

    def number(self, *numbers: float) -> str:
        """A constant, one of these numbers."""
        return self.put("number", f"Constant<value_float = {float(self.choose.choice(numbers))}>()")

    def integer(self, *numbers: int) -> str:
        """A constant, one of these integers."""
        return self.put("count", f"Constant<value_int = {self.choose.choice(numbers)}>()")

    def grow(self, most: int) -> None:
        """Write some nodes."""
        for _ in range(self.choose.randint(0, most)):
            written, known = len(self.lines), len(self.values)
            try:
                makers = _CALLS if self.depth < _DEEPEST and self.choose.random() < 0.3 else _PLAIN
                self.choose.choice(makers)(self)
            except NoneError:
                del self.lines[written:], self.values[known:]

    def body(self, label: str, formal: Sequence[tuple[str, str]], results: Sequence[tuple[str, str]]) -> str:
        """This graph as the text of an attribute."""
        given, made = (", ".join(f"{TYPES[kind]} {name}" for name, kind in values) for values in (formal, results))
        return f"{label} = {self.name()} ({given}) => ({made}) {{ {' '.join(self.lines)} }}"


def _alike(w: Writer) -> None:
    value, kind = w.any_of("number", "vector", "vector", "matrix", "open", "rows")
    w.put(kind, f"{w.choose.choice(['Tanh', 'Neg', 'Relu', 'Sigmoid', 'Identity'])}({value})")


def _both(w: Writer) -> None:
    one, kind = w.any_of("number", "vector", "vector", "matrix", "count")
    name = w.choose.choice(["Add", "Sub", "Mul", "Max"] if kind != "count" else ["Add", "Max"])
    w.put(kind, f"{name}({one}, {w.some(kind)})")


def _scaled(w: Writer) -> None:
    value, kind = w.any_of("vector", "matrix", "open", "rows")
    w.put(kind, f"{w.choose.choice(['Mul', 'Add'])}({value}, {w.number(0.5, -1, 0, 2)})")


def _summed(w: Writer) -> None:
    w.put("number", f"ReduceSum<keepdims = 0>({w.any_of('vector', 'matrix', 'open', 'rows')[0]})")


def _column(w: Writer) -> None:
    w.put("vector", f"ReduceSum<keepdims = 0>({w.any_of('matrix', 'rows')[0]}, zero)")


def _row(w: Writer) -> None:
    w.put("vector", f"Gather({w.any_of('matrix', 'rows')[0]}, {w.some('count')})")


def _grown(w: Writer) -> None:
    if w.choose.random() < 0.5:
        w.put("open", f"Concat<axis = 0>({w.any_of('open', 'vector')[0]}, {w.some('vector')})")
    else:
        row = w.put("rows", f"Unsqueeze({w.some('vector')}, zero)")
        w.put("rows", f"Concat<axis = 0>({w.any_of('rows', 'matrix')[0]}, {row})")


def _sized(w: Writer) -> None:
    value = w.any_of("vector", "matrix", "open", "rows")[0]
    w.put("count", f"SequenceLength({w.some('list')})" if w.choose.random() < 0.3 else f"Size({value})")


def _compared(w: Writer) -> None:
    if w.choose.random() < 0.5:
        w.put("truth", f"Less({w.some('number')}, {w.number(0, 1, 3)})")
    else:
        w.put("truth", f"{w.choose.choice(['Less', 'Equal'])}({w.some('count')}, {w.integer(0, 1, 2, 3)})")


def _negated(w: Writer) -> None:
    one = w.some("truth")
    w.put("truth", w.choose.choice([f"Not({one})", f"And({one}, {w.some('truth')})", f"Or({one}, {w.some('truth')})"]))


def _listed(w: Writer) -> None:
    one, other = w.some("vector"), w.some("vector")
    texts = [
        f"SequenceConstruct({one}, {other})",
        "SequenceEmpty()",
        f"SplitToSequence<keepdims = 0>({w.some('matrix')})",
    ]
    w.put("list", w.choose.choice(texts))


def _relisted(w: Writer) -> None:
    held, one, place = w.some("list"), w.some("vector"), w.integer(0, -1, 1)
    texts = [
        f"SequenceInsert({held}, {one})",
        f"SequenceInsert({held}, {one}, {place})",
        f"SequenceErase({held}, {place})",
    ]
    w.put("list", w.choose.choice(texts))


def _taken(w: Writer) -> None:
    held = w.some("list")
    if w.choose.random() < 0.5:
        w.put("vector", f"SequenceAt({held}, {w.choose.choice([w.integer(0, -1, 1), w.some('count')])})")
    else:
        w.put("rows", f"ConcatFromSequence<axis = 0, new_axis = 1>({held})")


def _optional(w: Writer) -> None:
    w.put("maybe", f"Optional({w.some('vector')})" if w.choose.random() < 0.6 else f"{_NOTHING}()")


def _given(w: Writer) -> None:
    held, condition, result, other = w.some("maybe"), w.name(), w.name(), w.name()
    w.lines.append(f"{condition} = OptionalHasElement({held})")
    then = f"then_branch = {w.name()} () => (float[n] {result}) {{ {result} = OptionalGetElement({held}) }}"
    default = f"else_branch = {w.name()} () => (float[n] {other}) {{ {other} = Neg({w.some('vector')}) }}"
    w.values.append((condition, "truth"))
    w.put("vector", f"If<{then}, {default}>({condition})")


def _branch(w: Writer) -> None:
    condition = w.some("truth")
    kinds = [
        w.any_of("number", "vector", "matrix", "open", "list", "truth", "maybe")[1]
        for _ in range(w.choose.randint(1, 2))
    ]
    bodies = []
    for label in ("then_branch", "else_branch"):
        inner = Writer(w.choose, w.names, w)
        inner.grow(4)
        bodies.append(inner.body(label, [], _results(inner, kinds)))
    _call(w, kinds, f"If<{', '.join(bodies)}>({condition})")


def _results(w: Writer, kinds: Sequence[str]) -> list[tuple[str, str]]:
    """Values of the kinds, each with a name of its own."""
    return [(w.put(kind, f"Identity({w.some(kind)})"), kind) for kind in kinds]


def _call(w: Writer, kinds: Sequence[str], text: str) -> None:
    made = [w.name() for _ in kinds]
    w.lines.append(f"{', '.join(made)} = {text}")
    w.values += zip(made, kinds, strict=True)


_STACKS = {"number": "open", "vector": "rows"}


def _loop(w: Writer) -> None:
    states = [
        w.any_of("number", "vector", "matrix", "open", "rows", "count", "list", "maybe")
        for _ in range(w.choose.randint(0, 3))
    ]
    inner = Writer(w.choose, w.names, w)
    formal = [(w.name(), kind) for _, kind in states]
    run, go = w.name(), w.name()
    inner.values += [(run, "count"), (go, "truth"), *formal]
    if w.choose.random() < 0.4:
        inner.put("vector", f"Gather({inner.any_of('matrix', 'rows')[0]}, {run})")
    inner.grow(5)
    limit = w.choose.choice([_ABSENT, w.integer(0, 1, 2, 3, 9), "runs", "length", w.some("count")])
    limited = inner.put("truth", f"Less({run}, {inner.integer(1, 2, 4)})")
    others = [go, go, inner.some("truth"), limited]
    goes_on = inner.put("truth", f"Identity({limited if limit == _ABSENT else w.choose.choice(others)})")
    stacked = [w.choose.choice([*_STACKS]) for _ in range(w.choose.randint(0 if states else 1, 2))]
    results = _results(inner, [*(kind for _, kind in states), *stacked])
    body = inner.body("body", [(run, "count"), (go, "truth"), *formal], [(goes_on, "truth"), *results])
    begins = w.choose.choice(["yes", "yes", _ABSENT, w.some("truth")])
    operands = ", ".join([limit, begins, *(name for name, _ in states)])
    _call(w, [*(kind for _, kind in states), *(_STACKS[kind] for kind in stacked)], f"Loop<{body}>({operands})")


def _scan(w: Writer) -> None:
    scanned = [w.some("matrix") for _ in range(w.choose.randint(1, 2))]
    states = [w.any_of("number", "vector", "vector", "matrix", "count") for _ in range(w.choose.randint(0, 2))]
    inner = Writer(w.choose, w.names, w)
    formal = [*((w.name(), kind) for _, kind in states), *((w.name(), "vector") for _ in scanned)]
    inner.values += formal
    inner.grow(5)
    stacked = [w.choose.choice([*_STACKS]) for _ in range(w.choose.randint(0 if states else 1, 2))]
    body = inner.body("body", formal, _results(inner, [*(kind for _, kind in states), *stacked]))
    options = [
        f"num_scan_inputs = {len(scanned)}",
        body,
        f"scan_input_directions = [{', '.join('01'[w.depth % 2] for _ in scanned)}]",
    ]
    operands = ", ".join([*(name for name, _ in states), *scanned])
    _call(
        w,
        [*(kind for _, kind in states), *(_STACKS[kind] for kind in stacked)],
        f"Scan<{', '.join(options)}>({operands})",
    )


_PLAIN: Sequence[Callable[[Writer], None]] = (
    _alike, _alike, _both, _both, _both, _scaled, _summed, _column, _row, _grown, _sized, _compared, _negated,
    _listed, _relisted, _taken, _optional, _given,
)  # fmt: skip
_CALLS: Sequence[Callable[[Writer], None]] = (_branch, _loop, _loop, _loop, _scan)


def model(seed: int) -> onnx.ModelProto:
    """A random model; some are refused by the runtime."""
    choose = random.Random(seed)
    w = Writer(choose, count())
    w.values += [("x", "vector"), ("w", "vector"), ("X", "matrix"), ("runs", "count"), ("c", "truth"), ("yes", "truth")]
    w.put("number", "ReduceSum<keepdims = 0>(x)")
    w.put("list", "SequenceConstruct(x)")
    w.put("rows", "Identity(X)")
    w.put("open", "Identity(w)")
    w.put("maybe", "Optional(x)")
    w.lines.append("shape = Shape(X)")
    w.lines.append("length = Gather(shape, first)")
    w.values.append(("length", "count"))
    while not any(line.split(" = ")[1].startswith(("If<", "Loop<", "Scan<")) for line in w.lines):
        w.grow(8)
    made = [(name, kind) for name, kind in w.values if name.startswith("v") and kind != "maybe"]
    used = choose.sample(made[5:], min(len(made) - 5, choose.randint(1, 4)))
    outputs = ", ".join(f"{TYPES[kind]} {name}" for name, kind in used)
    found = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {choose.choice([16, 17, 18])}]>'
        f" g (float[n] x, float[n] w, float[m, n] X, int64 runs, bool c) => ({outputs})"
        f" <bool yes = {{1}}, int64[1] zero = {{0}}, int64 first = {{0}}> {{ {' '.join(w.lines)} }}"
    )
    _restore(found.graph)
    return found


def _restore(graph: onnx.GraphProto) -> None:
    """Write what the text has stand-ins for."""
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ["n"])
    for node in graph.node:
        node.input[:] = ["" if name == _ABSENT else name for name in node.input]
        if node.op_type == _NOTHING:
            node.CopyFrom(onnx.helper.make_node("Optional", [], node.output, type=kind))
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _restore(attribute.g)


def inputs(seed: int, m: int, n: int, runs: int, condition: bool) -> Mapping[str, Any]:
    """Random inputs of these sizes."""
    draw = np.random.default_rng(seed)
    numbers = {
        name: draw.standard_normal(shape).astype(np.float32) for name, shape in (("x", n), ("w", n), ("X", (m, n)))
    }
    return {**numbers, "runs": np.array(runs), "c": np.array(condition)}


def tried(seed: int) -> tuple[str, Counter[str]]:
    """Return `same`, `not run` by the runtime, or the failure of a model; and how often each rule was applied."""
    original = model(seed)
    ran = []
    try:
        session = Session(ir.from_proto(original), optimise=False, threads=1)
        for feed in FEEDS:
            given = inputs(seed, *feed)
            try:
                ran.append((given, session.run(given)))
            except OrtfuseError:
                continue
    except (OrtfuseError, ValueError):
        return "not run", Counter()
    if not ran:
        return "not run", Counter()
    result = ortfuse.optimize(original)
    hits = Counter(result.report.log.hits())
    if result.unchanged or result.report.failures:
        return f"left alone: {result.unchanged} {result.report.failures}", hits
    onnx.checker.check_model(result.model, full_check=True)
    session = Session(ir.from_proto(result.model), threads=1)
    for given, expected in ran:
        for (name, one), other in zip(expected.items(), session.run(given).values(), strict=True):
            if not _same(one, other):
                return f"wrong: {name} of m, n = {given['X'].shape}, {given['runs']} runs, {given['c']}", hits
    return "same", hits


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one.shape == other.shape and np.allclose(one, other, _TOLERANCE, _TOLERANCE, equal_nan=True)


def main(
    number: Annotated[int, typer.Option("--count", help="Models that the runtime executes.")] = 300,
    first: Annotated[int, typer.Option("--seed", help="The seed of the first.")] = 0,
    write: Annotated[bool, typer.Option(help="Whether to store the figures.")] = False,
) -> None:
    """Print the failures; the exit code is 1 if there is one."""
    started, wrong, executed, tries = time.perf_counter(), {}, 0, 0
    hits: Counter[str] = Counter()
    while executed < number:
        seed = first + tries
        tries += 1
        try:
            outcome, found = tried(seed)
        except Exception as error:
            outcome, found = f"{type(error).__name__}: {error}", Counter()
        executed += outcome != "not run"
        hits += found
        if outcome not in ("same", "not run"):
            wrong[seed] = outcome
            print(f"{seed}: {outcome[:300]}", flush=True)
    if write:
        figures = {
            "tried": tries,
            "executed by the runtime": executed,
            "changed by rules": len(hits),
            "wrong": {str(seed): outcome[:200] for seed, outcome in wrong.items()},
            "seconds": round(time.perf_counter() - started),
        }
        command = f"python -m benchmarks.trust.control --count {number} --seed {first} --write"
        Results("trust.control").store(command, figures, raw={"changed by": dict(hits.most_common()), "wrong": wrong})
    print(f"{tries} tried, {executed} executed, {len(wrong)} wrong")
    raise typer.Exit(1 if wrong else 0)


if __name__ == "__main__":
    typer.run(main)
