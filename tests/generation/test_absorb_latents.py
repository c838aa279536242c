"""Latent caches: queries and results are multiplied by the matrices of keys and values, not the tokens in the cache."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited_decoders import is_right_in_one_batch
from latent_decoders import HEADS, MODEL, PASS, RANK, ROTATED, VALUE, write

import ortfuse
from ortfuse.errors import GenerationError

Edits = Sequence[tuple[str, str]]
RANDOM = np.random.default_rng(5)

PRODUCT = "  kv0 = MatMul(new_c, wb)\n"
K_PASS = "  k_pass, v = Split<axis = 3>(kv2, pieces)\n"
K_ROT = "  k_rot = Expand(new_r, repeats)\n"
KEYS = "  k = Concat<axis = 3>(k_pass, k_rot)\n"
INPUTS = "float[batch, 1, past, 12] past_c, float[batch, 1, past, 4] past_r)"
OUTPUTS = "float[batch, 1, total, 12] new_c, float[batch, 1, total, 4] new_r)"
APPENDED = "  new_c = Concat<axis = 2>(past_c, c)\n  new_r = Concat<axis = 2>(past_r, r)\n"


def random(*shape: int) -> np.ndarray[Any, Any]:
    """Numbers of a float32 weight."""
    return RANDOM.standard_normal(shape).astype(np.float32) / np.float32(2)


FORMS: Mapping[str, tuple[Edits, Mapping[str, Any]]] = {
    "latents and a rotated part": ([], {}),
    "no rotated part": (
        [
            (INPUTS, "float[batch, 1, past, 12] past_c)"),
            (OUTPUTS, "float[batch, 1, total, 12] new_c)"),
            (APPENDED, "  new_c = Concat<axis = 2>(past_c, c)\n"),
            (K_ROT, ""),
            (KEYS, "  k = Identity(k_pass)\n"),
            ("  q = Concat<axis = 3>(q_pass, q_rot)\n", "  q = Identity(q_pass)\n"),
        ],
        {},
    ),
    "the rotated part in front, its elements in another order": (
        [
            (KEYS, "  order = Constant<value_ints = [0, 2, 1, 3]>()\n  k_o = Gather<axis = 3>(k_rot, order)\n"
                   "  k = Concat<axis = 3>(k_o, k_pass)\n"),
            ("  q = Concat<axis = 3>(q_pass, q_rot)\n",
             "  orders = Constant<value_ints = [0, 2, 1, 3]>()\n  q_o = Gather<axis = 3>(q_rot, orders)\n"
             "  q = Concat<axis = 3>(q_o, q_pass)\n"),
        ],
        {},
    ),
    "a matrix of keys and one of values": (
        [
            (PRODUCT, "  kv0 = MatMul(new_c, wb)\n  v3 = MatMul(new_c, wv)\n"),
            (K_PASS, "  k_pass = Identity(kv2)\n  vs = Constant<value_ints = [0, -1, 4, 6]>()\n  v4 = Reshape(v3, vs)\n"
                     "  v = Transpose<perm = [0, 2, 1, 3]>(v4)\n"),
            ("[0, -1, 4, 14]", "[0, -1, 4, 8]"),
        ],
        {"wb": random(RANK, HEADS * PASS), "wv": random(RANK, HEADS * VALUE)},
    ),
    "a matrix for each head": (
        [(PRODUCT, "  kv0 = MatMul(new_c, wb)\n  k_h = MatMul(new_c, wh)\n"), (K_PASS, K_PASS.replace("k_pass,", "k_p,")),
         (KEYS, KEYS.replace("k_pass", "k_h"))],
        {"wh": random(HEADS, RANK, PASS)},
    ),
    "heads of keys in another order": (
        [(KEYS, "  swap = Constant<value_ints = [2, 0, 3, 1]>()\n  k_s = Gather<axis = 1>(k_pass, swap)\n"
                + KEYS.replace("k_pass", "k_s"))],
        {},
    ),
    "one cache of both, without an axis of heads": (
        [
            (INPUTS, "float[batch, past, 16] past_c)"),
            (OUTPUTS, "float[batch, total, 16] new_c)"),
            ("Shape<start = 2, end = 3>(past_c)", "Shape<start = 1, end = 2>(past_c)"),
            (APPENDED, "  r3 = Squeeze(r, at_one)\n  c3 = Concat<axis = 2>(c2, r3)\n  new_c = Concat<axis = 1>(past_c, c3)\n"
                       "  all_c, all_r = Split<axis = 2>(new_c, shares)\n  new_r = Unsqueeze(all_r, at_one)\n"),
            (PRODUCT, "  kv0 = MatMul(all_c, wb)\n"),
        ],
        {},
    ),
    "a cache with the tokens behind the elements": (
        [
            ("float[batch, 1, past, 12] past_c", "float[batch, 12, past] past_c"),
            ("float[batch, 1, total, 12] new_c", "float[batch, 12, total] new_c"),
            ("  new_c = Concat<axis = 2>(past_c, c)\n",
             "  c3 = Transpose<perm = [0, 2, 1]>(c2)\n  new_c = Concat<axis = 2>(past_c, c3)\n"
             "  all_c = Transpose<perm = [0, 2, 1]>(new_c)\n"),
            (PRODUCT, "  kv0 = MatMul(all_c, wb)\n"),
        ],
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str, tmp_path: Path) -> None:
    edits, numbers = FORMS[name]
    write(tmp_path / "m.onnx", edits, numbers)
    done = ortfuse.generator(tmp_path / "m.onnx", tmp_path / "out", max_length=60, verify=True)
    assert not done.kept
    assert {cache.shape for cache in done.interface.caches} == {
        (-1, 1, 60, RANK + ROTATED)
    }  # or RANK, as a multiple of 8
    (node,) = [node for node in done.model.graph if node.op_type == "GroupQueryAttention"]
    assert (node.attributes["num_heads"].value, node.attributes["kv_num_heads"].value) == (HEADS, 1)
    is_right_in_one_batch(tmp_path, done)


def test_the_matrices_are_in_the_file_once(tmp_path: Path) -> None:
    write(tmp_path / "m.onnx")
    done = ortfuse.generator(tmp_path / "m.onnx", max_length=60)
    sizes = sorted(
        value.const_value.size
        for value in done.model.graph.initializers.values()
        if value.const_value is not None and len(value.const_value.shape) == 3
    )
    assert sizes == [HEADS * RANK * VALUE, HEADS * RANK * PASS]
    assert not any(
        list(value.shape or ()) == [RANK, HEADS * (PASS + VALUE)] for value in done.model.graph.initializers.values()
    )


def test_onnxruntime_genai_is_told_of_one_head(tmp_path: Path) -> None:
    write(tmp_path / "m.onnx")
    ortfuse.generator(tmp_path / "m.onnx", tmp_path / "out", max_length=60)
    decoder = json.loads((tmp_path / "out" / "genai_config.json").read_text())["model"]["decoder"]
    assert (decoder["num_attention_heads"], decoder["num_key_value_heads"]) == (HEADS, 1)
    assert (decoder["num_hidden_layers"], decoder["head_size"]) == (1, RANK + ROTATED)


def test_the_scale_is_that_of_the_original_heads(tmp_path: Path) -> None:
    write(tmp_path / "m.onnx", [("value_float = 0.3", f"value_float = {(PASS + ROTATED) ** -0.5}")])
    done = ortfuse.generator(tmp_path / "m.onnx", tmp_path / "out", max_length=60, verify=True)
    (node,) = [node for node in done.model.graph if node.op_type == "GroupQueryAttention"]
    assert node.attributes["scale"].value == pytest.approx((PASS + ROTATED) ** -0.5)
    is_right_in_one_batch(tmp_path, done)


def test_latents_of_values_may_be_others(tmp_path: Path) -> None:
    edits = [
        (INPUTS, INPUTS.replace(")", ", float[batch, 1, past, 10] past_d)")),
        (OUTPUTS, OUTPUTS.replace(")", ", float[batch, 1, total, 10] new_d)")),
        (APPENDED, APPENDED + "  d0 = MatMul(x, wd)\n  d1 = Unsqueeze(d0, at_one)\n  new_d = Concat<axis = 2>(past_d, d1)\n"),
        *FORMS["a matrix of keys and one of values"][0],
        ("MatMul(new_c, wv)", "MatMul(new_d, wv)"),
    ]  # fmt: skip
    numbers = {"wb": random(RANK, HEADS * PASS), "wv": random(10, HEADS * VALUE), "wd": random(64, 10)}
    write(tmp_path / "m.onnx", edits, numbers)
    done = ortfuse.generator(tmp_path / "m.onnx", tmp_path / "out", max_length=60, verify=True)
    assert not done.kept
    is_right_in_one_batch(tmp_path, done)


SECOND = """  u = Add(y3, x)
  e0 = MatMul(u, wq)
  e1 = Reshape(e0, qs)
  e = Transpose<perm = [0, 2, 1, 3]>(e1)
  l0 = MatMul(new_c, wl)
  l1 = Reshape(l0, kvs)
  l2 = Transpose<perm = [0, 2, 1, 3]>(l1)
  l_pass, m = Split<axis = 3>(l2, pieces)
  l = Concat<axis = 3>(l_pass, k_rot)
  lt = Transpose<perm = [0, 1, 3, 2]>(l)
  b0 = MatMul(e, lt)
  b1 = Mul(b0, factor)
  b = Add(b1, mask)
  f = Softmax(b)
  g0 = MatMul(f, m)
  g1 = Transpose<perm = [0, 2, 1, 3]>(g0)
  g2 = Reshape(g1, ys)
  g3 = MatMul(g2, wo)
  y = Add(g3, u)
