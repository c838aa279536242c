"""Generators of decoders that keep no more than the last tokens, or buffers of a fixed length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited_decoders import Edits, is_right, made

from ortfuse.errors import GenerationError

CUT = "  {0}0 = Concat<axis = 2>(past_{1}, {1}2)\n  {0} = Slice({0}0, before, big, two0)"
CUTS = [
    *((f"  new_{k} = Concat<axis = 2>(past_{k}, {k}2)", CUT.format(f"new_{k}", k)) for k in "kv"),
    ("(new_k)", "(new_k0)"),
    ("(new_v)", "(new_v0)"),
]
WINDOW = (
    "  seen = LessOrEqual(j, i)",
    "  causal = LessOrEqual(j, i)\n  ij = Sub(i, j)\n  near = Less(ij, width)\n  seen = And(causal, near)",
)


def cut(kept: int, width: int) -> dict[str, Any]:
    """The numbers of a decoder that keeps some tokens, and sees as many as `width`."""
    return {
        "before": np.array([-kept]), "big": np.array([2**62]), "two0": np.array([2]), "width": np.array(width),
    }  # fmt: skip


@pytest.mark.parametrize("edits", [CUTS, [*CUTS, WINDOW]])
def test_caches_that_are_cut_to_less_than_is_seen(edits: Edits, tmp_path: Path) -> None:
    """A prompt sees tokens that a later step has no more."""
    numbers = {name: one for name, one in cut(6, 8).items() if name != "width" or WINDOW in edits}
    with pytest.raises(GenerationError, match=r"no layer can keep its cache in place.+other keys are visible"):
        made(tmp_path, edits, numbers)


@pytest.mark.parametrize(("kept", "width"), [(6, 7), (2, 3), (30, 7), (80, 7)])
def test_caches_that_are_cut_to_what_is_seen(kept: int, width: int, tmp_path: Path) -> None:
    done = made(tmp_path, [*CUTS, WINDOW], cut(kept, width))
    assert not done.kept
    assert {cache.shape for cache in done.interface.caches} == {(-1, 2, 60, 16)}
    windows = {
        node.attributes["local_window_size"].value for node in done.model.graph if node.op_type.startswith("Group")
    }
    assert windows == {width}
    is_right(tmp_path, done)


def test_one_token_at_a_time_sees_what_is_kept(tmp_path: Path) -> None:
    """Without a mask, and without any window besides the cut."""
    edits = [*CUTS, ("  a = Add(a1, mask)", "  a = Identity(a1)"), ("sequence]", "1]"), ("sequence,", "1,")]
    numbers = {name: one for name, one in cut(6, 8).items() if name != "width"}
    done = made(tmp_path, edits, numbers)
    assert not done.kept
    assert {
        node.attributes["local_window_size"].value for node in done.model.graph if node.op_type.startswith("Group")
    } == {7}
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first


def test_caches_of_a_fixed_length(tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match="past_k has a fixed length"):
        made(tmp_path, [("past, 16]", "30, 16]"), ("total, 16]", "31, 16]"), ("sequence]", "1]"), ("sequence,", "1,")])
