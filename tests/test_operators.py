"""A sample of the conformance grid, the same at every run (in full: python -m benchmarks.trust.operators)."""

from __future__ import annotations

from collections import Counter

from benchmarks.trust.grid.cells import Sample, cells
from benchmarks.trust.grid.known import is_known
from benchmarks.trust.grid.trying import failures


def test_what_is_known_of_operators_agrees_with_the_runtime() -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for cell in cells(Sample(one_in=1600)):
        found = failures(cell)
        counts["tried" if found is None else "run"] += 1
        wrong += [f"{cell}: {one.kind}: {one.details}" for one in found or () if not is_known(cell, one)]
    assert not wrong, "\n".join(wrong[:20])
    assert counts["run"] > 30, counts
