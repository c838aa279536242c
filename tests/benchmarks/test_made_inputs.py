"""Inputs that a program makes for trained models, and how decisions on them are compared."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.precision import made_inputs, seeds, trained


def test_audio_has_speech_and_silence() -> None:
    sound = made_inputs.audio(np.random.default_rng(3), 4.0)
    loud = np.abs(sound).reshape(-1, 1600).max(axis=1)
    assert sound.dtype == np.float32
    assert np.abs(sound).max() <= 1
    assert loud.max() > 5 * loud.min()


@pytest.mark.parametrize("kind", made_inputs.FILES)
def test_files_of_a_kind_differ(kind: str) -> None:
    one, other = (made_inputs.FILES[kind](np.random.default_rng(seed)) for seed in range(2))
    assert len(one) > 50
    assert one != other
    assert trained.of_file(np.random.default_rng(0)).shape == (1, 2048)


def test_agreement_is_the_share_of_equal_decisions() -> None:
    assert trained.agreement([[1, 2], ["a", "b"]], [[1, 3], ["a", "b"]]) == 0.75
    assert trained.text(np.eye(4)[None, [0, 2, 2, 0, 2, 3]]) == [(2, 2, 3)]


def test_what_breaks_the_bound_is_named() -> None:
    rows = [
        {"seed": 0, "bound": 0.1, "state": "kept", "error": 0.05, "lowered": {"a": 1}},
        {"seed": 1, "bound": 0.1, "state": "BROKEN", "error": 0.2, "lowered": {"a": 2}},
        {"seed": 2, "bound": 0.1, "state": "cannot be kept"},
    ]
    assert seeds.summary(rows[::2]).endswith("the bound holds in all")
    assert "broken by seeds [1]" in seeds.summary(rows)
