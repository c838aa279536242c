"""Merge consecutive Slices.

slice(slice(x)) = slice(x)
"""

from __future__ import annotations

from typing import Any

from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import RuleTest
from ortfuse.rewrite.pattern import Match, Op, Pattern, attr, computed, op, var

from .._shared_guards import ints
from .compose_slice_and_concat import TO_THE_END, exact_rule

x = var("x")

Cut = tuple[int, int, int]
"""Start, end and step of a Slice along one axis."""


def _cuts(match: Match, prefix: str) -> dict[int, Cut] | None:
    """For each axis its start, end and step, all numbers; `None` if not all are known."""
    starts, ends, axes, steps = (match[f"{prefix}_{name}"] for name in ("starts", "ends", "axes", "steps"))
    rank = match.rank("x")
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    numbers = [*starts, *ends, *axes, *steps]
    if rank is None or not all(isinstance(number, int) for number in numbers) or 0 in steps:
        return None
    if len({len(starts), len(ends), len(axes), len(steps)}) > 1 or len(set(axes)) < len(axes):
        return None
    return {axis: cut for axis, *cut in zip(axes, starts, ends, steps, strict=True)}  # type: ignore[misc]


def _composed(dim: DimLike, first: Cut, second: Cut) -> Cut | None:
    """One cut along an axis of this size with the effect of two; `None` if that depends on a size that is no number."""
    if not isinstance(dim, int):
        return _composed_forwards(first, second) or _reversed_twice(first, second)
    kept = range(dim)[slice(*first)][slice(*second)]
    if not kept:
        return 0, 0, 1
    return kept.start, kept.stop if kept.step > 0 or kept.stop >= 0 else -dim - 1, kept.step


def _composed_forwards(first: Cut, second: Cut) -> Cut | None:
    """The same along an axis of any size, for cuts that count their starts from the front."""
    (start, end, step), (skipped, last, stride) = first, second
    if min(start, skipped) < 0 or min(step, stride) < 0:
        return None
    begin, taken = start + skipped * step, step * stride
    if last >= TO_THE_END:
        return begin, end, taken
    if last >= 0:
        return None if end < 0 else (begin, min(end, start + last * step), taken)
    if step > 1 or 0 <= end < TO_THE_END:
        return None
    return begin, last if end >= TO_THE_END else end + last, taken


def _reversed_twice(first: Cut, second: Cut) -> Cut | None:
    """The whole axis, if both cuts turn it round."""
    turned = all(
        (start == -1 or start >= TO_THE_END) and end <= -TO_THE_END and step == -1
        for start, end, step in (first, second)
    )
    return (0, TO_THE_END, 1) if turned else None


def _merged_cuts(match: Match) -> dict[int, Cut] | None:
    inner, outer, shape = _cuts(match, "inner"), _cuts(match, "outer"), match.shape("x")
    if inner is None or outer is None or shape is None:
        return None
    merged = {**inner, **outer}
    for axis in inner.keys() & outer.keys():
        found = _composed(shape[axis], inner[axis], outer[axis])
        if found is None:
            return None
        merged[axis] = found
    cutting = {axis: cut for axis, cut in merged.items() if not _keeps_all(shape[axis], cut)}
    return dict(sorted((cutting or merged).items()))


def _keeps_all(dim: DimLike, cut: Cut) -> bool:
    """Whether a cut takes a whole axis of this size: exporters write such cuts along all other axes."""
    start, end, step = cut
    return (start, step) == (0, 1) and (end >= TO_THE_END or (isinstance(dim, int) and end >= dim))


def is_one_slice(match: Match) -> Refusal | None:
    """All numbers are known, and one Slice has the effect of both."""
    if _merged_cuts(match) is not None:
        return None
    return match.refuse("values_unknown", "root", "a part of x between known numbers")


def is_only_sliced(match: Match) -> Refusal | None:
    """Nothing but Slices reads what is between, so that no node is left over: rows taken for two sets of columns, say."""
    between = match["between"]
    readers = [(use.node.op_type, use.node.domain, use.idx) for use in between.uses()]
    if between.is_graph_output() or any(reader != ("Slice", "", 0) for reader in readers):
        return match.refuse("condition", "between", "a part of which only parts are read")
    return None


def _cut_numbers(number: int) -> Any:
    """The starts, ends, axes or steps of the one Slice that is left."""

    def values(match: Match) -> Any:
        merged = _merged_cuts(match) or {}
        return ints([(cut[0], cut[1], axis, cut[2])[number] for axis, cut in merged.items()])

    return computed(("starts", "ends", "axes", "steps")[number], values)


def _sliced(operand: Pattern, prefix: str) -> Op:
    made: Op = op.Slice(operand, **{name: attr(f"{prefix}_{name}") for name in ("starts", "ends", "axes", "steps")})
    return made


RULES = [
    exact_rule(
        "slice.slice_of_slice",
        "slice(slice(x))",
        _sliced(_sliced(x, "inner").kept().named("between"), "outer"),
        op.Slice(x, *(_cut_numbers(number) for number in range(4))),
        RuleTest(
            shapes=({"x": "7 b"}, {"x": "b 6"}),
            attributes=(
                {
                    "inner_starts": [(1,), (5,)],
                    "inner_ends": [(6,), (-20,)],
                    "inner_axes": [(0,)],
                    "inner_steps": [(1,), (-2,)],
                    "outer_starts": [(1,), (-1,)],
                    "outer_ends": [(3,), (-9,)],
                    "outer_axes": [(0,)],
                    "outer_steps": [(1,), (-1,)],
                },
                {
                    "inner_starts": [(1,)],
                    "inner_ends": [(TO_THE_END,)],
                    "inner_axes": [(0,), None],
                    "inner_steps": [(1,), None],
                    "outer_starts": [(1,)],
                    "outer_ends": [(-1,)],
                    "outer_axes": [(1,)],
                    "outer_steps": [(1,)],
                },
            ),
        ),
        is_one_slice,
        is_only_sliced,
    ),
]
