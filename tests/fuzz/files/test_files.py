"""A sample of the whole grid (python -m tests.fuzz.files), the same at every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from .bases import BASES, base
from .trial import NOT_LOADED, tried
from .variants import Variant, variants

STEP = 41


def _sample() -> list[tuple[str, Variant]]:
    every = [(name, variant) for name in BASES for variant in variants(base(name))]
    return every[::STEP]


@pytest.mark.parametrize(
    ("name", "variant"), [pytest.param(*one, id=f"{one[0]}-{one[1].label}"[:90]) for one in _sample()]
)
def test_what_the_runtime_loads_comes_out_right(name: str, variant: Variant, tmp_path: Path) -> None:
    answer = tried(variant, tmp_path)
    if answer == NOT_LOADED:
        pytest.skip(NOT_LOADED)
    assert answer is None, f"{name}: {variant.label}: {answer}"
