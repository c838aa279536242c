"""Lower com.microsoft Attention to operators of the standard.

attention(x) = merged(softmax(scale q [past_k, k]^T + hidden + added) [past_v, v])          [q, k, v] = split(x W + b)

`hidden` is `mask_filter_value` where the mask of keys is 0 or less, and `added` the bias of the scores. The mask may be the
lengths of the sequences of keys instead, behind which keys are hidden. `onnxruntime.transformers.optimizer` writes such nodes.

*Requires:* known widths of queries, keys and values. *Does not handle:* rotary embeddings inside, a past in the buffer of the
present, a bias beside a past or in causal attention, and masks that are starts and ends or have four axes.

Rationale: where the mask of keys hides all of them, scores near -10000 are rounded to 0.001, in the kernel and here. In causal
attention, the kernel adds the lowest number for later keys, and the lowering hides them: a row whose other keys are hidden by as
low a number would differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Op, Pattern, attr, built, computed, ms, op, opt, var

from .._shared_guards import constant
from ._masked_scores import FILLER, added, mask_of_keys, masked, padding

PASS = "canonicalize"

x, weight, bias, past = (var(name) for name in ("x", "weight", "bias", "past"))
x_scale, x_zero, weight_scale, weight_zero = (
    var(name) for name in ("x_scale", "x_zero", "weight_scale", "weight_zero")
)


_FLOATS = ("x", "x_scale")
"""Which value has the element type of attention: the operand, or the scale of an operand of integers."""


_LOWEST_FILLER = -1e6
"""The number that hides keys in causal attention is above this: the kernel's lowest number for later keys is far below."""


