"""A sample of the standard's own tests: what the runtime passes, it passes after `optimize` too."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from standard import NOT_EXECUTED, cases, verdict

CASES = [case for case in cases() if len(case.model.graph.node) > 1]


@pytest.mark.parametrize("case", CASES[::3], ids=lambda case: case.name)
def test_what_the_runtime_passes_it_still_passes(case: Any) -> None:
    answer = verdict(case)
    if answer == NOT_EXECUTED:
        pytest.skip(NOT_EXECUTED)
    assert answer == "same"
