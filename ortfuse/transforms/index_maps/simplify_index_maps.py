"""Replace data movement by the cheapest operators that have the same index map.

    gather_nd(x, grid of ranges)  =  unsqueeze(x)        concat(x[:2], x[2:])  =  x        where(i < n, x, x)  =  x

*Transforms:* a value that is made of elements of others by any operators with index maps, those that compute indices and
conditions included (`ortfuse.analysis.index_maps`). A plan for its map replaces them if it costs less on the target.

*Requires:* opset 13, from which on sizes and axes are inputs.

*Does not handle:* maps whose sizes a plan would have to compute, and pieces that are neither parts of an axis nor of its digits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import ELEMENT_MAPS, IndexMap, Read, leaves
from ortfuse.ir.dims import product
from ortfuse.ir.refusal import refuse
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context, version_in
from ortfuse.transforms.index_maps.make import Make, Plan, Supply, build_plan
from ortfuse.transforms.index_maps.plans import plans
from ortfuse.transforms.node_builder import Builder, Rounds

OLDEST = 13
"""The opset from which on sizes and axes are inputs."""

MOST_NODES = 64
"""The most nodes that are looked at to find which ones a plan replaces."""

LONGEST = 8
"""The most operators between a value and those that something else needs, at which a map may stop."""

SHORTEST = 4
"""The most operators between a value and others at which a map may stop."""

_CHAINED = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose", "Slice", "Gather", "Expand", "Tile"}
)
_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
_PRODUCTS = frozenset({"MatMul", "Gemm", "FusedMatMul"})
_COPY, _WIDE, _TILE = 3, 12, 5


@dataclass(frozen=True)
class SimplifyIndexMaps:
    """Replace data movement, with its computed indices, by the cheapest operators of the same index map.

    Attributes:
        single: Whether to make single operators only: fusions are found by the chains that exporters write.
    """

    single: bool = False

    name: ClassVar[str] = "simplify_index_maps"

    def run(self, context: Context) -> int:
        """Replace data movement; returns how often."""
        useless: set[Hashable] = set()
        return sum(
            _simplify(node, output, scope, context, useless, single=self.single)
            for scope in context.scopes()
            for node in reversed(list(scope.graph))
            for output in node.outputs
            if node.graph is scope.graph and ELEMENT_MAPS.of(node) is not None and version_in(scope, node) >= OLDEST
        )


@dataclass(frozen=True)
class _Candidate:
    """A plan, and the nodes that nothing needs once it is there."""

    plan: Plan
    removed: Sequence[ir.Node]
    saved: int

    @property
    def moves(self) -> int:
        """How many nodes move data."""
        return sum(not node.is_size for node in self.plan.nodes()) if isinstance(self.plan, Make) else 0


def _simplify(
    node: ir.Node, output: ir.Value, scope: Scope, context: Context, useless: set[Hashable], *, single: bool
) -> bool:
    """Replace the nodes that make a value by the plan that saves most."""
    if not (output.uses() or output.is_graph_output()) or not _may_gain(node, output, context.facts):
        return False
    for found in _candidates(output, scope, context, useless):
        good = sorted(
            (one for one in found if one.saved > 0 and not (single and one.moves > 1)), key=lambda one: -one.saved
        )
        if any(_replace(one, node, output, scope, context) for one in good):
            return True
    return False


def _is_moved(value: ir.Value | None) -> bool:
    """Return whether an operator with index maps makes a value."""
    node = None if value is None else value.producer()
    return node is not None and ELEMENT_MAPS.of(node) is not None


def _may_gain(node: ir.Node, output: ir.Value, facts: Facts) -> bool:
    """Return whether a plan may save anything: a node that stands alone may only have no effect.

    A plan for the one operator that moves the result on saves as much.
    """
    users = list(output.uses())
    chained = len(users) == 1 and users[0].idx == 0 and users[0].node.op_type in _CHAINED
    if chained and not output.is_graph_output() and facts.ints(output) is None:
        return False
    if any(_is_moved(value) and not facts.is_const(value) for value in node.inputs):
        return True
    if node.op_type in _VIEWS:
        return node.op_type == "Identity" or facts.shape(output) == facts.shape(node.inputs[0])
    if node.op_type == "Concat":
        return len(set(node.inputs)) < max(len(node.inputs), 2) or any(
            0 in (facts.shape(value) or ()) for value in node.inputs
        )
    return node.op_type != "Split" or len(node.outputs) == 1


def _candidates(output: ir.Value, scope: Scope, context: Context, useless: set[Hashable]) -> Iterator[list[_Candidate]]:
    """Yield plans with what they save, those for one map together. Maps like those for which there was none are left out.

    Args:
        output: The value.
        scope: The graph.
        context: The model.
        useless: The maps, with all that plans for them depend on, for which no plan saved anything; it is extended.
    """
    facts = context.facts
    supply: Supply | None = None
    known = facts.ints(output)
    if known is not None:
        sizes = Supply(_above(output), facts, scope.opset).tensor(known)
        made = [] if sizes is None else [_judged(sizes, output, scope, context)]
        yield [one for one in made if one is not None]
        return
    most = sum(_cost_of_node(node, context) for node in _removed(output, set()))
    for found in _maps(output, facts):
        if _least_cost(found, facts) >= most:
            continue
        supply = supply or Supply(_above(output), facts, scope.opset)
        key = most, found.structure, tuple([facts.shape(source) for source in found.sources]), supply.sizes
        if key in useless:
            continue
        made = [_judged(plan, output, scope, context) for plan in plans(found, facts, supply)]
        candidates = [one for one in made if one is not None]
        if all(one.saved <= 0 for one in candidates):
            useless.add(key)
        yield candidates


def _judged(plan: Plan, output: ir.Value, scope: Scope, context: Context) -> _Candidate | None:
    """A plan with what it saves; `None` if the target refuses it."""
    if isinstance(plan, ir.Value) and output.is_graph_output():
        plan = Make("Identity", (plan,))
    sources = {plan} if isinstance(plan, ir.Value) else plan.sources()
    if output in sources or not _is_allowed(plan, output, scope, context):
        return None
    removed = _removed(output, sources)
    before = sum(_cost_of_node(node, context) for node in removed)
    after = sum(_cost_of(one, context) for one in plan.nodes()) if isinstance(plan, Make) else 0
    executed = sum(node.op_type != "Constant" for node in removed)
    if isinstance(plan, Make) and len(plan.nodes()) > executed and before - after < _WIDE - _COPY - 2:
        return None
    return _Candidate(plan, removed, before - after)


def _least_cost(found: IndexMap, facts: Facts) -> int:
    """A cost that plans for a map are not expected to be below."""
    reads = {leaf for leaf in leaves(found.element) if isinstance(leaf, Read)}
    pieces = sum(1 for _ in leaves(found.element))
    if pieces == 1:
        return 0
    sources = found.sources
    source = facts.shape(sources[0])
    is_cut = len(sources) == 1 and source is not None and product(source) == product(found.shape)
    return _COPY * (1 + len(reads)) if is_cut and len(reads) > 1 else _COPY


def _maps(output: ir.Value, facts: Facts) -> Iterator[IndexMap]:
    """Maps of a value: of sources as far above as possible, and of those between."""
    seen: set[IndexMap] = set()
    for sources in _frontiers(output):
        found = facts.index_map(output, sources)
        if found is None or found in seen:
            continue
        seen.add(found)
        if any(isinstance(leaf, Read) for leaf in leaves(found.element)):
            yield found


def _frontiers(output: ir.Value) -> Iterator[Sequence[ir.Value]]:
    """Values to stop at: none, those that something else needs, and those along the first inputs."""
    yield ()
    value, shared = output, list[ir.Value]()
    above: list[ir.Value] = []
    while (node := value.producer()) is not None and len(above) < LONGEST and ELEMENT_MAPS.of(node) is not None:
        operand = node.inputs[1 if node.op_type == "Where" else 0] if node.inputs else None
        if operand is None:
            break
        above.append(operand)
        value = operand
    shared = [one for one in above if len(one.uses()) > 1]
    if shared:
        yield shared
    for one in above[1:SHORTEST]:
        if _is_moved(one):
            yield (one,)


def _removed(output: ir.Value, sources: set[ir.Value]) -> list[ir.Node]:
    """The nodes that nothing needs if a value is made from sources."""
    first = output.producer()
    assert first is not None
    if any(other is not output and (other.uses() or other.is_graph_output()) for other in first.outputs):
        return []
    found: dict[ir.Node, None] = {first: None}
    waiting = [first]
    while waiting and len(found) < MOST_NODES:
        node = waiting.pop()
        for value in node.inputs:
            maker = None if value is None else value.producer()
            if maker is None or maker in found or maker.graph is not first.graph:
                continue
            if any(result in sources or result.is_graph_output() for result in maker.outputs):
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


def _above(output: ir.Value) -> list[ir.Value]:
    """The values from which a value is computed, the farthest first, as far as is looked."""
    found: dict[ir.Value, None] = {}
    waiting = [output]
    while waiting and len(found) < 2 * MOST_NODES:
        node = waiting.pop(0).producer()
        for value in node.inputs if node is not None and ELEMENT_MAPS.of(node) is not None else ():
            if value is not None and value not in found:
                found[value] = None
                waiting.append(value)
        if node is not None and node.op_type == "Shape" and node.inputs[0] is not None:
            found.setdefault(node.inputs[0])
    return list(reversed(found))


def _is_allowed(plan: Plan, output: ir.Value, scope: Scope, context: Context) -> bool:
    """Whether the target has kernels for a plan, and products of matrices read Transposes as they did."""
    facts = context.facts
    last = output.producer()
    assert last is not None
    turned = isinstance(plan, Make) and plan.op_type == "Transpose"
    if any(user.op_type in _PRODUCTS for user in output.consumers()):
        if last.op_type == "Transpose" and not turned:
            return False
        if turned and last.op_type != "Transpose" and facts.dtype(output) == ir.DataType.FLOAT16:
            return False
    dtype = facts.dtype(output)
    nodes = plan.nodes() if isinstance(plan, Make) else []
    if dtype == ir.DataType.STRING and any(node.op_type == "Gather" for node in nodes):
        return False
    return all(context.target.supports("", node.op_type, scope.opset, [dtype]) for node in nodes)


def _replace(one: _Candidate, node: ir.Node, output: ir.Value, scope: Scope, context: Context) -> bool:
    facts = context.facts
    shape = facts.shape(output)
    rounds = any(removed.op_type == "Where" for removed in one.removed)
    name = SimplifyIndexMaps.name
    with context.editor.change(name, rule=Rounds(name) if rounds else None, nodes=one.removed or [node]) as change:
        made = build_plan(one.plan, Builder(scope, context.editor, node))
        if facts.shape(made) != shape:
            change.cancel(refuse("shape", output, found=facts.shape(made), needed=shape))
        else:
            context.editor.replace(output, made)
            context.editor.remove(*one.removed)
    return bool(change)
