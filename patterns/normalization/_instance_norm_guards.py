"""Guards for images that the runtime's InstanceNormalization can normalise.

The kernel ends the process on an image without pixels.
It computes `x f + (bias - mean f)`, `f = scale / sqrt(variance + epsilon)`.
If the variance is 0, the bias loses as many digits as `f` is large. For a single element, `x - mean` is exactly 0, so that the
result is the bias with all of its digits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike, exact_div, is_nonzero, product
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite.pattern import Guard, Match, redundant

LEAST_EPSILON = 1e-6
"""The least epsilon: of numbers about 1 that are all equal, the bias is off by up to 6e-5 then."""

LEAST_OF_ANY = 1e-5
"""The least epsilon where there may be a single element: the bias is off by up to 2e-5 then."""

MOST = 64
"""How many values that an image is computed from are looked at."""


def has_pixels(name: str) -> Guard:
    """No size of the captured image but those of the batch and of the channels is 0, in a run that computes it."""

    @redundant("only an image without pixels shows it, which ends the process")
    def guard(match: Match) -> Refusal | None:
        shape = match.shape(name)
        if shape is None:
            return match.refuse("shape", name)
        wanting = _wanting(match[name], shape[1:], match.facts)
        return match.refuse_dimension(name, 1 + shape[1:].index(wanting[0]), "greater than 0") if wanting else None

    return guard


def keeps_digits(sizes: Callable[[Match], Sequence[DimLike] | None]) -> Guard:
    """Guard: each mean is of more than one element, and the captured `epsilon` not so small that the bias loses digits."""

    def guard(match: Match) -> Refusal | None:
        normalised = sizes(match)
        if normalised is None:
            return match.refuse("shape", "x")
        count = product(normalised)
        if count == 1:
            return match.refuse("shape", "x", "more than one element to each mean")
        least = LEAST_EPSILON if is_nonzero(count - 1) else LEAST_OF_ANY
        # An epsilon written in half precision is a little smaller than what is meant.
        return match.unless_value("epsilon", match["epsilon"] >= 0.99 * least, f"at least {least:g}")

    return guard


def _wanting(image: ir.Value, sizes: Sequence[DimLike], facts: Facts) -> list[DimLike]:
    """Those of the sizes that may be 0: neither proved, nor of a convolution before, which fails if its result is empty.

    A product of sizes is 0 only if one of them is.
    """
    wanting = {size: size for size in sizes if not is_nonzero(size)}
    pending, seen = deque([image]), {image}
    while wanting and pending:
        value = pending.popleft()
        node = value.producer()
        if node is None:
            continue
        if node.op_type == "Conv" and not node.domain:
            found = (facts.shape(value) or ())[2:]
            wanting = {size: rest for size, left in wanting.items() if not is_nonzero(rest := _without(left, found))}
        for operand in node.inputs:
            if operand is not None and operand not in seen and len(seen) < MOST:
                seen.add(operand)
                pending.append(operand)
    return list(wanting)


def _without(size: DimLike, factors: Iterable[DimLike]) -> DimLike:
    """A size divided by those of the factors that it is a multiple of."""
    for factor in factors:
        if not isinstance(factor, int) and (rest := exact_div(size, factor)) is not None:
            size = rest
    return size


def convolved(channels: int) -> Any:
    """For rule tests: an image with the channels at this axis, computed by a convolution if the number of its pixels is open."""

    def made(build: Any) -> ir.Value:
        dims = list(build.dims("x"))
        rest = [dim for axis, dim in enumerate(dims) if axis not in (0, channels % len(dims))]
        if all(isinstance(dim, int) for dim in rest):
            whole: ir.Value = build.input("x", dims)
            return whole
        count = dims[channels]
        image = build.input("x", [dims[0], count, *rest])
        kernel = build.constant(np.ones((count, 1, *(1 for _ in rest)), np.float32))
        value: ir.Value = build.node("Conv", [image, kernel], {"group": count}).outputs[0]
        if channels == 1:
            return value
        turned: ir.Value = build.node("Transpose", [value], {"perm": [0, *range(2, len(dims)), 1]}).outputs[0]
        return turned

    return made
