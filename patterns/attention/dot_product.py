"""Scaled dot-product attention and its multi-head form.

    attention(q, k, v) = softmax(s q k^T + mask) v                          Vaswani et al., arXiv:1706.03762

on [batch, heads, length, size], or [batch, length, size] where the batch axis holds the heads too. `attention_masks` brings
masks into this form, `attention_heads` absorbs what splits and repeats the heads.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.dims import DimLike
from ortfuse.pattern import Guard, Match, Op, Pattern, attr, computed, op, opt, redundant, scalar, var
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

from .._common import array_like, broadcasts_within, ints, is_rank, text
from .._proofs import FINITE_SCORES, KERNEL, NEVER_EMPTY, RANKS, SHAPES, masked
from ._first_key import keeps_first_key
from ._masks import DEEPEST_ALLOWED, acts_alike, mask_range

PAPER = "arXiv:1706.03762"
LOWEST = -3.4028234663852886e38

mask = var("mask")


@dataclass(frozen=True)
class _Spelling:
    """The parts of the formula on tensors of one rank: [batch, heads, length, size], or [batch, length, size] for one head."""

    rank: int

    def tensor(self, name: str) -> Pattern:
        """A variable of this rank; equal names are the same variable wherever they stand."""
        return var(name, is_rank(self.rank), f"of rank {self.rank}")

    @property
    def swap(self) -> tuple[int, ...]:
        """The permutation that exchanges the last two axes."""
        return (*range(self.rank - 2), self.rank - 1, self.rank - 2)

    @cached_property
    def scores(self) -> Pattern:
        """s q k^T, perhaps capped: cap tanh(s q k^T / cap)."""
        return self._products | scalar("cap") * op.Tanh(self._products).named("capped")

    @cached_property
    def _products(self) -> Pattern:
        """s q k^T, scaled anywhere; k^T is a Transpose of the key or whatever else stands for it."""
        turned = op.Transpose(scalar("key_scale_inside") * self.tensor("key"), perm=attr("key_perm")).kept()
        transposed_key = scalar("key_scale") * (turned.named("transposed") | self.tensor("transposed_key"))
        return scalar("score_scale") * op.MatMul(scalar("query_scale") * self.tensor("query"), transposed_key)

    def probabilities(self, mask: Pattern) -> Pattern:
        """softmax(scores + mask)"""
        return op.Softmax(self.scores + mask, axis=-1).named("weights")

    def guarded(self, mask: Pattern) -> Pattern:
        """The same with rows of NaN made zero."""
        softmax = op.Softmax(self.scores + mask, axis=-1)
        return op.Where(op.IsNaN(softmax), 0.0, softmax).named("weights")

    def attention(self, mask: Pattern) -> Op:
        """The operator on what the pattern captured; permutations of the key that cancel are dropped by the normal form."""
        key = op.Transpose(var("key") | var("transposed_key"), perm=key_perm)
        heads = {} if self.rank == 4 else {"q_num_heads": 1, "kv_num_heads": 1}
        return op.Attention(
            var("query"), key, var("value"), mask, scale=scale, softcap=softcap, qk_matmul_output_mode=weights_mode,
            outputs=4, **heads,
        )  # fmt: skip

    def weights(self, attention: Op) -> Pattern:
        """The weights of the values, which the operator returns as [batch, heads, queries, keys]."""
        return (
            attention[3]
            if self.rank == 4
            else op.Squeeze(attention[3], computed("heads_axis", lambda match: ints([1])))
        )


def key_perm(match: Match) -> list[int]:
    """The permutation that makes [..., length, size] of the key that the product's transposed operand was made of."""
    rank = match.rank("query") or 0
    perm = match["key_perm"] if match["key"] is not None else range(rank)
    return [perm[axis] for axis in (*range(rank - 2), rank - 1, rank - 2)]


def scale(match: Match) -> float:
    """The product of all scalar factors of the scores."""
    factors = [match[name] for name in ("score_scale", "query_scale", "key_scale", "key_scale_inside", "cap")]
    return float(math.prod(factor for factor in factors if factor is not None))


def softcap(match: Match) -> float | None:
    """The bound that the hyperbolic tangent sets to the scores, which the operator divides them by first."""
    cap: float | None = match["cap"]
    return cap


NO_FLOOR = "without a floor to need, the rule does what the others do"
AFTER_SOFTMAX = 3


def _weights_have_known_length(match: Match) -> str | None:
    """The number of keys is known where other nodes use the weights: shape inference takes an open one for 0 (ONNX 1.23)."""
    weights = match["weights"]
    inside = set(match.nodes)
    if all(use.node in inside for use in weights.uses()):
        return None
    shape = match.shape("weights")
    if shape is not None and isinstance(shape[-1], int):
        return None
    return "other nodes use the weights, whose last dimension the runtime takes for 0 where it is not a number"


def weights_mode(match: Match) -> int | None:
    """What the operator returns beside the result: the weights, if anything else uses them."""
    return AFTER_SOFTMAX if match.is_used_elsewhere("weights") else None


