"""What a comparison of generations says of decoders and generators that only answer: no model is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from ortfuse.generation.compare_generations import GenerationComparison, compare_generations

Array = np.ndarray[Any, Any]
SCORES = np.random.default_rng(2).standard_normal((30, 11)).astype(np.float32)
PROMPTS = [[1, 2, 3], [4], [5, 6]]


class Answers:
    """A decoder or generator of one layer of numbers: scores depend on how many tokens a sequence has."""

    def __init__(self, change: Callable[[Array, int, int], Array] = lambda scores, batch, length: scores) -> None:
        self._change, self._lengths = change, [0]

    def prompt(self, prompts: Sequence[Sequence[int]], *, fixed: Mapping[str, Array] | None = None) -> Array:
        self._lengths = [len(prompt) for prompt in prompts]
        return self._scores()

    def step(self, tokens: Array, fixed: Mapping[str, Array] | None = None) -> Array:
        self._lengths = [length + tokens.shape[1] for length in self._lengths]
        return self._scores()[:, None]

    def _scores(self) -> Array:
        batch = len(self._lengths)
        return np.stack([self._change(SCORES[length].copy(), batch, length) for length in self._lengths])


def compared(generator: Answers, noisy: Answers | None = None, decoder: Answers | None = None) -> GenerationComparison:
    return compare_generations(
        lambda: decoder or Answers(), lambda: noisy or Answers(), generator, PROMPTS, new_tokens=8, in_one_batch=True
    )


def fresh(change: Callable[[Array, int, int], Array]) -> GenerationComparison:
    """A comparison of a generator whose scores are changed."""
    return compared(Answers(change))


def test_the_same_scores_are_equal() -> None:
    found = compared(Answers())
    assert (found.equal, found.first, found.batch, found.steps) == (True, "", 3, 2 * 3 * 9)


def test_other_scores_in_a_batch_are_found() -> None:
    found = fresh(lambda scores, batch, length: scores[::-1] if batch > 1 and length == 5 else scores)
    assert not found.equal
    assert "in a batch of 3" in found.first


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_another_score(wrong: float) -> None:
    def change(scores: Array, _: int, length: int) -> Array:
        scores[np.argmin(scores) if length == 7 else slice(0)] = wrong
        return scores

    found = fresh(change)
    assert not found.equal
    if wrong == -np.inf:
        assert "scores that are no numbers in one of them" in found.first


def test_scores_that_both_leave_out_are_equal() -> None:
    def change(scores: Array, *_: int) -> Array:
        scores[3] = -np.inf
        return scores

    found = compare_generations(
        lambda: Answers(change), lambda: Answers(change), Answers(change), PROMPTS, new_tokens=8
    )
    assert found.equal
    assert found.largest_error == 0


@pytest.mark.parametrize("noise", [1.0, np.inf, np.nan])
def test_a_decoder_that_is_all_noise_excuses_no_other_scores(noise: float) -> None:
    def disturbed(scores: Array, *_: int) -> Array:
        return scores + np.float32(noise)

    found = compare_generations(
        Answers, lambda: Answers(disturbed), Answers(lambda scores, *_: scores[::-1]), PROMPTS, new_tokens=8
    )
    assert not found.equal
    assert found.tolerance <= 0.1
