"""Fuse scaled dot-product attention.

    attention(q, k, v) = softmax(s q k^T + mask) v                          Vaswani et al., arXiv:1706.03762

on [batch, heads, length, size], or [batch, length, size] if the heads are merged into the batch axis. The scale may be applied
anywhere. The scores may be capped (cap tanh(s q k^T / cap)), NaN rows may be zeroed, and the weights may be used elsewhere.
`additive_mask` brings masks into this form; `absorb_heads_and_cache` absorbs the nodes that split and repeat the heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Op, Pattern, built, computed, op, opt, rearrange, scalar, var
from ortfuse.targets import Quirk

from .._rule_test_inputs import FINITE_SCORES, NEVER_EMPTY, masked
from .._shared_guards import array_like, ints
from ._mask_values import DEEPEST_ALLOWED, acts_alike, keeps_a_key, mask_range

PAPER = "arXiv:1706.03762"
LOWEST = -3.4028234663852886e38
AFTER_SOFTMAX = 3
"""The mode of the operator in which it also returns the weights."""


def _spelled(queries: str, keys: str, key_layouts: tuple[str, str], mask: str, *, nan_guard: bool) -> Pattern:
    """The formula for one rank, given the leading axes of queries and of keys, and the layouts of the key."""
    inside, key = scalar("key_scale_inside"), (var("key", layout) for layout in key_layouts)
    turned = [rearrange(f"{layout} -> {keys} d t", inside * one) for layout, one in zip(key_layouts, key, strict=True)]
    transposed = (turned[0] | turned[1] | var("transposed_key", f"{keys} d t")).named("transposed", f"{keys} d t")
    product = (scalar("query_scale") * var("query", f"{queries} s d")) @ (scalar("key_scale") * transposed)
    scaled = scalar("score_scale") * product
    scores = scaled | scalar("cap") * op.Tanh(scaled).named("capped")
    softmax = op.Softmax(scores + opt(var("mask", mask)), axis=-1)
    weights = op.Where(op.IsNaN(softmax), 0.0, softmax) if nan_guard else softmax
    # The product asks for as many values as keys, even where that cannot be proved.
    return weights.named("weights") @ var("value", f"{keys} u v")


def _formula(*, nan_guard: bool) -> Pattern:
    with_heads = _spelled("b h", "b g", ("b g t d", "b t g d"), "b? h? s? _", nan_guard=nan_guard)
    return with_heads | _spelled("b", "b", ("b t d", "t b d"), "b? s? _", nan_guard=nan_guard)


def _has_heads(match: Match) -> bool:
    return match.rank("query") == 4


def _key(match: Match) -> Pattern:
    """The key as [..., length, size]."""
    lead = "b g" if _has_heads(match) else "b"
    if match.get("transposed_key") is not None:
        return rearrange(f"{lead} d t -> {lead} t d", var("transposed_key"))
    other = "b t g d" if _has_heads(match) else "t b d"
    return rearrange(f"{other} -> {lead} t d", var("key")) if match.choice("transposed") == 1 else var("key")


def scale(match: Match) -> float:
    """The product of all scalar factors of the scores."""
    factors = [match.get(name) for name in ("score_scale", "query_scale", "key_scale", "key_scale_inside", "cap")]
    return float(math.prod(factor for factor in factors if factor is not None))


def may_zero_rows(match: Match) -> bool:
    """Whether a kernel that may execute the operator gives zeros for rows that the mask hides as a whole."""
    return bool(match.quirks & {Quirk.ZEROES_MASKED_ROWS, Quirk.MAY_ZERO_MASKED_ROWS})


def mask_floor(match: Match) -> Any:
    """The lowest mask value to pass on, if a row may be filled with one that makes a kernel treat it as a row without keys."""
    if not may_zero_rows(match):
        return None
    found = mask_range(match["mask"], match.facts)
    if found is None or not any(-math.inf < level < DEEPEST_ALLOWED for level in found.deep):
        return None
    return None if keeps_a_key(match["mask"], match.facts) else array_like(match, DEEPEST_ALLOWED)


def _length(name: str) -> Pattern:
    return op.Shape(var(name), start=-2, end=-1)


def as_it_is(mask: Pattern, rank: int) -> Pattern:
    """The mask unchanged."""
    return mask


def over_all_scores(mask: Pattern, rank: int) -> Pattern:
    """The mask repeated for every query and key, which the kernel does not do itself."""
    ones = computed("ones", lambda match: ints([1] * max(0, rank - 2)))
    return op.Expand(mask, op.Concat(ones, _length("query"), _length("value"), axis=0))


def as_long_as_values(mask: Pattern, rank: int) -> Pattern:
    """The expanded mask with the length of the values as its last dimension, for when that was not known before."""
    kept = computed("kept", lambda match: ints([0] * (max(2, rank) - 1)))
    return op.Reshape(over_all_scores(mask, rank), op.Concat(kept, _length("value"), axis=0))


SPREADS = (as_it_is, over_all_scores, as_long_as_values)
"""How a mask is repeated for what kernels take, in order of preference."""


def floored(match: Match) -> Pattern:
    """The mask as the kernel takes it if no row is hidden by -inf."""
    floor = mask_floor(match)
    return var("mask") if floor is None else op.Max(var("mask"), computed("floor", lambda match: floor))


def _attention(match: Match, spread: Callable[[Pattern, int], Pattern], given: Callable[[Match], Pattern]) -> Op:
    """The operator with the mask that `given` makes, spread as a kernel needs it."""
    mask: Pattern | None = None
    if match["mask"] is not None:
        rank = match.rank("mask") or 0
        mask = spread(given(match), rank)
        if rank == 3 and not _has_heads(match):
            mask = op.Unsqueeze(mask, computed("axis_of_heads", lambda match: ints([1])))
    made: Op = op.Attention(
        var("query"), _key(match), var("value"), mask, scale=scale, softcap=lambda match: match.get("cap"), outputs=4,
        qk_matmul_output_mode=lambda match: AFTER_SOFTMAX if match.is_used_elsewhere("weights") else None,
        **({} if _has_heads(match) else {"q_num_heads": 1, "kv_num_heads": 1}),
    )  # fmt: skip
    return made


def _weights(attention: Pattern) -> Pattern:
    """The attention weights, which the operator returns as [batch, heads, queries, keys]."""

    def made(match: Match) -> Pattern:
        heads_axis = computed("heads_axis", lambda match: ints([1]))
        return attention[3] if _has_heads(match) else op.Squeeze(attention[3], heads_axis)

    return built(made, makes=("Squeeze",))


def cap_is_positive(match: Match) -> Refusal | None:
    """If scores are capped, the cap is positive."""
    return None if match["cap"] is None or match["cap"] > 0 else match.refuse("value", "cap", "above 0")


def heads_are_shared_alike(match: Match) -> Refusal | None:
    """Keys and values have as many heads as queries, or a single one."""
    if not _has_heads(match) or match.dim("g") in (1, match.dim("h")):
        return None
    return match.refuse_dimension("value", 1, match.dim("h"))


def masked_rows_agree(match: Match, nan_guard: bool) -> Refusal | None:
    """Each kernel that may execute it does for fully masked rows what the graph does (see `_mask_values`)."""
    if match["mask"] is None:
        return None
    zeroes = Quirk.ZEROES_MASKED_ROWS in match.quirks
    differs = may_zero_rows(match) if not nan_guard else not zeroes
    if not may_zero_rows(match) and not nan_guard and match.dtype("mask") == ir.DataType.FLOAT:
        return None
    found = mask_range(match["mask"], match.facts)
    if found is None:
        return match.refuse("values_unknown", "mask", "known what fully masked rows come to")
    kept = keeps_a_key(match["mask"], match.facts)
    if -math.inf in found.deep and differs and not kept:
        return match.refuse("value", "mask", "such that no row is -inf alone: NaN in the graph or the kernel, 0 in the other",
                            found="-inf for hidden keys")  # fmt: skip
    unlike = acts_alike(found, match.dtype("mask"), kept)
    return None if unlike is None else match.refuse("value", "mask", "rounded as in float32, one number for all hidden keys",
                                                    found=unlike)  # fmt: skip


def weights_have_known_length(match: Match) -> Refusal | None:
    """If other nodes use the weights, the number of keys is known: shape inference of ONNX 1.23 takes an open one for 0."""
    inside, shape = set(match.nodes), match.shape("weights")
    if all(use.node in inside for use in match["weights"].uses()) or (shape and isinstance(shape[-1], int)):
        return None
    return match.refuse_dimension("weights", -1, "a number, as other nodes use the weights")


def _add_to_weights(model: ir.Model) -> None:
    """Add a further result: the weights plus a constant with one element for each key (7)."""
    weights = next(node for node in model.graph if node.op_type == "Softmax").outputs[0]
    guarded = [use.node for use in weights.uses() if use.node.op_type == "Where"]
    constant = ir.node("Constant", [], {"value": ir.tensor(np.zeros(7, np.float32))})
    total = ir.node("Add", [guarded[0].outputs[0] if guarded else weights, constant.outputs[0]])
    constant.outputs[0].name, total.outputs[0].name = "numbers", "total"
    total.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    model.graph.extend([constant, total])
    model.graph.outputs.append(total.outputs[0])


def replacements(given: Callable[[Match], Pattern], *makes: str) -> tuple[list[Pattern], list[Pattern]]:
    """The operator, and the weights that it returns, with the mask made in these ways, each in the forms that kernels take."""
    nodes = ("Attention", "Transpose", "Expand", "Reshape", "Unsqueeze", *makes)
    made = [built(partial(_attention, spread=spread, given=given), makes=nodes) for spread in SPREADS]
    return [attention[0] for attention in made], list(map(_weights, made))


def _rule(name: str, spelled: str, *, nan_guard: bool) -> Rule:
    made, weights = replacements(floored, "Max")
    masked_rows = partial(masked_rows_agree, nan_guard=nan_guard)
    masked_rows.__qualname__ = "masked_rows_agree"  # type: ignore[attr-defined]
    return Rule(
        name=name,
        formula=spelled,
        pattern=_formula(nan_guard=nan_guard),
        replace=tuple(made),
        intermediates={"weights": tuple(weights)},
        guards=(heads_are_shared_alike, cap_is_positive, masked_rows, weights_have_known_length),
        may_raise_opset=True,
        exactness=Exactness.ROUNDING,
        source=PAPER,
        test=RuleTest(
            shapes={"h": 2, "g": 2, "d": 4, "v": 4, "u": "t"},
            scalars={
                **{name: [1.0, 0.5] for name in ("score_scale", "query_scale", "key_scale", "key_scale_inside")},
                "cap": [1.5, 20.0],
            },
            inputs={"mask": masked(-math.inf if nan_guard else -10000.0, LOWEST, keys="t")},
            never_empty=NEVER_EMPTY,
            counterexamples={
                "a mask for more batches": Variation(
                    shapes={
                        "query": "1 2 s 4",
                        "key": "1 2 t 4",
                        "transposed_key": "1 2 4 t",
                        "value": "1 2 t 4",
                        "mask": "b 1 s t",
                    },
                ),
                "more heads of keys than of queries": Variation(
                    shapes={
                        "query": "b n s 4",
                        "key": "b m t 4",
                        "transposed_key": "b m 4 t",
                        "value": "b m t 4",
                    },
                    sizes={"n": 1, "m": 3},
                    options={"mask": "absent"},
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


RULES = [
    _rule("attention.sdpa", "softmax(s q k^T + mask) v", nan_guard=False),
    _rule("attention.sdpa_nan_guard", "p = softmax(s q k^T + mask); where(isnan(p), 0, p) v", nan_guard=True),
]
