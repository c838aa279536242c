"""Fuse pooled or resized crops to RoiAlign and MaxRoiPool.

averagepool(x[..., a:b, c:d]) = roialign(x, [c, a, d, b])        windows of k x k beside one another, k x k samples in each
maxpool(x[..., a:b, c:d]) = maxroipool(x, [c, a, d - 1, b - 1])
resize(x[..., a:b, c:d]) = roialign(x, the same region, half a pixel further out)        linear, one sample for each pixel made

Sample p of a region from s on, whose bins are t long, lies at s - 1/2 + (p + 1/2) t (Girshick, arXiv:1504.08083; He et al.,
arXiv:1703.06870). A resized crop repeats its outer pixels for samples outside of it, but the operator reads the image around
it. So all samples must lie inside. The operators are slower on the CPU, but other targets and tools look for them
(`--force roi=RoiAlign`). RoiAlign has a kernel from opset 16 to 21.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Pattern, all_attributes, attr, computed, const, op, opt, var

from ..convolution.select_pool_kernel import is_above_minus_infinity

PASS = "contrib.roi_align"

Array = np.ndarray[Any, Any]

x = var("x", "b c h w")
_NUMBERS = ("starts", "ends", "axes", "steps")
part = op.Slice(x, **{name: attr(name) for name in _NUMBERS}).named("part")

Span = tuple[int, int]
"""The first pixel of a part along an axis, and the one behind the last."""


def _spans(match: Match) -> list[Span] | None:
    """The positions of the rows and columns of the part; `None` if unknown, or if the part lacks other axes or pixels between."""
    starts, ends, axes, steps = (match[name] for name in _NUMBERS)
    if not isinstance(match.size("b"), int) or not all(isinstance(one, tuple) for one in (starts, ends)):
        return None
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    found = {2: (0, match.size("h")), 3: (0, match.size("w"))}
    for axis, *cut in zip(axes, starts, ends, steps, strict=False):
        if axis not in found or not all(isinstance(number, int) for number in (*cut, found[axis][1])) or cut[2] != 1:
            return None
        found[axis] = slice(*cut).indices(found[axis][1] or 0)[:2]
    spans = [(start, end) for start, end in found.values() if isinstance(end, int) and start < end]
    return spans if len(spans) == len(found) else None


def is_a_region(match: Match) -> Refusal | None:
    """Known rows and columns of a known number of images."""
    known = _spans(match) is not None
    return None if known else match.refuse("condition", "part", "known rows and columns of a known number of images")


def _sizes(match: Match) -> tuple[int, int]:
    (top, bottom), (left, right) = _spans(match) or ((0, 1), (0, 1))
    return bottom - top, right - left


def _kernel(match: Match) -> tuple[int, int] | None:
    """The size of windows that lie beside one another, without padding; `None` if they do not."""
    how = match["window"]
    kernel = tuple(how.get("kernel_shape") or ())
    plain = not any(how.get("pads") or ()) and how.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    plain = plain and all(step == 1 for step in how.get("dilations") or ()) and not how.get("ceil_mode")
    beside = len(kernel) == 2 and tuple(how.get("strides") or (1, 1)) == kernel
    return kernel if plain and beside and all(map(int.__ge__, _sizes(match), kernel)) else None


def windows_lie_side_by_side(square: bool) -> Guard:
    """The windows of the pool neither overlap nor leave anything out, and nothing is padded; they are squares if asked for."""

    def guard(match: Match) -> Refusal | None:
        kernel = _kernel(match)
        if kernel is not None and (not square or kernel[0] == kernel[1]):
            return None
        shape = "square windows" if square else "windows"
        return match.refuse("attribute", "window", f"{shape} beside one another, nothing padded", "others")

    return guard


def _pooled(match: Match) -> tuple[int, int]:
    """The number of windows along either axis."""
    rows, columns = (size // kernel for size, kernel in zip(_sizes(match), _kernel(match) or (1, 1), strict=True))
    return rows, columns


def _pooled_region(match: Match, inclusive: int) -> list[float]:
    """The corners of all windows together: left, top, right, bottom."""
    (top, _), (left, _) = _spans(match) or ((0, 1), (0, 1))
    height, width = (made * size for made, size in zip(_pooled(match), _kernel(match) or (1, 1), strict=True))
    return [left, top, left + width - inclusive, top + height - inclusive]


def _rows(found: Callable[[Match], list[float]], numbered: bool = False) -> Any:
    """The same region of each image, behind the number of the image if that is asked for."""

    def rows(match: Match) -> Array:
        count = match.size("b") or 0
        regions = np.tile(np.asarray(found(match), np.float32), (count, 1))
        return np.column_stack([np.arange(count, dtype=np.float32), regions]) if numbered else regions

    return computed("regions", rows)


images = computed("images", lambda match: np.arange(match.size("b") or 0, dtype=np.int64))


def _aligned(regions: Any, made: tuple[int, int], samples: int) -> Pattern:
    aligned: Pattern = op.RoiAlign(
        x, regions, images, coordinate_transformation_mode="half_pixel", mode="avg", output_height=made[0],
        output_width=made[1], sampling_ratio=samples, spatial_scale=1.0,
    )  # fmt: skip
    return aligned


def _averages(match: Match) -> Pattern:
    regions = _rows(lambda match: _pooled_region(match, 0))
    return _aligned(regions, _pooled(match), (_kernel(match) or (1, 1))[0])


def _maxima(match: Match) -> Pattern:
    regions = _rows(lambda match: _pooled_region(match, 1), numbered=True)
    made: Pattern = op.MaxRoiPool(x, regions, pooled_shape=_pooled(match), spatial_scale=1.0)
    return made


# Resized parts


def _bin(mode: str, size: int, made: int) -> tuple[float, float] | None:
    """The starts of the bins of an axis, and their length; `None` if samples would lie outside of the part."""
    if mode == "align_corners":
        length = (size - 1) / max(made - 1, 1)
        return (0.5 - length / 2, length) if min(made, size) > 1 else None
    length = size / made
    first = {"half_pixel": 0.0, "pytorch_half_pixel": 0.0, "asymmetric": 0.5 - length / 2}.get(mode)
    fits = first is not None and made <= size and (made > 1 or mode == "half_pixel")
    return (first or 0.0, length) if fits else None


_PLAIN = {"mode": "linear", "antialias": 0, "keep_aspect_ratio_policy": "stretch", "axes": None}
"""The attributes of a Resize that interpolates, and their values; those that are not given are so, but for the first."""


def _bins(match: Match) -> list[tuple[float, float]] | None:
    """The bins along both axes; `None` if the result is not that of samples of the part."""
    how, before, after = match["how"], match.shape("part"), match.shape("resized")
    if how.get("mode") != "linear" or any(how.get(name, plain) != plain for name, plain in _PLAIN.items()):
        return None
    if before is None or after is None or len(after) != 4 or before[:2] != after[:2]:
        return None
    scales = match.const("scales") if match["scales"] is not None else np.zeros(0)
    if scales.size and (scales.shape != (4,) or any(scales[:2] != 1)):
        return None
    found = []
    for axis, size in enumerate(_sizes(match), 2):
        made = after[axis]
        if not isinstance(made, int) or made < 1:
            return None
        exact = not scales.size or abs(float(scales[axis]) * size - made) <= 1e-6 * made
        one = _bin(how.get("coordinate_transformation_mode", "half_pixel"), size, made) if exact else None
        if one is None:
            return None
        found.append(one)
    return found


def samples_lie_within(match: Match) -> Refusal | None:
    """Pixels are interpolated at places within the part."""
    fits = _bins(match) is not None
    return None if fits else match.refuse("attribute", "how", "linear, at places within the part", "otherwise")


def _samples(match: Match) -> Pattern:
    shape = match.shape("resized") or ()
    return _aligned(_rows(_sampled_region), (int(str(shape[2])), int(str(shape[3]))), 1)


def _sampled_region(match: Match) -> list[float]:
    shape, region = match.shape("resized") or (), []
    for axis in (3, 2):
        first, length = (_bins(match) or [(0.0, 1.0)] * 2)[axis - 2]
        start = (_spans(match) or [(0, 1)] * 2)[axis - 2][0] + first
        region.append((start, start + length * int(str(shape[axis]))))
    return [bound for pair in zip(*region, strict=True) for bound in pair]


scales, sizes = const("scales"), const("sizes")
resized = op.Resize(part, opt(var("roi")), opt(scales), opt(sizes), attributes=all_attributes("how")).named("resized")


def _rule(name: str, pattern: Pattern, replace: Any, makes: str, guards: Any, **test: Any) -> Rule:
    cuts: dict[str, list[Any]] = {"starts": [(1, 2)], "ends": [(7, 10)], "axes": [(2, 3)], "steps": [None, (1, 1)]}
    attributes = test.pop("attributes")
    changes = {"steps": (1, 2), "ends": (2, 11), "starts": (6, 2)}
    return Rule(
        name=f"roi.{name}",
        pattern=pattern,
        replace=replace,
        makes=(makes,),
        guards=(is_a_region, *guards),
        on_request=True,
        exactness=Exactness.ROUNDING,
        source="ONNX operators RoiAlign and MaxRoiPool",
        test=RuleTest(
            attributes={**cuts, **attributes},
            opset=17,
            counterexamples={
                f"with {one} {value}": Variation(attributes={one: value}) for one, value in changes.items()
            }
            | test.pop("counterexamples"),
            **test,
        ),
    )


_IMAGE = {"b": 2, "c": 3, "h": 9, "w": 11}
_SQUARES = [{"kernel_shape": (2, 2), "strides": (2, 2)}, {"kernel_shape": (3, 3), "strides": (3, 3)}]
_OBLONG = {"kernel_shape": (2, 3), "strides": (2, 3)}
_CLOSE = {"kernel_shape": (2, 2), "strides": (2, 1)}
_PADDED = {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (1, 1, 1, 1)}
_UP = {"kernel_shape": (4, 4), "strides": (4, 4), "ceil_mode": 1}


_AS_MANY = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
_CHANNELS = {"of channels": Variation(attributes={"axes": (1, 3)})}
_PIXELS = {
    "pixels apart": Variation(attributes={"window": {"kernel_shape": (1, 1), "strides": (1, 1)}, "steps": (7, 9)}),
}
_LOWEST = {
    "of -infinity": Variation(inputs={"x": "float32"}, fixed={"x": np.full((2, 3, 9, 11), -np.inf, np.float32)}),
}


def _windows(**windows: Any) -> dict[str, Variation]:
    return {name: Variation(attributes={"window": window}) for name, window in windows.items()}


def _positive(build: Any) -> Any:
    return build.node("Abs", [build.input("numbers", build.dims("x"))]).outputs[0]


def _scales(build: Any) -> Any:
    """Halves, where sizes do not say how large the result is."""
    return build.constant(np.asarray([] if "sizes" in build.shapes else [1, 1, 0.5, 0.5], np.float32))


def _linear(mode: str) -> dict[str, str]:
    return {"mode": "linear", "coordinate_transformation_mode": mode}


RULES = [
    _rule(
        "average_pool_of_crop_to_roi_align", op.AveragePool(part, attributes=all_attributes("window")), _averages, "RoiAlign",
        (windows_lie_side_by_side(square=True),),
        shapes=_IMAGE, attributes={"window": _SQUARES},
        counterexamples=_CHANNELS | _PIXELS | _windows(oblong=_OBLONG, close=_CLOSE, padded=_PADDED, up=_UP),
        assumes={"input * is *inf*": "pixels are taken to be finite: infinity times 0 is NaN"},
    ),
    _rule(
        "max_pool_of_crop_to_max_roi_pool", op.MaxPool(part, attributes=all_attributes("window")), _maxima, "MaxRoiPool",
        (windows_lie_side_by_side(square=False), is_above_minus_infinity),
        shapes=_IMAGE, attributes={"window": [*_SQUARES, _OBLONG]}, inputs={"x": _positive},
        counterexamples=_PIXELS | _windows(close=_CLOSE, padded=_PADDED, up=_UP, as_many=_AS_MANY) | _LOWEST,
    ),
    _rule(
        "resize_of_crop_to_roi_align", resized, _samples, "RoiAlign", (samples_lie_within,),
        shapes=({**_IMAGE, "roi": "0", "scales": "0", "sizes": "4"}, {**_IMAGE, "roi": "0", "scales": "4"}),
        constants={"roi": np.zeros(0, np.float32), "sizes": np.array([2, 3, 3, 4])},
        inputs={"scales": _scales},
        attributes={"how": [_linear(mode) for mode in ("half_pixel", "align_corners", "asymmetric")]},
        counterexamples={
            "enlarged": Variation(constants={"sizes": np.array([2, 3, 12, 4])}),
            "nearest": Variation(attributes={"how": {"mode": "nearest"}}),
            "pixels apart": Variation(attributes={"steps": (7, 9)}, constants={"sizes": np.array([2, 3, 1, 1])}),
            "cubic": Variation(attributes={"how": {"mode": "cubic"}}),
        },
        redundant={"demand that s* is constant": "the sizes of the result are known only where they are"},
        assumes={"input * is *inf*": "pixels are taken to be finite: infinity times 0 is NaN"},
    ),
]  # fmt: skip
