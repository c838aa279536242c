"""Unify named dimensions of a pattern with the shapes of matched values.

A name stands for the same dimension throughout the pattern. A constraint that cannot be decided when a value is matched
(a product of several unbound dimensions, `b|1` before b is known) is decided as soon as possible, at the latest when
everything has matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import onnx_ir as ir

from ortfuse.ir.dims import DimLike, exact_div, is_broadcast_of, is_cut_of
from ortfuse.ir.refusal import Subject, refuse, words
from ortfuse.rewrite.pattern.axis_names import Axes, Axis, Factor
from ortfuse.rewrite.pattern.backtracking_machine import Machine, unlike
from ortfuse.rewrite.pattern.language import Pattern


class Place(NamedTuple):
    """An axis of a value, and the name that the pattern gives the value."""

    value: ir.Value
    name: str
    axis: int

    def __str__(self) -> str:
        return str(Subject.dimension(self.value, self.axis, self.name))


class Bound(NamedTuple):
    """The dimension bound to a name, and the place that it was bound by."""

    dim: Any
    place: Place


def labelled(m: Machine, pattern: Pattern, value: ir.Value) -> bool:
    """Capture a matched value under the label of its pattern, if it has one, and check its shape against the pattern's."""
    if pattern.label is not None and not m.bind(pattern.label, value):
        m.fail(unlike(pattern.label, value, m))
        return False
    return pattern.axes is None or has_axes(m, pattern.axes, value, pattern.label or "")


def has_axes(m: Machine, wanted: Axes, value: ir.Value, name: str) -> bool:
    """Whether a value, called `name` in the pattern, has the wanted shape as far as is known yet; binds dimension names."""
    shape, axes = m.facts.shape(value), wanted.axes
    if shape is None or len(shape) < wanted.least or (len(shape) > len(axes) and wanted.leading is None):
        m.fail(
            lambda: refuse("shape", Subject.of(value, name), found=shape, needed=f"[{', '.join(str(wanted).split())}]")
        )
        return False
    rank = len(shape)
    front = max(0, rank - len(axes))
    if wanted.leading and not _is(m, f"...{wanted.leading}", tuple(shape[:front]), Place(value, name, 0)):
        return False
    for offset, axis in enumerate(axes[len(axes) - rank + front :], start=front):
        dim, factor = shape[offset], axis.factors[0]
        if len(axis.factors) == 1 and not axis.may_be_one:
            if factor not in (dim, "_") and not _is(m, factor, dim, Place(value, name, offset)):
                return False
            continue
        place = Place(value, name, offset)
        fits = _fits(m, axis, dim, place)
        if fits is False:
            return False
        if fits is None:
            m.put(m.pending, (len(m.trail), place), (axis, dim))
    return True


def settle(m: Machine) -> bool:
    """Decide what was left open, as far as possible now; false if the pattern's shapes cannot hold."""
    known = -1
    while len(m.dims) > known:
        known = len(m.dims)
        for (_, place), (axis, dim) in m.pending.items():
            if _fits(m, axis, dim, place) is False:
                return False
    return True


def settle_all(m: Machine) -> bool:
    """Decide everything left open once all has matched: if b is still unbound then, `b|1` binds it."""
    while settle(m):
        first = next(((axis.factors[0], Bound(dim, place)) for (_, place), (axis, dim) in m.pending.items()
                      if axis.may_be_one and dim != 1 and axis.factors[0] not in m.dims), None)  # fmt: skip
        if first is None:
            return True
        m.put(m.dims, *first)
    return False


def size_of(m: Machine, factors: Sequence[Factor]) -> DimLike | None:
    """The product of dimensions and numbers; `None` if one is unknown."""
    total: DimLike = 1
    for factor in factors:
        if isinstance(factor, int):
            total = total * factor
        elif factor in m.dims:
            total = total * m.dims[factor].dim
        else:
            return None
    return total


def _fits(m: Machine, axis: Axis, dim: DimLike, place: Place) -> bool | None:
    """Whether the axis can have this size; `None` if that is not decided yet."""
    if axis.may_be_one:
        if dim == 1:
            return True
        bound = m.dims.get(axis.factors[0])
        if bound is None:
            return None
        # A size that is broadcast with `full`, or of which `full` is made by broadcasting, is 1 or `full` in every run that
        # does not fail there.
        held = is_broadcast_of(bound.dim, dim) or is_cut_of(dim, bound.dim, least=2)
        return held or _differs(m, axis.factors[0], bound, dim, place)
    unknown = [factor for factor in axis.factors if isinstance(factor, str) and factor not in m.dims]
    total = size_of(m, [factor for factor in axis.factors if factor not in unknown])
    assert total is not None
    if len(unknown) > 1:
        return None
    if unknown:
        quotient = exact_div(dim, total)
        if quotient is not None:
            m.put(m.dims, unknown[0], Bound(quotient, place))
            return True
    if total == dim and not unknown:
        return True
    needed = f"a multiple of {total}, as {axis} is" if unknown else f"{total}, as {axis} is"
    m.fail(
        lambda: refuse("dimension", Subject.dimension(place.value, place.axis, place.name), found=dim, needed=needed)
    )
    return False


def _is(m: Machine, wanted: Factor, dim: Any, place: Place) -> bool:
    """Whether a dimension (or the tuple of leading ones) is the one bound to the name; binds the name if it is unbound."""
    bound = m.dims.get(wanted)
    if bound is None and isinstance(wanted, str):
        m.put(m.dims, wanted, Bound(dim, place))
        return True
    return (bound is not None and bound.dim == dim) or _differs(m, wanted, bound, dim, place)


def _differs(m: Machine, wanted: Factor, bound: Bound | None, dim: Any, place: Place) -> bool:
    subject = Subject.dimension(place.value, place.axis, place.name)
    m.fail(lambda: refuse("dimension", subject, found=dim, needed=wanted if bound is None else
                          f"{words(bound.dim)}, which is {wanted} by {bound.place}"))  # fmt: skip
    return False
