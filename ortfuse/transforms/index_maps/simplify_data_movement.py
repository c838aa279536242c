"""Replace data movement by the cheapest operators that have the same index map.

    gather_nd(x, grid of ranges)  =  unsqueeze(x)        concat(x[:2], x[2:])  =  x        where(i < n, x, x)  =  x

*Transforms:* a value that is made of elements of others by any operators with index maps, those that compute indices and
conditions included (`ortfuse.analysis.index_maps`). A plan for its map replaces them if it costs less on the target.

*Requires:* opset 13, from which on sizes and axes are inputs, or a fusion for which the opset is raised so far.

*Does not handle:* maps whose sizes a plan would have to compute, and pieces that are neither parts of an axis nor of its digits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar
from weakref import WeakKeyDictionary

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import IndexMap, Read, leaves, moves_elements
from ortfuse.ir.dims import product
from ortfuse.ir.refusal import refuse
from ortfuse.ir.walk import Scope
from ortfuse.targets import Target
from ortfuse.transforms.context import Context, final_opset
from ortfuse.transforms.index_maps.digits import Shape
from ortfuse.transforms.index_maps.make import Make, Plan, Supply, build_plan
from ortfuse.transforms.index_maps.movement_above import (
    MOST_NODES,
    PRODUCTS,
    Link,
    chain_above,
    frontiers,
    is_moved,
    structure_above,
    values_above,
)
from ortfuse.transforms.index_maps.plans import plans
from ortfuse.transforms.node_builder import Builder, Rounds

OLDEST = 13
"""The opset from which on sizes and axes are inputs."""

_NEWEST = 15
"""The opset from which on no form of an operator in a plan is newer."""

_CHAINED = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose", "Slice", "Gather", "Expand", "Tile"}
)
_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
_INDEXED = frozenset({"GatherElements", "GatherND", "ReverseSequence"})
_COPY, _WIDE, _TILE = 3, 12, 5


@dataclass(frozen=True)
class SimplifyDataMovement:
    """Replace data movement, with its computed indices, by the cheapest operators of the same index map.

    Attributes:
        indexed: Whether to look only at elements that are read at lists of indices, or in reverse. Fusions are found by the other
            chains that exporters write.
    """

    indexed: bool = False

    name: ClassVar[str] = "simplify_data_movement"

    def run(self, context: Context) -> int:
        """Replace data movement; returns how often."""
        facts = context.facts
        useless = _USELESS.setdefault(facts, set())
        return sum(
            search.simplify(node, output)
            for scope in context.scopes()
            if (search := _Search(context, scope, _opset_of_plans(scope, context.target), useless, self.indexed)).opset
            >= OLDEST
            for node in reversed(list(scope.graph))
            if node.graph is scope.graph and (not self.indexed or _is_indexed(node, facts))
            if moves_elements(node, facts.dtype)
            for output in node.outputs
            if node.graph is scope.graph
        )


def _opset_of_plans(scope: Scope, target: Target) -> int:
    """The opset for which plans are written: today's, or that which it is raised to for other nodes, no newer than plans need."""
    return scope.opset if scope.opset >= _NEWEST else min(final_opset(scope, target), _NEWEST)


_USELESS: WeakKeyDictionary[Facts, set[Hashable]] = WeakKeyDictionary()
"""Chains and maps of a model for which no plan saved anything, with all that plans for them depend on."""


@dataclass(frozen=True)
class _Candidate:
    """A plan.

    Attributes:
        plan: The plan.
        removed: The nodes that nothing needs once it is there.
        saved: By how much it costs less than they.
        fewer: By how many its nodes are fewer.
    """

    plan: Plan
    removed: Sequence[ir.Node]
    saved: int
    fewer: int

    @property
    def is_better(self) -> bool:
        """Whether it costs less than what it replaces, or as much in fewer nodes."""
        return self.saved > 0 or (self.saved == 0 and self.fewer > 0)


