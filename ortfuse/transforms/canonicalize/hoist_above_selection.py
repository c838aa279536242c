"""Hoist elementwise operators above operators that only select among elements of constants.

    table[ids] * c          =   (table * c)[ids]                 c a number, or a row
    expand(where(m, a, b))  =   where(m, expand(a), b)           only along the axes that m does not have
    max(where(m, a, b), k)  =   where(m, max(a, k), max(b, k))   a, b and k constants
    cast(one_hot(ids))      =   one_hot(ids, values of the other type)

Hoisted operators have constant operands alone, so that folding computes them once, to the same bits. Fusions know embeddings
by the scales and sums behind them, so that the pass comes after them.

Does not handle: selections that something else reads, constants that would take more memory, and large ones, which stay in the
file that they are in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import parameter
from ortfuse.ir.refusal import refuse
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context, final_opset
from ortfuse.transforms.node_builder import Builder

LARGEST = 1 << 20
"""The most elements of a constant that is written anew."""

_SMALL = 1 << 12
"""So many elements may take more memory than before."""

_SELECTED = {"Gather": (0,), "Where": (1, 2), "OneHot": (2,), "Expand": (0,)}
"""Operators whose result consists of elements of these operands."""

_COMPUTED = ELEMENTWISE | (BROADCASTS - {"Where", "PRelu"})


@dataclass(frozen=True)
class HoistAboveSelection:
    """Compute what is selected of constants before it is selected."""

    name: ClassVar[str] = "hoist_above_selection"

    def run(self, context: Context) -> int:
        """Hoist operators; returns how many."""
        return sum(
            _hoisted(node, scope, context) or _expanded(node, scope, context)
            for scope in context.scopes()
            for node in list(scope.graph)
        )


def _expanded(node: ir.Node, scope: Scope, context: Context) -> int:
    """Expand a constant branch of a Where instead of its result; only for few elements."""
    facts, value = context.facts, node.inputs[0] if node.inputs else None
    where = None if value is None else value.producer()
    if value is None or where is None or where.op_type != "Where" or where.domain or where.graph is not node.graph:
        return 0
    if value.is_graph_output() or any(user.op_type != "Expand" or user.domain for user in value.consumers()):
        return 0
    before, after, wanted = facts.shape(value), facts.shape(node.outputs[0]), facts.ints(node.inputs[1])
    branch = min(where.inputs[1:], key=lambda one: len(facts.shape(one) or ()))
    array = facts.const(branch) if facts.is_const(branch) else None
    if before is None or after is None or wanted is None or array is None:
        return 0
    grown = (*(1,) * (len(after) - len(before)), *before)
    sizes = [1 if size == old else size for size, old in zip(after, grown, strict=True)]
    numbers = [size for size in sizes if isinstance(size, int)]
    if len(numbers) < len(sizes) or not 0 < math.prod(numbers) * array.size <= _SMALL:
        return 0
    shape = np.broadcast_shapes(array.shape, tuple(numbers))
    spread = ir.Tensor(np.ascontiguousarray(np.broadcast_to(array, shape)), dtype=facts.dtype(branch))
    with context.editor.change(HoistAboveSelection.name, nodes=[where, node]) as change:
        build = Builder(scope, context.editor, where)
        operands = [build.constant(spread) if one is branch else one for one in where.inputs]
        made = build.like(where, operands)
        if facts.shape(made) != after:
            change.cancel(refuse("shape", node.outputs[0], found=facts.shape(made), needed=after))
        else:
            context.editor.replace(node.outputs[0], made)
            context.editor.remove(node)
    return int(bool(change))


def _hoisted(node: ir.Node, scope: Scope, context: Context) -> int:
    """Hoist a node above the selection that it reads, if there is one."""
    facts, place = context.facts, _selection(node, context.facts)
    if place is None:
        return 0
    value = node.inputs[place]
    selection = None if value is None else value.producer()
    assert selection is not None
    shape = facts.shape(node.outputs[0])
    with context.editor.change(HoistAboveSelection.name, nodes=[selection, node]) as change:
        build = Builder(scope, context.editor, selection)
        operands = list(selection.inputs)
        for number in _SELECTED[selection.op_type]:
            operands[number] = build.like(node, [*node.inputs[:place], operands[number], *node.inputs[place + 1 :]])
        made = build.like(selection, operands)
        selecting = made.producer()
        assert selecting is not None
        # A Cast may leave a type of which the runtime selects nothing, such as truth values.
        imports = {**scope.root.opset_imports, "": final_opset(scope, context.target)}
        refusal = context.target.check_node(selecting, imports, facts)
        if facts.shape(made) != shape:
            change.cancel(refuse("shape", node.outputs[0], found=facts.shape(made), needed=shape))
        elif refusal is not None:
            change.cancel(refusal)
        else:
            context.editor.replace(node.outputs[0], made)
            context.editor.remove(node, selection)
    return int(bool(change))


def _selection(node: ir.Node, facts: Facts) -> int | None:
    """The operand of an elementwise node that selects among constants, if it may be computed of these before."""
    if node.domain or node.op_type not in _COMPUTED or len(node.outputs) != 1:
        return None
    varying = [place for place, value in enumerate(node.inputs) if value is not None and not facts.is_const(value)]
    if len(varying) != 1 or (node.op_type in ELEMENTWISE and varying != [0]):
        return None
    value = node.inputs[varying[0]]
    selection = None if value is None else value.producer()
    if value is None or selection is None or selection.domain or selection.op_type not in _SELECTED:
        return None
    alone = len(value.uses()) == 1 and not value.is_graph_output() and selection.graph is node.graph
    others = [one for place, one in enumerate(node.inputs) if place != varying[0]]
    chosen = [selection.inputs[place] for place in _SELECTED[selection.op_type]]
    if not alone or any(not _is_computed(one, node, others, facts) for one in chosen):
        return None
    sizes = [facts.shape(one) or () for one in others if one is not None]
    return varying[0] if _fits(selection, sizes, facts) else None


def _is_computed(chosen: ir.Value | None, node: ir.Node, others: Sequence[ir.Value | None], facts: Facts) -> bool:
    """Whether a constant may be written anew: it is not large, takes no more memory then, and nothing else reads it."""
    shape, before, after = facts.shape(chosen), facts.dtype(chosen), facts.dtype(node.outputs[0])
    if chosen is None or shape is None or before is None or after is None or not facts.is_const(chosen):
        return False
    count = math.prod([dim for dim in shape if isinstance(dim, int)])
    most = max([count, *(math.prod([dim for dim in facts.shape(one) or () if isinstance(dim, int)]) for one in others)])
    if most <= _SMALL:
        return True
    return most == count <= LARGEST and after.bitwidth <= before.bitwidth and len(chosen.uses()) == 1


def _fits(selection: ir.Node, others: Sequence[Sequence[object]], facts: Facts) -> bool:
    """Whether operands of these shapes are the same for whatever is selected."""
    if selection.op_type == "Where":
        return True
    single = all(dim == 1 for shape in others for dim in shape)
    data, axis = facts.shape(selection.inputs[0]), parameter(selection, "axis", facts)
    if selection.op_type != "Gather" or data is None or not isinstance(axis, int):
        return single and all(len(shape) <= (0 if selection.op_type == "OneHot" else 1) for shape in others)
    rows = data[axis % len(data) + 1 :]
    return all(
        len(shape) <= len(rows) and all(dim in (1, size) for dim, size in zip(shape[::-1], rows[::-1], strict=False))
        for shape in others
    )
