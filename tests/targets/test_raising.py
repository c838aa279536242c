"""A sample of the grid of operators that are raised to later opsets (in full: python -m benchmarks.trust.raising)."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from benchmarks.trust.grid.cells import Sample, cells
from benchmarks.trust.raising import FINE, REFUSED, SAME, opsets_above, outcome


@pytest.mark.parametrize("operator", ["Dropout", "Softmax"])
def test_a_raised_operator_computes_the_same_bits_or_is_refused(operator: str) -> None:
    found: Counter[str] = Counter()
    for cell in islice(cells(Sample(9), frozenset((operator,))), 4):
        for opset in opsets_above(cell):
            answer = outcome(cell, opset)
            found[answer] += 1
            assert answer in FINE, f"{cell} to {opset}"
    assert found[SAME] or found[REFUSED], found