def _cap_is_positive(match: Match) -> str | None:
    cap = match["cap"]
    return None if cap is None or cap > 0 else f"scores are capped at {cap:g}"


def _key_shape(match: Match) -> tuple[DimLike, ...] | None:
    """[..., length, size] of the key."""
    shape = match.shape("key") if match["key"] is not None else match.shape("transposed_key")
    return None if shape is None else tuple(shape[axis] for axis in key_perm(match))


def _shapes_agree(match: Match) -> str | None:
    q, k, v = match.shape("query"), _key_shape(match), match.shape("value")
    if q is None or k is None or v is None:
        return "a shape of query, key or value is not known"
    shared = len(q) == 4 and k[:2] == (q[0], 1) and v[:2] == (q[0], 1)
    if not shared and (q[:-2] != k[:-2] or q[:-2] != v[:-2]):
        return f"query {text(q)}, key {text(k)} and value {text(v)} do not provably have the same batch size and heads"
    if k[-2] != v[-2] or q[-1] != k[-1]:
        return f"key {text(k)} does not provably fit query {text(q)} and value {text(v)}"
    return None


@redundant(SHAPES)
def _mask_shape_fits(match: Match) -> str | None:
    """The mask broadcasts to the scores. Of the last axis nothing need be known: the product with the values needs it."""
    if match["mask"] is None:
        return None
    shape, q, v = match.shape("mask"), match.shape("query"), match.shape("value")
    if shape is None or q is None or v is None:
        return "the shape of the mask is not known"
    if len(shape) not in range(1, len(q) + 1) or not all(
        broadcasts_within(dim, full) for dim, full in zip(reversed(shape[:-1]), reversed(q[:-1]), strict=False)
    ):
        return f"the mask {text(shape)} does not provably broadcast to the scores {text((*q[:-1], v[-2]))}"
    return None


def _masked_rows_agree(nan_guard: bool) -> Guard:
    """The kernel does for fully masked rows what the graph does (see `_masks`)."""

    def guard(match: Match) -> str | None:
        if match["mask"] is None:
            return None
        found = mask_range(match["mask"], match.facts)
        if found is None:
            return "the values of the mask are not known, so that a fully masked row may come out otherwise"
        if -math.inf in found.deep and not nan_guard and not keeps_first_key(match["mask"], match.facts):
            return "a row masked with -inf alone is NaN in the graph and zero in the kernel"
        return acts_alike(found, match.dtype("mask"))

    return guard


def mask_floor(match: Match) -> Any:
    """The lowest mask value to pass on, if a row may hold nothing but one that the kernel takes for a row without keys."""
    found = mask_range(match["mask"], match.facts) if match["mask"] is not None else None
    if found is None or not any(-math.inf < level < DEEPEST_ALLOWED for level in found.deep):
        return None
    return None if keeps_first_key(match["mask"], match.facts) else array_like(match, DEEPEST_ALLOWED)


def _needs_floor(wanted: bool) -> Guard:
    def guard(match: Match) -> str | None:
        needed = match["mask"] is not None and mask_floor(match) is not None
        return None if needed == wanted else "handled by the rule of the other kind"

    return guard


def _over_all_scores(mask_input: Pattern) -> Pattern:
    """The mask repeated for every query and key, which the kernel does not do itself."""
    ones = computed("ones", lambda match: ints([1] * max(0, (match.rank("mask") or 0) - 2)))
    return op.Expand(mask_input, op.Concat(ones, _length("query"), _length("value"), axis=0))


def _as_long_as_values(mask_input: Pattern) -> Pattern:
    """A mask repeated for every key whose length says so, where nothing was known of it before."""
    kept = computed("kept", lambda match: ints([0] * (max(2, match.rank("mask") or 0) - 1)))
    return op.Reshape(mask_input, op.Concat(kept, _length("value"), axis=0))


def _length(name: str) -> Pattern:
    return op.Shape(var(name), start=-2, end=-1)


def _for_one_head(mask_input: Pattern) -> Pattern:
    """A mask [batch, queries, keys] as [batch, 1, queries, keys]."""
    return op.Unsqueeze(mask_input, computed("axis_of_heads", lambda match: ints([1])))


