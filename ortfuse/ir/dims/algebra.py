"""Division, minimum, maximum and broadcasting of dimensions: exact where provable, otherwise canonical opaque functions.

Import the names from `ortfuse.ir.dims`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from math import gcd

from ortfuse.ir.dims.polynomial import Dim, DimLike, Monomial, exact_div, from_terms, function, only_atom, terms_of
from ortfuse.ir.dims.provable_bounds import at_most, bounds, is_nonnegative, is_nonzero, lower_bound

_CACHED = 1 << 15


def product(dims: Iterable[DimLike]) -> DimLike:
    """The product of all dimensions, 1 if there are none: the number of elements of a shape."""
    total: DimLike = 1
    for dim in dims:
        total = total * dim
    return total


@lru_cache(_CACHED)
def floor_div(a: DimLike, b: DimLike) -> DimLike:
    """``a // b``, rounding down. If `b` can be 0, the result holds only for nonzero `b`.

    Raises:
        ZeroDivisionError: `b` is the constant 0.
    """
    if isinstance(b, int):
        return _floor_div_int(a, b)
    exact = exact_div(a, b)
    if exact is not None:
        return exact
    a, b = _without_common_factor(a, b)
    if isinstance(b, int):
        return _floor_div_int(a, b)
    if is_nonnegative(a) and is_nonnegative(b - a - 1):
        return 0
    return function("floordiv", (a, b))


def ceil_div(a: DimLike, b: DimLike) -> DimLike:
    """``a / b`` rounded up; see `floor_div`."""
    return -floor_div(-a, b)


def mod(a: DimLike, b: DimLike) -> DimLike:
    """``a - b * (a // b)``, the remainder as in Python; see `floor_div`."""
    return a - b * floor_div(a, b)


def minimum(*dims: DimLike) -> DimLike:
    """The smallest of the dimensions, leaving out those that provably never are."""
    return _extremum("min", dims)


def maximum(*dims: DimLike) -> DimLike:
    """The largest of the dimensions, leaving out those that provably never are.

    The maximum of a number and a formula is written ``a + b - min(a, b)``, so that ``max(0, seq - 1)`` and
    ``seq - min(1, seq)``, the two ways to write the length of ``x[1:]``, compare equal.
    """
    return _extremum("max", dims)


def uncut(dim: DimLike) -> DimLike:
    """``f`` if the dimension is ``max(0, f)``, else the dimension itself."""
    for monomial, coefficient in dim.terms if isinstance(dim, Dim) else ():
        if coefficient != -1 or len(monomial) != 1 or monomial[0].kind != "min" or len(monomial[0].args) != 2:
            continue
        for low, high in (monomial[0].args, monomial[0].args[::-1]):
            if isinstance(low, int) and maximum(0, high - low) == dim:
                return high - low
    return dim


def broadcast(a: DimLike, b: DimLike) -> DimLike:
    """The common size of two dimensions under multidirectional broadcasting.

    The two must be broadcastable (equal, or one of them 1). For others the result is undefined, which is why
    ``broadcast(a, 64) == 64`` may hold. Source: ONNX, Broadcasting in ONNX.
    """
    if b == 1 or a == b:
        return a
    if a == 1:
        return b
    # A size that is never 1 is the result, and so is a size of which the other is a minimum.
    certain = [x for x, y in ((a, b), (b, a)) if is_nonzero(x - 1) or is_cut_of(y, x)]
    if certain:
        return min(certain, key=_argument_key)
    args = {argument for dim in (a, b) for argument in _arguments("broadcast", dim)}
    if len(args) == 1:
        return args.pop()
    return function("broadcast", tuple(sorted(args, key=_argument_key)))


def is_cut_of(cut: DimLike, dim: DimLike, least: int = 1) -> bool:
    """Whether ``cut == min(dim, c, ...)`` with every c >= `least`.

    With `least` >= 1, `cut` is 1 whenever `dim` is, so it broadcasts to `dim`. With `least` >= 2, `cut` is 1 only then:
    where the two can be broadcast they are equal, and if `cut` is really smaller than `dim`, the run fails.
    """
    atom = only_atom(cut)
    if atom is None or atom.kind != "min" or dim not in atom.args:
        return False
    return all(argument == dim or (lower_bound(argument) or 0) >= least for argument in atom.args)


def is_broadcast_of(dim: DimLike, part: DimLike) -> bool:
    """Whether ``dim == broadcast(part, ...)``, which is 0 wherever `part` is."""
    atom = only_atom(dim)
    return dim == part or (atom is not None and atom.kind == "broadcast" and part in atom.args)


def _floor_div_int(a: DimLike, divisor: int) -> DimLike:
    if divisor < 0:
        a, divisor = -a, -divisor
    if isinstance(a, int) or divisor == 0:
        return int(a) // divisor if isinstance(a, int) else _raise_zero()
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in a.terms:
        # Multiples of the divisor divide exactly. The rest keeps its sign, so that -s // 7 is recognised below as
        # the negative of a division that rounds up; the constant stays in [0, divisor).
        quotient = coefficient // divisor if not monomial or coefficient > 0 else -(-coefficient // divisor)
        whole[monomial] = quotient
        rest[monomial] = coefficient - quotient * divisor
    return from_terms(whole) + _floor_div_rest(from_terms(rest), divisor)


def _floor_div_rest(a: DimLike, divisor: int) -> DimLike:
    """``a // divisor`` if all coefficients of `a` are smaller than the divisor."""
    if isinstance(a, int):
        return a // divisor
    if a.terms[0][1] < 0:
        return -_floor_div_int(-a + (divisor - 1), divisor)  # floor(-x/c) = -ceil(x/c)
    common = gcd(divisor, *[coefficient for monomial, coefficient in a.terms if monomial])
    if common > 1:
        # floor((g*x + k) / (g*c)) = floor((x + floor(k/g)) / c)
        a, divisor = from_terms({m: c // common for m, c in a.terms}), divisor // common
    if divisor == 1 or isinstance(a, int):
        return floor_div(a, divisor)
    nested = _nested_division(a)
    if nested is not None:
        return _floor_div_int(nested[0], nested[1] * divisor)
    low, high = bounds(a)
    if low is not None and high is not None and low // divisor == high // divisor:
        return low // divisor
    return function("floordiv", (a, divisor))


def _nested_division(a: Dim) -> tuple[DimLike, int] | None:
    """``(x + k*d, d)`` if `a` is ``x // d + k`` with constant d and k, else None."""
    monomial, coefficient = a.terms[0]
    if len(monomial) != 1 or coefficient != 1 or len(a.terms) > 2 or monomial[0].kind != "floordiv":
        return None
    numerator, divisor = monomial[0].args
    constant = a.terms[1] if len(a.terms) == 2 else ((), 0)
    if constant[0] or not isinstance(divisor, int):
        return None
    return numerator + constant[1] * divisor, divisor


def _raise_zero() -> int:
    raise ZeroDivisionError("division of a dimension by 0")


def _without_common_factor(a: DimLike, b: Dim) -> tuple[DimLike, DimLike]:
    """Both divided by the largest monomial, coefficient included, that divides all their terms."""
    terms = terms_of(a) + b.terms
    common = Counter(terms[0][0])
    for monomial, _ in terms:
        common &= Counter(monomial)
    factor = tuple(sorted(common.elements(), key=lambda atom: atom.key))
    number = gcd(*[coefficient for _, coefficient in terms])
    divisor = from_terms({factor: number})
    return _divided(a, divisor), _divided(b, divisor)


def _divided(a: DimLike, b: DimLike) -> DimLike:
    quotient = exact_div(a, b)
    assert quotient is not None
    return quotient


def _extremum(kind: str, dims: tuple[DimLike, ...]) -> DimLike:
    if all(isinstance(dim, int) for dim in dims):
        numbers = [dim for dim in dims if isinstance(dim, int)]
        return min(numbers) if kind == "min" else max(numbers)
    kept: list[DimLike] = []
    for dim in dims:
        for argument in _arguments(kind, dim):
            if any(_covers(kind, other, argument) for other in kept):
                continue
            kept = [other for other in kept if not _covers(kind, argument, other)]
            kept.append(argument)
    if len(kept) == 1:
        return kept[0]
    kept.sort(key=_argument_key)
    if len(kept) == 2 and isinstance(kept[0], int) and terms_of(kept[1])[0][1] < 0:
        # max(0, 64 - seq) is 64 - min(64, seq): for a falling formula, use the opposite extremum of its negative.
        return -_extremum("min" if kind == "max" else "max", tuple(-dim for dim in kept))
    if kind == "max" and len(kept) == 2 and isinstance(kept[0], int):
        return kept[0] + kept[1] - _extremum("min", tuple(kept))
    # Normalise so that the first formula has no constant term: min(0, seq - 1) is min(1, seq) - 1.
    shift = _constant(next(dim for dim in kept if isinstance(dim, Dim)))
    return function(kind, tuple(sorted([dim - shift for dim in kept], key=_argument_key))) + shift


def _constant(dim: Dim) -> int:
    monomial, coefficient = dim.terms[-1]
    return 0 if monomial else coefficient


def _covers(kind: str, winner: DimLike, loser: DimLike) -> bool:
    return at_most(winner, loser) if kind == "min" else at_most(loser, winner)


def _arguments(kind: str, dim: DimLike) -> tuple[DimLike, ...]:
    # A constant added to a minimum is moved into it: min(1, min(b, s) + 1) is min(1, b + 1, s + 1).
    constant = _constant(dim) if isinstance(dim, Dim) and kind != "broadcast" else 0
    atom = only_atom(dim - constant)
    return tuple(argument + constant for argument in atom.args) if atom is not None and atom.kind == kind else (dim,)


def _argument_key(dim: DimLike) -> tuple[int, str, int]:
    if isinstance(dim, int):
        return 0, "", dim
    constant = _constant(dim)
    return 1, str(dim - constant), constant
