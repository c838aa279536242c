"""What is measured last, and what is said where nothing is taken."""

from __future__ import annotations

import pytest

from ortfuse.quantization.final_measurement import why_none
from ortfuse.runtime.bench import Latency


def _row(speedup: float, bounds: tuple[float, float] | None, crash: str = "") -> Latency:
    return Latency("a", 1.0, 1.0, 1.0, 0.0, speedup, bounds, 1.0, 1, 1, 1.0, crash)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([_row(0.8, (0.7, 0.9))], "nothing is gained: the best choice under the bound runs 0.80 times as fast as float32"),
        ([_row(0.8, (0.7, 0.9)), _row(1.25, (0.9, 1.5))], "it cannot be told whether anything is gained"),
        ([_row(1.25, (0.9, 1.5), "ended")], "the runtime crashed"),
    ],
)  # fmt: skip
def test_a_gain_that_is_not_certain_is_not_called_none(rows: list[Latency], said: str) -> None:
    assert why_none(rows, 1.02).startswith(said)
