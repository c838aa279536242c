"""Decompose Einsum of up to four operands to MatMul, Mul, Transpose and ReduceSum.

    bihd,bjhd->bhij        MatMul of [b, h, i, d] and [b, h, d, j]
    ibh,hnd->ibnd          MatMul of [i, b, h] and [h, n * d]
    i,j->ij                Mul of [i, 1] and [1, j]
    ijb->bij, ij->j        Transpose, ReduceSum
    bij,bj->bi             MatMul of [b, i, j] and [b, j, 1]
    bqd,bqd->bq            Mul, ReduceSum
    bgrqd,bgkd->bgrqk      MatMul of [b, g, r, q, d] and [b, g, 1, d, k]
    ij,kl->il              Einsums of one operand each, which sum over j and k, then one of both
    ij,jk,kl->il           Einsums of two operands each, in the order that is the least work

A label is of the *batch* if both operands and the result have it, *contracted* if only the operands have it. It is of
the rows or columns if one operand and the result have it. The runtime's Einsum transposes its operands to such a MatMul
as well, and the result back, on every run. Transposes in the graph merge with their neighbours, and those of weights
are folded. The runtime crashes on an Einsum of an empty batch; its MatMul does not. Axes called `...` that are equal in
all operands are given labels first. An ellipsis that broadcasts, and a label that one operand has twice, are left
alone.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Op, Pattern, attr, computed, op, opt, rearrange, redundant, var

from .._rule_test_inputs import COST, SHAPES
from .._shared_guards import floating, ints

PASS = "fuse.einsum"

FEWEST_ROWS = 8
"""With fewer rows, one product for each of many leading axes would be slower than merging those."""

_READABLE = re.compile(r"[a-zA-Z]+(,[a-zA-Z]+)*->[a-zA-Z]*|[a-z]+(,[a-z]+)*")


@dataclass(frozen=True)
class Equation:
    """The labels of each operand and of the result, and those that are summed over."""

    operands: tuple[str, ...]
    result: str
    summed: str


@functools.cache
def parsed(equation: str) -> Equation | None:
    """The parsed equation; `None` if it has an ellipsis, a repeated label in one term, or an implicit result with capitals."""
    text = equation.replace(" ", "")
    left, arrow, result = text.partition("->")
    labels = [label for label in dict.fromkeys(left) if label != ","]
    if not arrow:
        result = "".join(sorted(label for label in labels if left.count(label) == 1))
    twice = any(len(set(part)) < len(part) for part in (*left.split(","), result))
    if twice or not _READABLE.fullmatch(text) or not set(result) <= set(labels):
        return None
    return Equation(tuple(left.split(",")), result, "".join(label for label in labels if label not in result))


def _equation(match: Match) -> Equation:
    found = parsed(match["equation"])
    assert found is not None
    return found


def _moved(before: str, after: str, operand: Pattern) -> Pattern:
    """The operand with its labels in another order; those in brackets are merged."""
    return rearrange(f"{' '.join(before)} -> {' '.join(after)}", operand)


@redundant("the runtime refuses every other Einsum")
def labels_all_axes(match: Match) -> Refusal | None:
    """There is one label for each axis of each operand."""
    ranks, operands = [match.rank(name) for name in NAMES if match.get(name) is not None], _equation(match).operands
    fits = len(ranks) == len(operands) and all(map(lambda rank, part: rank in (None, len(part)), ranks, operands))
    return match.unless_value("equation", fits, "one label for each axis")


def sums_nothing(match: Match) -> Refusal | None:
    """The result has all labels."""
    return match.unless_value("equation", not _equation(match).summed, "one that sums nothing")


@redundant(SHAPES)
def sums(match: Match) -> Refusal | None:
    """The result lacks labels."""
    return match.unless_value("equation", bool(_equation(match).summed), "one that sums")


def _kept_first(match: Match) -> list[int]:
    """The permutation that brings the labels of the result to the front."""
    found = _equation(match)
    return [found.operands[0].index(label) for label in found.result + found.summed]


def _summed_axes(match: Match) -> list[int]:
    """The axes behind those of the result."""
    found = _equation(match)
    return list(range(len(found.result), len(found.operands[0])))


def _spread_product(match: Match) -> Pattern:
    """Both operands with axes like the result, 1 for those that they lack, multiplied."""
    found = _equation(match)
    axes = ("".join(label if label in labels else "1" for label in found.result) for labels in found.operands)
    first, second = map(_moved, found.operands, axes, (a, b))
    return first * second


def sums_over_both(match: Match) -> Refusal | None:
    """Require that the summed axes of both operands are equal."""
    shapes, (left, right) = match.shapes("a", "b"), _equation(match).operands
    if isinstance(shapes, Refusal):
        return shapes
    for label in _equation(match).summed:
        if label not in left or label not in right:
            return match.refuse("attribute", "equation", f"one that sums over {label} of both operands")
        if shapes[0][left.index(label)] != shapes[1][right.index(label)]:
            return match.refuse_dimension("b", right.index(label), shapes[0][left.index(label)])
    return None


class Product:
    """The matrix product [lead, batch, row, contracted] x [batch, contracted, columns], with operand `first` on the left."""

    def __init__(self, match: Match, first: int) -> None:
        self.first, self.result = first, _equation(match).result
        self.left, self.right = left, right = _equation(match).operands[:: -1 if first else 1]
        match.name_axes("ab"[first], left)
        match.name_axes("ab"[1 - first], right)
        self.batch = "".join(label for label in self.result if label in left and label in right)
        self.contracted = "".join(label for label in left if label not in self.result)
        self.columns = "".join(label for label in self.result if label not in left)
        rows = [label for label in left if label in self.result and label not in right]
        if self.batch:  # the most rows known are those of the matrices
            rows.sort(key=lambda label: match.size(label) or 0)
        open_row = self._open_row(match, rows)
        self.row = open_row or "".join(rows[-1:])
        self.lead = "".join(label for label in rows if label != self.row)
        many = open_row or not self.lead or (match.size(self.row) or 0) >= FEWEST_ROWS
        self.has_rows = bool(many or not self.batch)
        self.merged = "".join(labels for labels in (self.contracted, self.columns) if len(labels) > 1)
        self.refusal = self._why_not(match)

    def _why_not(self, match: Match) -> Refusal | None:
        lacks_columns = not self.columns and not (self.batch and self.row)
        if not self.contracted or lacks_columns or (self.batch and (self.merged or not self.row)):
            needed = (
                "a product with axes of columns and axes summed over; within a batch, rows and one axis summed over"
            )
            return match.refuse("attribute", "equation", needed)
        if not self.has_rows:
            return match.refuse("needless", "root", found=f"too few rows for a product of each: {match.dim(self.row)}")
        if not all(match.size(label) for label in self.merged):
            return match.refuse("shape", "ab"[1 - self.first], f"one of known sizes of {self.merged}")
        return None

    def _open_row(self, match: Match, rows: Sequence[str]) -> str | None:
        """Rows of an open number, of which a product is made for each of a few known ones, if they stand last in one term."""
        if not self.batch or len(rows) < 2 or (match.size(rows[-1]) or 0) >= FEWEST_ROWS:
            return None
        last = [max(rows, key=term.find) for term in (self.result, self.left)]
        return next((row for row in last if all(bool(match.size(label)) is (label != row) for label in rows)), None)

    def matrices(self) -> Pattern:
        """The product, and its axes in the order of the result."""
        leading = "".join(label for label in self.result if label in self.lead + self.batch)
        shared = "".join(label if label in self.batch else "1" for label in leading.lstrip(self.lead or " "))
        rows, columns = leading + self.row, f"({self.columns})" if self.columns else "1"
        left = _moved(self.left, f"{rows}({self.contracted})", (a, b)[self.first])
        right = _moved(self.right, f"{shared}({self.contracted}){columns}", (b, a)[self.first])
        return _moved(f"{rows}{columns}", self.result, left @ right)


def _product(match: Match) -> Product:
    """The better of both orders: a weight whose axes are merged is on the right, nothing else merged, little moved."""
    orders = Product(match, 0), Product(match, 1)

    def drawbacks(order: Product) -> tuple[bool, ...]:
        return (
            order.refusal is not None,
            match.facts.is_const(match["ab"[order.first]]) and bool(orders[1 - order.first].merged),
            bool(order.merged),
            order.result.find(order.row) > order.result.find(order.columns[-1:]),
        )

    return min(orders, key=drawbacks)


def is_a_product(match: Match) -> Refusal | None:
    """One order of the operands makes a matrix product."""
    return _product(match).refusal


USUAL_SIZE = 64
"""The size assumed for an unknown one when the work of two orders is compared."""


def _sizes(match: Match) -> dict[str, int]:
    """The size of each label, as far as it is known."""
    sizes: dict[str, int] = {}
    for name, labels in zip(NAMES, _equation(match).operands, strict=False):
        for label, dim in zip(labels, match.shape(name) or (), strict=False):
            sizes[label] = max(sizes.get(label, 1), dim if isinstance(dim, int) else USUAL_SIZE)
    return sizes


def _first_pair(
    terms: Sequence[str], result: str, sizes: Mapping[str, int]
) -> tuple[float, tuple[int, int] | None, str]:
    """The work of all products in the best order, the two terms that come first in it, and the labels that this pair keeps."""

    def work(labels: str) -> int:
        return math.prod(sizes.get(label, USUAL_SIZE) for label in set(labels))

    if len(terms) == 2:
        return work("".join(terms)), (0, 1), result
    best: tuple[float, tuple[int, int] | None, str] = math.inf, None, ""
    for first, second in itertools.combinations(range(len(terms)), 2):
        rest = [term for number, term in enumerate(terms) if number not in (first, second)]
        both, needed = terms[first] + terms[second], "".join(rest) + result
        kept = "".join(label for label in dict.fromkeys(both) if label in needed)
        total = work(both) + _first_pair([kept, *rest], result, sizes)[0]
        if kept and total < best[0]:
            best = total, (first, second), kept
    return best


def a_pair_keeps_labels(match: Match) -> Refusal | None:
    """Require that some two operands leave more than a number, which an equation cannot name in the middle."""
    found = _equation(match)
    _, pair, _ = _first_pair(found.operands, found.result, _sizes(match))
    return match.refuse("attribute", "equation", "one of operands with labels") if pair is None else None


def _pair_first(match: Match) -> Pattern:
    """An Einsum of two operands and one of the rest, in the order that is the least work."""
    found = _equation(match)
    _, pair, kept = _first_pair(found.operands, found.result, _sizes(match))
    assert pair is not None
    left, right = (found.operands[number] for number in pair)
    others = [number for number in range(len(found.operands)) if number not in pair]
    made = op.Einsum(*(OPERANDS[number] for number in pair), equation=f"{left},{right}->{kept}")
    terms = ",".join([kept, *(found.operands[number] for number in others)])
    return op.Einsum(made, *(OPERANDS[number] for number in others), equation=f"{terms}->{found.result}")


# Labels of one operand alone, and of both without rows and columns


def _own_labels(match: Match) -> list[str]:
    """For each of two operands the labels that only a sum is taken over."""
    left, right = _equation(match).operands
    summed = _equation(match).summed
    return ["".join(label for label in one if label in summed and label not in other)
            for one, other in ((left, right), (right, left))]  # fmt: skip


def sums_one_alone(match: Match) -> Refusal | None:
    """There are labels that one operand alone has and the result lacks; what it keeps is not a number."""
    own, operands = _own_labels(match), _equation(match).operands
    keeps = all(len(labels) < len(term) for labels, term in zip(own, operands, strict=True))
    return match.unless_value("equation", any(own) and keeps, "one with a label that one operand alone is summed over")


def _summed_first(match: Match) -> Pattern:
    """Each operand summed over the labels of its own, then both."""
    found, made, terms = _equation(match), [], []
    for operand, term, own in zip(OPERANDS, found.operands, _own_labels(match), strict=False):
        kept = "".join(label for label in term if label not in own)
        made.append(op.Einsum(operand, equation=f"{term}->{kept}") if own else operand)
        terms.append(kept)
    return op.Einsum(*made, equation=f"{','.join(terms)}->{found.result}")


def labels_are_alike(match: Match) -> Refusal | None:
    """Both operands have the same labels, which are the same sizes of both."""
    (left, right), shapes = _equation(match).operands, match.shapes("a", "b")
    if isinstance(shapes, Refusal):
        return shapes
    alike = set(left) == set(right) and all(
        shapes[0][place] == shapes[1][right.index(label)] for place, label in enumerate(left)
    )
    return match.unless_value("equation", alike, "one of the same labels of both operands, of equal sizes")


def _inner_product(summed: Any) -> Any:
    """The sum of the products of elements; `summed` builds it from these and the axes."""

    def made(match: Match) -> Pattern:
        found = _equation(match)
        order = found.result + found.summed
        first, second = (_moved(labels, order, one) for labels, one in zip(found.operands, (a, b), strict=True))
        result: Pattern = summed(first * second, list(range(len(found.result), len(order))))
        return result

    return made


NAMES = "abcd"
OPERANDS = tuple(map(var, NAMES))
a, b = OPERANDS[:2]
readable = attr("equation", lambda text, facts: parsed(text) is not None,
                "one without ellipsis, repeated labels and labels out of nowhere")  # fmt: skip
one, two = op.Einsum(a, equation=readable), op.Einsum(a, b, equation=readable)
optional = tuple(map(opt, OPERANDS[1:]))
several = op.Einsum(*OPERANDS[:3], opt(OPERANDS[3]), equation=readable)
transposed = op.Transpose(a, perm=_kept_first)

_Case = tuple[Sequence[str], str]
_PRODUCTS: tuple[_Case, ...] = (
    (("x 4", "4 5"), "ij,jk->ik"), (("x y", "y z"), "ij,jk"),
    (("b 2 s 4", "b 2 t 4"), "bhid, bhjd -> bhij"), (("b s 2 4", "b t 2 4"), "bihd,bjhd->bhij"),
    (("b 2 s t", "b t 2 4"), "bhij,bjhd->bihd"), (("s b 2 4", "t b 2 4"), "ibnd,jbnd->bnij"),
    (("b 8 9 4", "8 t 4"), "bhwc,hkc->bhwk"), (("b 8 9 4", "9 t 4"), "bhwc,wkc->bhwk"),
    (("b 2 3 s 4", "b 2 t 4"), "bgrqd,bgkd->bgrqk"), (("b s 2 3 4", "b t 2 4"), "bqgrd,bkgd->bgrqk"),
    (("b 2 3 s t", "b t 2 4"), "bgrqk,bkgd->bqgrd"), (("b 2 s 4", "b t 4"), "bhid,bjd->bhij"),
    (("b s t 4", "4 5"), "bijc,cd->bijd"), (("b s 4", "4 t"), "bsd,dt->tsb"),
    (("s b 6", "6 2 3"), "ibh,hnd->ibnd"), (("s b 2 3", "6 2 3"), "ibnd,hnd->ibh"),
    (("b 2 s 4", "b 2 4"), "bhij,bhj->bhi"), (("b 2 4", "b 2 s 4"), "bhj,bhij->bih"), (("b s 4", "b 4"), "bij,bj->bi"),
    (("2 s 3 b", "5 3 2"), "nidb,hdn->bih"), (("6", "6 2 3"), "h,hnd->dn"), (("x", "x 2"), "d,dk->k"), (("4", "4 2"), "d,dk->k"),
)  # fmt: skip


def _exchanged(shapes: Sequence[str], equation: str) -> _Case:
    operands, arrow, result = equation.partition("->")
    return shapes[::-1], ",".join(operands.split(",")[::-1]) + arrow + result


def _counterexamples(pattern: Op, equation: str) -> dict[str, Variation]:
    found = {"an ellipsis in the result alone": Variation(attributes={"equation": re.sub("-> ?.", "->...", equation)})}
    if pattern is several:
        shapes = dict(zip(NAMES, "234", strict=False))
        found["only numbers are left of each pair"] = Variation(attributes={"equation": "i,j,k->"}, shapes=shapes)
    return {} if "..." in equation else found


def _rule(name: str, formula: str, pattern: Op, replace: Any, guards: tuple[Guard, ...],
          *cases: _Case, makes: Sequence[str] = (), exactness: Exactness = Exactness.ROUNDING,
          counted: tuple[Guard, ...] = (labels_all_axes,)) -> Rule:  # fmt: skip
    """A rule proved on equations, each with the shapes of its operands; `counted` are the guards of their ranks."""
    return Rule(
        name=f"einsum.{name}", formula=formula, pattern=pattern, replace=replace, makes=makes, guards=(*counted, *guards),
        exactness=exactness, source="ONNX operator Einsum",
        test=RuleTest(
            shapes=tuple(dict(zip(NAMES, shapes, strict=False)) for shapes, _ in cases),
            never_empty={"*": "the runtime dies of an empty batch"},
            assumes={} if pattern is not several else {
                "input * is inf in its last element*": "operands are taken to be finite: infinity times 0 is NaN"},
            counterexamples=_counterexamples(pattern, cases[0][1]),
            redundant={} if counted else {"check of attribute equation": "the guard reads the same terms"},
            attributes=tuple({"equation": [equation]} for _, equation in cases),
        ),
    )  # fmt: skip


# Axes that have no labels


def _terms(equation: str) -> tuple[list[str], str] | None:
    """The terms of the operands and of the result, each with at most one ellipsis; `None` if the result has none."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        letters = left.replace(",", "").replace(".", "")
        result = "..." + "".join(sorted(label for label in letters if letters.count(label) == 1))
    fits = all(_TERM.fullmatch(term) for term in (*terms, result)) and (arrow or left == left.lower())
    return (terms, result) if fits and "..." in left and "..." in result else None