@dataclass(frozen=True)
class _Search:
    """The search for plans that save something.

    Attributes:
        context: The model.
        scope: The graph.
        opset: The opset for which plans are written.
        useless: Chains and maps, with all that plans for them depend on, for which no plan saves anything; it is extended.
        indexed: Whether to look only at elements that are read at lists of indices, or in reverse.
    """

    context: Context
    scope: Scope
    opset: int
    useless: set[Hashable]
    indexed: bool

    def simplify(self, node: ir.Node, output: ir.Value) -> bool:
        """Replace the nodes that make a value by the plan that saves most."""
        facts = self.context.facts
        if not (output.uses() or output.is_graph_output()) or not (self.indexed or _may_gain(node, output, facts)):
            return False
        for found in self._candidates(node, output):
            good = sorted(
                [one for one in found if one.is_better],
                key=lambda one: (-one.saved, -one.fewer),
            )
            if any(self._replace(one, node, output) for one in good):
                return True
        return False

    def _candidates(self, node: ir.Node, output: ir.Value) -> Iterator[list[_Candidate]]:
        """Yield plans with what they save, those for one map together. Maps like those for which there was none are left out."""
        facts = self.context.facts
        known = facts.ints(output)
        sizes = None if known is None else Supply(values_above(output, facts), facts, self.opset).tensor(known)
        if sizes is not None:
            made = [_judged(sizes, output, self.opset, self.context)]
            yield [one for one in made if one is not None]
            return
        if not self._may_be_cheaper(node, output):
            return
        key = structure_above(output, facts)
        if key in self.useless:
            return
        useful = False
        for found in self._by_map(output, chain_above(output, facts)):
            useful = useful or any(one.is_better for one in found)
            yield found
        if not useful and key is not None:
            self.useless.add(key)

    def _may_be_cheaper(self, node: ir.Node, output: ir.Value) -> bool:
        """Return whether a plan may cost less, if that is to replace one node alone: a view is made of as many elements."""
        facts = self.context.facts
        shape, cost = facts.shape(output), _cost_of_node(node, self.context)
        if shape is None or cost > _COPY or len(_removed(output, set())) > 1:
            return shape is not None
        return any(_bound(shape, facts.shape(value)) < cost for value in values_above(output, facts))

    def _by_map(self, output: ir.Value, chain: Sequence[Link]) -> Iterator[list[_Candidate]]:
        """Yield plans for each map of a value, with what they save."""
        facts = self.context.facts
        supply: Supply | None = None
        seen: set[IndexMap] = set()
        planned = False
        for sources, is_shared in frontiers(chain, facts):
            if planned and not is_shared:
                return
            most = self._cost_of_movement(output, set(sources))
            if len(sources) == 1 and _bound(facts.shape(output), facts.shape(sources[0])) >= most:
                continue
            found = facts.index_map(output, sources)
            if found is None or found in seen or not _reads_others(found, output):
                continue
            seen.add(found)
            if _least_cost(found, facts) >= most:
                continue
            supply = supply or Supply(values_above(output, facts), facts, self.opset)
            key = most, found.structure, tuple([facts.shape(source) for source in found.sources]), supply.sizes
            if key in self.useless:
                continue
            try:
                made = [_judged(plan, output, self.opset, self.context) for plan in plans(found, facts, supply)]
            except ZeroDivisionError:
                continue  # a size that formulas divide by is 0 at the least sizes: such a tensor is empty there
            candidates = [one for one in made if one is not None]
            if not any(one.is_better for one in candidates):
                self.useless.add(key)
            planned = planned or any(one.is_better for one in candidates)
            yield candidates

    def _cost_of_movement(self, output: ir.Value, sources: set[ir.Value]) -> int:
        """How much the data movement costs that nothing needs if a value is made from sources."""
        facts = self.context.facts
        return sum(
            _cost_of_node(node, self.context)
            for node in _removed(output, sources)
            if moves_elements(node, facts.dtype) or facts.ints(node.outputs[0]) is not None
        )

    def _replace(self, one: _Candidate, node: ir.Node, output: ir.Value) -> bool:
        facts, editor = self.context.facts, self.context.editor
        shape = facts.shape(output)
        rounds = any(removed.op_type == "Where" for removed in one.removed)
        name = SimplifyDataMovement.name
        with editor.change(name, rule=Rounds(name) if rounds else None, nodes=one.removed or [node]) as change:
            made = build_plan(one.plan, Builder(self.scope, editor, node), self.opset)
            if facts.shape(made) != shape:
                change.cancel(refuse("shape", output, found=facts.shape(made), needed=shape))
            else:
                editor.replace(output, made)
                editor.remove(*one.removed)
        return bool(change)


