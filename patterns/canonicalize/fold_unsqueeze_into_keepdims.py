"""Fold the Unsqueeze, Reshape or Squeeze around a reduction into its axes and keepdims.

reshape(factor sum(x)) = factor sum(x, keepdims=1)
squeeze(sum(x, keepdims=1)) = sum(x, keepdims=0)
reduce(unsqueeze(x, a), axes) = reduce(x, axes without a)
sum(x) / n = mean(x)                                           over n elements

Rationale: torch.export writes variances and full means with Reshape, and one-dimensional pools as two-dimensional ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, op, opt, scalar, var

from .._shared_guards import array_like, floating

x = var("x")
axes = attr("axes", lambda found, facts: isinstance(found, tuple) and len(found) > 0, "given")


def restores_the_axes(match: Match) -> Refusal | None:
    """The result has the shape of x with 1 for each reduced axis."""
    shape = match.shape("x")
    if shape is None:
        return match.refuse("shape", "x")
    return match.unless_shape([1 if axis in match["axes"] else dim for axis, dim in enumerate(shape)], "root")


def _keepdims(name: str) -> Rule:
    build = getattr(op, name)
    reduced = build(x, axes=axes, keepdims=0)
    return Rule(
        name=f"reduction.fold_unsqueeze_into_{name.removeprefix('Reduce').lower()}",
        formula=f"reshape({name}(x, keepdims=0))",
        pattern=op.Reshape(reduced, var("shape"), allowzero=attr("allowzero")) | op.Unsqueeze(reduced, axes=axes),
        replace=build(x, axes=attr("axes"), keepdims=1),
        guards=(restores_the_axes,),
        exactness=Exactness.EXACT,
        source=f"ONNX operator {name}",
        test=RuleTest(
            shapes={"x": "2 3 4", "shape": "3"},
            constants={"shape": np.array([2, 1, 4])},
            attributes={"axes": [(1,)], "allowzero": [0]},
            counterexamples={
                "all axes, not given": Variation(
                    shapes={"x": "1 1 1"}, constants={"shape": np.array([1, 1, 1])}, attributes={"axes": None}
                )
            },
        ),
    )


def _scaled(name: str) -> Rule:
    """The axes are restored behind a factor: torch.export writes unbiased variances like this."""
    build, factor = getattr(op, name), scalar("factor")
    reduced = build(x, axes=axes, keepdims=0)
    scaled = (op.Mul(reduced, factor) | op.Div(reduced, factor)).named("scaled")

    def made(match: Match) -> Pattern:
        whole = build(x, axes=attr("axes"), keepdims=1)
        number = computed("factor", lambda match: array_like(match, match["factor"]))
        result: Pattern = op.Div(whole, number) if match.choice("scaled") else op.Mul(whole, number)
        return result

    return Rule(
        name=f"reduction.fold_unsqueeze_into_scaled_{name.removeprefix('Reduce').lower()}",
        formula=f"reshape(factor {name}(x, keepdims=0))",
        pattern=op.Reshape(scaled, var("shape"), allowzero=attr("allowzero")) | op.Unsqueeze(scaled, axes=axes),
        replace=made,
        makes=(name, "Mul", "Div"),
        guards=(floating("x"), restores_the_axes),
        exactness=Exactness.EXACT,
        source=f"ONNX operator {name}",
        test=RuleTest(
            shapes={"x": "2 3 4", "shape": "3"},
            constants={"shape": np.array([2, 1, 4])},
            attributes={"axes": [(1,)], "allowzero": [0]},
            scalars={"factor": [1.5]},
        ),
    )


def reduces_all(match: Match) -> Refusal | None:
    """The reduction is over all axes."""
    given, rank = match["axes"], match.rank("x")
    whole = not given or (rank is not None and sorted(given) == list(range(rank)))
    return match.unless_value("axes", whole, "all of them")


def drops_all(match: Match) -> Refusal | None:
    """The Squeeze leaves one number without axes."""
    return match.unless_shape((), "root")


def _dropped(name: str) -> Rule:
    build = getattr(op, name)
    return Rule(
        name=f"reduction.fold_squeeze_into_full_{name.removeprefix('Reduce').lower()}",
        formula=f"squeeze({name}(x)), over all axes",
        pattern=op.Squeeze(build(x, axes=attr("axes"), keepdims=1), opt(var("squeezed"))),
        replace=build(x, keepdims=0),
        guards=(reduces_all, drops_all),
        exactness=Exactness.EXACT,
        source=f"ONNX operator {name}",
        test=RuleTest(
            shapes={"x": "2 3", "squeezed": "2"},
            constants={"squeezed": np.array([0, 1])},
            attributes={"axes": [None, (0, 1)]},
        ),
    )


def _without(name: str, between: str = "") -> Rule:
    """The axes that are kept are dropped at once; between the two, roots or logarithms may be taken."""
    build = getattr(op, name)
    wrap: Callable[[Pattern], Pattern] = getattr(op, between) if between else lambda reduced: reduced
    return Rule(
        name=f"reduction.fold_squeeze_into_{name.removeprefix('Reduce').lower()}{'_below_' if between else ''}{between.lower()}",
        formula=f"squeeze({between}{'(' if between else ''}{name}(x)){')' if between else ''}",
        pattern=op.Squeeze(wrap(build(x, axes=axes, keepdims=1)), axes=axes),
        replace=wrap(build(x, axes=attr("axes"), keepdims=0)),
        exactness=Exactness.EXACT,
        source=f"ONNX operators {name} and Squeeze",
        test=RuleTest(shapes={"x": "2 3 4"}, attributes={"axes": [(1,), (1, 2)]}),
    )


def _rest(match: Match) -> tuple[int, ...]:
    """The reduced axes of x."""
    rank = (match.rank("x") or 0) + len(match["added"])
    added = {axis % rank for axis in match["added"]}
    kept = [axis for axis in range(rank) if axis not in added]
    return tuple(place for place, axis in enumerate(kept) if axis in match["axes"])


def reduces_added(match: Match) -> Refusal | None:
    """The axes that were added are reduced, and others too."""
    rank = match.rank("x")
    if rank is None:
        return match.refuse("rank", "x")
    rank += len(match["added"])
    given, added = set(match["axes"]), {axis % rank for axis in match["added"]}
    return match.unless_value(
        "axes", all(0 <= axis < rank for axis in given) and added < given, "the axes that were added and others"
    )


def _of_added(name: str, keepdims: int) -> Rule:
    build = getattr(op, name)
    reduced = build(x, axes=_rest, keepdims=keepdims)
    return Rule(
        name=f"reduction.{'sink_unsqueeze_below' if keepdims else 'drop_unsqueeze_before'}_{name.removeprefix('Reduce').lower()}",
        formula=f"{name}(unsqueeze(x))",
        pattern=build(op.Unsqueeze(x, axes=attr("added")), axes=axes, keepdims=keepdims),
        replace=op.Unsqueeze(reduced, axes=attr("added")) if keepdims else reduced,
        guards=(reduces_added,),
        # The runtime adds along one axis in another order than along two.
        exactness=Exactness.EXACT if name in ("ReduceMax", "ReduceMin") else Exactness.ROUNDING,
        source=f"ONNX operators {name} and Unsqueeze",
        test=RuleTest(
            shapes={"x": "2 3 4"},
            attributes={"added": [(3,), (-1,), (1,)], "axes": [(1, 3), (1, 2, 3)]},
            counterexamples={"nothing but the added axis": Variation(attributes={"added": (1,), "axes": (1,)})},
            opset=18,
        ),
    )


def _elements(match: Match) -> int | None:
    """How many elements each sum is over; `None` if that is not a known number above 0."""
    shape = match.shape("x")
    sizes = [] if shape is None else [shape[axis] for axis in match["axes"]]
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    return math.prod(known) if known and len(known) == len(sizes) else None


def is_divided_by_their_number(match: Match) -> Refusal | None:
    """The sum is divided by how many elements it is over, or multiplied by the reciprocal as exact as float32 has it."""
    count = _elements(match)
    if count is None:
        return match.refuse("shape", "x", "known sizes along the axes")
    given = match.get("count")
    right = given == count if given is not None else math.isclose(match["share"] * count, 1.0, rel_tol=2.0**-23)
    return match.unless_value("share" if given is None else "count", right, f"for {count} elements")


def _mean(name: str, made: Callable[[Pattern], Pattern], numbers: dict[str, list[float]]) -> Rule:
    summed = op.ReduceSum(x, axes=axes, keepdims=attr("keepdims"))
    return Rule(
        name=f"reduction.{name}_of_sum_to_mean",
        formula=f"{made(op.ReduceSum(x))}",
        pattern=made(summed),
        replace=op.ReduceMean(x, axes=attr("axes"), keepdims=attr("keepdims")),
        guards=(floating("x"), is_divided_by_their_number),
        exactness=Exactness.ROUNDING,
        source="ONNX operator ReduceMean",
        test=RuleTest(
            shapes={"x": "b 3 4"},
            attributes={"axes": [(1, 2), (-2, -1)], "keepdims": [0, 1]},
            scalars=numbers,
            never_empty={"b": "the runtime's ReduceSum of nothing keeps the axes that it sums over"},
            counterexamples={
                "of fewer elements": Variation(attributes={"axes": (1,)}),
                "of no element": Variation(shapes={"x": "b 0 4"}),
            },
        ),
    )


RULES = [_keepdims(name) for name in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2")]
RULES += [_scaled(name) for name in ("ReduceMean", "ReduceSum")]
RULES += [_dropped(name) for name in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")]
RULES += [
    _without(name)
    for name in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceLogSumExp")
]
RULES += [_without("ReduceSum", "Sqrt"), _without("ReduceSum", "Log")]
RULES += [
    _of_added(name, keepdims) for name in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin") for keepdims in (0, 1)
]
RULES += [
    _mean("div", lambda summed: op.Div(summed, scalar("count")), {"count": [12.0]}),
    _mean("mul", lambda summed: op.Mul(summed, scalar("share")), {"share": [1 / 12]}),
]
