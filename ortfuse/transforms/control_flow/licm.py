"""Hoist loop-invariant nodes out of Loop and Scan, and nodes that both branches of an If compute.

    if c: f(g(x)) else: h(g(x))     =   y = g(x); if c: f(y) else: h(y)
    loop(s -> s * g(x))             =   y = g(x); loop(s -> s * y)
    loop(s, w -> s * w, w)(a, x)    =   loop(s -> s * x)(a)

Transforms:

- a node that both branches of an If compute, since one of them runs in any case;
- a node of a Loop or Scan whose operands are the same in all iterations, if the body provably runs or the operator cannot fail.
  A Scan over nothing fails in the runtime.

Needless loop-carried values go first (`remove_constant_and_unused_loop_values`), then counters that repeat the iteration number
(`counters_to_iteration_number`).

Does not handle: nodes that draw random numbers, belong to unknown domains or hold graphs themselves, and nodes without inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.nonempty_sizes import Nonempty
from ortfuse.ir.purity import Purity
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE
from ortfuse.ir.walk import branches, graphs, subgraphs
from ortfuse.transforms.cleanup.cse import computation
from ortfuse.transforms.context import Context
from ortfuse.transforms.control_flow.remove_constant_and_unused_loop_values import narrow
from ortfuse.transforms.node_builder import take_over
from ortfuse.transforms.recurrence.counters_to_iteration_number import count_once

_SAFE = ELEMENTWISE | {"Transpose", "Unsqueeze", "Shape", "Size"}
"""Operators that do not fail on a tensor of numbers."""

_MAY_DIVIDE_BY_ZERO = ("Div", "Mod")


@dataclass(frozen=True)
class LoopInvariantCodeMotion:
    """Move loop-invariant operators out of Loop, Scan and If bodies; drop dead loop-carried values."""

    name: ClassVar[str] = "licm"

    def run(self, context: Context) -> int:
        """Move nodes to before the node whose body they are in; returns how many."""
        purity, sizes = Purity(context.model), Nonempty(context.model.graph, context.facts, context.least_sizes)
        # From the innermost bodies outwards: a narrowed loop is a copy of it, and a node can leave several.
        count = sum(count_once(holder, LoopInvariantCodeMotion.name, context) for holder in reversed(_holders(context)))
        count += sum(
            narrow(holder, LoopInvariantCodeMotion.name, sizes, context) for holder in reversed(_holders(context))
        )
        return count + sum(_hoist_from(node, purity, sizes, context) for node in reversed(_holders(context)))


def _holders(context: Context) -> list[ir.Node]:
    return [node for graph in graphs(context.model) for node in graph if subgraphs(node)]


def _hoist_from(holder: ir.Node, purity: Purity, sizes: Nonempty, context: Context) -> int:
    both = branches(holder)
    if len(both) == 2:
        return _hoist_common(holder, both[True], both[False], purity, context)
    if holder.domain or holder.op_type not in ("Loop", "Scan") or len(found := subgraphs(holder)) != 1:
        return 0
    runs, count = sizes.surely_runs(holder), 0
    for node in list(found[0]):
        if _is_free(node, purity) and (runs or _cannot_fail(node, context.facts)):
            count += _move(node, holder, context)
    return count


def _hoist_common(holder: ir.Node, one: ir.Graph, other: ir.Graph, purity: Purity, context: Context) -> int:
    """Move what both branches compute; what depends on that alone follows it."""
    imports, count, before = context.editor.scope_of(one).root.opset_imports, 0, -1
    while count > before:
        before = count
        there = {computation(node, imports, context.facts): node for node in other if _is_free(node, purity)}
        for node in list(one):
            twin = there.pop(computation(node, imports, context.facts), None) if _is_free(node, purity) else None
            count += twin is not None and _move(node, holder, context, twin)
    return count


def _is_free(node: ir.Node, purity: Purity) -> bool:
    """Whether a node depends on nothing in its graph, and can be computed elsewhere. An Identity only gives a result its name."""
    operands = [value for value in node.inputs if value is not None]
    if not operands or node.op_type == "Identity":
        return False
    return all(value.graph is not node.graph for value in operands) and purity.is_pure(node)


def _move(node: ir.Node, holder: ir.Node, context: Context, twin: ir.Node | None = None) -> bool:
    """Compute a node, and another one that computes the same, before the node that holds them."""
    old = [node] if twin is None else [node, twin]
    with context.editor.change(LoopInvariantCodeMotion.name, nodes=[node]) as change:
        attributes = list(node.attributes.values())
        made = ir.Node(
            node.domain, node.op_type, node.inputs, attributes,
            overload=node.overload, version=node.version, num_outputs=len(node.outputs),
        )  # fmt: skip
        context.editor.insert_before(holder, made)
        for one in old:
            take_over(context.editor, one, made)
    return bool(change)


def _cannot_fail(node: ir.Node, facts: Facts) -> bool:
    """Whether a node succeeds on whatever its operands are in a run in which it is not computed."""
    operands = [value for value in node.inputs if value is not None]
    kinds, shapes = [facts.dtype(value) for value in operands], [facts.shape(value) for value in operands]
    if node.domain or any(kind is None or kind == ir.DataType.STRING for kind in kinds) or None in shapes:
        return False
    if node.op_type in _SAFE:
        return all(facts.is_const(value) for value in operands[1:])
    is_float = all(kind is not None and kind.is_floating_point() for kind in kinds)
    if node.op_type in _MAY_DIVIDE_BY_ZERO and not is_float:
        return False
    return node.op_type in BROADCASTS and len({shape for shape in shapes if shape != ()}) <= 1