def _sizes(match: Match) -> list[int] | None:
    """The widths of queries, keys and values; `None` if they are not known."""
    shape, given = match.shape("weight"), match.get("sizes")
    whole = None if shape is None or len(shape) != 2 else shape[1]
    if not isinstance(whole, int):
        return None
    found = [int(size) for size in given] if given else [whole // 3] * 3
    return found if len(found) == 3 and sum(found) == whole else None


def heads_are_known(match: Match) -> Refusal | None:
    """The number of heads divides the known widths, and queries are as wide as keys."""
    heads, sizes = match["num_heads"], _sizes(match)
    if match.rank("x") != 3:
        return match.refuse("rank", "x", 3)
    if sizes is None or not heads or sizes[0] != sizes[1] or any(size % heads or not size for size in sizes):
        return match.refuse_dimension(
            "weight", 1, "known widths of queries, keys and values, multiples of the number of heads"
        )
    is_used = match.get("present") is not None and match.is_used_elsewhere("present")
    if is_used and sizes[2] != sizes[1]:
        return match.refuse("use", "present", "nothing, as it has keys and values of one size")
    if match.get("bias") is not None:
        return match.unless_shape((sum(sizes),), "bias")
    return None


def is_plain(match: Match) -> Refusal | None:
    """No rotary embedding is inside, and the present is no buffer that the past is in."""
    for name in ("do_rotary", "shares_buffer"):
        if match.get(name):
            return match.refuse("attribute", name, 0)
    if match["unidirectional"]:
        filler = match["filler"]
        if match.get("added") is not None or (
            match.get("padding") is not None and not (filler or FILLER) > _LOWEST_FILLER
        ):
            return match.refuse("attribute", "unidirectional", "0, or no bias and a filler of more than -1e6")
    return match.unless_value("unidirectional", match["unidirectional"] in (None, 0, 1), "0 or 1")


def scales_are_single(match: Match) -> Refusal | None:
    """The scale and zero point of the operand are one number each, those of the weight one or one for each column."""
    for name in ("x_scale", "x_zero"):
        if match.get(name) is not None and match.shape(name) != ():
            return match.refuse("shape", name, ())
    for name in ("weight_scale", "weight_zero"):
        if match.get(name) is not None and match.rank(name) not in (0, 1):
            return match.refuse("rank", name, "0 or 1")
    return None


def masks_are_of_all_keys(match: Match) -> Refusal | None:
    """Masks have a column for each key, and a past has the heads of what follows it."""
    batch, rows = (match.shape("x") or (None, None))[:2]
    total, sizes = _total(match), _sizes(match)
    if match.get("padding") is not None:
        if (found := match.unless_dtype(_FLOATS[match.get("x_scale") is not None], ir.DataType.FLOAT)) is not None:
            return found
        if match.shape("padding") not in ((batch,), (batch, total), (batch, rows, total)):
            return match.refuse("shape", "padding", "a number for each key of each batch, or a length for each")
    if match.get("added") is not None:
        shape = match.shape("added")
        if shape is None or len(shape) != 4 or shape[2:] != (rows, total):
            return match.refuse("shape", "added", "a number for each query and key")
    if match.get("past") is not None:
        if batch is None:
            return match.refuse_dimension("x", 0, "a known batch")
        known, heads = match.shape("past"), match["num_heads"]
        if known is None or sizes is None or len({*sizes}) > 1 or len(known) != 5:
            return match.refuse("shape", "past", "keys and values of one size")
        return match.unless_shape((2, batch, heads, known[3], sizes[0] // heads), "past")
    return None


def present_is_used(match: Match) -> Refusal | None:
    """Something reads the present keys and values, without which a kernel may ignore the past."""
    is_used = match.get("present") is not None and match.is_used_elsewhere("present")
    return None if is_used else match.refuse("use", "present", "something else, as kernels ignore the past otherwise")


def _total(match: Match) -> DimLike | None:
    """The number of keys, those of the past included."""
    new = (match.shape("x") or (None, None))[1]
    shape = match.shape("past") if match.get("past") is not None else None
    return new if shape is None or len(shape) != 5 or new is None else shape[3] + new


def _product(match: Match) -> Pattern:
    """Queries, keys and values side by side, without their bias."""
    if match.get("x_scale") is None:
        made: Pattern = op.MatMul(x, weight)
        return made
    zeros: list[Pattern] = [x_zero if match.get("x_zero") is not None else _no_zero("x")]
    if match.get("weight_zero") is not None:
        zeros.append(weight_zero)
    integers = op.MatMulInteger(x, weight, *zeros)
    return op.Mul(op.Cast(integers, to=ir.DataType.FLOAT), op.Mul(x_scale, weight_scale))


def _no_zero(name: str) -> Pattern:
    def made(match: Match) -> Any:
        dtype = match.dtype(name)
        assert dtype is not None
        return np.zeros((), dtype.numpy())

    return computed("no_zero", made)


def _heads_first(match: Match, number: int) -> Pattern:
    """New queries (0), keys (1) or values (2), [batch, heads, rows, size]."""
    sizes = _sizes(match)
    assert sizes is not None
    product = _product(match)
    if match.get("bias") is not None:
        product = op.Add(product, bias)
    part = op.Split(product, constant(*sizes), axis=-1, outputs=3)[number]
    heads = match["num_heads"]
    made: Pattern = op.Transpose(op.Reshape(part, constant(0, 0, heads, sizes[number] // heads)), perm=(0, 2, 1, 3))
    return made


def _all(match: Match, number: int) -> Pattern:
    """All keys (1) or values (2), [batch, heads, rows, size]."""
    new = _heads_first(match, number)
    if match.get("past") is None:
        return new
    index = computed(f"index{number}", lambda match: np.int64(number - 1))
    made: Pattern = op.Concat(op.Gather(past, index, axis=0), new, axis=2)
    return made


def _present(match: Match) -> Pattern:
    made: Pattern = op.Concat(*(op.Unsqueeze(_all(match, number), constant(0)) for number in (1, 2)), axis=0)
    return made


def _attended(match: Match) -> Pattern:
    sizes, heads = _sizes(match), match["num_heads"]
    assert sizes is not None
    scale = match["scale"] or 1 / math.sqrt(sizes[0] // heads)
    keys = _all(match, 1)
    scores = op.MatMul(op.Mul(_heads_first(match, 0), scale), op.Transpose(keys, perm=(0, 1, 3, 2)))
    found = op.MatMul(op.Softmax(masked(match, scores, keys, x), axis=-1), _all(match, 2))
    merged: Pattern = op.Reshape(op.Transpose(found, perm=(0, 2, 1, 3)), constant(0, 0, sizes[2]))
    return merged


_MADE = (
    *("MatMul", "Add", "Split", "Reshape", "Transpose", "Mul", "Softmax", "Where", "Greater", "Unsqueeze", "Cast"),
    *("Shape", "Gather", "Squeeze", "Range", "Sub", "LessOrEqual", "Concat"),
)
_GIVEN: dict[str, Sequence[Any]] = {
    "num_heads": [2],
    "scale": [None, 0.25],
    "unidirectional": [0, 1],
    "filler": [None],
    "sizes": [None],
    "do_rotary": [None, 0],
    "shares_buffer": [None],
}
_WIDE = _GIVEN | {"sizes": [(8, 8, 12)]}
_BIASED = _GIVEN | {"unidirectional": [0]}
_HIDING = _GIVEN | {"scale": [None], "filler": [None, -3.0], "do_rotary": [None]}
_PLAIN = {"x": "b s 6", "weight": "6 24"}
_FOUR = {"x": "b 4 6", "weight": "6 24"}
_AFTER_PAST = {"x": "2 3 6", "weight": "6 24", "past": "2 2 2 5 4"}

Case = tuple[Mapping[str, str], Mapping[str, Sequence[Any]]]


def _with_present(build: Any, root: Any) -> Any:
    """The root of a rule test, in a model that uses the present keys and values, too."""
    node = root.producer()
    node.resize_outputs(2)
    total = build.node("ReduceSum", [node.outputs[1]], {"keepdims": 0}).outputs[0]
    return build.node("Add", [root, total]).outputs[0]


_ATTRIBUTES = {
    "num_heads": attr("num_heads"),
    "scale": attr("scale"),
    "unidirectional": attr("unidirectional"),
    "mask_filter_value": attr("filler"),
    "do_rotary": attr("do_rotary"),
    "past_present_share_buffer": attr("shares_buffer"),
}


def _lowering(
    name: str,
    formula: str,
    pattern: Op,
    masks: Pattern | None,
    before: Pattern | None,
    cases: Sequence[Case],
    *,
    guards: Sequence[Guard] = (),
    makes: Sequence[str] = (),
    inputs: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Rule:
    """The rule for attention that has a mask of keys and a past, or has none."""
    own = (heads_are_known, is_plain, *guards)
    return Rule(
        name=f"attention.{name}",
        formula=formula,
        pattern=pattern.naming(present=1),
        replace=built(_attended, makes=(*makes, *_MADE)),
        intermediates={"present": built(_present, makes=(*makes, *_MADE))},
        is_refinement=True,
        spells_out=True,
        guards=own if before is None else (*own, present_is_used),
        exactness=Exactness.ROUNDING,
        source="com.microsoft operators of ONNX Runtime; arXiv:1706.03762",
        test=RuleTest(
            shapes=tuple(shapes for shapes, _ in cases),
            attributes=tuple(attributes for _, attributes in cases),
            inputs={**(inputs or {}), **({} if masks is None else {"padding": mask_of_keys})},
            constants=constants or {},
            never_empty={"*": "the kernel refuses empty tensors"},
            followed_by=None if before is None else _with_present,
        ),
    )


def _rule(name: str, masks: Pattern | None, before: Pattern | None, *cases: Case) -> Rule:
    biases = [opt(added)] if before is None else []
    pattern = ms.Attention(x, weight, opt(bias), masks, before, *biases, qkv_hidden_sizes=attr("sizes"), **_ATTRIBUTES)
    formula = "com.microsoft.Attention(x, weight, bias, padding, past, added)"
    return _lowering(name, formula, pattern, masks, before, cases, guards=(masks_are_of_all_keys,))


def _integer_rule(name: str, masks: Pattern | None, before: Pattern | None, *cases: Case) -> Rule:
    """The rule for attention whose first product is one of integers."""
    formula = "com.microsoft.QAttention(x, weight, bias, x_scale, weight_scale, padding, x_zero, weight_zero, past)"
    pattern = ms.QAttention(
        x, weight, bias, x_scale, weight_scale, masks, opt(x_zero), opt(weight_zero), before, **_ATTRIBUTES
    )
    return _lowering(
        name,
        formula,
        pattern,
        masks,
        before,
        [
            ({**_SCALES, **shapes}, {key: one for key, one in given.items() if key != "sizes"})
            for shapes, given in cases
        ],
        guards=(scales_are_single, *(() if masks is None else (masks_are_of_all_keys,))),
        makes=("MatMulInteger",),
        inputs={"x": "uint8", "weight": "uint8"},
        constants=_NUMBERS,
    )


_NUMBERS = {"x_scale": np.float32(0.0213), "weight_scale": np.float32(0.0117)} | {
    "x_zero": np.uint8(117), "weight_zero": np.uint8(130),
}  # fmt: skip
_SCALES = {"x_scale": "", "weight_scale": "", "bias": "24"}
_ZEROS = {"x_zero": "", "weight_zero": ""}

RULES = [
    _rule(
        "lower_attention", None, None,
        (_PLAIN | {"bias": "24", "added": "1 1 s s"}, _BIASED), (_PLAIN | {"weight": "6 28"}, _WIDE),
    ),
    _rule(
        "lower_attention_with_mask_of_keys", padding, None,
        (_FOUR | {"padding": "b 4", "bias": "24"}, _HIDING), (_FOUR | {"padding": "b"}, _HIDING),
        (_FOUR | {"padding": "b 4 4", "added": "b 2 4 4"}, _HIDING | {"unidirectional": [0]}),
    ),
    _rule("lower_attention_with_past", None, past, (_AFTER_PAST | {"bias": "24"}, _GIVEN)),
    _rule(
        "lower_attention_with_past_and_mask_of_keys", padding, past,
        (_AFTER_PAST | {"padding": "2 8", "bias": "24"}, _HIDING),
    ),
    _integer_rule("lower_integer_attention", None, None, (_PLAIN | _ZEROS, _GIVEN), (_PLAIN, _GIVEN)),
    _integer_rule(
        "lower_integer_attention_with_mask_of_keys", padding, None,
        (_FOUR | _ZEROS | {"padding": "b 4"}, _HIDING), (_FOUR | {"padding": "b"}, _HIDING),
    ),
    _integer_rule(
        "lower_integer_attention_with_past", padding, past, (_AFTER_PAST | _ZEROS | {"padding": "2 8"}, _HIDING),
    ),
]  # fmt: skip
