"""Decoders that write into caches of a fixed length: what is written behind the tokens so far becomes appended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cached_decoders import write
from edited_decoders import Edits, is_right

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


def made(path: Path, edits: Edits, numbers: Mapping[str, Any] | None = None) -> ortfuse.GeneratorResult:
    sizes = f"batch, 2, {LENGTH}, 16"
    model = write(path / "m.onnx", edits, {**NUMBERS, **(numbers or {})}, past=sizes, present=sizes)
    return ortfuse.generator(model, path / "out", max_length=60, verify=True, new_tokens=30)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_behind_the_tokens_so_far_is_appended(form: str, tmp_path: Path) -> None:
    done = made(tmp_path, edited(form, single=form == "Where"))
    assert not done.kept
    assert done.interface.max_length == LENGTH
    assert sum(node.op_type == "GroupQueryAttention" for node in done.model.graph) == 1
    assert "Pad" not in {node.op_type for node in done.model.graph}
    assert done.decoder.fixed_length == LENGTH
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
            ("  p = Identity(at)", "  c9 = CastLike(ids, at)\n  d9 = ReduceMin<keepdims = 0>(c9)\n  p = Add(at, d9)"),
            "ids, at",
        ),
    ],
    ids=["one further", "round", "never past the end", "by the tokens"],
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
