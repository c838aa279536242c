"""Coverage of a run: executed bodies, taken branches, and sides of Where, Clip, Min and Max that were seen.

A copy of the model is instrumented with *coverage points*, truth values that tell whether something happened in a run:

- **Branches**: the condition of an If was true, or false.
- **Bodies**: the body of a Loop or Scan ran, and ran more than once.
- **Sides**: a condition of a Where was true, or false, for some element; Clip, Max or Min took one operand, or the other.
- **Counts**: a computed operand of Tile, TopK, OneHot, Expand or ConstantOfShape was larger than 1, a Range had several numbers.
- **Selections**: NonZero, Compress, Unique or NonMaxSuppression found something.

Points inside the bodies of control flow become outputs of the nodes that have the bodies: a scan output of a Loop or Scan, and an
output of both branches of an If.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import VerificationError
from ortfuse.ir import walk
from ortfuse.ir.inlinable_functions import looked_into
from ortfuse.runtime.session import Session

PREFIX = "ortfuse.coverage."
"""The first part of the names of everything that is inserted."""

_OLDEST = 9
"""The oldest opset whose operators are the ones that points are made of."""

_MOST_SIDES = 2_000
"""Models with more nodes that have sides are covered in all else."""

_COMPARABLE = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64})
"""The types that the runtime compares; others are cast to float32 first."""

_COUNTS: Mapping[str, int] = {"Tile": 1, "TopK": 1, "OneHot": 1, "Expand": 1, "ConstantOfShape": 0}
"""Operators whose results are as large as the elements of an operand say, and its position."""

_SELECTIONS = frozenset({"NonZero", "Compress", "Unique", "NonMaxSuppression"})
_SIDES = frozenset({"Where", "Clip", "Max", "Min"})
_CHOICES = frozenset({"If", "Loop", "Scan", "Range", *_COUNTS, *_SELECTIONS, *_SIDES})

_OF_SCAN_OUTPUTS = ("scan_output_axes", "scan_output_directions")
"""The attributes of a Scan with a number for each scan output."""

_PAIR = 2


class Kind(Enum):
    """The kinds of points."""

    BRANCH = "branch"
    BODY = "body"
    SIDE = "side"
    COUNT = "count"
    SELECTION = "selection"


@dataclass(frozen=True)
class Point:
    """Something that may happen in a run.

    Attributes:
        kind: Its kind.
        node: The node that it is about, as messages refer to it.
        missing: A clause for when it never happens, as in `If node 'a' never took its then branch`.
    """

    kind: Kind
    node: str
    missing: str

    def text(self) -> str:
        """The remark if it never happened."""
        return f"{self.node} {self.missing}"


class Coverage:
    """The coverage points of a model, and which of them a run reaches.

    Attributes:
        points: The points; empty if there are none, or if the model cannot be instrumented.
    """

    def __init__(self, model: ir.Model) -> None:
        self.points: tuple[Point, ...] = ()
        self._session: Session | None = None
        flat = looked_into(model)
        if flat.functions or flat.graph.opset_imports.get("", 1) < _OLDEST or not _has_choices(flat):
            return
        self._model = flat.clone() if flat is model else flat
        found = _Instrumenter(self._model).run()
        self.points = tuple(point for point, _ in found)
        self._model.graph.outputs[:] = [value for _, value in found]

    def reached(self, inputs: Mapping[str, Any], limit: float | None = None) -> frozenset[int] | None:
        """The numbers of the points that a run reaches; `None` if the model does not run on the inputs.

        Args:
            inputs: Arrays by name.
            limit: Seconds after which the run is given up; `None` for the usual limit.
        """
        if not self.points:
            return frozenset()
        if self._session is None:
            try:
                self._session = Session(self._model, optimise=False, lean=True)
            except VerificationError:  # the runtime does not load every instrumented model
                self.points = ()
                return frozenset()
        try:
            found = self._session.run(inputs, limit=limit)
        except VerificationError:
            return None
        return frozenset(number for number, array in enumerate(found.values()) if np.any(array))


def _has_choices(model: ir.Model) -> bool:
    return any(node.op_type in _CHOICES and not node.domain for node in walk.nodes(model))


class _Instrumenter:
    """Insert the points into a model, in place."""

    def __init__(self, model: ir.Model) -> None:
        self._model, self._facts = model, Facts(model)
        self._numbers = itertools.count()
        sides = sum(node.op_type in _SIDES and not node.domain for node in walk.nodes(model))
        self._kinds = _CHOICES if sides <= _MOST_SIDES else _CHOICES - _SIDES

    def run(self) -> list[tuple[Point, ir.Value]]:
        """The points of the model, each with a value of the main graph that has a true element if it was reached."""
        return self._of_graph(self._model.graph)

    def _of_graph(self, graph: ir.Graph) -> list[tuple[Point, ir.Value]]:
        found: list[tuple[Point, ir.Value]] = []
        for node in list(graph):
            if node.domain or node.op_type not in self._kinds:
                continue
            if node.op_type == "If":
                found += self._of_if(node)
            elif node.op_type in ("Loop", "Scan"):
                found += self._of_loop(node)
            else:
                made = _Maker(graph, node, self._numbers, self._facts)
                found += [(Point(kind, walk.describe(node), missing), value) for kind, missing, value in made.points()]
        return found

    def _of_if(self, node: ir.Node) -> list[tuple[Point, ir.Value]]:
        assert node.graph is not None
        make, condition, name = (
            _Maker(node.graph, node, self._numbers, self._facts),
            node.inputs[0],
            walk.describe(node),
        )
        known = self._facts.scalar(condition)  # of sizes, say: the other branch cannot be taken
        found = []
        if condition is not None and known is None:
            other = make.add("Not", [condition])
            found.append((Point(Kind.BRANCH, name, "never took its then branch"), make.truth(condition)))
            found.append((Point(Kind.BRANCH, name, "never took its else branch"), make.truth(other)))
        branches = walk.branches(node)
        for taken, branch in branches.items():
            if known is not None and taken != bool(known):
                continue
            for point, value in self._of_graph(branch):
                self._let_out(branch, value)
                self._let_out(branches[not taken], None)
                found.append((point, self._another_output(node)))
        return found

    def _of_loop(self, node: ir.Node) -> list[tuple[Point, ir.Value]]:
        """Points of a Loop or Scan: how often its body ran, and those inside."""
        assert node.graph is not None
        body, name = node.attributes["body"].as_graph(), walk.describe(node)
        inside = [(point, value) for point, value in self._of_graph(body)]
        self._let_out(body, None, truth=True)
        ran = self._another_output(node)
        found = []
        for point, value in inside:
            self._let_out(body, value)
            found.append((point, self._another_output(node)))
        make = _Maker(node.graph, node, self._numbers, self._facts, after=True)
        count = make.count(ran)
        more = make.add("Greater", [count, make.constant(np.int64(1))])
        points = [
            (Point(Kind.BODY, name, "never ran its body"), make.add("Cast", [count], to=ir.DataType.BOOL)),
            (Point(Kind.BODY, name, "never ran its body more than once"), more),
        ]
        return [*points, *((point, make.truth(value)) for point, value in found)]

    def _let_out(self, body: ir.Graph, value: ir.Value | None, *, truth: bool = False) -> None:
        """Add an output to a body: a truth value, or a constant in its place."""
        if value is None:
            node = ir.node("Constant", [], {"value": ir.tensor(np.asarray(truth))})
        else:
            node = ir.node("Identity", [value])
        body.append(node)
        _declare(node.outputs[0], self._numbers)
        body.outputs.append(node.outputs[0])

    def _another_output(self, node: ir.Node) -> ir.Value:
        node.resize_outputs(len(node.outputs) + 1)
        for name in _OF_SCAN_OUTPUTS:
            if (given := node.attributes.get(name)) is not None:
                node.attributes[name] = ir.AttrInt64s(name, [*given.as_ints(), 0])
        made = node.outputs[-1]
        made.name, made.type = f"{PREFIX}{next(self._numbers)}", ir.TensorType(ir.DataType.BOOL)
        return made


def _declare(value: ir.Value, numbers: Iterable[int]) -> None:
    value.name = f"{PREFIX}{next(iter(numbers))}"
    value.type, value.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape(())


class _Maker:
    """Make nodes beside a node: before it, or after it and all that was made before."""

    def __init__(
        self, graph: ir.Graph, node: ir.Node, numbers: Iterable[int], facts: Facts, *, after: bool = False
    ) -> None:
        self._graph, self._node, self._numbers, self._facts = graph, node, numbers, facts
        self._last = node if after else None

    def add(self, op_type: str, inputs: list[ir.Value], **attributes: Any) -> ir.Value:
        """The result of another node."""
        attributes = {name: int(one) if isinstance(one, ir.DataType) else one for name, one in attributes.items()}
        made = ir.node(op_type, inputs, attributes)
        if self._last is None:
            self._graph.insert_before(self._node, made)
        else:
            self._graph.insert_after(self._last, made)
            self._last = made
        made.outputs[0].name = f"{PREFIX}{next(iter(self._numbers))}"
        return made.outputs[0]

    def constant(self, value: Any) -> ir.Value:
        """A constant."""
        return self.add("Constant", [], value=ir.tensor(np.asarray(value)))

    def count(self, value: ir.Value) -> ir.Value:
        """The number of true elements of a boolean tensor; 0 for an empty one."""
        return self.add("ReduceSum", [self.add("Cast", [value], to=ir.DataType.INT64)], keepdims=0)

    def truth(self, value: ir.Value) -> ir.Value:
        """Whether any element of a boolean tensor is true."""
        return self.add("Cast", [self.count(value)], to=ir.DataType.BOOL)

    def points(self) -> list[tuple[Kind, str, ir.Value]]:
        """The points of the node: kind, what is said if one is never reached, and the value that tells."""
        node = self._node
        if node.op_type in _SELECTIONS or node.op_type == "Range":
            return self._of_result()
        if node.op_type in _COUNTS:
            return self._of_count(node.inputs[_COUNTS[node.op_type]])
        if node.op_type == "Where":
            condition = node.inputs[0]
            if condition is None or self._facts.is_const(condition):
                return []
            other = self.add("Not", [condition])
            return [
                (Kind.SIDE, "never took its first value", self.truth(condition)),
                (Kind.SIDE, "never took its second value", self.truth(other)),
            ]
        if node.op_type == "Clip":
            return self._of_clip()
        return self._of_extremum()

    def _of_result(self) -> list[tuple[Kind, str, ir.Value]]:
        """Whether the node's result has elements; for a Range, several."""
        self._last = self._node
        size = self.add("Size", [self._node.outputs[0]])
        if self._node.op_type == "Range":
            if all(one is not None and self._facts.is_const(one) for one in self._node.inputs):
                return []
            more = self.add("Greater", [size, self.constant(np.int64(1))])
            return [(Kind.COUNT, "never had more than one number", more)]
        return [(Kind.SELECTION, "never selected anything", self.add("Cast", [size], to=ir.DataType.BOOL))]

    def _of_count(self, operand: ir.Value | None) -> list[tuple[Kind, str, ir.Value]]:
        if operand is None or self._facts.ints(operand) is not None:
            return []
        wide = self.add("Cast", [operand], to=ir.DataType.INT64)
        more = self.add("Greater", [wide, self.constant(np.int64(1))])
        return [(Kind.COUNT, "never had a size above 1", self.truth(more))]

    def _of_clip(self) -> list[tuple[Kind, str, ir.Value]]:
        given = self._node.inputs
        low, high = (given[number] if len(given) > number else None for number in (1, 2))
        for name in ("min", "max"):
            attribute = self._node.attributes.get(name)
            if attribute is not None and not attribute.is_ref():
                made = self.constant(np.float32(attribute.as_float()))
                low, high = (made, high) if name == "min" else (low, made)
        found = []
        for bound, operator, text in ((low, "Less", "lower"), (high, "Greater", "upper")):
            if bound is not None:
                found += self._compared(given[0], bound, {operator: f"never reached its {text} bound"})
        return found

    def _of_extremum(self) -> list[tuple[Kind, str, ir.Value]]:
        given = self._node.inputs
        if len(given) != _PAIR:
            return []
        orders = ("Greater", "Less") if self._node.op_type == "Max" else ("Less", "Greater")
        texts = ("never took its first operand", "never took its second operand")
        return self._compared(given[0], given[1], dict(zip(orders, texts, strict=True)))

    def _compared(
        self, first: ir.Value | None, second: ir.Value | None, operators: Mapping[str, str]
    ) -> list[tuple[Kind, str, ir.Value]]:
        """Whether comparisons of two operands hold for any elements."""
        if first is None or second is None:
            return []
        kind = self._facts.dtype(first)
        if kind is None or kind in (ir.DataType.STRING, ir.DataType.BOOL):
            return []
        pair = [first, second]
        if kind not in _COMPARABLE:
            pair = [self.add("Cast", [value], to=ir.DataType.FLOAT) for value in pair]
        elif kind != ir.DataType.FLOAT:
            pair = [self.add("Cast", [value], to=kind) for value in pair]
        return [(Kind.SIDE, text, self.truth(self.add(operator, pair))) for operator, text in operators.items()]
