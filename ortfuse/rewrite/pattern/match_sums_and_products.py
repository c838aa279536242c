"""Match Add and Mul chains modulo associativity and commutativity: assign terms of the pattern to those of the
graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal, Subject, refuse, words
from ortfuse.ir.traits import PRODUCT, SUM
from ortfuse.rewrite.pattern import flattened_chain as chains
from ortfuse.rewrite.pattern.backtracking_machine import FAIL, Goals, Machine, bind_absent
from ortfuse.rewrite.pattern.compare_constants_up_to_rounding import EPSILON, close
from ortfuse.rewrite.pattern.language import Chain, Opt, Pattern, Product, Var, bare
from ortfuse.rewrite.pattern.unify_dims import labelled

_PARTED = SUM | PRODUCT | {"Sum"}
"""Operators that make sums and products of their operands."""


class Placement:
    """A partially matched chain: the next part to place, the leaves used up, the parts bound so far."""

    __slots__ = ("bound", "chain", "index", "is_root", "tree", "used")

    def __init__(
        self, chain: Chain, tree: chains.Tree, index: int, used: int, bound: tuple[int, ...], is_root: bool
    ) -> None:
        self.chain, self.tree, self.index, self.used, self.bound, self.is_root = (
            chain,
            tree,
            index,
            used,
            bound,
            is_root,
        )


def match_chain(m: Machine, pattern: Chain, value: ir.Value | None, rest: Goals) -> Goals:
    """Flatten the chain that computes `value`, then place the parts of the pattern."""
    if value is None:
        return m.fail(lambda: refuse("missing_input", Subject("operand", m.root.name or "", capture=str(pattern))))
    key = id(pattern)
    if key in m.matcher.shared:
        known = m.memo.get(key)
        if known is not None:
            return rest if known is value else m.fail(lambda: refuse("not_same", value, needed=known))
        m.put(m.memo, key, value)
    if not labelled(m, pattern, value):
        return FAIL
    if value is m.root or value.producer() is None or m.is_reached(value.producer().graph):  # type: ignore[union-attr]
        tree = chains.flatten(value, isinstance(pattern, Product), m.facts)
    else:
        tree = chains.Tree([chains.Entry(value, 1, -1, mask=1)], 1)
    node = tree.entries[0].node
    if node is not None and node not in m.entered:
        m.put(m.entered, node, True)
    placement = Placement(pattern, tree, 0, 0, (), value is m.root and id(pattern) in m.matcher.roots)
    return (placement, value, rest)


def place(m: Machine, state: Placement, value: ir.Value, rest: Goals) -> Goals:
    """Place the next part, or finish."""
    if state.index == len(state.chain.parts):
        return _finish_chain(m, state, value, rest)
    return m.choose(_placements(m, state, value, rest))


def _placements(m: Machine, state: Placement, value: ir.Value, rest: Goals) -> Iterator[Goals]:
    sign, part = state.chain.parts[state.index]
    inner = part.inner if isinstance(part, Opt) else part
    heads = inner.heads
    bound = m.bindings.get(inner.name) if isinstance(inner, Var) else None
    entries = state.tree.entries
    # Deepest first, so that a captured scalar collects every constant of the chain; constants themselves last.
    for index in sorted(range(len(entries) - 1, -1, -1), key=lambda index: entries[index].scalar is not None):
        entry = entries[index]
        if entry.value is None or entry.sign != sign or entry.mask & state.used:
            continue
        if bound is not None and entry.value is not bound:
            continue
        if heads is not None:
            producer = entry.value.producer()
            if producer is None or producer.op_type not in heads:
                continue
        if index == 0 and len(entries) > 1 and isinstance(inner, Chain) and type(inner) is type(state.chain):
            continue  # placing the whole chain as its own only part asks the same question again
        following = Placement(
            state.chain, state.tree, state.index + 1, state.used | entry.mask, (*state.bound, index), state.is_root
        )
        yield (inner, entry.value, (following, value, rest))
    if isinstance(part, Opt):
        bind_absent(m, inner)
        yield (
            Placement(state.chain, state.tree, state.index + 1, state.used, state.bound, state.is_root),
            value,
            rest,
        )
    else:
        m.fail(lambda: _no_part(value, inner, bound))


def _no_part(value: ir.Value, wanted: Pattern, bound: ir.Value | None) -> Refusal:
    """A refusal because no part of a sum or product is what a pattern wants, which says what the value is instead."""
    producer = value.producer()
    found = "" if producer is None or producer.op_type in _PARTED else f", which {words(producer)} computes,"
    return refuse("no_part", value, found=found, needed=_part(wanted) if bound is None else words(bound))


def _part(pattern: Pattern) -> str:
    """A part of a sum or product in words: the operators that may compute it, or its name.

    A part may have factors of its own: if it has another operator too, that is the one which tells.
    """
    heads = pattern.heads
    if heads is None:
        return bare(pattern)
    return f"computed by {words(heads - _PARTED or heads)}"


def _finish_chain(m: Machine, state: Placement, value: ir.Value, rest: Goals) -> Goals:
    product = isinstance(state.chain, Product)
    covered = [state.tree.entries[index].mask for index in state.bound]
    total = state.chain.neutral
    numbers = 0
    extra: list[tuple[int, ir.Value]] = []
    has_children = {entry.parent for entry in state.tree.entries}
    for index, entry in enumerate(state.tree.entries):
        if index in has_children or entry.mask & state.used:
            continue
        if entry.scalar is not None:
            numbers += 1
            factor = entry.scalar if entry.sign > 0 or not product else (1 / entry.scalar if entry.scalar else math.inf)
            total = total * factor if product else total + entry.sign * factor
        elif entry.value is not None:
            extra.append((entry.sign, entry.value))
    if extra and not (state.is_root and m.allow_extra):
        return m.fail(lambda: refuse("extra_part", extra[0][1], needed=f"the sum or product {words(value)}"))
    if not _scalar_fits(m, state.chain, value, total, product, numbers):
        return m.fail(lambda: refuse("coefficient", value, found=float(total), needed=float(state.chain.scalar)))
    if state.is_root:
        m.extra_operands, m.extra_are_factors = extra, product
    for entry in state.tree.entries:
        if entry.node is not None and not any(entry.mask & ~mask == 0 for mask in covered):
            m.take(entry.node, False)
    return rest


def _is_held(number: float, dtype: ir.DataType | None) -> bool:
    """Whether a number is neither too large nor, unless it is 0, too small for an element type: products of constants may be."""
    if not math.isfinite(number) or dtype is None or not dtype.is_floating_point():
        return math.isfinite(number)
    with np.errstate(all="ignore"):
        held = float(np.asarray(number).astype(dtype.numpy()))
    return math.isfinite(held) and (held != 0 or number == 0)


def _scalar_fits(m: Machine, chain: Chain, value: ir.Value, total: float, product: bool, numbers: int) -> bool:
    if chain.capture is not None:
        number = total / chain.scalar if product else total - chain.scalar
        return _is_held(number, m.facts.dtype(value)) and m.bind(chain.capture.name, number)
    dtype = m.facts.dtype(value)
    if numbers > 1 and product and dtype is not None:
        # The number may be a product of rounded constants: √2 · √2 is 2 only within rounding.
        return math.isclose(total, chain.scalar, rel_tol=numbers * EPSILON.get(dtype, 0.0))
    return close(total, chain.scalar, dtype)
