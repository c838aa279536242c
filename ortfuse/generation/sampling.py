"""The choice of the next token from its scores: the best one, or one drawn among the likely ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ortfuse.errors import GenerationError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        temperature: Scores are divided by it; 0 takes the best token.
        top_k: Only so many of the best tokens are drawn; 0 for all.
        top_p: Only the fewest tokens that together have this probability are drawn; 1 for all.
        seed: The seed of the generator of random numbers; `None` for another one each time.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        is_whole = isinstance(self.top_k, int | np.integer)
        if not 0 <= self.temperature < np.inf or not is_whole or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise GenerationError(
                f"temperature={self.temperature}, top_k={self.top_k}, top_p={self.top_p}: the temperature is a number of at "
                "least 0, top_k a whole number of at least 0, top_p is above 0 and at most 1"
            )


class Chooser:
    """Chooses a token for each sequence of a batch."""

    def __init__(self, sampling: Sampling | None) -> None:
        """Take how to choose; `None` for the best token (greedy decoding)."""
        self._sampling = sampling
        self._random = np.random.default_rng(None if sampling is None else sampling.seed)

    def choose(self, scores: Array) -> Array:
        """Tokens [batch], of scores [batch, vocabulary].

        Raises:
            GenerationError: A score is no number.
        """
        sampling = self._sampling
        if np.isnan(scores).any():
            raise GenerationError("the model gives scores that are no numbers (NaN), so that no token is the best one")
        if sampling is None or sampling.temperature == 0:
            return np.asarray(np.argmax(scores, axis=-1))
        return np.array([self._draw(row.astype(np.float64), sampling) for row in scores])

    def _draw(self, scores: Array, sampling: Sampling) -> int:
        order = np.argsort(-scores, kind="stable")
        if sampling.top_k:
            order = order[: sampling.top_k]
        with np.errstate(over="ignore"):  # differences over a very low temperature are infinite, and their chances 0
            chances = np.exp((scores[order] - scores[order[0]]) / sampling.temperature)
        chances /= chances.sum()
        if sampling.top_p < 1:
            kept = int(np.searchsorted(np.cumsum(chances), sampling.top_p)) + 1
            order, chances = order[:kept], chances[:kept] / chances[:kept].sum()
        return int(self._random.choice(order, p=chances))
