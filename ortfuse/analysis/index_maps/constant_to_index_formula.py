"""Constant integers as formulas of their position: evenly rising along each axis, also in mixed radix, or in a few runs.

[0, 4, 1, 5, 2, 6]         =   4*(i mod 2) + i // 2
[2, 0, 1]                  =   2 if i < 1 else i - 1
[[0, 3], [1, 3], [2, 3]]   =   i if j < 1 else 3        lists of indices
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.index_maps.box import axis
from ortfuse.analysis.index_maps.element_expressions import Element, Number, Select, fill_of
from ortfuse.ir.dims import DimLike, floor_div, product

MOST_RUNS = 6
"""The most runs of evenly rising numbers that a list of constants may consist of."""

Array = np.ndarray[Any, Any]


def element_of_array(array: Array, dtype: ir.DataType) -> Element | None:
    """Return the element of a constant at each position; `None` if its elements follow no simple rule."""
    if not array.size or array.dtype.kind in "OSUc":
        return None
    first = array.reshape(-1)[0]
    content = np.ascontiguousarray(array).view(np.uint8).reshape(array.size, -1)
    if bool((content == content[0]).all()):
        return fill_of(dtype, first)
    if array.dtype.kind not in "iub":
        return None
    numbers = array.astype(object) if array.dtype == np.uint64 else array.astype(np.int64)
    return _of_sum(numbers) or _of_columns(numbers)


def element_of_integers(numbers: Sequence[DimLike], shape: Sequence[DimLike]) -> Element | None:
    """Return the element of a tensor of known integers, some of them sizes, at each position; `None` if there are many."""
    if len(set(numbers)) == 1:
        return Number(numbers[0])
    step = numbers[1] - numbers[0]
    place = _flat(shape)
    if isinstance(step, int) and all(after - before == step for before, after in pairwise(numbers)):
        return Number(numbers[0] + step * place)
    if len(numbers) > MOST_RUNS:
        return None
    return _chosen([(count, Number(number)) for count, number in enumerate(numbers)], place)


def _flat(shape: Sequence[DimLike]) -> DimLike:
    """The number of a position in row-major order."""
    found: DimLike = 0
    for number in range(len(shape)):
        found = found + axis(number) * product(shape[number + 1 :])
    return found


def _of_sum(array: Array) -> Element | None:
    """The element if it is a sum of functions of one axis each."""
    first = int(array.reshape(-1)[0])
    lines = []
    counted: Any = first
    for number in range(array.ndim):
        index: list[Any] = [0] * array.ndim
        index[number] = slice(None)
        line = array[tuple(index)] - first
        lines.append((number, [int(one) for one in line]))
        counted = counted + line.reshape(-1, *(1,) * (array.ndim - number - 1))
    if not np.array_equal(array, np.broadcast_to(counted, array.shape)):
        return None
    total: DimLike = first
    chosen: Element | None = None
    for number, numbers in lines:
        formula = _mixed_radix(numbers, axis(number))
        if formula is not None:
            total = total + formula
        elif chosen is None:
            chosen = _in_runs(numbers, axis(number))
            if chosen is None:
                return None
        else:
            return None
    return Number(total) if chosen is None else _plus(chosen, total)


def _of_columns(array: Array) -> Element | None:
    """The element if it is a function of its own in each place of the last axis, of which there are few."""
    if array.ndim < 2 or not 1 < array.shape[-1] <= MOST_RUNS:
        return None
    found = [
        (place, element) for place in range(array.shape[-1]) if (element := _of_sum(array[..., place])) is not None
    ]
    return _chosen(found, axis(array.ndim - 1)) if len(found) == array.shape[-1] else None


def _plus(element: Element, number: DimLike) -> Element:
    if isinstance(element, Select):
        return Select(element.condition, _plus(element.then, number), _plus(element.otherwise, number))
    assert isinstance(element, Number)
    return Number(element.formula + number)


def _mixed_radix(numbers: list[int], place: DimLike) -> DimLike | None:
    """A formula of the place in a list that begins with 0; `None` if they rise unevenly."""
    if len(numbers) < 2:
        return 0
    step, run = numbers[1], 1
    while run < len(numbers) and numbers[run] == step * run:
        run += 1
    if run == len(numbers):
        return step * place
    if len(numbers) % run:
        return None
    blocks = [numbers[start : start + run] for start in range(0, len(numbers), run)]
    if any(number - block[0] != step * within for block in blocks for within, number in enumerate(block)):
        return None
    outer = floor_div(place, run)
    rest = _mixed_radix([block[0] for block in blocks], outer)
    return None if rest is None else step * (place - run * outer) + rest


def _in_runs(numbers: list[int], place: DimLike) -> Element | None:
    """A choice between a few runs."""
    runs: list[tuple[int, Element]] = []
    start = 0
    while start < len(numbers):
        end, step = start + 1, 0
        if end < len(numbers):
            step = numbers[end] - numbers[start]
            while end < len(numbers) and numbers[end] - numbers[end - 1] == step:
                end += 1
            if end - start == 2 and end < len(numbers):  # two numbers of which the second may begin the next run
                end, step = start + 1, 0
        runs.append((start, Number(numbers[start] + step * (place - start))))
        if len(runs) > MOST_RUNS:
            return None
        start = end
    return _chosen(runs, place)


def _chosen(runs: list[tuple[int, Element]], place: DimLike) -> Element:
    """The element of the run in which a place is."""
    found = runs[-1][1]
    for (_, element), (end, _) in reversed(list(pairwise(runs))):
        found = Select(end - 1 - place, element, found)
    return found
