"""Decoders that write into caches of a fixed length: what is written behind the tokens so far becomes appended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cached_decoders import write
from edited_decoders import EMBEDDED, Edits, given, is_right

import ortfuse
from ortfuse.errors import GenerationError

LENGTH = 48
ELEMENTS = """  rows = Reshape(i0, four)
  k2s = Shape(k2)
  where = Expand(rows, k2s)
  new_k = ScatterElements<axis = 2>(past_k, where, k2)
  new_v = ScatterElements<axis = 2>(past_v, where, v2)
"""
SLICES = """  where = Unsqueeze(i0, at_one)
  past_kt = Transpose<perm = [2, 0, 1, 3]>(past_k)
  past_vt = Transpose<perm = [2, 0, 1, 3]>(past_v)
  kt = Transpose<perm = [2, 0, 1, 3]>(k2)
  vt = Transpose<perm = [2, 0, 1, 3]>(v2)
  new_kt = ScatterND(past_kt, where, kt)
  new_vt = ScatterND(past_vt, where, vt)
  new_k = Transpose<perm = [1, 2, 0, 3]>(new_kt)
  new_v = Transpose<perm = [1, 2, 0, 3]>(new_vt)
"""
TENSOR_SCATTER = """  b = Shape<start = 0, end = 1>(ids)
  where = Expand(p, b)
  new_k = TensorScatter<axis = 2>(past_k, k2, where)
  new_v = TensorScatter<axis = 2>(past_v, v2, where)
"""
WHERE = """  places = Reshape(j, four)
  chosen = Equal(places, p)
  new_k = Where(chosen, k2, past_k)
  others = Not(chosen)
  new_v = Where(others, past_v, v2)