"""


def test_two_layers_share_latents(tmp_path: Path) -> None:
    """Each has matrices of its own, and both read one buffer."""
    write(tmp_path / "m.onnx", [("  y = Add(y3, x)\n", SECOND)], {"wl": random(RANK, HEADS * (PASS + VALUE))})
    done = ortfuse.generator(tmp_path / "m.onnx", tmp_path / "out", max_length=60, verify=True)
    assert not done.kept
    assert len(done.interface.caches) == 2
    assert sum(node.op_type == "GroupQueryAttention" for node in done.model.graph) == 2
    is_right_in_one_batch(tmp_path, done)


def test_attention_with_heads_beside_each_other(tmp_path: Path) -> None:
    """Attention of the standard, [batch, length, heads * size]."""
    text = MODEL[MODEL.index("  kt =") : MODEL.index("  y3 =")]
    attention = """
  rows = Constant<value_ints = [0, 0, 32]>()
  q_rows = Transpose<perm = [0, 2, 1, 3]>(q)
  k_rows = Transpose<perm = [0, 2, 1, 3]>(k)
  v_rows = Transpose<perm = [0, 2, 1, 3]>(v)
  q_flat = Reshape(q_rows, rows)
  k_flat = Reshape(k_rows, rows)
  thin = Constant<value_ints = [0, 0, 24]>()
  v_flat = Reshape(v_rows, thin)
  y2 = Attention<q_num_heads = 4, kv_num_heads = 4>(q_flat, k_flat, v_flat, mask)
