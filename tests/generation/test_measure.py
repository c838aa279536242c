"""Generations of decoders and generators are measured side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

import ortfuse
from ortfuse.api.benchmark_generation import benchmark_generation
from ortfuse.errors import OptionError

GOLDEN = Path(__file__).parents[2] / "golden" / "models"


def test_both_write_the_same(tmp_path: Path) -> None:
    model = GOLDEN / "gpt2_cache.sdpa.ts.onnx"
    ortfuse.generator(model, tmp_path / "out", max_length=48)
    found = benchmark_generation([model, tmp_path / "out"], new_tokens=24, prompt=8, rounds=2)
    assert found.same_tokens
    assert [len(one.steps) > 2 and one.tokens_per_second > 0 for one in found.models] == [True, True]
    assert found.models[0].ratio == 1
    assert all(one.memory is None or one.memory > 0 for one in found.models)


def test_numbers_below_one() -> None:
    with pytest.raises(OptionError, match="at least 1"):
        benchmark_generation([GOLDEN / "gpt2_cache.sdpa.ts.onnx"], prompt=0)
