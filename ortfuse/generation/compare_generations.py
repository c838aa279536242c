"""Compare whole generations: a decoder in a plain loop, and the generator that was made of it.

Both are given the same tokens, those that the decoder takes by greedy decoding, so that one near tie does not make all that
follows differ. At each step the scores must agree within a tolerance, and the best token must be the same unless the decoder's
own first two are closer than its scores are sensitive.
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
        largest_error: The largest difference of scores over their spread at the step.
        tolerance: What is allowed.
        other_tokens: At how many steps the best token is another one, though it was no near tie.
        near_ties: At how many steps it is another one, and the decoder's first two were as close as its own noise.
        first: Where the first other token or too large difference is, in words; "" if there is none.
    """

    prompts: int
    steps: int
    largest_error: float
    tolerance: float
    other_tokens: int
    near_ties: int
    first: str

    @property
    @derived()
    def equal(self) -> bool:
        """Whether each step gives the same token, near ties apart, and scores within the tolerance."""
        return self.other_tokens == 0 and self.largest_error <= self.tolerance


def compare_generations(
    loop: Callable[[], Loop],
    noisy: Callable[[], Loop],
    generator: Stepping,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    fixed: Mapping[str, Array] | None = None,
    one_at_a_time: bool = False,
) -> GenerationComparison:
    """Compare the generations that follow prompts.

    Args:
        loop: Starts the decoder anew.
        noisy: Starts the decoder anew with other rounding, as without the runtime's optimisations: what differs is noise.
        generator: The generator.
        prompts: Token ids of each prompt; each is a batch of its own.
        new_tokens: The number of steps after the prompt.
        fixed: The inputs that stay the same in all steps.
        one_at_a_time: Whether a run takes one token only.
    """
    steps = other = ties = 0
    largest = noise = 0.0
    first = ""
    for number, prompt in enumerate(prompts):
        one, disturbed = loop(), noisy()
        wanted = _scores(one, prompt, fixed, one_at_a_time)
        rounded = _scores(disturbed, prompt, fixed, one_at_a_time)
        got = generator.prompt([prompt], fixed=fixed)[0]
        for step in range(new_tokens + 1):
            steps += 1
            spread = max(float(np.std(wanted)), 1e-12)
            noise = max(noise, float(np.abs(rounded - wanted).max()) / spread)
            error = float(np.abs(got - wanted).max()) / spread if np.isfinite(got).all() else float("inf")
            largest = max(largest, error)
            best = int(np.argmax(wanted))
            chosen = int(np.argmax(got))
            problem = ""
            if chosen != best:
                gap = float(wanted[best] - wanted[chosen]) / spread
                if gap <= 4 * max(noise, 1e-6):
                    ties += 1
                else:
                    other += 1
                    problem = f"token {chosen} instead of {best}"
            if error > max(TOLERANCE, 10 * noise):
                problem = problem or f"scores that differ by {error:.2g} of their spread"
            if problem and not first:
                first = f"prompt {number}, step {step}: {problem}"
            if step < new_tokens:
                token = np.array([[best]])
                wanted = one.step(token, fixed)[0, -1]
                rounded = disturbed.step(token, fixed)[0, -1]
                got = generator.step(token, fixed=fixed)[0, -1]
    return GenerationComparison(len(prompts), steps, largest, max(TOLERANCE, 10 * noise), other, ties, first)


def _scores(loop: Loop, prompt: Sequence[int], fixed: Mapping[str, Array] | None, one_at_a_time: bool) -> Array:
    pieces = [[token] for token in prompt] if one_at_a_time else [list(prompt)]
    scores: Array = np.zeros(0)
    for piece in pieces:
        scores = loop.step(np.array([piece]), fixed)[0, -1]
    return scores
