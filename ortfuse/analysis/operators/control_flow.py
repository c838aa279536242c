"""Control flow: If, Loop and Scan, whose bodies are graphs."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.ranges.queries import Asking, ranges
from ortfuse.analysis.ranges.range import Range, union
from ortfuse.analysis.transfer.transfer_function_registry import Op, Scopes, UnknownError, normalize_axis, transfer
from ortfuse.analysis.transfer.value_fact import NOTHING, UNKNOWN, Elements, Fact, Shape
from ortfuse.ir.dims import DimLike, is_positive, maximum
from ortfuse.ir.operator_registry import describe


@transfer("If")
def if_(op: Op) -> tuple[Fact, ...]:
    """The fact that both branches agree on; with a constant condition, only the branch that is taken counts."""
    branches = [op.graph("then_branch"), op.graph("else_branch")]
    for branch in branches:
        if op.analysis.enter(branch, op.node):
            op.analysis.run(branch)
    condition = op.integers(0)
    if condition is not None and isinstance(condition[0], int):
        branches = [branches[0 if condition[0] else 1]]
    outputs = [_outputs(op, branch) for branch in branches]
    return tuple([_join(list(facts)) for facts in zip(*outputs, strict=True)])


def _outputs(op: Op, graph: ir.Graph) -> list[Fact]:
    return [op.analysis.outward(op.analysis.fact(value), op.node.graph) for value in graph.outputs]


def _join(facts: list[Fact]) -> Fact:
    """The fact that holds for a value that is one of several."""
    first = facts[0]
    for other in facts[1:]:
        first = _common(first, other)
    return first


def _common(a: Fact, b: Fact) -> Fact:
    dtype = a.dtype if a.dtype == b.dtype else None
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return Fact(dtype)
    shape = tuple([x if x == y else UNKNOWN for x, y in zip(a.shape, b.shape, strict=True)])
    return Fact(dtype, shape, _common_elements(a, b) if a.shape == b.shape else None)


def _common_elements(a: Fact, b: Fact) -> Elements | None:
    left, right = a.elements(), b.elements()
    if left is None or right is None or a.dtype != b.dtype:
        return None
    return tuple([x if x == y else None for x, y in zip(left, right, strict=True)])


@ranges("If")
def if_range(op: Asking) -> Range | None:
    """The results of both branches, if the branches compute them themselves."""
    index = list(op.node.outputs).index(op.output)
    bodies = [op.attribute(name) for name in ("then_branch", "else_branch")]
    results = [body.outputs[index] for body in bodies]
    if any(value.graph is not body for value, body in zip(results, bodies, strict=True)):
        return None
    found = op.values.answers(op.question, results)
    return None if None in found else union(found)


@transfer("Loop")
def loop(op: Op) -> tuple[Fact, ...]:
    """The carried values as every iteration leaves them, and the stacked outputs of the iterations."""
    body = op.graph("body")
    analysis = op.analysis
    carried = len(body.inputs) - 2
    if analysis.enter(body, op.node):
        _set_counter(analysis, body.inputs[0], ir.DataType.INT64)
        # A body runs only while the condition is true.
        _set_counter(analysis, body.inputs[1], ir.DataType.BOOL, (1,))
        initial = [op.fact(index + 2) for index in range(carried)]
        _settle(analysis, body, list(body.inputs[2:]), list(body.outputs[1 : carried + 1]), initial)
    final = [analysis.outward(analysis.fact(value), op.node.graph) for value in body.inputs[2:]]
    rows = _trip_count(op, analysis.fact(body.outputs[0]))
    produced = _outputs(op, body)[carried + 1 :]
    if not is_positive(rows):
        # If there are no iterations, the runtime makes up the sizes of the stacked outputs.
        produced = [Fact(fact.dtype, None if fact.shape is None else (UNKNOWN,) * len(fact.shape)) for fact in produced]
    return tuple(final) + tuple([_stacked(fact, rows, 0) for fact in produced])


def _set_counter(analysis: Scopes, value: ir.Value, dtype: ir.DataType, elements: Elements | None = None) -> None:
    """The iteration number or condition: a scalar, or a vector of one element if the body declares one."""
    rank = 0 if value.shape is None else len(value.shape)
    analysis.assume(value, Fact(dtype, (1,) * rank, elements))


_PATIENT_DEPTH = 3
"""Loops nested deeper than this are run once with nothing assumed, because each round runs everything inside again."""


_PATIENT_ROUNDS = 3
"""Rounds in which only what a loop body changes is given up; after that, everything not yet stable is."""


def _settle(
    analysis: Scopes, body: ir.Graph, inputs: list[ir.Value], outputs: list[ir.Value], initial: list[Fact]
) -> None:
    """Find facts about the carried values that hold before and after every iteration.

    Start with those of the initial values, run the body, give up what an iteration changes, and repeat until nothing
    changes. Each round gives something up for good, so this terminates; where it takes too long, nothing is assumed.
    """
    assumed = [_Carried(fact) for fact in initial]
    stable = False
    rounds = 0
    most = 0 if _depth(analysis, body) > _PATIENT_DEPTH else _PATIENT_ROUNDS + 3 * len(inputs) + 3
    while not stable:
        if rounds >= most:
            analysis.facts.update(dict.fromkeys(inputs, NOTHING))
            analysis.run(body)
            return
        for value, carried in zip(inputs, assumed, strict=True):
            carried.fact = analysis.assume(value, carried.fact)
        analysis.run(body)
        results = [analysis.fact(value) for value in outputs]
        changes = [
            carried.give_up(result, everything=rounds >= _PATIENT_ROUNDS)
            for carried, result in zip(assumed, results, strict=True)
        ]
        stable = not any(changes)
        rounds += 1


class _Carried:
    """The assumption about one carried value; dimensions in `open` have been given up."""

    def __init__(self, fact: Fact) -> None:
        self.fact = Fact(fact.dtype, fact.shape, fact.elements())
        self.open: set[int] = set()

    def give_up(self, result: Fact, *, everything: bool) -> bool:
        """Weaken the assumption so that it also holds for `result`; returns whether that was necessary."""
        dtype = self.fact.dtype if self.fact.dtype == result.dtype else None
        shape = self._shape(result.shape, everything)
        elements = None
        if shape == self.fact.shape and dtype == result.dtype:
            elements = _common_elements(self.fact, result) if not everything else None
        weaker = Fact(dtype, shape, elements)
        changed = (weaker.dtype, weaker.shape, elements) != (self.fact.dtype, self.fact.shape, self.fact.elements())
        self.fact = weaker
        return changed

    def _shape(self, result: Shape | None, everything: bool) -> Shape | None:
        shape = self.fact.shape
        if shape is None or result is None or len(shape) != len(result):
            return None
        dims = list(shape)
        for axis, (dim, after) in enumerate(zip(shape, result, strict=True)):
            if axis not in self.open and dim != after:
                self.open.add(axis)
                dims[axis] = UNKNOWN
        if everything and dims != list(shape):
            self.open.update(range(len(dims)))
            dims = [UNKNOWN] * len(dims)
        return tuple(dims)


def _depth(analysis: Scopes, graph: ir.Graph | None) -> int:
    """The number of bodies that enclose the graph, including itself."""
    depth = 0
    while (owner := analysis.owner(graph)) is not None:
        graph, depth = owner.graph, depth + 1
    return depth


def _trip_count(op: Op, goes_on: Fact) -> DimLike:
    """The number of iterations, if the condition never ends the loop early."""
    limit = op.integers(0)
    endless = goes_on.constants() == (1,) and (not op.has(1) or op.integers(1) == (1,))
    if not endless or not limit or limit[0] is None:
        return UNKNOWN
    return maximum(0, limit[0])


def _stacked(fact: Fact, rows: DimLike, axis: int) -> Fact:
    if fact.shape is None:
        return Fact(fact.dtype)
    position = axis if axis >= 0 else axis + len(fact.shape) + 1
    return Fact(fact.dtype, (*fact.shape[:position], rows, *fact.shape[position:]))


@transfer("Scan")
def scan(op: Op) -> tuple[Fact, ...]:
    """A loop over slices of the scanned inputs (opset 9 and later)."""
    if op.version < 9:
        raise UnknownError
    body = op.graph("body")
    scanned = op.attr_int("num_scan_inputs", 0)
    states = len(op.inputs) - scanned
    in_axes = op.attr_ints("scan_input_axes") or (0,) * scanned
    out_axes = op.attr_ints("scan_output_axes") or (0,) * (len(body.outputs) - states)
    analysis = op.analysis
    if analysis.enter(body, op.node):
        for index, axis in enumerate(in_axes):
            analysis.assume(body.inputs[states + index], _without_axis(op.fact(states + index), axis))
        initial = [op.fact(index) for index in range(states)]
        _settle(analysis, body, list(body.inputs[:states]), list(body.outputs[:states]), initial)
    rows = _length(op.fact(states), in_axes[0]) if scanned else UNKNOWN
    final = [analysis.outward(analysis.fact(value), op.node.graph) for value in body.inputs[:states]]
    stacked = _outputs(op, body)[states:]
    return tuple(final) + tuple([_stacked(fact, rows, axis) for fact, axis in zip(stacked, out_axes, strict=True)])


def _without_axis(fact: Fact, axis: int) -> Fact:
    if fact.shape is None:
        return Fact(fact.dtype)
    position = normalize_axis(axis, len(fact.shape))
    return Fact(fact.dtype, fact.shape[:position] + fact.shape[position + 1 :])


def _length(fact: Fact, axis: int) -> DimLike:
    return UNKNOWN if fact is NOTHING or fact.shape is None else fact.shape[normalize_axis(axis, len(fact.shape))]


describe("Loop", size_operands=(0,))
