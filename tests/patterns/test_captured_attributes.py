"""An attribute that a pattern captures and nothing reads is lost in the rewrite: each such has its reason here."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import onnx
import onnx.parser
import pytest

import ortfuse
from ortfuse.pipeline import load_catalogue
from ortfuse.rewrite import Rule
from ortfuse.rewrite.pattern.language import Attr, Op
from ortfuse.rewrite.pattern.pattern_properties import captured_attributes

RULES = [rule for rules in load_catalogue([]).passes().values() for rule in rules]

CATALOGUE = "patterns."
"""What the names of the modules with rules have in them."""

MEANINGLESS = {
    ("Reshape", "allowzero"): "which sizes result is a fact",
    ("Flatten", "axis"): "the same",
    ("BatchNormalization", "momentum"): "without a meaning outside of training",
    ("Clip", "min"): "read by a name that is put together",
    ("Clip", "max"): "the same",
}
"""Attributes that no rule needs to read."""

_COMPARISONS = ("greater", "greater_or_equal", "less", "less_or_equal", "equal", "equal_zero")

LOST = {
    "conv.lower_fused_conv": "handed on by a dictionary of all of them",
    "attention.lower_multi_head_attention mask_filter_value": "without a mask it fills nothing",
    "attention.lower_group_query_attention rotary_interleaved": "without do_rotary nothing is rotated",
    "matmul_nbits.lower_to_dequantize_linear accuracy": "products are computed in float32, which every level allows",
    "matmul_nbits.lower_to_integers accuracy": "the same",
    "rotary.lower_contrib_rotary_embedding num_heads": "a head is twice as long as a row of the cosines",
    "noop.": "facts say that nothing is computed",
    "reduction.drop_reshape_before": "the shapes on both sides, which are facts, tell which axes are reduced",
    "reduction.fold_unsqueeze_into_keepdims axes": "the shape of the result is a fact",
    "reshape.hoist_": "the same",
    "broadcast.sink_expand_below_": "the node is copied with all of its attributes",
    "layernorm.remove_float32_casts_around saturate": "the Casts are between floats of 16 and 32 bits, for which it has no meaning",
    "layernorm.remove_float32_casts_around round_mode": "the same",
    "layernorm.remove_float32_casts_around to": "a name for the same type in several Casts",
    "rmsnorm.remove_float32_casts_around saturate": "as for layernorm.remove_float32_casts_around",
    "rmsnorm.remove_float32_casts_around round_mode": "the same",
    "rmsnorm.remove_float32_casts_around to": "the same",
    "matmul.lower_fused_matmul trans": "read by names that are put together",
    "rmsnorm.lower_simplified_layer_normalization stash": "a guard takes float32 alone, which is its only value then",
    "conv.fold_slice_into_pads ends": "how much is trimmed is a fact about the sizes",
    "slice.slice_of_slice": "read by names that are put together",
    "slice.slice_of_concat": "the same; the sizes of parts are facts",
    **{
        f"roi.{made}": "read by names that are put together"
        for made in (
            "average_pool_of_crop_to_roi_align",
            "max_pool_of_crop_to_max_roi_pool",
            "resize_of_crop_to_roi_align",
        )
    },
    **{f"algebra.{name}_of_cast_bool to": "truth values are 0 and 1 in every type" for name in _COMPARISONS},
    **{f"algebra.{name}_of_cast_integer to": "the Cast stays as it is" for name in ("floor", "ceil", "round")},
    "layernorm.add_to_skip_layer_normalization stash_type": "the runtime's kernel of LayerNormalization does not read it",
    "embedding.fuse_embed_layer_normalization stash_type": "the same",
    "normalization.factor_out_mean axes": "it is the same mean before and after",
    "rotary.unbroadcast_cos_sin interleaved": "read by names that are put together",
    "rotary.partial_of_slice": "kept by what is built of the window",
    "gather_nd.leading_": "where axes of size 1 stand and parts are joined is a fact about the sizes",
    "gather.leading_": "the same",
    "reshape.sink_head_merge": "read by the function that tells how the operator is reshaped",
    "focal.decompose_sigmoid_focal_loss": "read by their names by the body of the function, which is spelled out",
    "focal.decompose_softmax_focal_loss": "the same",
    "ffn.gemm_activation_gemm_to_function": "read by names that are put together",
    "matmul.lower_transpose_matmul trans": "the same",
    "qdq.lower_qgemm trans": "the same",
    "qdq.lower_qgemm_of_floats trans": "the same",
    **{f"conv.lower_nhwc_{kind}conv": "Conv is made with the same attributes" for kind in ("", "fused_")},
    "attention.lower_to_multi_head_attention qk_matmul_output_mode": "nothing uses the weights",
    "attention.lower_causal_to_multi_head_attention qk_matmul_output_mode": "the same",
    **{f"{kind}.merge_units axes": "shapes say what is done to x" for kind in ("squeeze", "unsqueeze")},
    "reshape.reshape_of_reshape axes": "the same",
    "reshape.dynamic_reshape_of_reshape axes": "all elements, in their order, are reshaped again",
    "where.masked_sum_to_where to": "the type is that of what is chosen",
    "attention.keep_times_scores_to_additive_mask to": "a mask of ones and zeros is the same in every type",
    "attention.finite_fill_keep_times_scores_to_additive_mask to": "the same",
    "conv.fold_slice_into_conv_transpose_pads ends": "how much is trimmed is a fact about the sizes",
    **{
        f"quantized.{how}_of_dequantized_weight axis": "there is one step for all"
        for how in ("reshape", "squeeze", "unsqueeze")
    },
}
"""By the beginning of the rule and attribute: why the rule may lose it."""


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that code and the code in it look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _texts(found: Any, seen: set[int]) -> Iterator[str]:
    """All texts in an expression or function, those in the functions that it calls included."""
    if id(found) in seen:
        return
    seen.add(id(found))
    inner: tuple[Any, ...] = ()
    match found:
        case str():
            yield found
        case types.CodeType():
            inner = found.co_consts
        case types.FunctionType():
            names = list(_names(found.__code__))
            known = [found.__globals__.get(name) for name in names]
            known += [getattr(one, name, None) for one in known if isinstance(one, types.ModuleType) for name in names]
            ours = [one for one in known if isinstance(one, types.FunctionType) and CATALOGUE in one.__module__]
            inner = (found.__code__, *(cell.cell_contents for cell in found.__closure__ or ()), *ours)
        case types.MethodType():
            inner = (found.__func__, found.__self__)
        case tuple() | list() | set() | frozenset():
            inner = tuple(found)
        case dict():
            inner = tuple(found.values())
        case _ if hasattr(found, "__dict__"):
            inner = tuple(vars(found).values())
    for one in inner:
        yield from _texts(one, seen)


def _checked(rule: Rule) -> set[str]:
    attributes = [one for part in rule.pattern.walk() if isinstance(part, Op) for one in part.attributes.values()]
    return {one.name for one in attributes if isinstance(one, Attr) and one.check is not None}


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if captured_attributes(rule.pattern)], ids=lambda rule: rule.name
)
def test_an_attribute_that_is_captured_is_read(rule: Rule) -> None:
    read = {*_texts([rule.replace, rule.guards, rule.intermediates], set()), *_checked(rule)}
    lost = {name: places for name, places in captured_attributes(rule.pattern).items() if name not in read}
    unexplained = [
        name
        for name, places in lost.items()
        if not set(places) <= MEANINGLESS.keys()
        and not any(f"{rule.name} {attribute}".startswith(reason) for _, attribute in places for reason in LOST)
    ]
    assert not unexplained


def test_a_cast_like_a_type_of_8_bits_keeps_whether_it_saturates() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 19]> g (float[N] x, float8e4m3fn[M] t) => (float8e4m3fn[N] y)'
        " { y = CastLike<saturate = 0>(x, t) }"
    )
    (node,) = ortfuse.optimize(model, loaded=False).model.graph.node
    assert [attribute.i for attribute in node.attribute if attribute.name == "saturate"] == [0]
