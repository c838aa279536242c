"""Merge adapters and consecutive layers into the constant weights of MatMul and Gemm.

A layer x W + b is MatMul with an Add behind it, or Gemm.

(x A + a) B + b = x (A B) + (a B + b)          where the product A B is no larger than both
x W + b +- s (x V + c) = x (W +- s V) + (b +- s c)
x W + b +- s ((x A + a) B + c) = x (W +- s A B) + (b +- s (a B + c))            LoRA: Hu et al., arXiv:2106.09685

Constants are computed in float64 and rounded once. Large weights that are used elsewhere too are not copied. Large weights are
not multiplied for the sake of a factor: they are streamed from their file as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, computed, const, op, opt, redundant, scalar, var

from .._rule_test_inputs import COST
from .._shared_guards import array_like

PASS = "fuse.fold_into_weights"

SOURCE = "matrix products are associative and distributive"

LARGEST_SCALED = 1 << 20
"""The most elements of a weight that a factor is multiplied into."""

LARGEST_MERGED = 1 << 21
"""The most elements of weights that are multiplied with each other, which takes time and memory for larger ones."""

FEW = 1 << 12
"""The most elements of a constant that is copied although it is used elsewhere."""

LARGEST_SHIFT = 256.0
"""The largest term that is moved behind a product: the largest of an image of bytes, and then some."""

Array = np.ndarray[Any, Any]

x = var("x", "... k")


class Layer(NamedTuple):
    """The names of the parts of a layer in the pattern."""

    weight: str
    bias: str
    alpha: str
    beta: str
    transposed: str


def named(weight: str) -> Layer:
    """A layer whose parts are named after its weight."""
    return Layer(weight, *(f"{weight}_{part}" for part in ("bias", "alpha", "beta", "transB")))


FIRST, SECOND, WEIGHT, OTHER = map(named, ("first", "second", "weight", "other"))


def _gemm(layer: Layer, data: Pattern) -> Pattern:
    weight, bias = const(layer.weight, "_ _"), opt(const(layer.bias))
    made: Pattern = op.Gemm(
        data, weight, bias, alpha=attr(layer.alpha), beta=attr(layer.beta), transB=attr(layer.transposed)
    )
    return made


def linear(layer: Layer, data: Pattern, is_summed: bool = False) -> Pattern:
    """A product with a constant, and its bias: that of Gemm or, if it `is_summed`, what is added to MatMul."""
    product: Pattern = op.MatMul(data, const(layer.weight, "_ _"))
    return (product + opt(const(layer.bias)) if is_summed else product) | _gemm(layer, data)


def _is_gemm(match: Match, layer: Layer) -> bool:
    return match.get(layer.transposed) is not None


def _wide(match: Match, name: str) -> Array:
    found: Array = match.const(name).astype(np.float64)
    return found


def _matrix(match: Match, layer: Layer) -> Array:
    """The matrix that x is multiplied by in a layer."""
    found = _wide(match, layer.weight)
    if not _is_gemm(match, layer):
        return found
    scaled: Array = (found.T if match[layer.transposed] else found) * match[layer.alpha]
    return scaled


def _bias(match: Match, layer: Layer) -> Array | None:
    """The bias of a layer, a number for each column."""
    if match.get(layer.bias) is None:
        return None
    found = _wide(match, layer.bias).reshape(-1) * (match[layer.beta] if _is_gemm(match, layer) else 1.0)
    return np.broadcast_to(found, _sizes(match, layer)[1])


def _sizes(match: Match, layer: Layer) -> tuple[int, int]:
    """How many inputs and columns a layer has."""
    rows, columns = match.const(layer.weight).shape
    return (columns, rows) if match.get(layer.transposed) else (rows, columns)


def _total(*terms: Array | None) -> Array | None:
    """The sum of those that are there."""
    present = [term for term in terms if term is not None]
    return sum(present[1:], start=present[0]) if present else None


def _through(before: Array | None, matrix: Array) -> Array | None:
    return None if before is None else before @ matrix


Made = Callable[[Match], "Array | None"]
Parts = tuple[Made, Made]
"""The weight and the bias that a layer has, or is to have."""


def _plain(layer: Layer) -> Parts:
    return lambda match: _matrix(match, layer), lambda match: _bias(match, layer)


def _both(first: Layer, second: Layer) -> Parts:
    """Two layers, one behind the other, as one."""

    def weight(match: Match) -> Array:
        return _matrix(match, first) @ _matrix(match, second)

    def bias(match: Match) -> Array | None:
        return _total(_through(_bias(match, first), _matrix(match, second)), _bias(match, second))

    return weight, bias


def _summed(one: Parts, sign: int, other: Parts) -> Parts:
    """One layer plus or minus s times another."""

    def sum_of(first: Made, second: Made) -> Made:
        def made(match: Match) -> Array | None:
            found = second(match)
            return _total(first(match), None if found is None else sign * match["s"] * found)

        return made

    return sum_of(one[0], other[0]), sum_of(one[1], other[1])


def _array(made: Made, match: Match) -> Array | None:
    with np.errstate(all="ignore"):
        return made(match)


def _emitted(made: Parts, layers: Sequence[Layer]) -> Callable[[Match], Pattern]:
    """Gemm if one of the layers was, and there is a bias; else MatMul and a sum."""
    weight, bias = (computed(name, _rounded(one)) for name, one in zip(("weight", "bias"), made, strict=True))

    def replacement(match: Match) -> Pattern:
        if _array(made[1], match) is None:
            return op.MatMul(x, weight)
        is_gemm = any(_is_gemm(match, layer) for layer in layers)
        return op.Gemm(x, weight, bias) if is_gemm else op.Add(op.MatMul(x, weight), bias)

    return replacement


def _rounded(made: Made) -> Callable[[Match], Any]:
    return lambda match: array_like(match, _array(made, match))


# Guards


def are_layers(*layers: Layer) -> Guard:
    """Each is a product with one number for each column added: not one for each row, and no factor of 0."""

    def guard(match: Match) -> Refusal | None:
        for layer in layers:
            shape = () if match.get(layer.bias) is None else match.shape(layer.bias)
            is_gemm, columns = _is_gemm(match, layer), _sizes(match, layer)[1]
            most = 2 if is_gemm else 1
            fits = shape is not None and len(shape) <= most and (1, 1, *shape)[-2:] in ((1, 1), (1, columns))
            if not fits:
                return match.refuse("shape", layer.bias, (columns,))
            if is_gemm and not 0 < abs(match[layer.alpha]) < np.inf:
                return match.refuse("value", layer.alpha, "finite and not 0")
        return None

    return guard


def is_held(made: Parts) -> Guard:
    """The new constants are numbers of the type: neither too large nor, next to the others of their column, too small."""

    def guard(match: Match) -> Refusal | None:
        dtype = match.dtype("root")
        if dtype is None or not dtype.is_floating_point() or dtype.numpy().kind != "f":
            return match.refuse("dtype", "root", "float32, float16 or float64")
        limits = np.finfo(dtype.numpy())
        for array in (found for build in made if (found := _array(build, match)) is not None):
            size = np.abs(array)
            largest = size.max(axis=0, initial=0.0)
            if not np.all(size <= float(limits.max)) or np.any((largest > 0) & (largest < float(limits.tiny))):
                return match.refuse("value", "root", f"of constants that {dtype.name.lower()} holds")
        return None

    return guard


def _is_copied(match: Match, *names: str) -> Refusal | None:
    for name in names:
        if match[name].is_graph_output() or (match.const(name).size > FEW and len(match[name].uses()) > 1):
            return match.refuse("needless", name, found="it is large, and used elsewhere too")
    return None


@redundant(COST)
def product_is_no_larger(match: Match) -> Refusal | None:
    """The product of the weights has no more elements than both, so that there is less to multiply and to store."""
    (rows, inner), (_, columns) = _sizes(match, FIRST), _sizes(match, SECOND)
    if inner * max(rows, columns) > LARGEST_MERGED:
        return match.refuse("needless", "root", found="the weights are large: they stay as they are in their file")
    if rows * columns > inner * (rows + columns):
        return match.refuse("needless", "root", found="the product of the weights is larger than both")
    return _is_copied(match, "first", "second")


def is_not_copied(*names: str) -> Guard:
    """The weights that are added are used for nothing else."""

    def guard(match: Match) -> Refusal | None:
        return _is_copied(match, *names)

    return redundant(COST)(guard)


# Rules


def _weight_rule(
    name: str,
    formula: str,
    pattern: Pattern,
    made: Parts,
    layers: Sequence[Layer],
    shapes: Sequence[Mapping[str, str]],
    *guards: Guard,
    scalars: Mapping[str, Sequence[float]] | None = None,
    assumes: Mapping[str, str] | None = None,
    **more: Any,
) -> Rule:
    return Rule(
        name=f"matmul.{name}",
        formula=formula,
        pattern=pattern,
        replace=_emitted(made, layers),
        makes=("MatMul", "Gemm", "Add"),
        guards=(are_layers(*layers), *guards, is_held(made)),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=shapes,
            attributes=[_attributes(layers, row) for row in shapes],
            scalars=scalars or {},
            redundant={"dimension *": "the product itself asks for it"},
            assumes=assumes or {},
        ),
        **more,
    )


def _attributes(layers: Sequence[Layer], shapes: Mapping[str, str]) -> Mapping[str, Sequence[Any]]:
    """Attributes to try: only square weights can be transposed."""
    square = all(len(set(shapes[layer.weight].split())) == 1 for layer in layers)
    found: dict[str, Sequence[Any]] = {}
    for layer in layers:
        found |= {layer.alpha: [1.0, 0.5], layer.beta: [1.0, 2.0], layer.transposed: [0, 1] if square else [0]}
    return found


def _side_by_side() -> Iterator[Rule]:
    """A layer and s times another of the same input: an adapter, or one with a second weight."""
    adapter = linear(SECOND, linear(FIRST, x, is_summed=True))
    for names, words, branch, made, layers, sizes in (
        (("merge_lora", "merge_subtracted_lora"), "first second", adapter, _both(FIRST, SECOND), (WEIGHT, FIRST, SECOND),
         {"first": "6 2", "second": "2 5", "first_bias": "2", "second_bias": "1 5"}),
        (("merge_parallel_weights", "merge_subtracted_weights"), "other", linear(OTHER, x), _plain(OTHER), (WEIGHT, OTHER),
         {"other": "6 5", "other_bias": "5"}),
    ):  # fmt: skip
        copied = ("weight",) if names[0] == "merge_lora" else ("weight", "other")
        square = {key: "4" if key.endswith("bias") else "4 4" for key in sizes}
        for name, sign in zip(names, (1, -1), strict=True):
            term = scalar("s") * branch
            yield _weight_rule(
                name,
                f"x weight {'+' if sign > 0 else '-'} s x {words}",
                linear(WEIGHT, x) + term if sign > 0 else linear(WEIGHT, x) - term,
                _summed(_plain(WEIGHT), sign, made),
                layers,
                (
                    {"x": "b 4", "weight": "4 4", "weight_bias": "1", **square},
                    {"x": "b 6", "weight": "6 5", "weight_bias": "5", **sizes},
                    {"x": "b s 6", "weight": "6 5", "weight_bias": "5", **sizes},
                ),
                is_not_copied(*copied),
                scalars={"s": [0.5, 2.0]},
                allow_extra_operands=True,
            )


RULES = [
    _weight_rule(
        "merge_consecutive_weights",
        "(x first + first_bias) second + second_bias",
        linear(SECOND, linear(FIRST, x, is_summed=True)),
        _both(FIRST, SECOND),
        (FIRST, SECOND),
        (
            {"x": "b 4", "first": "4 4", "second": "4 4", "first_bias": "1", "second_bias": "1 4"},
            {"x": "b 4", "first": "4 6", "second": "6 3", "first_bias": "6", "second_bias": "3"},
            {"x": "b s 4", "first": "4 6", "second": "6 3", "first_bias": "6"},
        ),
        product_is_no_larger,
    ),
    *_side_by_side(),
]  # fmt: skip
