"""Einsum of one or two operands as the products, transpositions and sums that its equation says.

    bihd,bjhd->bhij        MatMul of [b, h, i, d] and [b, h, d, j]
    ibh,hnd->ibnd          MatMul of [i, b, h] and [h, n * d]
    i,j->ij                Mul of [i, 1] and [1, j]
    ijb->bij, ij->j        Transpose, ReduceSum

A label is of the *batch* if both operands and the result have it, *contracted* if only the operands have it, and of the rows
or columns if one operand and the result have it. The runtime's Einsum transposes its operands to such a product as well, and
the result back, on every run; Transposes in the graph are merged with those next to them, those of weights are folded.
The runtime dies of an Einsum of an empty batch; its MatMul does not.
An ellipsis, a label that one operand has twice, and one of two operands that only a sum is taken over, are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ortfuse.pattern import Guard, Match, Op, Pattern, attr, computed, op, redundant, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

from ._common import ints
from ._equation import Equation, parsed, positions
from ._proofs import SHAPES

SOURCE = "ONNX operator Einsum"
FEWEST_ROWS = 8
"""With fewer rows, one product for each of many leading axes would be slower than merging those."""


def _equation(match: Match) -> Equation:
    found = parsed(match["equation"])
    assert found is not None
    return found


def can_be_read(match: Match) -> Refusal | None:
    """The equation is one that can be taken apart."""
    if parsed(match["equation"]) is None:
        return match.refuse("attribute", "equation", "one without ellipsis, repeated labels and labels out of nowhere")
    return None


# One operand


@redundant(SHAPES)
def only_permutes(match: Match) -> Refusal | None:
    """Nothing is summed."""
    found = _equation(match)
    return match.unless_value("equation", len(found.result) == len(found.operands[0]), "one that sums nothing")


@redundant(SHAPES)
def sums(match: Match) -> Refusal | None:
    """Something is summed."""
    return match.unless_value("equation", only_permutes(match) is not None, "one that sums")


def kept_first(match: Match) -> list[int]:
    """The permutation that brings the labels of the result to the front."""
    labels, result = _equation(match).operands[0], _equation(match).result
    return positions(labels, result + "".join(label for label in labels if label not in result))


def summed_axes(match: Match) -> list[int]:
    """The axes behind those of the result."""
    found = _equation(match)
    return list(range(len(found.result), len(found.operands[0])))


# Two operands


@dataclass(frozen=True)
class Product:
    """The labels of a matrix product: [lead, batch, row, contracted] x [batch, contracted, columns]."""

    batch: str
    rows: str
    contracted: str
    columns: str

    @property
    def lead(self) -> str:
        """The labels of the rows that are leading axes of the first operand alone."""
        return self.rows[:-1]

    def result(self) -> str:
        """The labels of the product as they come."""
        return self.lead + self.batch + self.rows[-1:] + self.columns


def _sizes(match: Match) -> tuple[dict[str, Any], dict[str, Any]]:
    found = [dict(zip(labels, match.shape(name) or (), strict=False))
             for labels, name in zip(_equation(match).operands, "ab", strict=True)]  # fmt: skip
    return found[0], found[1]


def _product(match: Match, first: int) -> Product:
    """The product with operand `first` on the left; within a batch, the most rows known are the row of the matrix."""
    equation, size = _equation(match), _sizes(match)[first]
    left, right, result = equation.operands[first], equation.operands[1 - first], equation.result

    def known(label: str) -> int:
        return size[label] if isinstance(size.get(label), int) else 0

    batch = "".join(label for label in result if label in left and label in right)
    rows = [label for label in left if label in result and label not in right]
    if batch:
        rows.sort(key=known)
    return Product(
        batch,
        "".join(rows),
        "".join(label for label in left if label in right and label not in result),
        "".join(label for label in result if label in right and label not in left),
    )


def _not_a_product(match: Match) -> Refusal | None:
    """Why neither order of the operands makes a matrix product."""
    equation = _equation(match)
    shapes = match.shapes("a", "b")
    if isinstance(shapes, Refusal):
        return shapes
    a, b = _sizes(match)
    for label in sorted(set("".join(equation.operands)) - set(equation.result)):
        if label not in a or label not in b:
            return match.refuse("attribute", "equation", f"one that sums over {label} of both operands")
        if a[label] != b[label]:
            return match.refuse_dimension("b", equation.operands[1].index(label), a[label])
    return None


def _no_matrix(match: Match, first: int) -> Refusal | None:
    """Why operand `first` times the other is not one MatMul on the axes as they are."""
    found = _product(match, first)
    if match.facts.is_const(match["ab"[first]]) and _no_weight(match, 1 - first) is None:
        return match.refuse("other_rule", "root", "the order with the weight on the right")
    if not found.rows or len(found.contracted) != 1 or len(found.columns) != 1:
        return match.refuse(
            "attribute", "equation", "a product with one axis of rows, one of columns and one summed over"
        )
    rows = _sizes(match)[first][found.rows[-1]]
    if found.batch and found.lead and not (isinstance(rows, int) and rows >= FEWEST_ROWS):
        return match.refuse("needless", "root", found=f"too few rows for a product of each: {rows}")
    return None


def _no_weight(match: Match, first: int) -> Refusal | None:
    """Why the other operand is no weight whose axes merge into a matrix."""
    found, size = _product(match, first), _sizes(match)[1 - first]
    if found.batch or not found.contracted or not found.columns:
        return match.refuse(
            "attribute", "equation", "a product with axes of columns, and in common those summed over alone"
        )
    if len(found.contracted) == len(found.columns) == 1 and found.rows:
        return match.refuse("needless", "root", found="the axes need not be merged")
    if not all(isinstance(size[label], int) and size[label] > 0 for label in found.contracted + found.columns):
        return match.refuse("shape", "ab"[1 - first], f"one of known sizes of {found.contracted + found.columns}")
    return None


def _in_order(match: Match, why_not: Callable[[Match, int], Refusal | None]) -> int | None:
    """Which operand comes first: of two possible orders the one that the result has."""
    possible = [first for first in (0, 1) if why_not(match, first) is None]
    if len(possible) < 2:
        return possible[0] if possible else None
    rows, result = _product(match, 0), _equation(match).result
    return 0 if not rows.rows or result.index(rows.rows[-1]) < result.index(rows.columns[-1]) else 1


def _goes_first(first: int, why_not: Callable[[Match, int], Refusal | None]) -> Guard:
    def guard(match: Match) -> Refusal | None:
        refusal = _not_a_product(match)
        if refusal is not None:
            return refusal
        found = _in_order(match, why_not)
        if found is None:
            return why_not(match, first)
        return None if found == first else match.refuse("other_rule", "root", "the order with the other operand first")

    return guard


def _transposed(match: Match, first: int, which: int) -> list[int]:
    """The permutation of operand `first` for the left (0) or of the other one for the right (1) of the product."""
    found, labels = _product(match, first), _equation(match).operands[first ^ which]
    wanted = (
        found.lead + found.batch + found.rows[-1:] + found.contracted,
        found.batch + found.contracted + found.columns,
    )
    return positions(labels, wanted[which])


def _operand(first: int, which: int) -> Op:
    made: Op = op.Transpose(var("ab"[first ^ which]), perm=lambda match: _transposed(match, first, which))
    return made


def _back(product: Pattern, first: int) -> Op:
    def permutation(match: Match) -> list[int]:
        return positions(_product(match, first).result(), _equation(match).result)

    made: Op = op.Transpose(product, perm=permutation)
    return made


def _matrices(first: int) -> Op:
    return _back(op.MatMul(_operand(first, 0), _operand(first, 1)), first)


def _with_weight(first: int) -> Op:
    """[rows, contracted...] x [contracted..., columns...], the last axes of either merged, and the columns split again."""

    def merged(match: Match) -> tuple[int, int]:
        found, size = _product(match, first), _sizes(match)[1 - first]
        return math.prod(size[label] for label in found.contracted), math.prod(size[label] for label in found.columns)

    def inputs(match: Match) -> Any:
        return ints([*[0] * len(_product(match, first).rows), merged(match)[0]])

    def split(match: Match) -> Any:
        found, size = _product(match, first), _sizes(match)[1 - first]
        return ints([*[0] * len(found.rows), *(size[label] for label in found.columns)])

    left = op.Reshape(_operand(first, 0), computed("merged", inputs))
    right = op.Reshape(_operand(first, 1), computed("matrix", lambda match: ints(merged(match))))
    return _back(op.Reshape(op.MatMul(left, right), computed("split", split)), first)


def multiplies_alone(match: Match) -> Refusal | None:
    """Nothing is summed, and each operand lacks an axis of the result."""
    found = _equation(match)
    if set("".join(found.operands)) != set(found.result):
        return match.refuse("attribute", "equation", "one that sums nothing")
    lacking = all(len(labels) < len(found.result) for labels in found.operands)
    return match.unless_value("equation", lacking, "one with a result of more axes than either operand")


def _spread(name: str, new_axes: bool) -> Op:
    """An operand with its axes in the order of the result, and with 1 for those that it lacks."""
    position = "ab".index(name)

    def permutation(match: Match) -> list[int]:
        found = _equation(match)
        labels = found.operands[position]
        return positions(labels, "".join(label for label in found.result if label in labels))

    def missing(match: Match) -> list[int]:
        found = _equation(match)
        return [axis for axis, label in enumerate(found.result) if label not in found.operands[position]]

    turned = op.Transpose(var(name), perm=permutation)
    if new_axes:
        return op.Unsqueeze(turned, computed(f"missing_{name}", lambda match: ints(missing(match))))
    return op.Unsqueeze(turned, axes=missing)


a, b = var("a"), var("b")
_equation_of = attr("equation")
one, two = op.Einsum(a, equation=_equation_of), op.Einsum(a, b, equation=_equation_of)


def _with_ellipsis(equation: str) -> Variation:
    """The equation with an ellipsis for the first label of its result."""
    return Variation(attributes={"equation": equation.replace(equation.partition("->")[2][0], "...")})


def _proof(*cases: tuple[Sequence[str], str], **more: Any) -> Proof:
    """A proof on equations, each with the shapes of its operands."""
    return Proof(
        shapes=tuple(dict(zip("ab", shapes, strict=False)) for shapes, _ in cases),
        never_empty={"*": "the runtime dies of an empty batch"},
        counterexamples={"an ellipsis": _with_ellipsis(cases[0][1])},
        attributes=tuple({"equation": [equation]} for _, equation in cases),
        **more,
    )


_MATRICES = (
    (("x 4", "4 5"), "ij,jk->ik"),
    (("x y", "y z"), "ij,jk"),
    (("b 2 s 4", "b 2 t 4"), "bhid, bhjd -> bhij"),
    (("b s 2 4", "b t 2 4"), "bihd,bjhd->bhij"),
    (("b 2 s t", "b t 2 4"), "bhij,bjhd->bihd"),
    (("s b 2 4", "t b 2 4"), "ibnd,jbnd->bnij"),
    (("b 8 9 4", "8 t 4"), "bhwc,hkc->bhwk"),
    (("b 8 9 4", "9 t 4"), "bhwc,wkc->bhwk"),
    (("b s t 4", "4 5"), "bijc,cd->bijd"),
    (("b s 4", "4 t"), "bsd,dt->tsb"),
)
_WEIGHTS = (
    (("s b 6", "6 2 3"), "ibh,hnd->ibnd"),
    (("s b 2 3", "6 2 3"), "ibnd,hnd->ibh"),
    (("2 s 3 b", "5 3 2"), "nidb,hdn->bih"),
    (("6", "6 2 3"), "h,hnd->dn"),
    (("4", "4 2"), "d,dk->k"),
)


def _exchanged(equation: str) -> str:
    operands, arrow, result = equation.partition("->")
    return ",".join(operands.split(",")[::-1]) + arrow + result


def _rule(name: str, pattern: Op, replace: Pattern | tuple[Pattern, ...], guards: tuple[Guard, ...], proof: Proof,
          formula: str, exactness: Exactness = Exactness.ROUNDING) -> Rule:  # fmt: skip
    return Rule(
        name=f"einsum.{name}",
        formula=formula,
        pattern=pattern,
        replace=replace,
        guards=(can_be_read, *guards),
        exactness=exactness,
        source=SOURCE,
        proof=proof,
    )


RULES = [
    _rule(
        "transpose",
        one,
        op.Transpose(a, perm=kept_first),
        (only_permutes,),
        _proof(
            (("s t b 2",), "ijbn->bnij"),
            (("3 s",), "ba"),
            (("3 s",), "ab -> ba"),
        ),
        "einsum(a), all labels kept",
        Exactness.EXACT,
    ),
    _rule(
        "sum",
        one,
        (
            op.ReduceSum(
                op.Transpose(a, perm=kept_first), computed("axes", lambda match: ints(summed_axes(match))), keepdims=0
            ),
            op.ReduceSum(op.Transpose(a, perm=kept_first), axes=summed_axes, keepdims=0),
        ),
        (sums,),
        _proof(
            (("b s 4",), "bsd->bd"),
            (("b s 4",), "bsd->db"),
            (("3 s",), "ab->"),
            (("b s 4",), "bsd -> s"),
        ),
        "einsum(a), labels summed over",
    ),
    _rule(
        "outer",
        two,
        tuple(op.Mul(_spread("a", new), _spread("b", new)) for new in (True, False)),
        (multiplies_alone,),
        _proof((("s", "4"), "i,j->ij"), (("b s", "b 4"), "bs,bd->bds"), (("s", "4"), "i,j")),
        "einsum(a, b), nothing summed",
    ),
    *(
        _rule(
            f"{name}{'_exchanged' if first else ''}",
            two,
            made(first),
            (_goes_first(first, why_not),),
            _proof(
                *((shapes[::-1], _exchanged(equation)) if first else (shapes, equation) for shapes, equation in cases)
            ),
            f"einsum({'b, a' if first else 'a, b'}), {words}",
        )
        for name, made, why_not, cases, words in (
            ("product", _matrices, _no_matrix, _MATRICES, "one label summed over"),
            ("weight", _with_weight, _no_weight, _WEIGHTS, "labels of a weight merged"),
        )
        for first in (0, 1)
    ),
]
