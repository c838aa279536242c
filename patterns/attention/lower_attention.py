"""Lower ai.onnx Attention to what a target has that does not run it: MultiHeadAttention, or products and Softmax.

attention(q, k, v, mask, past) = multi_head_attention(merge(q), merge(repeat(k)), merge(repeat(v)), bias(mask), past)

Fusions find ai.onnx Attention for every target. These rules come after all fusions, for targets without its kernel at the opsets
that results may have. Costs choose between MultiHeadAttention and products, unless attention is causal, which only the former is
without a mask of its own.

Rationale: the kernel of MultiHeadAttention of release 1.17 clears the matrix of scores and then adds the products to it. So it
goes over that matrix two more times than MatMul and Softmax do, which is slower if the scores exceed the second-level cache. That
of 1.18 clears nothing, and from 1.19 on the kernel goes through unmasked keys block by block.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Op, Pattern, attr, built, computed, ms, op, opt, var
from ortfuse.targets import Quirk

from .._rule_test_inputs import NEVER_EMPTY, masked
from .._shared_guards import array_like, ints
from ._mask_values import keeps_a_key, keeps_the_first_key, mask_range

PASS = "lower_operators"

SOURCE = "ONNX operator Attention; ONNX Runtime contrib operator MultiHeadAttention"
AFTER_SOFTMAX = 3
"""The mode of the operator in which it returns the weights."""

query, key, value, mask = var("query"), var("key"), var("value"), var("mask")
past_key, past_value = var("past_key"), var("past_value")


_whole = op.Attention(
    query, key, value, opt(mask), opt(past_key), opt(past_value),
    softmax_precision=attr("softmax_precision", lambda precision, facts: precision in (None, 1), "float32"),
    **{name: attr(name) for name in (
        "is_causal", "q_num_heads", "kv_num_heads", "scale", "softcap", "qk_matmul_output_mode",
    )},
).naming(present_key=1, present_value=2, weights=3)  # fmt: skip


def _is_flat(match: Match) -> bool:
    """Whether heads are merged into the last axis."""
    return match.rank("query") == 3


def _heads(match: Match, name: str) -> int | None:
    """The number of heads of queries, or of keys and values."""
    if _is_flat(match):
        given = match["q_num_heads" if name == "query" else "kv_num_heads"]
        return given if isinstance(given, int) and given > 0 else None
    size = (match.shape(name) or (None,) * 4)[1]
    return size if isinstance(size, int) and size > 0 else None


def _repeats(match: Match) -> int:
    """How many heads of queries share one of keys."""
    return (_heads(match, "query") or 1) // (_heads(match, "key") or 1)


def sizes_are_known(match: Match) -> Refusal | None:
    """The numbers of heads and their sizes are known, and keys are no more than queries."""
    for name in ("query", "key", "value"):
        shape, heads = match.shape(name), _heads(match, name)
        if shape is None or len(shape) not in (3, 4) or len(shape) != match.rank("query") or heads is None:
            return match.refuse_dimension(name, -1, "a known number of heads")
        if not isinstance(shape[-1], int) or shape[-1] % (heads if _is_flat(match) else 1):
            return match.refuse_dimension(name, -1, "a known size of each head")
    of_queries, of_keys = _heads(match, "query") or 0, _heads(match, "key") or 1
    return None if of_queries % of_keys == 0 else match.refuse("attribute", "q_num_heads", f"a multiple of {of_keys}")


def hides_no_later_keys(match: Match) -> Refusal | None:
    """Causal attention is of as many keys as queries: elsewhere the operators align the mask in different ways."""
    length = -2
    shapes = match.shapes("query", "key")
    if isinstance(shapes, Refusal):
        return shapes
    if match["mask"] is not None and not keeps_the_first_key(match["mask"], match.facts):
        return match.refuse("attribute", "is_causal", "0, or a mask that hides the first key from no query")
    if match["past_key"] is None and shapes[0][length] == shapes[1][length]:
        return None
    return match.refuse("attribute", "is_causal", "0, or as many keys as queries")


def _uses_weights(match: Match) -> bool:
    return match.get("weights") is not None and match.is_used_elsewhere("weights")


def is_plain(match: Match) -> Refusal | None:
    """Scores are not capped, and nothing else uses the weights."""
    if match["softcap"]:
        return match.refuse("attribute", "softcap", "0")
    if _uses_weights(match):
        return match.refuse("use", "weights", "the operator alone", found="something else too")
    return match.unless_value("scale", match["scale"] is None or match["scale"] > 0, "above 0")


_INSTEAD = -2e38
"""The number that stands for -inf in masks: lower than any finite one that fusions pass on."""

_LEAST = -65504.0
"""The same in float16."""


def _is_half(match: Match) -> bool:
    return match.dtype("query") == ir.DataType.FLOAT16


def _filler(match: Match) -> Any:
    """A finite number that hides a key: on some devices -inf added to scores, or the largest of -inf alone, is NaN or another."""
    return array_like(match, _LEAST if _is_half(match) else _INSTEAD)


def _bias(match: Match, *, rank: int) -> Pattern:
    """The mask as finite numbers that are added to the scores."""
    found: Pattern = mask
    if match.dtype("mask") == ir.DataType.BOOL:
        nothing = computed("nothing", lambda match: array_like(match, 0.0))
        found = op.Where(mask, nothing, computed("filler", _filler))
    elif _may_be_infinite(match):
        found = op.Max(mask, computed("filler", _filler))
    return _of_rank(match, found, rank)


def _of_rank(match: Match, found: Pattern, rank: int) -> Pattern:
    """The mask, or what is made of it, with axes of size 1 in front."""
    missing = rank - (match.rank("mask") or 0)
    return op.Unsqueeze(found, computed("axes", lambda match: ints(range(missing)))) if missing > 0 else found


def _may_be_infinite(match: Match) -> bool:
    found = mask_range(match["mask"], match.facts)
    return found is None or -math.inf in found.deep


def may_hide_rows(match: Match) -> bool:
    """Whether -inf may hide all keys of a query: the operator gives zeros there, as the kernels do for which fusions make it."""
    if match["mask"] is None:
        return False
    if match.dtype("mask") == ir.DataType.BOOL:
        return not keeps_a_key(match["mask"], match.facts)
    found = mask_range(match["mask"], match.facts)
    return (found is None or -math.inf in found.deep) and not keeps_a_key(match["mask"], match.facts)


def rows_are_hidden_alike(match: Match) -> Refusal | None:
    """If all keys of a query may be hidden, they are for all heads."""
    shape = match.shape("mask")
    if may_hide_rows(match) and _is_half(match) and match.dtype("mask") != ir.DataType.BOOL:
        found = mask_range(match["mask"], match.facts)
        if found is None or found.deep != {-math.inf}:
            return match.refuse("value", "mask", "-inf alone for hidden keys, as float16 has no number to stand for it")
    if not may_hide_rows(match) or (shape is not None and (len(shape) < 3 or shape[-3] == 1)):
        return None
    return match.refuse("shape", "mask", "the same for all heads, as -inf may hide all keys of a query")


def _without_hidden_rows(match: Match, result: Pattern) -> Pattern:
    """The result [batch, length, heads * size] with zeros for queries whose keys are all hidden."""
    if not may_hide_rows(match):
        return result
    # Squeeze is of numbers: some targets have no kernel of it for Booleans.
    highest = op.Squeeze(op.ReduceMax(_bias(match, rank=4), axes=(-1,), keepdims=1), _target(1))
    hidden = op.LessOrEqual(highest, computed("hides", _hiding))
    return op.Where(hidden, computed("nothing", lambda match: array_like(match, 0.0)), result)


def _hiding(match: Match) -> Any:
    """The bound below which a number stands for -inf."""
    return array_like(match, _LEAST if _is_half(match) else 0.75 * _INSTEAD)


def _hidden(match: Match, *, rank: int) -> Pattern:
    """Whether all keys of a query are hidden by what stands for -inf."""
    highest = op.ReduceMax(_bias(match, rank=rank), axes=(-1,), keepdims=1)
    made: Op = op.LessOrEqual(highest, computed("hides", _hiding))
    return made


def _target(*sizes: int) -> Pattern:
    return computed(str(list(sizes)), lambda match: ints(sizes))


def _size(match: Match, name: str) -> int:
    """The size of a head of an operand."""
    last = (match.shape(name) or (0,))[-1]
    assert isinstance(last, int)
    return last // (_heads(match, name) or 1) if _is_flat(match) else last


def _heads_first(match: Match, name: str) -> Pattern:
    """An operand as [batch, heads, length, size]."""
    if not _is_flat(match):
        return var(name)
    apart = op.Reshape(var(name), _target(0, 0, _heads(match, name) or 0, _size(match, name)))
    return op.Transpose(apart, perm=(0, 2, 1, 3))


def _merged(match: Match, name: str) -> Pattern:
    """An operand as [batch, length, heads * size]."""
    if _is_flat(match):
        return var(name)
    merged = (_heads(match, name) or 0) * _size(match, name)
    return op.Reshape(op.Transpose(var(name), perm=(0, 2, 1, 3)), _target(0, 0, merged))


def _repeated_indices(match: Match) -> Any:
    """The number of each head of keys, as often as queries share it."""
    return ints([head for head in range(_heads(match, "key") or 0) for _ in range(_repeats(match))])


def _repeated(match: Match, name: str, heads: Pattern) -> Pattern:
    """Keys or values, [batch, heads, length, size], with each head as often as queries share it."""
    times = _repeats(match)
    if times == 1:
        return heads
    # By constant indices: the target of a Reshape would be computed in int64, for which some targets have no kernels.
    indices = computed("each head for its queries", _repeated_indices)
    return op.Gather(heads, indices, axis=1)


def _with_past(match: Match, name: str) -> Pattern:
    """Keys or values as [batch, heads, length, size], behind those of the past."""
    new = _heads_first(match, name)
    return new if match[f"past_{name}"] is None else op.Concat(var(f"past_{name}"), new, axis=2)


_MADE = (
    *(
        "Cast",
        "Concat",
        "Expand",
        "Gather",
        "MatMul",
        "Mul",
        "Reshape",
        "Shape",
        "Softmax",
        "Tanh",
        "Transpose",
        "Unsqueeze",
        "Where",
    ),
    *("Add", "Div", "LessOrEqual", "Max", "ReduceMax", "Squeeze", "com.microsoft.MultiHeadAttention"),
)


def _whole_heads(match: Match) -> list[Pattern]:
    """Keys and values with the past, one head for each of queries; those of other sizes than keys with merged heads."""
    found = [_repeated(match, name, _with_past(match, name)) for name in ("key", "value")]
    sizes, heads = [_size(match, name) for name in ("key", "value")], _heads(match, "query") or 0
    if sizes[0] == sizes[1]:
        return found
    return [
        op.Reshape(op.Transpose(one, perm=(0, 2, 1, 3)), _target(0, 0, heads * size))
        for one, size in zip(found, sizes, strict=True)
    ]


AS_IT_IS, EVERY_ROW, EVERY_HEAD = range(3)
"""How far the bias is repeated: as it broadcasts, for each query, and for each query, head and batch."""


def _repeated_bias(match: Match, spread: int) -> Pattern:
    """The bias [batch, heads, queries, keys], with 1 for what `spread` leaves it to the kernel to repeat."""
    bias, one = _bias(match, rank=4), _target(1)
    if spread == AS_IT_IS:
        return bias
    axis = 1 if _is_flat(match) else 2
    rows = op.Shape(query, start=axis, end=axis + 1)
    if spread == EVERY_ROW:
        return op.Expand(bias, op.Concat(_target(1, 1), rows, one, axis=0))
    heads = _target(_heads(match, "query") or 0)
    return op.Expand(bias, op.Concat(op.Shape(query, start=0, end=1), heads, rows, one, axis=0))


def _multi_head(match: Match, *, spread: int) -> Op:
    """MultiHeadAttention; its bias repeated as far as `spread` says."""
    bias = None if match["mask"] is None else _repeated_bias(match, spread)
    alone = _repeats(match) == 1
    past = alone and match["past_key"] is not None
    if alone and (_is_flat(match) or past):
        operands = [_merged(match, "key"), _merged(match, "value"), None, None, bias, opt(past_key), opt(past_value)]
    else:
        operands = [*_whole_heads(match), None, None, bias]
    made: Op = ms.MultiHeadAttention(
        _merged(match, "query"), *operands, num_heads=_heads(match, "query"), scale=match["scale"],
        unidirectional=1 if match["is_causal"] else None, outputs=3 if past else 1,
    )  # fmt: skip
    return made


def _of_multi_head(match: Match, *, spread: int) -> Pattern:
    made = _without_hidden_rows(match, _multi_head(match, spread=spread)[0])
    if _is_flat(match):
        return made
    apart = op.Reshape(made, _target(0, 0, _heads(match, "query") or 0, _size(match, "value")))
    return op.Transpose(apart, perm=(0, 2, 1, 3))


def _present(name: str, *, spread: int | None = None) -> Pattern:
    """The keys or values with the past, as the operator returns them."""

    def made(match: Match) -> Pattern:
        kept = match[f"past_{name}"] is not None and _repeats(match) == 1
        if kept and spread is not None:
            return _multi_head(match, spread=spread)[1 if name == "key" else 2]
        return _with_past(match, name)

    return built(made, makes=_MADE)


def _weights(match: Match) -> Pattern:
    """The weights: softmax(scale q k^T + mask)."""
    size = _size(match, "query")
    scale = match["scale"] or 1 / math.sqrt(size)
    keys = _repeated(match, "key", _with_past(match, "key"))
    factor = computed("scale", lambda match: array_like(match, scale))
    scores: Pattern = op.Mul(op.MatMul(_heads_first(match, "query"), op.Transpose(keys, perm=(0, 1, 3, 2))), factor)
    if match["softcap"]:
        cap = computed("cap", lambda match: array_like(match, match["softcap"]))
        scores = op.Mul(op.Tanh(op.Div(scores, cap)), cap)
    if match["mask"] is not None:
        scores = op.Add(scores, _bias(match, rank=0))
    made: Pattern = op.Softmax(scores, axis=-1)
    if may_hide_rows(match):
        made = op.Where(_hidden(match, rank=0), computed("nothing", lambda match: array_like(match, 0.0)), made)
    return made


def _spelled_out(match: Match) -> Pattern:
    values = _repeated(match, "value", _with_past(match, "value"))
    made: Pattern = op.MatMul(_weights(match), values)
    if not _is_flat(match):
        return made
    merged = (_heads(match, "query") or 0) * _size(match, "value")
    return op.Reshape(op.Transpose(made, perm=(0, 2, 1, 3)), _target(0, 0, merged))


def is_spelled_alike(match: Match) -> Refusal | None:
    """The cap of the scores is not below 0, and scores that other nodes use are those after Softmax."""
    if match["softcap"] and match["softcap"] < 0:
        return match.refuse("value", "softcap", "not below 0")
    if not _uses_weights(match) or match["qk_matmul_output_mode"] == AFTER_SOFTMAX:
        return None
    return match.refuse("attribute", "qk_matmul_output_mode", AFTER_SOFTMAX)


def is_not_causal(match: Match) -> Refusal | None:
    """Attention is not causal."""
    return match.refuse("attribute", "is_causal", 0) if match["is_causal"] else None


def is_causal(match: Match) -> Refusal | None:
    """Attention is causal."""
    return None if match["is_causal"] else match.refuse("attribute", "is_causal", 1)


_FLAT = {"query": "b s 24", "key": "b t 8", "value": "b t 8"}
_APART = {"query": "b 3 s 8", "key": "b 1 t 8", "value": "b 1 t 8"}
_ALIKE = {"query": "b s 24", "key": "b s 24", "value": "b s 24"}
_PAST = {"key": "b 5 8", "value": "b 5 8", "past_key": "b 1 3 8", "past_value": "b 1 3 8"}


def _attributes(flat: tuple[int, int] | None, *, causal: int = 0, cap: float = 0.0) -> dict[str, list[Any]]:
    heads = (None, None) if flat is None else flat
    return {
        "is_causal": [causal],
        "q_num_heads": [heads[0]],
        "kv_num_heads": [heads[1]],
        "scale": [None, 0.5],
        "softcap": [cap],
        "qk_matmul_output_mode": [None],
        "softmax_precision": [None, 1],
    }


def _rule(name: str, formula: str, replace: Any, presents: Any, weights: Any, guards: Any, test: RuleTest) -> Rule:
    return Rule(
        name=f"attention.{name}",
        formula=formula,
        is_refinement=True,
        pattern=_whole,
        replace=replace,
        intermediates={"present_key": presents("key"), "present_value": presents("value"), **weights},
        guards=guards,
        because=Quirk.LACKS_ATTENTION,
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=test,
    )


def _forms(name: str) -> tuple[Pattern, ...]:
    return tuple(_present(name, spread=spread) for spread in (AS_IT_IS, EVERY_ROW, EVERY_HEAD))


def _multi_head_rule(name: str, formula: str, guards: Any, test: RuleTest) -> Rule:
    made = (AS_IT_IS, EVERY_ROW, EVERY_HEAD)
    replace = tuple(built(partial(_of_multi_head, spread=spread), makes=_MADE) for spread in made)
    guards = (sizes_are_known, *guards, is_plain, rows_are_hidden_alike)
    return _rule(name, formula, replace, _forms, {}, guards, test)


_TYPICAL_HEADS = {**dict.fromkeys(("q_num_heads", "kv_num_heads"), 12), "scale": 0.125}


def _typical(queries: int, keys: int) -> dict[str, str]:
    return {"query": f"1 {queries} 768", "key": f"1 {keys} 768", "value": f"1 {keys} 768"}


TYPICAL = tuple(
    _typical(queries, keys or queries)
    for queries, keys in (
        *((length, 0) for length in (16, 64, 128, 256, 512, 1024, 1500)),
        *((1, 128), (1, 1024), (64, 1024)),
    )
)
"""Heads of 64, as many of keys as of queries."""

RULES = [
    _multi_head_rule(
        "lower_to_multi_head_attention",
        "attention(q, k, v, mask, past) as com.microsoft.MultiHeadAttention",
        (is_not_causal,),
        RuleTest(
            shapes=(
                {**_FLAT, "mask": "b 1 s t"},
                {**_APART, "mask": "s t"},
                {**_FLAT, **_PAST, "mask": "s 8"},
                {
                    **_ALIKE,
                    "query": "b 2 24",
                    "past_key": "b 3 3 8",
                    "past_value": "b 3 3 8",
                    "key": "b 5 24",
                    "value": "b 5 24",
                    "mask": "1 1 2 8",
                },
            ),
            attributes=(_attributes((3, 1)), _attributes(None), _attributes((3, 1)), _attributes((3, 3))),
            inputs={"mask": masked(-10000.0, -math.inf)},
            opset=23,
            never_empty=NEVER_EMPTY,
            redundant={"check of attribute softmax_precision": "kernels of float32 compute it in float32 in any case"},
            typical=TYPICAL,
            typical_attributes=(_TYPICAL_HEADS,) * len(TYPICAL),
        ),
    ),
    _multi_head_rule(
        "lower_causal_to_multi_head_attention",
        "attention(q, k, v, mask, past), causal, as com.microsoft.MultiHeadAttention",
        (is_causal, hides_no_later_keys),
        RuleTest(
            shapes=({**_ALIKE, "mask": "b 3 s s"},),
            attributes=(_attributes((3, 3), causal=1),),
            inputs={"mask": masked(-10000.0, -math.inf)},
            opset=23,
            never_empty=NEVER_EMPTY,
            uncovered={
                "past_key: present": "keys behind those of the past are not as many as queries",
                "past_value: present": "the same",
                "filler of the mask: -inf": "the first key is hidden from some query then",
            },
            redundant={"check of attribute softmax_precision": "kernels of float32 compute it in float32 in any case"},
        ),
    ),
    _rule(
        "lower_to_products",
        "attention(q, k, v, mask, past) as softmax(scale q k^T + mask) v",
        built(_spelled_out, makes=_MADE),
        lambda name: _present(name),
        {"weights": built(_weights, makes=_MADE)},
        (sizes_are_known, is_not_causal, is_spelled_alike),
        RuleTest(
            shapes=({**_FLAT, "mask": "b 1 s t"}, {**_APART, "mask": "s t"}, {**_FLAT, **_PAST, "mask": "s 8"}),
            attributes=(_attributes((3, 1)), _attributes(None, cap=2.0), _attributes((3, 1))),
            inputs={"mask": masked(-10000.0, -math.inf)},
            opset=23,
            never_empty=NEVER_EMPTY,
            redundant={"check of attribute softmax_precision": "kernels of float32 compute it in float32 in any case"},
        ),
    ),
]