def _bound(shape: Shape | None, source: Shape | None) -> int:
    """A cost that no plan for a tensor of this shape is below, made of a tensor of that shape."""
    if shape is None or source is None or shape == source:
        return 0
    return 1 if product(shape) == product(source) else _COPY


def _reads_others(found: IndexMap, output: ir.Value) -> bool:
    return any(isinstance(leaf, Read) and leaf.value is not output for leaf in leaves(found.element))


def _is_indexed(node: ir.Node, facts: Facts) -> bool:
    """Return whether a node reads elements at lists of indices, or the one element of an axis, or reverses sequences."""
    if node.op_type == "Gather":
        rank, axis = facts.rank(node.inputs[1]), node.attributes.get_int("axis", 0)
        return (rank or 0) > 1 or (rank == 0 and (facts.shape(node.inputs[0]) or ())[axis:][:1] == (1,))
    return node.op_type in _INDEXED


def _may_gain(node: ir.Node, output: ir.Value, facts: Facts) -> bool:
    """Return whether a plan may save anything: a node that stands alone may only have no effect.

    A plan for the one operator that moves the result on saves as much.
    """
    users = list(output.uses())
    chained = len(users) == 1 and users[0].idx == 0 and users[0].node.op_type in _CHAINED
    if chained and not output.is_graph_output() and facts.ints(output) is None:
        return False
    if any(is_moved(value, facts) for value in node.inputs):
        return True
    if node.op_type in _VIEWS:
        return node.op_type == "Identity" or facts.shape(output) == facts.shape(node.inputs[0])
    if node.op_type == "Concat":
        if any(one is not None and one is other for one, other in pairwise(map(_measured, node.inputs))):
            return True
        return len(set(node.inputs)) < max(len(node.inputs), 2) or any(
            0 in (facts.shape(value) or ()) for value in node.inputs
        )
    return node.op_type != "Split" or len(node.outputs) == 1


def _measured(sizes: ir.Value | None) -> ir.Value | None:
    """The value of which a Shape tells sizes."""
    node = None if sizes is None else sizes.producer()
    return node.inputs[0] if node is not None and node.op_type == "Shape" and not node.domain else None


def _judged(plan: Plan, output: ir.Value, opset: int, context: Context) -> _Candidate | None:
    """A plan with what it saves; `None` if the target refuses it."""
    if isinstance(plan, ir.Value) and output.is_graph_output():
        plan = Make("Identity", (plan,))
    sources = {plan} if isinstance(plan, ir.Value) else plan.sources()
    if output in sources or not _is_allowed(plan, output, opset, context):
        return None
    removed = _removed(output, sources)
    before = sum(_cost_of_node(node, context) for node in removed)
    after = sum(_cost_of(one, context) for one in plan.nodes()) if isinstance(plan, Make) else 0
    executed = sum(node.op_type != "Constant" for node in removed)
    fewer = executed - (len(plan.nodes()) if isinstance(plan, Make) else 0)
    tiles = isinstance(plan, Make) and any(node.op_type == "Tile" for node in plan.nodes())
    if tiles and not any(node.op_type == "Tile" for node in removed):
        return None
    if fewer < 0 and before - after < _WIDE - _COPY - 2:
        return None
    return _Candidate(plan, removed, before - after, fewer)


