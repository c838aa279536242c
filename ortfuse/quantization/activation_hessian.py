"""Accumulate second moments of MatMul inputs, the Hessian by which `ortfuse.quantization.gptq` rounds weights.

For a value x with K columns and means m:  H = E[(x - m) (x - m)'], a matrix of K x K numbers

Inputs are few, so the estimate from them is too certain. It shrinks towards a multiple of the identity, under which no row of
a weight compensates another. It shrinks more if it differs more from run to run (O. Ledoit, M. Wolf: A well-conditioned
estimator for large-dimensional covariance matrices, Journal of Multivariate Analysis 88, 2004):

    H <- (1 - r) H + r t I,   t = trace(H) / K,   r = min(1, sum |H_i - H|^2 / (n (n - 1)) / |H - t I|^2)

If nothing else, such as a bias, compensates the mean error of a product, m m' is added.

The matrices take memory. They are computed on request, together with those of the values behind it, and dropped for others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LONGEST = 6144
"""Values with more columns have none: a matrix of so many rows is inverted in seconds."""

HELD_BYTES = 512 << 20
"""How many bytes of matrices are kept at a time, and of their inverses."""

DAMPING = 1e-3
"""The share of t that is added to the diagonal besides, so that the matrix can be inverted in any case."""

UNSURE = 0.9
"""From this r on, too little is known: weights are rounded as if there were no inputs."""

FEWEST_RUNS = 2
"""With fewer runs nothing is known of how they differ."""

Runs = Callable[[Collection[str]], Iterator[tuple[str, Array]]]
"""Return the values with these names in each run, with their names."""


@dataclass(frozen=True)
class Factor:
    """The inverse of H for columns in the order in which rows of a weight are rounded, as U'U.

    Attributes:
        order: The columns, those with the largest second moments first.
        upper: The upper triangular matrix U.
    """

    order: Array
    upper: Array


@dataclass(frozen=True, eq=False)
class Moments:
    """The second moments of one value; equal to itself only."""

    name: str
    _of: SecondMoments

    def factor(self, *, about_zero: bool = False) -> Factor | None:
        """The inverse of the second moments about the means, or about 0; `None` if too little is known."""
        return self._of.factor(self.name, about_zero=about_zero)


class SecondMoments:
    """The second moments of the values of a model, each made when it is asked for.

    Args:
        names: The names of the values, in the order in which they are likely to be asked for.
        means: The mean of each column of a value; `None` if it is not known.
        runs: Runs the model.
    """

    def __init__(self, names: Sequence[str], means: Callable[[str], Sequence[float] | None], runs: Runs) -> None:
        self._names, self._means, self._runs = tuple(dict.fromkeys(names)), means, runs
        self._known: dict[str, Moments] = {}
        self._sums: dict[str, _Sum] = {}
        self._factors: OrderedDict[tuple[str, bool], Factor | None] = OrderedDict()

    def of(self, name: str) -> Moments | None:
        """The second moments of a value; `None` if they cannot be known."""
        if name not in self._known and name in self._names and self._length(name) is not None:
            self._known[name] = Moments(name, self)
        return self._known.get(name)

    def factor(self, name: str, *, about_zero: bool = False) -> Factor | None:
        """The inverse for a value; `None` if too little is known."""
        key = name, about_zero
        if key not in self._factors:
            if name not in self._sums:
                self._gather(name)
            self._factors[key] = self._sums[name].factor(about_zero=about_zero)
        self._factors.move_to_end(key)
        while len(self._factors) > 1 and sum(map(_bytes, self._factors.values())) > HELD_BYTES:
            self._factors.popitem(last=False)
        return self._factors[key]

    def _length(self, name: str) -> int | None:
        means = self._means(name)
        return None if means is None or len(means) > LONGEST else len(means)

    def _gather(self, first: str) -> None:
        """Run the model for a value and those behind it, as many as there is memory for."""
        self._sums, taken = {}, 0
        for name in self._names[self._names.index(first) :]:
            length = self._length(name)
            if length is None:
                continue
            taken += 4 * length * length
            if self._sums and taken > HELD_BYTES:
                break
            self._sums[name] = _Sum(np.asarray(self._means(name), np.float32))
        for name, array in self._runs(tuple(self._sums)):
            self._sums[name].add(array)


def _bytes(factor: Factor | None) -> int:
    return 0 if factor is None else factor.upper.nbytes


class _Sum:
    """The matrices of single runs, added up, and the sum of their squares."""

    def __init__(self, means: Array) -> None:
        self._means, self._runs, self._squares = means, 0, 0.0
        self._total = np.zeros((len(means), len(means)), np.float32)

    def add(self, array: Array) -> None:
        """Count the columns of what a value was in one run."""
        rows = array.reshape(-1, array.shape[-1]) - self._means
        if not rows.size:
            return
        found = (rows.T @ rows) / np.float32(len(rows))
        self._total += found
        self._squares += _square(found)
        self._runs += 1

    def factor(self, *, about_zero: bool) -> Factor | None:
        """The inverse of the mean; `None` if too little is known."""
        count, length = self._runs, len(self._means)
        if count < FEWEST_RUNS:
            return None
        mean = self._total / np.float32(count)
        size = float(np.trace(mean, dtype=np.float64)) / length
        apart = _square(mean) - length * size**2
        doubt = max(self._squares - count * _square(mean), 0.0) / (count * (count - 1))
        if not (np.isfinite(self._squares) and size > 0 and doubt < UNSURE * apart):
            return None
        share = doubt / apart
        matrix = (1 - share) * mean.astype(np.float64)
        matrix[np.diag_indices(length)] += (share + DAMPING) * size
        if about_zero:
            matrix += np.outer(self._means, self._means)
        order = np.argsort(-np.diag(matrix), kind="stable")
        try:
            # H = V V' with V upper triangular, as the Cholesky factor of H from its end to its beginning has it; U = 1 / V.
            lower = _inverse(np.linalg.cholesky(matrix[np.ix_(order[::-1], order[::-1])]))
        except np.linalg.LinAlgError:
            return None
        return Factor(order, np.ascontiguousarray(lower[::-1, ::-1].astype(np.float32)))


def _inverse(lower: Array) -> Array:
    """The inverse of a lower triangular matrix, by halves: a third of what one that is full takes."""
    size = len(lower)
    if size <= _SMALL:
        return np.linalg.inv(lower)
    half, made = size // 2, np.zeros_like(lower)
    first, last = made[:half, :half], made[half:, half:]
    first[:], last[:] = _inverse(lower[:half, :half]), _inverse(lower[half:, half:])
    made[half:, :half] = -last @ (lower[half:, :half] @ first)
    return made


_SMALL = 128
"""So few rows are inverted at once."""


def _square(matrix: Array) -> float:
    """The sum of the squares of all numbers."""
    flat = matrix.ravel()
    return float(np.dot(flat, flat))