"""
LAYER = """  xx = Add(y2, x)
  q0b = MatMul(xx, wq)
  k0b = MatMul(xx, wk)
  v0b = MatMul(xx, wv)
  q1b = Reshape(q0b, qs)
  k1b = Reshape(k0b, ks)
  v1b = Reshape(v0b, ks)
  qb = Transpose<perm = [0, 2, 1, 3]>(q1b)
  k2b = Transpose<perm = [0, 2, 1, 3]>(k1b)
  v2b = Transpose<perm = [0, 2, 1, 3]>(v1b)
{where}
  new_kb = ScatterElements<axis = 2>(past_kb, where, k2b)
  new_vb = ScatterElements<axis = 2>(past_vb, where, v2b)
  k4b = Gather<axis = 1>(new_kb, repeated)
  vb = Gather<axis = 1>(new_vb, repeated)
  kb = Transpose<perm = [0, 1, 3, 2]>(k4b)
  a0b = MatMul(qb, kb)
  a1b = Mul(a0b, quarter)
  ab = Add(a1b, {mask})
  wb = Softmax(ab)
  y0b = MatMul(wb, vb)
  y1b = Transpose<perm = [0, 2, 1, 3]>(y0b)
  y2b = Reshape(y1b, ys)
  y = Add(y2b, xx)"""
COUNTED = """  at0 = Squeeze(at)
  s0 = Squeeze(s)
  after = Add(at0, s0)
  ib0 = Range(at0, after, one)
  ib = Unsqueeze(ib0, at_one)
  jb = Range(zero, most, one)
  seenb = LessOrEqual(jb, ib)
  maskb = Where(seenb, none, low)
  rows = Reshape(ib0, four)
  ks2 = Shape(k2b)
  where = Expand(rows, ks2)"""
FORMS = {"ScatterElements": ELEMENTS, "ScatterND": SLICES, "TensorScatter": TENSOR_SCATTER, "Where": WHERE}
COUNTERS = {
    "scalar": ("int64 at", "  p = Reshape(at, at_one)"),
    "one number": ("int64[1] at", "  p = Identity(at)"),
    "int32": ("int32[1] at", "  p = Cast<to = 7>(at)"),
    "positions": ("int64[sequence] at", "  i0 = Identity(at)"),
    "positions of sequences": ("int64[batch, sequence] at", "  i0 = Gather(at, zero)"),
}  # fmt: skip
NUMBERS = {
    "four": np.array([1, 1, -1, 1]), "zero1": np.array([0]), "flat": np.array([-1]), "most": np.array(LENGTH),
    "last": np.array([LENGTH - 1]), "eight": np.array([8]),
    "ten": np.array(10), "thirty": np.array(30),
}  # fmt: skip


def edited(form: str, counter: str = "one number", *, single: bool = False) -> list[tuple[str, str]]:
    """The edits by which the decoder writes into buffers."""
    declaration, count = COUNTERS[counter]
    appended = "  new_k = Concat<axis = 2>(past_k, k2)\n  new_v = Concat<axis = 2>(past_v, v2)\n"
    edits = [
        ("int64[batch, sequence] ids", f"int64[batch, sequence] ids, {declaration}"),
        (
            "  p = Shape<start = 2, end = 3>(past_k)",
            count if " p = " in count else "  p = Shape<start = 1, end = 2>(ids)",
        ),
        ("  j = Range(zero, t0, one)", "  j = Range(zero, most, one)"),
        (appended, FORMS.get(form, form)),
    ]
    if form == "TensorScatter":
        edits.append(('"" : 21', '"" : 24'))
    if " i0 = " in count:
        edits.append(("  i0 = Range(p0, t0, one)", count))
    return [*edits, ("sequence", "1")] if single else edits


def layer(where: str, mask: str) -> Edits:
    """The edits that add a layer with buffers, whose inputs and outputs stand first."""
    past, present = (
        f"float[batch, 2, {LENGTH}, 16] {name}_kb, float[batch, 2, {LENGTH}, 16] {name}_vb, "
        for name in ("past", "new")
    )
    layer = LAYER.format(where=where, mask=mask)
    return [("g (", f"g ({past}"), ("=> (", f"=> ({present}"), ("  y = Add(y2, x)", layer)]


def made(
    path: Path, edits: Edits, numbers: Mapping[str, Any] | None = None, *, grows: bool = False, **options: Any
) -> ortfuse.GeneratorResult:
    """The generator of the decoder with edits; `grows` if the caches of its first layer grow."""
    sizes = {} if grows else dict.fromkeys(("past", "present"), f"batch, 2, {LENGTH}, 16")
    model = write(path / "m.onnx", edits, {**NUMBERS, **(numbers or {})}, **sizes)
    return ortfuse.generator(model, path / "out", max_length=60, verify=True, new_tokens=30, **options)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_behind_the_tokens_so_far_is_appended(form: str, tmp_path: Path) -> None:
    done = made(tmp_path, edited(form, single=form == "Where"))
    assert not done.kept
    assert done.interface.max_length == LENGTH
    assert sum(node.op_type == "GroupQueryAttention" for node in done.model.graph) == 1
    assert "Pad" not in {node.op_type for node in done.model.graph}
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first
    if form != "Where":
        is_right(tmp_path, done)


@pytest.mark.parametrize("counter", COUNTERS)
def test_the_number_of_tokens_so_far_is_told_in_several_ways(counter: str, tmp_path: Path) -> None:
    done = made(tmp_path, edited("ScatterElements", counter))
    assert not done.kept
    assert done.decoder.counter == "at"
    assert "at" not in {value.name for value in done.model.graph.inputs}
    is_right(tmp_path, done)


@pytest.mark.parametrize(
    ("declaration", "mask"),
    [
        (f"int64[batch, {LENGTH}] given", "  gb = Cast<to = 9>(given)\n  g4 = Unsqueeze(gb, one_two)\n  both = And(seen, g4)"),
        (f"bool[batch, 1, sequence, {LENGTH}] given", "  both = Identity(given)"),
        (f"float[batch, 1, sequence, {LENGTH}] given", "  mask = Identity(given)"),
    ],
)  # fmt: skip
def test_a_mask_tells_of_all_places(declaration: str, mask: str, tmp_path: Path) -> None:
    if "mask =" not in mask:
        mask += "\n  mask = Where(both, none, low)"
    edits = [
        *edited("ScatterElements"),
        ("int64[batch, sequence] ids", f"int64[batch, sequence] ids, {declaration}"),
        ("  mask = Where(seen, none, low)", mask),
    ]
    done = made(tmp_path, edits, {"one_two": np.array([1, 2])})
    assert not done.kept
    is_right(tmp_path, done)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (("  rows = Reshape(i0, four)", "  i9 = Add(i0, one)\n  rows = Reshape(i9, four)"), "does not write behind"),
        (("  rows = Reshape(i0, four)", "  i9 = Mod(i0, eight)\n  rows = Reshape(i9, four)"), "does not write behind"),
        (("  rows = Reshape(i0, four)", "  i9 = Min(i0, last)\n  rows = Reshape(i9, four)"), ""),
        (
            (
                "  rows = Reshape(i0, four)",
                "  s9 = Squeeze(s)\n  many = Greater(s9, ten)\n  few = Less(s9, thirty)\n  some = And(many, few)\n"
                "  more = Cast<to = 7>(some)\n  i9 = Add(i0, more)\n  rows = Reshape(i9, four)",
            ),
            "does not write behind",
        ),
        (
            (
                "  rows = Reshape(i0, four)",
                "  b9 = Shape<start = 0, end = 1>(ids)\n  b8 = Squeeze(b9)\n  b7 = Range(zero, b8, one)\n"
                "  by_row = Constant<value_ints = [-1, 1, 1, 1]>()\n  b6 = Reshape(b7, by_row)\n"
                "  i9 = Reshape(i0, four)\n  rows = Add(i9, b6)",
            ),
            "does not write behind",
        ),
        (
            ("  p = Identity(at)", "  c9 = CastLike(ids, at)\n  d9 = ReduceMin<keepdims = 0>(c9)\n  p = Add(at, d9)"),
            "ids, at",
        ),
    ],
    ids=["one further", "round", "never past the end", "some prompts", "by the row", "by the tokens"],
)
def test_what_is_written_elsewhere_is_refused(edit: tuple[str, str], why: str, tmp_path: Path) -> None:
    edits = [*edited("ScatterElements"), edit]
    if not why:
        is_right(tmp_path, made(tmp_path, edits))
    else:
        with pytest.raises(GenerationError, match=why):
            made(tmp_path, edits)


def test_a_mask_that_shows_the_places_behind_keeps_the_layer(tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match="no layer can keep its cache in place"):
        made(
            tmp_path,
            [
                *edited("ScatterElements"),
                ("  seen = LessOrEqual(j, i)", "  i8 = Add(i, one)\n  seen = LessOrEqual(j, i8)"),
            ],
        )


def test_caches_may_stand_in_another_order_than_layers(tmp_path: Path) -> None:
    done = made(tmp_path, [*edited("ScatterElements"), *layer("", "mask")])
    assert not done.kept
    is_right(tmp_path, done)


def test_other_caches_may_grow(tmp_path: Path) -> None:
    """The input that counts is no input that is the same in all steps."""
    done = made(tmp_path, [given("int64[1] at"), *layer(COUNTED, "maskb")], grows=True)
    assert not done.kept
    assert done.decoder.counter == "at"
    is_right(tmp_path, done)


def test_buffers_of_several_lengths_are_refused(tmp_path: Path) -> None:
    short = [(one, other.replace(str(LENGTH), "40")) for one, other in layer(COUNTED, "maskb")]
    edits = [*edited("ScatterElements"), *short, ("jb = Range(zero, most, one)", "jb = Range(zero, forty, one)")]
    edits.append(("  rows = Reshape(ib0, four)\n  ks2 = Shape(k2b)\n  where = Expand(rows, ks2)", ""))
    with pytest.raises(GenerationError, match=r"buffers of several lengths: \[40, 48\]"):
        made(tmp_path, edits, {"forty": np.array(40)})


def test_the_input_that_counts_may_be_named_as_positions(tmp_path: Path) -> None:
    is_right(tmp_path, made(tmp_path, edited("ScatterElements", "positions"), roles={"positions": "at"}))


def test_embeddings_have_positions(tmp_path: Path) -> None:
    edits = [
        *edited("ScatterElements", "positions"),
        ("int64[batch, sequence] ids", "float[batch, sequence, 64] ids"),
        ("  x0 = Gather(table, ids)", "  x0 = Identity(ids)"),
    ]
    done = made(tmp_path, edits)
    assert not done.kept
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first


def test_the_size_of_a_buffer_is_that_of_the_input(tmp_path: Path) -> None:
    size = "  n9 = Shape<start = 2, end = 3>(past_k)\n  n8 = Squeeze(n9)\n  j = Range(zero, n8, one)"
    done = made(tmp_path, [*edited("ScatterElements"), ("  j = Range(zero, most, one)", size)])
    assert not done.kept
    is_right(tmp_path, done)


def test_an_input_of_as_many_columns_is_no_mask(tmp_path: Path) -> None:
    edits = [
        *edited("ScatterElements"),
        given(f"float[batch, {LENGTH}] style"),
        (EMBEDDED, "  mean = ReduceMean(style, at_one)\n  mean3 = Unsqueeze(mean, at_one)\n  x = Add(x0, mean3)"),
    ]
    with pytest.raises(GenerationError, match="style has as many columns as the buffers"):
        made(tmp_path, edits)
