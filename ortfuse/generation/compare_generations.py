"""Compare whole generations: a decoder in a plain loop, and the generator that was made of it.

Both are given the same tokens, those that the decoder takes by greedy decoding, so that one near tie does not make all that
follows differ. At each step the scores must agree within a tolerance, and the best token must be the same unless the decoder's
own first two are closer than its scores are sensitive. If prompts of several lengths may be in one batch, these are compared
as one, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ortfuse.serialization import Record, derived

Array = np.ndarray[Any, Any]

TOLERANCE = 1e-3
"""Difference of scores over their spread at a step, at most."""

MOST_NOISE = 1e-2
"""The most of a decoder's own noise that counts: scores that move more cannot tell a right generator from a wrong one."""

MOST_IN_A_BATCH = 4
"""How many prompts are compared in one batch."""

STEPS_OF_A_BATCH = 16
"""How many steps are compared with several sequences in one batch."""


class Loop(Protocol):
    """A decoder in a plain loop."""

    def step(self, tokens: Array, fixed: Mapping[str, Array] | None = None) -> Array:
        """The scores after each of the new tokens."""


class Stepping(Protocol):
    """A generator."""

    def prompt(self, prompts: Sequence[Sequence[int]], *, fixed: Mapping[str, Array] | None = None) -> Array:
        """The scores after the last token of each prompt."""

    def step(self, tokens: Array, *, fixed: Mapping[str, Array] | None = None) -> Array:
        """The scores after the new tokens."""


@dataclass(frozen=True)
class GenerationComparison(Record):
    """How the generations of a generator compare with those of the decoder it was made of.

    Attributes:
        prompts: How many prompts there were.
        steps: How many steps were compared, prompts included.
        batch: How many of the sequences were compared once more as one batch, over their first steps; 0 for none.
        largest_error: The largest difference of scores over their spread at the step.
        tolerance: What is allowed.
        other_tokens: At how many steps the best token is another one, though it was no near tie.
        near_ties: At how many steps it is another one, and the decoder's first two were as close as its own noise.
        first: Where the first other token or too large difference is, in words; "" if there is none.
        target: The target that ran the generator.
    """

    prompts: int
    steps: int
    batch: int
    largest_error: float
    tolerance: float
    other_tokens: int
    near_ties: int
    first: str
    target: str

    @property
    @derived()
    def equal(self) -> bool:
        """Whether each step gives the same token, near ties apart, and scores within the tolerance."""
        return self.other_tokens == 0 and self.largest_error <= self.tolerance


@dataclass(frozen=True)
class _Found:
    """The scores of the generator at a step, next to the decoder's.

    Attributes:
        where: The prompt and the step.
        error: The largest difference, over the spread of the decoder's.
        gap: How much less the decoder gives the generator's best token than its own, over the spread; 0 for the same token.
        tokens: The generator's best token and the decoder's.
    """

    where: str
    error: float
    gap: float
    tokens: tuple[int, int]


class _Tally:
    """Findings at all steps, and the decoder's own noise."""

    def __init__(self) -> None:
        self.found: list[_Found] = []
        self.noise = 0.0

    def disturb(self, wanted: Array, rounded: Array) -> None:
        """Take the decoder's scores with and without the runtime's optimisations."""
        error = _difference(wanted, rounded)
        self.noise = max(self.noise, error if np.isfinite(error) else 0.0)

    def compare(self, where: str, wanted: Array, got: Array) -> None:
        """Take the scores of a step."""
        best, chosen = int(np.argmax(wanted)), int(np.argmax(got))
        gap = 0.0 if best == chosen else _difference(wanted[[chosen]], wanted[[best]], _spread(wanted))
        self.found.append(_Found(where, _difference(wanted, got), gap, (chosen, best)))

    def comparison(self, prompts: int, batch: int, target: str) -> GenerationComparison:
        """The comparison that follows from all steps."""
        noise = min(self.noise, MOST_NOISE)
        tolerance, near = max(TOLERANCE, 10 * noise), 4 * max(noise, 1e-6)
        others = [one for one in self.found if one.gap > near]
        wrong = next((one for one in self.found if one.gap > near or one.error > tolerance), None)
        first = ""
        if wrong is not None:
            text = "token {} instead of {}".format(*wrong.tokens)
            if not wrong.gap > near:
                by = f"differ by {wrong.error:.2g} of their spread"
                text = f"scores that {by if np.isfinite(wrong.error) else 'are no numbers in one of them'}"
            first = f"{wrong.where}: {text}"
        ties = sum(0 < one.gap <= near for one in self.found)
        largest = max(one.error for one in self.found)
        return GenerationComparison(
            prompts, len(self.found), batch, largest, tolerance, len(others), ties, first, target
        )