def _sdpa(
    name: str,
    formula: str,
    spelling: _Spelling,
    probabilities: Pattern,
    filler: float,
    *,
    nan_guard: bool = False,
    floor: bool = False,
    mask_rank: int | None = None,
) -> Rule:
    """One rule; `mask_rank` restricts those on three axes, whose masks are unlike on two and on three."""
    hidden = op.Max(mask, computed("floor", mask_floor)) if floor else opt(mask)
    lift = _for_one_head if mask_rank == 3 else lambda mask_input: mask_input
    four = spelling.rank == 4
    shapes: tuple[tuple[tuple[int, ...], str, str], ...] = (
        (((0, 1, 3, 2), "b 2 t 4", "b 1 s t"), ((0, 2, 3, 1), "b t 2 4", "b 1 1 t"), ((0, 1, 3, 2), "b 2 t 4", "s t"),
         ((0, 1, 3, 2), "b 2 t 4", "t"))
        if four
        else (((0, 2, 1), "b t 4", "b s t"), ((1, 2, 0), "t b 4", "1 1 t"))
        if mask_rank == 3
        else (((0, 2, 1), "b t 4", "s t"), ((1, 2, 0), "t b 4", "t"))
    )  # fmt: skip
    h = "2 " if four else ""
    masks = (hidden, _over_all_scores(hidden), _as_long_as_values(_over_all_scores(hidden)))
    made = [spelling.attention(lift(mask_input)) for mask_input in masks]
    return Rule(
        name=name,
        formula=formula,
        pattern=op.MatMul(probabilities, spelling.tensor("value")),
        replace=tuple(attention[0] for attention in made),
        intermediates={"weights": tuple(map(spelling.weights, made))},
        guards=(
            _shapes_agree,
            _cap_is_positive,
            *(() if four else (redundant(KERNEL)(_mask_has_rank(3)) if mask_rank == 3 else _mask_has_rank(mask_rank),)),
            _mask_shape_fits,
            _masked_rows_agree(nan_guard),
            redundant(NO_FLOOR)(_needs_floor(True)) if floor else _needs_floor(False),
            _weights_have_known_length,
        ),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source=PAPER,
        proof=Proof(
            shapes=tuple(
                {"query": f"b {h}s 4", "key": keys, "transposed_key": f"b {h}4 t", "value": f"b {h}t 4", "mask": dims}
                for _, keys, dims in shapes
            ),
            attributes=tuple({"key_perm": [perm]} for perm, _, _ in shapes),
            scalars={
                **{name: [1.0, 0.5] for name in ("score_scale", "query_scale", "key_scale", "key_scale_inside")},
                "cap": [1.5, 20.0],
            },
            inputs={"mask": masked(filler)},
            never_empty=NEVER_EMPTY,
            redundant={
                "check of key": RANKS,
                "check of value": RANKS,
            },
            counterexamples={
                "a mask for more batches": Variation(
                    shapes={
                        name: re.sub(r"\bb\b", "1", f"{shape}")
                        for name, shape in (
                            ("query", f"b {h}s 4"),
                            ("key", shapes[0][1]),
                            ("transposed_key", f"b {h}4 t"),
                            ("value", f"b {h}t 4"),
                        )
                    }
                ),
                "a mask of rank 5": Variation(shapes={"mask": "1 b 1 s t"}),
                "weights of open length used by a node that asks for their size": Variation(
                    sizes={"t": 7}, change=_add_to_weights
                ),
                "a negative cap": Variation(
                    scalars={"cap": -1.5, "score_scale": -1.0}, options={"(score_scale * MatMul(*": "cap"}
                ),
            },
            assumes=FINITE_SCORES if nan_guard else {},
        ),
    )


def _add_to_weights(model: ir.Model) -> None:
    """Add a constant as long as there are keys (7) to the weights, as another result."""
    weights = next(node for node in model.graph if node.op_type == "Softmax").outputs[0]
    guarded = [use.node for use in weights.uses() if use.node.op_type == "Where"]
    constant = ir.node("Constant", [], {"value": ir.tensor(np.zeros(7, np.float32))})
    total = ir.node("Add", [guarded[0].outputs[0] if guarded else weights, constant.outputs[0]])
    constant.outputs[0].name, total.outputs[0].name = "numbers", "total"
    total.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    model.graph.extend([constant, total])
    model.graph.outputs.append(total.outputs[0])


def _mask_has_rank(wanted: int | None) -> Guard:
    def guard(match: Match) -> str | None:
        rank = None if match["mask"] is None else match.rank("mask")
        return None if (rank == 3) == (wanted == 3) else "handled by the rule for masks of the other rank"

    return guard


def _rules(spelling: _Spelling, prefix: str, note: str, mask_rank: int | None) -> list[Rule]:
    masked_only = spelling.probabilities(mask) | spelling.guarded(mask)
    perhaps_masked = mask if mask_rank == 3 else opt(mask)
    return [
        _sdpa(
            f"attention.{prefix}", f"softmax(s q k^T + mask) v{note}", spelling, spelling.probabilities(perhaps_masked), -10000.0,
            mask_rank=mask_rank,
        ),
        _sdpa(
            f"attention.{prefix}_nan_guard", f"p = softmax(s q k^T + mask); where(isnan(p), 0, p) v{note}", spelling,
            spelling.guarded(perhaps_masked), -math.inf, nan_guard=True, mask_rank=mask_rank,
        ),
        _sdpa(
            f"attention.{prefix}_finite_mask", f"softmax(s q k^T + mask) v{note}, mask down to the lowest number", spelling,
            masked_only, LOWEST, floor=True, mask_rank=mask_rank,
        ),
    ]  # fmt: skip


RULES = [
    *_rules(_Spelling(4), "sdpa", "", None),
    *_rules(_Spelling(3), "batched", " on [batch, length, size]", 2),
    *_rules(_Spelling(3), "batched_3d_mask", " on [batch, length, size], mask of rank 3", 3),
]
