"""Replace data movement by the cheapest operators that have the same index map.

    gather_nd(x, grid of ranges)  =  unsqueeze(x)        concat(x[:2], x[2:])  =  x        where(i < n, x, x)  =  x

*Transforms:* a value that is made of elements of others by any operators with index maps, those that compute indices and
conditions included (`ortfuse.analysis.index_maps`). A plan for its map replaces them if it costs less on the target.

*Requires:* opset 13, from which on sizes and axes are inputs.

*Does not handle:* maps whose sizes a plan would have to compute, and pieces that are neither parts of an axis nor of its digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import ELEMENT_MAPS, IndexMap, Read, leaves
from ortfuse.ir.remark import refuse
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
"""The most operators between a value and the sources that are tried for it."""

_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
_PRODUCTS = frozenset({"MatMul", "Gemm", "FusedMatMul"})
_COPY, _WIDE, _TILE = 3, 12, 5


@dataclass(frozen=True)
class SimplifyIndexMaps:
    """Replace data movement, with its computed indices, by the cheapest operators of the same index map."""

    name: ClassVar[str] = "simplify_index_maps"

    def run(self, context: Context) -> int:
        """Replace data movement; returns how often."""
        return sum(
            _simplify(node, output, scope, context)
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


def _simplify(node: ir.Node, output: ir.Value, scope: Scope, context: Context) -> bool:
    """Replace the nodes that make a value by the plan that saves most."""
    if not (output.uses() or output.is_graph_output()):
        return False
    found = [one for one in _candidates(output, scope, context) if one.saved > 0]
    return any(_replace(one, node, output, scope, context) for one in sorted(found, key=lambda one: -one.saved))


def _candidates(output: ir.Value, scope: Scope, context: Context) -> Iterator[_Candidate]:
    facts = context.facts
    supply: Supply | None = None
    for found in _maps(output, facts):
        supply = supply or Supply(_above(output), facts, scope.opset)
        for plan in plans(found, facts, supply):
            if isinstance(plan, ir.Value) and output.is_graph_output():
                plan = Make("Identity", (plan,))
            sources = {plan} if isinstance(plan, ir.Value) else plan.sources()
            if output in sources or not _is_allowed(plan, output, scope, context):
                continue
            removed = _removed(output, sources)
            before = sum(_cost_of_node(node, context) for node in removed)
            after = sum(_cost_of(one, context) for one in plan.nodes()) if isinstance(plan, Make) else 0
            yield _Candidate(plan, removed, before - after)


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
    for one in above[1:]:
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