def _spread(scores: Array) -> float:
    finite = scores[np.isfinite(scores)]
    return max(float(np.std(finite)), 1e-12) if finite.size else 1e-12


def _difference(wanted: Array, got: Array, spread: float | None = None) -> float:
    """The largest difference over the spread of scores; infinite if some are no numbers, but for equal infinite ones."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(wanted == got, 0.0, np.abs(got.astype(np.float64) - wanted))
    largest = float(np.where(np.isnan(apart), np.inf, apart).max()) if apart.size else np.inf
    return largest / (_spread(wanted) if spread is None else spread)


def compare_generations(
    loop: Callable[[], Loop],
    noisy: Callable[[], Loop],
    generator: Stepping,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    fixed: Mapping[str, Array] | None = None,
    one_at_a_time: bool = False,
    in_one_batch: bool = False,
    target: str = "",
) -> GenerationComparison:
    """Generate after each prompt with both, greedily, and compare all steps.

    Args:
        loop: Starts the decoder in a plain loop.
        noisy: The same, without the runtime's optimisations.
        generator: The generator.
        prompts: Prompts, each a batch of its own.
        new_tokens: The number of steps after the prompt.
        fixed: The inputs that stay the same in all steps.
        one_at_a_time: Whether a run of the decoder takes one token only.
        in_one_batch: Whether the first prompts are compared as one batch, too, over the first steps.
        target: The name of the target that runs the generator.
    """
    tally, kept = _Tally(), list[list[Array]]()
    for number, prompt in enumerate(prompts):
        one, disturbed = loop(), noisy()
        wanted = _scores(one, prompt, fixed, one_at_a_time)
        rounded = _scores(disturbed, prompt, fixed, one_at_a_time)
        got = generator.prompt([prompt], fixed=fixed)[0]
        kept.append([])
        for step in range(new_tokens + 1):
            tally.disturb(wanted, rounded)
            tally.compare(f"prompt {number}, step {step}", wanted, got)
            if in_one_batch and number < MOST_IN_A_BATCH and step < STEPS_OF_A_BATCH:
                kept[-1].append(wanted)
            if step < new_tokens:
                token = np.array([[int(np.argmax(wanted))]])
                wanted = one.step(token, fixed)[0, -1]
                rounded = disturbed.step(token, fixed)[0, -1]
                got = generator.step(token, fixed=fixed)[0, -1]
    batch = prompts[:MOST_IN_A_BATCH] if in_one_batch else []
    if batch:
        _compare_batch(tally, generator, batch, kept)
    return tally.comparison(len(prompts), len(batch), target)


def _compare_batch(
    tally: _Tally, generator: Stepping, prompts: Sequence[Sequence[int]], kept: Sequence[Sequence[Array]]
) -> None:
    """Compare the generator's scores after several prompts at once with the decoder's after each."""
    got = generator.prompt(prompts)
    for step, rows in enumerate(zip(*kept[: len(prompts)], strict=True)):
        if step:
            got = generator.step(np.array([[int(np.argmax(row[step - 1]))] for row in kept[: len(prompts)]]))[:, -1]
        for number, wanted in enumerate(rows):
            tally.compare(f"prompt {number} in a batch of {len(prompts)}, step {step}", wanted, got[number])


def _scores(loop: Loop, prompt: Sequence[int], fixed: Mapping[str, Array] | None, one_at_a_time: bool) -> Array:
    pieces = [[token] for token in prompt] if one_at_a_time else [list(prompt)]
    scores: Array = np.zeros(0)
    for piece in pieces:
        scores = loop.step(np.array([piece]), fixed)[0, -1]
    return scores
