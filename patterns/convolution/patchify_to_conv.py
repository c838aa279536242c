"""Replace the MatMul of image patches as rows by a Conv whose stride is its kernel.

rearrange(x, b c (h p) (w q) -> b (h w) (p q c)) W = rearrange(conv(x, W, stride p q), b n h w -> b (h w) n)

Rationale: vision transformers cut images into patches so (Dosovitskiy et al., arXiv:2010.11929). Moving pixels one by one takes
1.7 to 5.6 times as long as the product itself.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ortfuse.ir.dims import DimLike, reshape_target
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, const, op, var

from .._shared_guards import floating, ints

ORDERS = {(1, 3, 2, 4, 0): (2, 0, 1), (1, 3, 0, 2, 4): (0, 1, 2)}
"""How [c, h, p, w, q] are ordered, rows and columns of patches first, and where c, p and q then stand among the last three."""

x, weight = var("x"), const("weight", "k n")
apart = op.Reshape(x, var("cut"), allowzero=attr("cut_allowzero")).named("apart")
turned = op.Transpose(apart, perm=attr("perm"))
rows = op.Reshape(turned, var("joined"), allowzero=attr("joined_allowzero")).named("rows")


def _order(match: Match) -> tuple[int, ...] | None:
    """The places of c, p and q in a patch; `None` if the axes are not in such an order."""
    perm, rank = tuple(match["perm"]), match.rank("apart")
    if rank == 6 and perm[0] == 0:
        perm = tuple(axis - 1 for axis in perm[1:])
    return ORDERS.get(perm)


def are_patches(match: Match) -> Refusal | None:
    """The rows are patches of an image of known size, with channels, rows and columns of pixels in some order."""
    shapes = match.shapes("x", "apart", "rows")
    if isinstance(shapes, Refusal):
        return shapes
    whole, parts, found = shapes
    if len(whole) != 4 or len(parts) not in (5, 6) or parts[:-5] != (whole[:1] if len(parts) == 6 else ()):
        return match.refuse("shape", "x", "an image of four axes, cut along two of them")
    channels, height, above, width, beside = parts[-5:]
    if (channels, height * above, width * beside) != whole[1:] or not all(isinstance(size, int) for size in parts[-5:]):
        return match.refuse("shape", "apart", "patches of known size")
    if _order(match) is None:
        return match.refuse("attribute", "perm", "rows and columns of patches first")
    if found[-1] != channels * above * beside:
        return match.refuse_dimension("rows", -1, channels * above * beside)
    return None if _target(match) is not None else match.refuse("shape", "rows", "one that is known but for one size")


def _lines(match: Match) -> tuple[DimLike, ...]:
    """The shape of the convolution with the channels last."""
    whole, parts, columns = match.shape("x") or (), match.shape("apart") or (), match.dim("n")
    return whole[0], parts[-4], parts[-2], columns


def _target(match: Match) -> list[int] | None:
    return reshape_target(_lines(match), (*(match.shape("rows") or ())[:-1], match.dim("n")))


def _kernel(match: Match) -> Any:
    *_, channels, _, above, _, beside = match.shape("apart") or ()
    order = _order(match) or ()
    sizes = [0, 0, 0]
    for place, size in zip(order, (channels, above, beside), strict=True):
        sizes[place] = int(size)  # type: ignore[arg-type]
    return match.const("weight").T.reshape(-1, *sizes).transpose(0, *(1 + place for place in order))


def _convolution(match: Match) -> Pattern:
    parts = match.shape("apart") or ()
    made = op.Conv(x, computed("kernel", _kernel), strides=[int(parts[-3]), int(parts[-1])])  # type: ignore[arg-type]
    last: Pattern = op.Transpose(made, perm=(0, 2, 3, 1))
    if (match.rank("rows"), (match.shape("rows") or ())[1:-1]) == (4, _lines(match)[1:3]):
        return last
    return op.Reshape(last, computed("lines", lambda match: ints(_target(match) or ())))


def _sides(build: Any) -> list[int]:
    """How many patches there are above and beside each other, and their sides."""
    _, channels, height, width = build.dims("x")
    side = {3: 16 if build.dims("weight")[0] == 768 else 4, 96: 2}.get(channels, 2)
    return [height // side, side, width // (2 * side), 2 * side] if channels == 2 else [height // side, side] * 2


def _cut(build: Any) -> ir.Value:
    batch, channels = build.dims("x")[:2]
    leading = [] if batch == 1 else [0]
    made: ir.Value = build.constant([*leading, channels, *_sides(build)])
    return made


def _rows_target(build: Any) -> ir.Value:
    above, _, beside, _ = _sides(build)
    patches = [above, beside] if build.dims("x")[0] == 1 else [above * beside]
    made: ir.Value = build.constant([1 if build.dims("x")[0] == 1 else 0, *patches, build.dims("weight")[0]])
    return made


_ZEROS = {"cut_allowzero": [0], "joined_allowzero": [0]}

RULES = [
    Rule(
        name="patch_embedding.patch_matmul_to_conv",
        formula="rearrange(x, b c (h p) (w q) -> b (h w) (p q c)) weight",
        pattern=op.MatMul(rows, weight),
        replace=_convolution,
        makes=("Conv", "Transpose", "Reshape"),
        guards=(are_patches, floating("x")),
        exactness=Exactness.ROUNDING,
        source="arXiv:2010.11929",
        test=RuleTest(
            shapes=({"x": "b 2 4 12", "weight": "16 5"}, {"x": "1 2 4 12", "weight": "16 5"}),
            inputs={"cut": _cut, "joined": _rows_target},
            attributes=(
                {"perm": [(0, 2, 4, 3, 5, 1), (0, 2, 4, 1, 3, 5)], **_ZEROS},
                {"perm": [(1, 3, 2, 4, 0)], **_ZEROS},
            ),
            counterexamples={"another order": Variation(attributes={"perm": (0, 2, 4, 5, 3, 1)})},
            redundant={"dimension *": "the product itself asks for it"},
            opset=18,
            typical=(
                {"x": "1 3 224 224", "weight": "768 768"},
                {"x": "1 3 224 224", "weight": "48 96"},
                {"x": "1 96 56 56", "weight": "384 192"},
            ),
            typical_attributes=({"perm": (1, 3, 2, 4, 0)},) * 3,
        ),
    ),
]
