"""Sizes that exporters compute as the rows of a slice of a table are numbers of tokens, as far as the table reaches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cached_decoders import write

from ortfuse.api.generator import generator

ROWS = 48
EDITS = [
    (
        "  seen = LessOrEqual(j, i)",
        "  past_rows = Min(rows, p)\n  all_rows = Min(rows, t)\n  n = Sub(all_rows, past_rows)\n"
        "  below = Slice(triangle, p, t, zeros, at_one)\n  seen = Slice(below, zeros, t, at_one, at_one)",
    ),
    ("  qs = Constant<value_ints = [0, 0, 4, 16]>()", "  qs = Concat<axis = 0>(zeros, n, heads)"),
    ("  ks = Constant<value_ints = [0, 0, 2, 16]>()", "  ks = Concat<axis = 0>(zeros, n, groups)"),
]


@pytest.mark.parametrize(("asked", "given"), [(40, 40), (64, ROWS)])
def test_rows_of_a_slice_are_those_of_the_tokens(asked: int, given: int, tmp_path: Path) -> None:
    numbers = {
        "rows": np.array([ROWS]), "triangle": np.tri(ROWS, dtype=bool), "zeros": np.array([0]),
        "heads": np.array([4, 16]), "groups": np.array([2, 16]),
    }  # fmt: skip
    done = generator(write(tmp_path / "clamped.onnx", EDITS, numbers), max_length=asked, verify=True)
    assert done.interface.max_length == given
    assert not done.kept
    assert not done.one_length
    assert done.comparison is not None
    assert done.comparison.equal


def test_a_clamp_that_the_greatest_length_reaches_at_most(tmp_path: Path) -> None:
    numbers = {
        "rows": np.array([ROWS // 2]), "triangle": np.tri(ROWS, dtype=bool), "zeros": np.array([0]),
        "heads": np.array([4, 16]), "groups": np.array([2, 16]),
    }  # fmt: skip
    path = write(tmp_path / "clamped.onnx", EDITS, numbers)
    assert generator(path, max_length=ROWS // 2, verify=True).ok