"""
    edits = FORMS["no rotated part"][0]
    write(tmp_path / "m.onnx", [('"" : 21', '"" : 23'), (text, attention), *edits])
    done = ortfuse.generator(tmp_path / "m.onnx", tmp_path / "out", max_length=60, verify=True)
    assert not done.kept
    (node,) = [node for node in done.model.graph if node.op_type == "GroupQueryAttention"]
    assert node.attributes["scale"].value == pytest.approx(PASS**-0.5)
    is_right_in_one_batch(tmp_path, done)


def test_float16(tmp_path: Path) -> None:
    """Attention of float16 is computed in float32, and the matrices stay in float16."""
    write(tmp_path / "single.onnx")
    ortfuse.convert(tmp_path / "single.onnx", to="float16", output=tmp_path / "m.onnx")
    done = ortfuse.generator(tmp_path / "m.onnx", tmp_path / "out", max_length=60, verify=True)
    assert not done.kept
    assert {cache.dtype for cache in done.interface.caches} == {"float16"}
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first


def test_sizes_of_a_cache_may_be_an_output(tmp_path: Path) -> None:
    write(tmp_path / "m.onnx", [("=> (", "=> (int64[4] sizes, "), (PRODUCT, "  sizes = Shape(new_c)\n" + PRODUCT)])
    done = ortfuse.generator(tmp_path / "m.onnx", tmp_path / "out", max_length=60, verify=True)
    assert not done.kept
    is_right_in_one_batch(tmp_path, done)


NEAR_MISSES: Mapping[str, tuple[Edits, Mapping[str, Any], str]] = {
    "a bias behind the product": (
        [(PRODUCT, "  kv00 = MatMul(new_c, wb)\n  kv0 = Add(kv00, bias)\n")],
        {"bias": random(HEADS * (PASS + VALUE))},
        "Add computes its keys or values",
    ),
    "a norm between cache and product": (
        [(PRODUCT, "  norm = Tanh(new_c)\n  kv0 = MatMul(norm, wb)\n")],
        {},
        "Tanh computes its keys or values",
    ),
    "a matrix that is an input": (
        [("int64[batch, sequence] ids", "int64[batch, sequence] ids, float[12, 56] wb")],
        {},
        "by a matrix that is no constant",
    ),
    "keys that depend on their position": (
        [(KEYS, "  js = Cast<to = 1>(j)\n  jc = Cos(js)\n  ju = Unsqueeze(jc, at_one)\n  k_p = Mul(k_pass, ju)\n"
                + KEYS.replace("k_pass", "k_p"))],
        {},
        "Mul computes its keys or values",
    ),
    "other shared elements for each head": (
        [
            ("float[batch, 1, past, 4] past_r", "float[batch, 2, past, 4] past_r"),
            ("float[batch, 1, total, 4] new_r", "float[batch, 2, total, 4] new_r"),
            ("  new_r = Concat<axis = 2>(past_r, r)\n", "  r_n = Neg(r)\n  r_both = Concat<axis = 1>(r, r_n)\n"
                                                        "  new_r = Concat<axis = 2>(past_r, r_both)\n"),
            (K_ROT, "  halves = Constant<value_ints = [0, 1, 0, 1]>()\n  k_rot = Gather<axis = 1>(new_r, halves)\n"),
        ],
        {},
        "heads have different elements of the cache beside their products",
    ),
    "values that are the latents": (
        [
            ("  y0 = MatMul(w, v)\n", "  v_c = Expand(new_c, repeats)\n  y0 = MatMul(w, v_c)\n"),
            ("[0, 0, 24]", "[0, 0, 48]"),
        ],
        {"wo": random(HEADS * RANK, 64)},
        "are not products of",
    ),
    "tokens in another order": (
        [(PRODUCT, "  first = Constant<value_ints = [-1]>()\n  least = Constant<value_ints = [-9223372036854775807]>()\n"
                   "  last = Constant<value_ints = [2]>()\n  back = Slice(new_c, first, least, last, first)\n"
                   "  kv0 = MatMul(back, wb)\n")],
        {},
        "in the order of the cache",
    ),
    "latents that an output has, too": (
        [(OUTPUTS, OUTPUTS.replace(")", ", float mean)")), (PRODUCT, PRODUCT + "  mean = ReduceMean<keepdims = 0>(new_c)\n")],
        {},
        "it is read by something else, too",
    ),
    "latents to which the rotated part is added": (
        [(PRODUCT, "  spread = MatMul(new_r, ws)\n  sum = Add(new_c, spread)\n  kv0 = MatMul(sum, wb)\n")],
        {"ws": random(ROTATED, RANK)},
        "Add computes its keys or values",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name: str, tmp_path: Path) -> None:
    edits, numbers, why = NEAR_MISSES[name]
    write(tmp_path / "m.onnx", edits, numbers)
    with pytest.raises(GenerationError, match=why):
        ortfuse.generator(tmp_path / "m.onnx", tmp_path / "out", max_length=60, verify=True)
