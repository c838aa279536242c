"""Merge a Conv with a 1x1 kernel into the MatMul whose rows are the pixels of its image.

conv(image(x W + b), V, c) = image(x (W V) + (b V + c))      where image is a Transpose and a Reshape of the rows, in either order

Rationale: heads of vision transformers project their features, make images of them and map the channels (SegFormer,
arXiv:2105.15203).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.linear_maps.windows import window
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import (
    Guard,
    Match,
    Op,
    Pattern,
    all_attributes,
    attr,
    computed,
    const,
    ms,
    op,
    opt,
    redundant,
    var,
)

from .._rule_test_inputs import COST

PASS = "target_decompositions"

Array = np.ndarray[Any, Any]

x, target = var("x"), var("target")
product, bias = const("product", "_ _"), const("bias")
weight, offset = const("weight"), const("offset")

rows = (op.MatMul(x, product) + opt(bias)).named("rows")


def _turned_first(value: Pattern, sizes: Any) -> Op:
    turned = op.Transpose(value, perm=attr("perm")).named("turned")
    made: Op = op.Reshape(turned, sizes, allowzero=attr("allowzero")).named("image")
    return made


def _split_first(value: Pattern, sizes: Any) -> Op:
    split = op.Reshape(value, sizes, allowzero=attr("allowzero")).named("split")
    made: Op = op.Transpose(split, perm=attr("perm")).named("image")
    return made


def _map(match: Match) -> Array:
    """V, by channels and results."""
    array: Array = match.const("weight").astype(np.float64)
    return array.reshape(array.shape[:2]).T


def _product(match: Match) -> Array:
    array: Array = match.const("product")
    with np.errstate(over="ignore", invalid="ignore"):
        return (array.astype(np.float64) @ _map(match)).astype(array.dtype)


def _bias(match: Match) -> Array | None:
    """b V + c; `None` if there are neither."""
    if match["bias"] is None and match["offset"] is None:
        return None
    channels, results = _map(match).shape
    before = np.zeros(channels) if match["bias"] is None else match.const("bias").astype(np.float64)
    after = np.zeros(results) if match["offset"] is None else match.const("offset").astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.broadcast_to(before.reshape(-1), channels) @ _map(match) + after
        return total.astype(match.const("product").dtype)


def pixels_are_columns(match: Match) -> Refusal | None:
    """The Transpose swaps rows and columns, and the Reshape splits the rows into spatial axes."""
    shapes = match.shapes("turned", "image")
    if isinstance(shapes, Refusal):
        return shapes
    if tuple(match["perm"] or ()) != (0, 2, 1):
        return match.refuse("attribute", "perm", (0, 2, 1))
    before, after = shapes
    wanted = len(after) > 2 and before[:2] == after[:2] and before[1] == match.const("product").shape[1]
    return None if wanted else match.refuse("shape", "image", (*before[:2], "*"))


def pixels_are_rows(match: Match) -> Refusal | None:
    """The Reshape splits the rows into spatial axes, and the Transpose moves the channels to the second axis."""
    shape = match.shape("split")
    if shape is None or len(shape) < 3 or shape[-1] != match.const("product").shape[1]:
        return match.refuse("shape", "split", ("*", match.const("product").shape[1]))
    wanted = (0, len(shape) - 1, *range(1, len(shape) - 1))
    return None if tuple(match["perm"] or ()) == wanted else match.refuse("attribute", "perm", wanted)


def is_a_map_of_channels(match: Match) -> Refusal | None:
    """The Conv has a 1x1 kernel, without strides or padding."""
    shape = match.const("weight").shape
    found = window(match["conv"], shape[2:]) if len(shape) > 2 else None
    if found is None or found.groups != 1 or not found.is_single_tap:
        return match.refuse("condition", "layer", "a convolution of a single tap, without padding, strides or groups")
    return match.unless_dtype("weight", ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


def bias_has_columns(match: Match) -> Refusal | None:
    """The bias is one number for each column, or for all."""
    shape = () if match["bias"] is None else match.const("bias").shape
    columns = match.const("product").shape[1]
    wanted = len(shape) <= 3 and all(dim == 1 for dim in shape[:-1]) and shape[-1:] in ((), (1,), (columns,))
    return None if wanted else match.refuse("shape", "bias", (columns,))


def target_is_kept(match: Match) -> Refusal | None:
    """The shape of the image, if it names the number of channels, is known."""
    channels, results = _map(match).shape
    known = match.facts.ints(match["target"])
    if channels == results or (known is not None and match.const("target") is not None):
        return None
    return match.refuse("condition", "target", "known sizes")


def result_is_held(match: Match) -> Refusal | None:
    """The product of the weights fits their type."""
    finite = all(made is None or bool(np.all(np.isfinite(made))) for made in (_product(match), _bias(match)))
    return match.unless_value("product", finite, "such that its product with the weights is finite")


@redundant(COST)
def is_less_work(match: Match) -> Refusal | None:
    """One product takes no more multiplications than both."""
    (inputs, channels), results = match.const("product").shape, len(match.const("weight"))
    if inputs * results <= channels * (inputs + results):
        return None
    return match.refuse("needless", "root", found="one product is more work than both")


def _target(place: int) -> Callable[[Match], Array]:
    """The sizes that the rows, or what is turned, are given, with another number of channels at this place."""

    def sizes(match: Match) -> Array:
        found: Array = match.const("target").copy()
        found[place] = len(match.const("weight")) if found[place] > 0 else found[place]
        return found

    return sizes


def _projected(form: Callable[[Pattern, Any], Op], place: int, is_activated: bool) -> Callable[[Match], Pattern]:
    def made(match: Match) -> Pattern:
        channels, results = _map(match).shape
        mapped: Pattern = op.MatMul(x, computed("product", _product))
        if _bias(match) is not None:
            mapped = mapped + computed("bias", _bias)
        image = form(mapped, target if channels == results else computed("target", _target(place)))
        activated: Pattern = op.Relu(image)
        return activated if is_activated else image

    return made


def _kernel(more: Mapping[str, Any]) -> str:
    return "FusedConv" if more else "Conv"


def _image_of(form: Callable[[Pattern, Any], Op]) -> str:
    return "Reshape(Transpose" if form is _turned_first else "Transpose(Reshape"


def _conv1x1_rule(name: str, build: Any, form: Callable[[Pattern, Any], Op], place: int, perm: Sequence[int],
          sizes: Sequence[int], guard: Guard, **more: Any) -> Rule:  # fmt: skip
    shapes = {"x": "n 6 5", "product": "5 4", "weight": "3 4 1 1", "bias": "4", "offset": "3", "target": "4"}
    fewer = [2 if size == 4 else 4 if size == 2 else size for size in sizes]
    return Rule(
        name=name,
        formula=f"{_kernel(more)}({_image_of(form)}(x W + b)), V, c), V a single tap",
        pattern=build(form(rows, target), weight, opt(offset), attributes=all_attributes("conv"), **more).named(
            "layer"
        ),
        replace=_projected(form, place, bool(more)),
        makes=("MatMul", "Add", "Transpose", "Reshape", *(("Relu",) if more else ())),
        guards=(guard, is_a_map_of_channels, bias_has_columns, target_is_kept, result_is_held, is_less_work),
        exactness=Exactness.ROUNDING,
        source="arXiv:2105.15203",
        test=RuleTest(
            shapes=(shapes, {**shapes, "weight": "4 4 1 1", "offset": "4", "bias": "1"}),
            constants={"target": np.array(sizes)},
            attributes={"perm": [perm], "allowzero": [0, 1], "conv": [{}]},
            counterexamples={
                "of several taps": Variation(shapes={"weight": "3 4 2 2"}),
                "with strides": Variation(attributes={"conv": {"strides": (2, 2)}}),
                "of groups": Variation(shapes={"weight": "4 2 1 1", "offset": "4"}, attributes={"conv": {"group": 2}}),
                "channels that are no columns": Variation(
                    constants={"target": np.array(fewer)}, shapes={"weight": "3 2 1 1"}
                ),
            },
        ),
    )


_COLUMNS: Any = (_turned_first, 1, (0, 2, 1), (-1, 4, 2, 3), pixels_are_columns)
_ROWS: Any = (_split_first, -1, (0, 3, 1, 2), (-1, 2, 3, 4), pixels_are_rows)

RULES = [
    _conv1x1_rule("conv.merge_conv1x1_into_transposed_matmul", op.Conv, *_COLUMNS),
    _conv1x1_rule("conv.merge_fused_conv1x1_into_transposed_matmul", ms.FusedConv, *_COLUMNS, activation="Relu"),
    _conv1x1_rule("conv.merge_conv1x1_into_matmul", op.Conv, *_ROWS),
    _conv1x1_rule("conv.merge_fused_conv1x1_into_matmul", ms.FusedConv, *_ROWS, activation="Relu"),
]
