"""Chains of data movement beside the shortest ones, and the search for these."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.movement.__main__ import lengths
from benchmarks.movement.shortest import fewest


def _numbers(*shape: int) -> np.ndarray:
    return (np.arange(np.prod(shape)) + 1).astype(np.float32).reshape(shape)


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (_numbers(2, 3), 0),
        (_numbers(2, 3).T, 1),
        (_numbers(2, 3)[:, ::-1], 1),
        (_numbers(2, 3).T.reshape(6), 2),
        (_numbers(2, 3)[1, 1:], 2),
        (np.pad(_numbers(2, 3), 1), 1),
    ],
)
def test_the_fewest_operators_are_found(wanted: np.ndarray, count: int) -> None:
    assert fewest(_numbers(2, 3), wanted, 4) == count


def test_a_search_gives_up_at_the_length_that_is_to_be_undercut() -> None:
    assert fewest(_numbers(2, 3), _numbers(2, 3).T.reshape(6), 2) is None


def test_small_chains_become_the_shortest() -> None:
    found = [pair for pair in map(lengths, (18, 20, 26, 33)) if pair is not None]
    assert found
    assert all(made == best for made, best in found)
