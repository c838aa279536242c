"""Search sizes of open dimensions by how far the model runs with them.

The message of a refusal names the node that failed. Sizes with which a later node fails satisfy more of the conditions: a number
of channels first, then a least length. So one size after the other is changed, and what gets further, or fails for another
reason, is gone on from.
"""

from __future__ import annotations

import heapq
import itertools
import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.ir import walk
from ortfuse.ir.dims import Dim, evaluate
from ortfuse.runtime.inputs.random_inputs import InputSpec, make_inputs
from ortfuse.runtime.inputs.sampling import EASIER
from ortfuse.runtime.inputs.sizes import GROWN, Sizes, obeys, open_dims
from ortfuse.runtime.session import Session

MOST_TRIES = 600
SECONDS = 20.0
"""The limits of a search."""

MOST_ELEMENTS = 1 << 24
"""The most elements that all inputs together may have in it."""

_COMMON = 40
"""How many of the sizes of weights are tried, the most frequent first."""

_SMALL = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 20, 24)
_MARK = "ortfuse.at."
_MARKED = re.compile(re.escape(_MARK) + r"(\d+)")
_NUMBER = re.compile(r"\d+")
_LIMIT = 10.0


def climb(model: ir.Model, specs: Sequence[InputSpec], start: Sizes, seed: int) -> Sizes | None:
    """Sizes with which a model runs; `None` if none were found.

    Args:
        model: The model.
        specs: Its inputs.
        start: The sizes to begin with, by symbol.
        seed: Seed of the numbers in the inputs.
    """
    if not start:
        return None
    try:
        session = Session(_marked(model), optimise=False, lean=True)
    except VerificationError:
        return None
    return _Climb(session, specs, seed, _values(model)).run(start)


class _Climb:
    def __init__(self, session: Session, specs: Sequence[InputSpec], seed: int, values: Sequence[int]) -> None:
        self._session, self._specs, self._seed, self._values = session, specs, seed, values
        self._dims = open_dims(specs)
        self._end = time.monotonic() + SECONDS
        self._tried: set[tuple[int, ...]] = set()
        self._reasons: set[str] = set()

    def run(self, start: Sizes) -> Sizes | None:
        order = itertools.count()
        failed = self._tried_with(start)
        if failed is None:
            return start
        waiting = [(-failed[0], next(order), start, failed[1])]
        while waiting:
            progress, _, sizes, reason = heapq.heappop(waiting)
            for candidate in self._neighbours(sizes, reason):
                if len(self._tried) >= MOST_TRIES or time.monotonic() > self._end:
                    return None
                found = self._tried_with(candidate)
                if found is None:
                    return candidate
                is_new = _without_numbers(found[1]) not in self._reasons
                if -found[0] < progress or (-found[0] == progress and is_new):
                    self._reasons.add(_without_numbers(found[1]))
                    heapq.heappush(waiting, (-found[0], next(order), candidate, found[1]))
                    if -found[0] < progress:
                        heapq.heappush(waiting, (progress, next(order), sizes, reason))
                        break  # whatever got further is gone on from first
        return None

    def _neighbours(self, sizes: Sizes, reason: str) -> Iterator[Sizes]:
        """Sizes with one of them changed, or all those that are equal; numbers in the reason come first."""
        named = [int(number) for number in _NUMBER.findall(_MARKED.sub("", reason)) if 0 < int(number) <= GROWN[-1]]
        groups: dict[int, list[str]] = {}
        for symbol, size in sizes.items():
            groups.setdefault(size, []).append(symbol)
        together = [symbols for symbols in groups.values() if len(symbols) > 1]
        for value in dict.fromkeys([*named, *self._values]):
            for symbols in [[symbol] for symbol in sizes] + together:
                changed = {**sizes, **dict.fromkeys(symbols, value)}
                if tuple(changed.values()) not in self._tried and self._is_possible(changed):
                    yield changed

    def _is_possible(self, sizes: Sizes) -> bool:
        if not obeys(self._dims, sizes):
            return False
        shapes = [[evaluate(dim, sizes) if isinstance(dim, Dim) else dim for dim in spec.shape] for spec in self._specs]
        return all(size > 0 for shape in shapes for size in shape) and sum(map(math.prod, shapes)) <= MOST_ELEMENTS

    def _tried_with(self, sizes: Sizes) -> tuple[int, str] | None:
        """The number of the node that fails, and why; `None` if the model runs."""
        self._tried.add(tuple(sizes.values()))
        drawings = {spec.name: EASIER[0] for spec in self._specs}
        try:
            self._session.run(make_inputs(self._specs, sizes, self._seed, drawings), limit=_LIMIT)
        except VerificationError as error:
            reason = str(error)
            marks = [int(number) for number in _MARKED.findall(reason)]
            return (max(marks, default=-1), reason)
        return None


def _marked(model: ir.Model) -> ir.Model:
    """A copy whose nodes are named by their order; those in bodies by that of the node that has the body."""
    copy = model.clone()
    for number, node in enumerate(copy.graph):
        for inner in (node, *walk.nested_nodes(node)):
            inner.name = f"{_MARK}{number}"
    return copy


def _values(model: ir.Model) -> list[int]:
    """Sizes that are worth trying: those of weights, small ones, and large ones."""
    counted: Counter[int] = Counter()
    for graph in walk.graphs(model):
        for value in graph.initializers.values():
            tensor: Any = value.const_value
            if tensor is not None:
                counted.update(size for size in tensor.shape.numpy() if 0 < size <= GROWN[-1])
    common = [size for size, _ in counted.most_common(_COMMON)]
    return list(dict.fromkeys([*common, *_SMALL, *GROWN]))


def _without_numbers(reason: str) -> str:
    return _NUMBER.sub("", reason)


def grown(sizes: Mapping[str, int], symbol: str) -> Iterator[Sizes]:
    """Sizes with a larger one for a symbol."""
    yield from ({**sizes, symbol: size} for size in (2, 3, 4))
