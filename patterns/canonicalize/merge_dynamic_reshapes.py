"""Merge a Reshape into a following Reshape whose target stays dynamic.

reshape(reshape(x), target) = reshape(x, target)

With a constant target, `patterns.canonicalize.merge_reshapes_and_transposes` does the same. A 0 in the target copies a size of
the input, so that this size has to be known.

Rationale: TensorFlow exports einsum with such targets.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ortfuse.ir.dims import is_nonzero
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, op, var

from .._rule_test_inputs import computed_shape
from .._shared_guards import ints
from .merge_reshapes_and_transposes import Shape, target_is_arithmetic

SOURCE = "ONNX operator Reshape"

x, shape = var("x"), var("shape")
inner_reshape = (
    op.Reshape(x, var("inner_shape"), allowzero=attr("inner_allowzero")).kept()
    | op.Flatten(x, axis=attr("inner_axis")).kept()
    | op.Squeeze(x, axes=attr("inner_axes")).kept()
    | op.Unsqueeze(x, axes=attr("inner_axes")).kept()
)
target: Any = {"allowzero": attr("allowzero")}


def needs_its_target(match: Match) -> Refusal | None:
    """No constant target would do."""
    if match.facts.is_const(match["shape"]) or target_is_arithmetic(match) is None:
        return match.refuse("needless", "shape", found="a constant target does")
    return None


def _copies_alike(match: Match, old: Shape, new: Shape) -> bool:
    """Whether what may be 0 in the target copies the same size, whichever of the two shapes is reshaped."""
    elements = _elements(match)
    places = range(min(len(old), len(new), len(elements)))
    same = [old[place] == new[place] for place in places] + [False] * len(elements)
    return bool(elements) and all(
        alike or match["allowzero"] or (number is not None and is_nonzero(number))
        for alike, number in zip(same, elements, strict=False)
    )


def _elements(match: Match) -> tuple[Any, ...]:
    known = match.facts.ints(match["shape"])
    return () if known is None else tuple(known.elements)


def _is_the_shape(match: Match) -> bool:
    """Whether the target is the shape of the root as numbers, but for a -1 that stands for a known size."""
    after, elements = match.shape("root") or (), _elements(match)
    return len(after) == len(elements) > 0 and all(
        isinstance(dim, int) and dim > 0 if number == -1 else number == dim and number != 0
        for dim, number in zip(after, elements, strict=True)
    )


def _unless_sized(match: Match, old: Shape, new: Shape) -> Refusal | None:
    if _copies_alike(match, old, new) or _is_the_shape(match):
        return None
    return match.refuse("value", "shape", "of numbers that are not 0, or the sizes of the result")


def _reshaped(match: Match, moved: Pattern, old: Shape, new: Shape) -> Pattern:
    """`moved`, of the shape `new`, reshaped as what has the shape `old` was."""
    if _copies_alike(match, old, new):
        same: Pattern = op.Reshape(moved, shape, allowzero=attr("allowzero"))
        return same
    after, elements = match.shape("root") or (), list(_elements(match))
    target: Pattern = shape
    if -1 in elements:
        place = elements.index(-1)
        parts = (_part(0, place), _int64_vector(after[place]), _part(place + 1, len(elements)))
        target = op.Concat(*(part for part in parts if part is not None), axis=0)
    made: Pattern = op.Reshape(moved, target, allowzero=1)
    return made


def _part(start: int, end: int) -> Pattern | None:
    return op.Slice(shape, _int64_vector(start), _int64_vector(end)) if start < end else None


def _int64_vector(number: Any) -> Pattern:
    return computed(f"number{number}", lambda match: ints([number]))


def copies_sizes_of_x(match: Match) -> Refusal | None:
    """Each element of the target that may be 0 copies a size of x at the same axis, or the target is the result's shape."""
    shapes = match.shapes("between", "x")
    return shapes if isinstance(shapes, Refusal) else _unless_sized(match, *shapes)


def _at_once(match: Match) -> Pattern:
    return _reshaped(match, x, match.shape("between") or (), match.shape("x") or ())


def _sizes(build: Any) -> ir.Value:
    """The sizes [b, s, rest, 1] of x; an axis of it is behind the place that it had."""
    source = next(value for value in build.graph.inputs if value.name == "x")
    shape = build.node("Shape", [source]).outputs[0]
    last = build.node("Gather", [shape, build.constant([1])]).outputs[0]
    first = build.node("Gather", [shape, build.constant([0])]).outputs[0]
    made: ir.Value = build.node("Concat", [first, build.constant([-1]), last], {"axis": 0}).outputs[0]
    return made


_NEVER_EMPTY = {"*": "where a computed size is 0, the runtime copies another size or refuses the -1"}

RULES = [
    Rule(
        name="reshape.dynamic_reshape_of_reshape",
        formula="Reshape(Reshape | Flatten | Squeeze | Unsqueeze(x), target)",
        pattern=op.Reshape(inner_reshape.named("between"), shape, **target),
        replace=built(_at_once, makes=("Reshape", "Concat", "Slice")),
        guards=(needs_its_target, copies_sizes_of_x),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "b s 1 6", "inner_shape": "4", "shape": "3"},
            constants={"inner_shape": [0, 0, 3, 2]},
            attributes={"allowzero": [0], "inner_allowzero": [0], "inner_axis": [2], "inner_axes": [(2,)]},
            inputs={"shape": _sizes},
            never_empty=_NEVER_EMPTY,
            counterexamples={
                "a size copied from another axis": Variation(
                    shapes={"x": "b 1 1 6"}, inputs={"shape": computed_shape("x", 1, (0, 6))}
                )
            },
        ),
    ),
]