def _least_cost(found: IndexMap, facts: Facts) -> int:
    """A cost that plans for a map are not expected to be below."""
    reads = {leaf for leaf in leaves(found.element) if isinstance(leaf, Read)}
    pieces = sum(1 for _ in leaves(found.element))
    sources = found.sources
    if pieces == 1:
        return _bound(found.shape, facts.shape(sources[0]))
    source = facts.shape(sources[0])
    is_cut = len(sources) == 1 and source is not None and product(source) == product(found.shape)
    return _COPY * (1 + len(reads)) if is_cut and len(reads) > 1 else _COPY


def _removed(output: ir.Value, sources: set[ir.Value]) -> list[ir.Node]:
    """The nodes that nothing needs if a value is made from sources."""
    first = output.producer()
    assert first is not None
    if any(other is not output and (other.uses() or other.is_graph_output()) for other in first.outputs):
        return []
    found: dict[ir.Node, None] = {first: None}
    waiting, kept = [first], set[ir.Node]()
    while waiting and len(found) < MOST_NODES:
        node = waiting.pop()
        for value in node.inputs:
            maker = None if value is None else value.producer()
            if maker is None or maker in found or maker in kept or maker.graph is not first.graph:
                continue
            if any(result in sources or result.is_graph_output() for result in maker.outputs):
                kept.add(maker)
                continue
            if all(use.node in found for result in maker.outputs for use in result.uses()):
                found[maker] = None
                waiting.append(maker)
    return list(found)


def _cost(op_type: str, rank: int, context: Context) -> int:
    """How much a node costs, in views."""
    if op_type == "Constant":
        return 0
    if op_type in _VIEWS or op_type in ("Shape", "Size"):
        return 1
    fast = context.target.spec.fast_transpose_axes
    if op_type == "Transpose":
        return _WIDE if fast is not None and rank > fast else _COPY
    return _TILE if op_type == "Tile" else _COPY


def _cost_of(one: Make, context: Context) -> int:
    if one.is_size:
        return 1
    perm = dict(one.attributes).get("perm", ())
    return _cost(one.op_type, len(perm), context)


def _cost_of_node(node: ir.Node, context: Context) -> int:
    """How much a node costs that is there."""
    result = node.outputs[0]
    if node.op_type != "Constant" and context.facts.ints(result) is not None:
        return 1
    return _cost(node.op_type, context.facts.rank(result) or 0, context)


def _type_of(plan: object, context: Context) -> ir.DataType | None:
    """The element type that a plan gives: that of sizes, or that of what it moves; `None` if it is not known."""
    while isinstance(plan, Make):
        if plan.is_size:
            return ir.DataType.INT64
        plan = plan.operands[0] if plan.operands else None
    return context.facts.dtype(plan) if isinstance(plan, ir.Value) else None


def _is_allowed(plan: Plan, output: ir.Value, opset: int, context: Context) -> bool:
    """Whether the target has kernels for a plan, and products of matrices read Transposes as they did."""
    facts = context.facts
    last = output.producer()
    assert last is not None
    turned = isinstance(plan, Make) and plan.op_type == "Transpose"
    if any(user.op_type in PRODUCTS for user in output.consumers()):
        if last.op_type == "Transpose" and not turned:
            return False
        if turned and last.op_type != "Transpose" and facts.dtype(output) == ir.DataType.FLOAT16:
            return False
    dtype = facts.dtype(output)
    if _type_of(plan, context) not in (None, dtype):
        return False  # a Cast keeps the numbers of a size, so that maps look through it
    nodes = plan.nodes() if isinstance(plan, Make) else []
    if dtype == ir.DataType.STRING and any(node.op_type == "Gather" for node in nodes):
        return False
    return all(context.target.supports("", node.op_type, opset, [dtype]) for node in nodes)
