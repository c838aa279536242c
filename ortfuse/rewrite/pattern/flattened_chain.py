"""Flatten Add and Mul chains of a graph to signed terms and scalar constants, for `match_sums_and_products`."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.traits import PRODUCT, SUM, WRAPS

MAX_ENTRIES = 24
"""The most values of one chain that are considered; of a longer chain, only the outermost part is matched."""


@dataclass(slots=True)
class Entry:
    """A value inside a chain: its sign (or exponent), the leaves below it, and its number if it is a scalar constant."""

    value: ir.Value | None
    sign: int
    parent: int
    node: ir.Node | None = None
    scalar: float | None = None
    mask: int = 0


@dataclass(slots=True)
class Tree:
    """All values of one flattened chain, parents before children; `leaves` is the mask of all leaves."""

    entries: list[Entry]
    leaves: int


def flatten(root: ir.Value, product: bool, facts: Facts) -> Tree:
    """Flatten the sum (or product) that computes `root`; a value that is not one is a chain of one leaf.

    An intermediate that is used elsewhere or is a graph output stays a leaf: a rewrite could not remove it.
    """
    ops = PRODUCT if product else SUM
    entries = [Entry(root, 1, -1)]
    dtype = facts.dtype(root)
    floating = dtype is not None and dtype.is_floating_point()
    if floating or (dtype is not None and dtype.is_integer()):
        index = 0
        while index < len(entries) and len(entries) < MAX_ENTRIES:
            _expand(entries, index, ops if floating else ops & WRAPS, product, facts)
            index += 1
    return Tree(entries, _mark_leaves(entries))


def _expand(entries: list[Entry], index: int, ops: AbstractSet[str], product: bool, facts: Facts) -> None:
    entry = entries[index]
    value = entry.value
    if value is None or entry.scalar is not None:
        return
    node = value.producer()
    if node is None or node.op_type not in ops or node.domain:
        return
    root_node = entries[0].value.producer() if entries[0].value is not None else None
    if index and (
        len(value.uses()) != 1 or value.is_graph_output() or root_node is None or node.graph is not root_node.graph
    ):
        return
    inputs = [operand for operand in node.inputs if operand is not None]
    # A unary node gets a second, neutral leaf: this makes its mask larger than its operand's, so the two can be told apart.
    if node.op_type == "Neg":
        entry.node = node
        entries.append(Entry(inputs[0], entry.sign if product else -entry.sign, index))
        entries.append(Entry(None, 1, index, scalar=-1.0 if product else 0.0))
    elif node.op_type == "Reciprocal":
        entry.node = node
        entries.append(Entry(inputs[0], -entry.sign, index))
        entries.append(Entry(None, 1, index, scalar=1.0))
    elif len(inputs) == 2:
        entry.node = node
        signs = (entry.sign, -entry.sign if node.op_type in ("Sub", "Div") else entry.sign)
        for operand, other, sign in zip(inputs, reversed(inputs), signs, strict=True):
            entries.append(Entry(operand, sign, index, scalar=_coefficient(operand, other, facts)))


def _coefficient(value: ir.Value, other: ir.Value, facts: Facts) -> float | None:
    """The number of a one-element constant that acts as a plain scalar because it adds no axes to the result."""
    number = facts.scalar(value)
    if number is None or isinstance(number, bool):
        return None
    rank = facts.rank(value)
    if rank != 0:
        other_rank = facts.rank(other)
        if rank is None or other_rank is None or rank > other_rank:
            return None
    return float(number)


def _mark_leaves(entries: list[Entry]) -> int:
    parents = {entry.parent for entry in entries}
    bit = 1
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        if index not in parents:
            entry.mask = bit
            bit <<= 1
        if entry.parent >= 0:
            entries[entry.parent].mask |= entry.mask
    return entries[0].mask