_TERM = re.compile(r"[a-zA-Z]*(\.\.\.)?[a-zA-Z]*")


def _labelled(match: Match) -> str | None:
    """The equation with labels in place of the ellipsis; `None` unless that is the same axes of all operands that have it."""
    found, axes = _terms(match["equation"]), set()
    for name, term in zip(NAMES, found[0] if found else (), strict=False):
        shape, first = match.shape(name), term.find("...")
        if first >= 0 and shape is not None:
            axes.add(shape[first : len(shape) - len(term) + first + 3])
        elif first >= 0:
            return None
    if found is None or len(axes) != 1:
        return None
    (leading,) = axes
    free = [label for label in string.ascii_letters if label not in match["equation"]]
    spelled = "".join(free[: len(leading)])
    return ",".join(found[0]).replace("...", spelled) + "->" + found[1].replace("...", spelled)


def an_ellipsis_is_the_same_axes(match: Match) -> Refusal | None:
    """The ellipsis stands for the same axes of all operands that have one, so that nothing is broadcast."""
    return None if _labelled(match) else match.refuse("shape", "a", "the same axes for each ellipsis")


elliptic = attr("equation", lambda text, facts: _terms(text) is not None, "one with an ellipsis in the result, too")


_WITH_ELLIPSIS: Sequence[_Case] = (
    (("b 3 s 4",), "...ij->...ji"), (("b 3 s 4",), "i...j -> ...i"),
    (("b 3 s 4", "b 3 t 4"), "...id,...jd->...ij"), (("b 3 2 s t", "b 3 t 2 4"), "...hqk, ...khd -> ...qhd"),
    (("b s 4", "4 5"), "...d,df->...f"), (("4 5", "b s 4"), "df,...d->...f"), (("b s t", "b t 4"), "...ij,...jk"),
    (("s b 2", "4 s"), "i...,ji->j..."), (("s 4", "4 5"), "...ij,...jk->...ik"),
    (("b s 3", "3 4", "4 2"), "...i,ij,jk->...k"), (("b s 4", "b 4 5", "5 2"), "...ij,...jk,kl->...il"),
    (("b 2", "2 3", "3 4", "4 5"), "...i,ij,jk,kl->...l"),
)  # fmt: skip

