"""Decoders that hand out the keys and values of the new tokens alone, which their caller appends to those of the past."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cached_decoders import LAYOUTS, PLAIN, write
from edited_decoders import is_right

import ortfuse
from ortfuse.errors import GenerationError


def outputs(keys: str, values: str, **changes: Any) -> tuple[str, str]:
    """The edit that names other outputs than the whole caches."""
    whole = {**PLAIN, **changes}["present"]
    new = whole.replace("total", "sequence")
    return f"float[{whole}] new_k, float[{whole}] new_v", f"float[{new}] {keys}, float[{new}] {values}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_new_tokens_are_appended_to_the_input(layout: str, tmp_path: Path) -> None:
    changes = LAYOUTS[layout]
    file = write(tmp_path / "m.onnx", [outputs("k2", "v2", **changes)], **changes)
    done = ortfuse.generator(file, tmp_path / "out", max_length=24, verify=True)
    assert done.decoder.new_alone == ("k2", "v2")
    assert not done.kept
    assert all(cache.in_place for cache in done.interface.caches)
    is_right(tmp_path, done)


LAST = "  news = Shape<start = 1, end = 2>(ids)\n  minus = Neg(news)\n  far = Constant<value_ints = [9223372036854775807]>()\n  two = Constant<value_ints = [2]>()"


@pytest.mark.parametrize("start", ["p", "minus"])
def test_new_tokens_that_are_cut_off_the_whole_are_told(start: str, tmp_path: Path) -> None:
    cut = f"{LAST}\n  last_k = Slice(new_k, {start}, far, two)\n  last_v = Slice(new_v, {start}, far, two)"
    edits = [outputs("last_k", "last_v"), ("  scores = MatMul(y, head)", f"{cut}\n  scores = MatMul(y, head)")]
    done = ortfuse.generator(write(tmp_path / "m.onnx", edits), tmp_path / "out", max_length=24, verify=True)
    assert done.decoder.new_alone == ("last_k", "last_v")
    is_right(tmp_path, done)


def test_keys_alone_may_be_new_ones(tmp_path: Path) -> None:
    edit = ("float[batch, 2, total, 16] new_k", "float[batch, 2, sequence, 16] k2")
    done = ortfuse.generator(write(tmp_path / "m.onnx", [edit]), tmp_path / "out", max_length=24, verify=True)
    assert done.decoder.new_alone == ("k2",)
    is_right(tmp_path, done)


@pytest.mark.parametrize("node", ["other = Mul(k2, quarter)", "other = Identity(k1)"])
def test_what_is_not_appended_to_the_input_is_refused(node: str, tmp_path: Path) -> None:
    """Numbers that are others than those that attention appends, or stand in another layout."""
    new = "float[batch, 2, sequence, 16]" if "Mul" in node else "float[batch, sequence, 2, 16]"
    edits = [("float[batch, 2, total, 16] new_k", f"{new} other"), ("  a0 = MatMul(q, k)", f"  {node}\n  a0 = MatMul(q, k)"),
             ("  quarter = Constant<value_float = 0.25>()\n", ""), ("  zero = Const", "  quarter = Constant<value_float = 0.25>()\n  zero = Const")]  # fmt: skip
    with pytest.raises(GenerationError, match="appended to the input past_k, but no output is the whole of it"):
        ortfuse.generator(write(tmp_path / "m.onnx", edits), max_length=24)


def test_a_decoder_without_any_such_output_is_refused_by_the_input_that_grows(tmp_path: Path) -> None:
    edit = outputs("k1", "v1")
    file = write(tmp_path / "m.onnx", [(edit[0], edit[1].replace("2, sequence", "sequence, 2"))])
    with pytest.raises(
        GenerationError, match=r"appended to the input past_k, .* export the decoder with such an output"
    ):
        ortfuse.generator(file, max_length=24)
