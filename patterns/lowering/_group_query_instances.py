"""Instances of com.microsoft GroupQueryAttention for the tests of its rules, and what kernels of a CPU lack."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

_NEW = ("query", "key", "value")


def last_tokens(build: Any) -> Any:
    """The lengths less 1: two prompts of 4 and 2 tokens, or a token after 5 and 3."""
    return build.constant(np.array([3, 1] if build.dims("query")[1] == 4 else [5, 3], np.int32))


def tokens(build: Any) -> Any:
    """The most tokens of a sequence."""
    return build.constant(np.array([4 if build.dims("query")[1] == 4 else 6], np.int32))


def given_positions(build: Any) -> Any:
    """Positions of the tables from 1 on, for rows of which few follow on one another."""
    sizes = build.dims("query")[:2]
    return build.constant((1 + np.arange(math.prod(sizes)) * 3 % 4).reshape(sizes))


def _sizes(rows: int, past: int, **tables: str) -> Mapping[str, str]:
    new, old = f"2 {rows} 32", f"2 2 {past} 16"
    return {
        "query": f"2 {rows} 64", "key": new, "value": new, "past_key": old, "past_value": old, "seqlens": "2", "total": "1",
    } | tables  # fmt: skip


_CAPS = [0.0, 2.0]
"""Not tried on prompts with padding, whose rows the kernel computes otherwise with a window and a bound; nothing reads them."""

ATTRIBUTES: Mapping[str, Sequence[Any]] = {
    "num_heads": [4], "kv_num_heads": [2], "scale": [None, 0.3], "window": [None, 3],
    "do_rotary": [0], "interleaved": [0],
}  # fmt: skip


_PACKED = {"query": "2 4 128", **{name: size for name, size in _sizes(4, 9).items() if name not in _NEW}}
SHAPES = (
    _sizes(4, 9), _sizes(1, 9), _sizes(1, 5), _PACKED, _sizes(4, 9, bias="2 4 4 4", sink="4"),
    _sizes(1, 9, bias="1 1 1 6", sink="4"),
)  # fmt: skip
OTHERS: Sequence[Mapping[str, Sequence[Any]]] = (
    {"softcap": [0.0], "smooth": [0]},
    {"softcap": _CAPS, "smooth": [0, 1]},
    {"softcap": _CAPS, "smooth": [0]},
    {"softcap": [0.0], "smooth": [0, 1], "window": [None]},
    {"softcap": [0.0], "smooth": [None, 0], "window": [None]},
    {"softcap": _CAPS, "smooth": [None]},
)
"""Further attributes for each set of shapes. With a sink, the kernel has other numbers in rows of padding that see no key."""


QUANTISED = {"k_quant_type": "k_kind", "v_quant_type": "v_kind", "kv_cache_bit_width": "bits"}
SCALE_SHAPES = (
    {"key_scale": "1", "value_scale": "1"},
    {"key_scale": "1 2 1 16", "value_scale": "1 2 1 16"},
)
SCALE_KINDS: Sequence[Mapping[str, Sequence[Any]]] = (
    {"k_kind": ["PER_TENSOR"], "v_kind": ["PER_TENSOR"], "bits": [8]},
    {"k_kind": ["PER_CHANNEL"], "v_kind": ["PER_CHANNEL"], "bits": [8]},
)
NORMALISED = {"q_norm_epsilon": "query_epsilon", "k_norm_epsilon": "key_epsilon", "qk_norm_epsilon": "epsilon"}
EPSILONS: Mapping[str, Sequence[Any]] = {
    "query_epsilon": [None, 0.5], "key_epsilon": [None, 0.25], "epsilon": [None, 0.01],
}  # fmt: skip


WEIGHED = (1, 14, 15)
"""The inputs of which normalised keys and queries are made."""


def without_norms(node: ir.Node, opset: int) -> str | None:
    """For rule tests: the kernel of a CPU on heads that are normalised before."""
    inputs, given = node.inputs, {name: one.value for name, one in node.attributes.items()}
    if len(inputs) < 16 or None in (inputs[14], inputs[15]) or not {"num_heads", "kv_num_heads"} <= given.keys():
        return None
    names = [f"i{index}" for index in range(16)]
    texts, parts = [], ["ia = Identity(i0) ib = Identity(i1) ic = Identity(i2)"]
    if inputs[1] is None:
        sizes = [16 * given[name] for name in ("num_heads", "kv_num_heads", "kv_num_heads")]
        parts = [f"sizes = Constant <value_ints = {sizes}> () ia, ib, ic = Split <axis = 2> (i0, sizes)"]
    for name, text in given.items():
        texts += [] if name in NORMALISED else [f"{name} = {text}"]
    for index, letter, heads in (("a", "q", given["num_heads"]), ("b", "k", given["kv_num_heads"])):
        epsilon = given.get(f"{letter}_norm_epsilon", given.get("qk_norm_epsilon", 1e-6))
        parts.append(f"""{letter}s = Constant <value_ints = [0, 0, {heads}, -1]> () {letter}a = Reshape(i{index}, {letter}s)
            {letter}b = Mul({letter}a, {letter}a) {letter}c = ReduceSum({letter}b, last) {letter}f = Div({letter}c, sixteen)
            {letter}e = Constant <value_float = {epsilon}> () {letter}g = Add({letter}f, {letter}e) {letter}h = Sqrt({letter}g)
            {letter}i = Mul({letter}a, i{14 if index == "a" else 15})
            {letter}j = Div({letter}i, {letter}h) {letter}n = Reshape({letter}j, flat)""")
    kept = ", ".join(["qn", "kn", "ic", *("" if inputs[index] is None else names[index] for index in range(3, 12))])
    return f"""<domain: "any", opset_import: ["": {opset}, "com.microsoft": 1]> any ({", ".join(names)}) => (y, k, v) {{
        last = Constant <value_ints = [-1]> () sixteen = Constant <value_float = 16.0> ()
        flat = Constant <value_ints = [0, 0, -1]> () {" ".join(parts)}
        y, k, v = com.microsoft.GroupQueryAttention <{", ".join(texts)}> ({kept}) }}"""