RULES = [
    _rule(
        "ellipsis_to_labels", "einsum(a, ...) with an ellipsis", op.Einsum(a, *optional, equation=elliptic),
        op.Einsum(a, *optional, equation=_labelled), (an_ellipsis_is_the_same_axes,), *_WITH_ELLIPSIS, counted=(),
    ),
    _rule(
        "split_several_operands", "einsum(a, b, c, ...)", several, _pair_first, (a_pair_keeps_labels,),
        (("2 3", "3 s", "s 5"), "ij,jk,kl->il"), (("b 2", "b 3", "b 4"), "bi,bj,bk->bijk"), (("s", "s", "s 4"), "i,i,ij->j"),
        (("2 3", "3 s", "s 5", "5 2"), "ij,jk,kl,lm->im"), makes=("Einsum",),
    ),
    _rule(
        "reduce_private_labels_first", "einsum(a, b), labels of one alone summed over", two, _summed_first, (sums_one_alone,),
        (("s 3", "4 b"), "ij,kl->il"), (("b s 3", "b 4"), "bij,bk->bik"), (("b 4", "b s 3"), "bk,bij->bik"),
        makes=("Einsum",),
    ),
    _rule(
        "inner_product_to_mul_reduce_sum", "einsum(a, b), the same labels", two,
        (
            _inner_product(lambda products, axes: op.ReduceSum(products, computed("axes", lambda match: ints(axes)), keepdims=0)),
            _inner_product(lambda products, axes: op.ReduceSum(products, axes=tuple(axes), keepdims=0)),
        ),
        (redundant(SHAPES)(sums), redundant(COST)(labels_are_alike), floating("a")),
        (("b s 4", "b s 4"), "bqd,bqd->bq"), (("b 3 4", "4 3 b"), "bij,jib->b"), (("3 4", "3 4"), "ij,ij->"),
        makes=("Transpose", "Mul", "ReduceSum"),
    ),
    _rule(
        "permutation_to_transpose", "einsum(a), all labels kept", one, transposed, (redundant(SHAPES)(sums_nothing),),
        (("s t b 2",), "ijbn->bnij"), (("3 s",), "ba"), (("3 s",), "ab -> ba"), exactness=Exactness.EXACT,
    ),
    _rule(
        "to_reduce_sum", "einsum(a), labels summed over", one,
        (
            op.ReduceSum(transposed, computed("axes", lambda match: ints(_summed_axes(match))), keepdims=0),
            op.ReduceSum(transposed, axes=_summed_axes, keepdims=0),
        ),
        (sums,),
        (("b s 4",), "bsd->bd"), (("b s 4",), "bsd->db"), (("3 s",), "ab->"), (("b s 4",), "bsd -> s"),
    ),
    _rule(
        "outer_product_to_mul", "einsum(a, b), nothing summed", two, _spread_product, (sums_nothing,),
        (("s", "4"), "i,j->ij"), (("b s", "b 4"), "bs,bd->bds"), (("s", "4"), "i,j"), (("b s 4", "b 4"), "bsd,bd->sbd"),
        makes=("Transpose", "Unsqueeze", "Mul"),
    ),
    _rule(
        "to_matmul", "einsum(a, b), a product of matrices", two, lambda match: _product(match).matrices(),
        (sums_over_both, is_a_product), *_PRODUCTS, *(_exchanged(*case) for case in _PRODUCTS),
        makes=("Transpose", "Reshape", "Unsqueeze", "MatMul"),
    ),
]  # fmt: skip
