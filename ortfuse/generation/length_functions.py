"""The forms of positional values: masks as functions of distance, and rows as tables by position.

A mask is described by f(i - j), where i is the position of a query and j that of a key: hidden for i < j and beyond a
window, a bias of the distance otherwise (as in ALiBi and T5). A value with a row for each new token is described by the table
of all positions. Both are read off one step at the greatest length, and hold if they give the same for the other steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import GenerationError
from ortfuse.generation.cache_operands import Extra, Keys
from ortfuse.generation.positional_values import Evaluator, PositionalValues, Step
from ortfuse.ir.hidden_tokens import HIDING_BIAS

Array = np.ndarray[Any, Any]

_ELEMENTS = 1 << 26
"""How many elements of masks are compared in all, before lengths are sampled."""

AT_ONCE = 1 << 24
"""The most elements of one mask."""

_TOLERANCE = 4e-6
"""Difference of rows over their greatest magnitude: kernels compute the last elements of a vector by other instructions."""


_OTHER_SIZES = "its sizes are not those of new tokens and keys"


@dataclass(frozen=True)
class MaskForm:
    """The numbers that a mask adds to the score of the query at position i and the key at position j.

    Attributes:
        window: How many keys up to its own position a query sees; -1 for all.
        bias: [heads or 1, length] float32, what is added at each distance i - j; `None` for nothing.
        sink: [heads or 1] float32, the score of a key of zeros besides, with a value of zeros; `None` for none.
    """

    window: int = -1
    bias: Array | None = None
    sink: Array | None = None


@dataclass(frozen=True)
class RowForm:
    """A value with a row for each new token, which its position determines.

    Attributes:
        axis: The axis of the new tokens.
        shape: The shape of the value with -1 on that axis.
        table: [length, ...], the rows by position.
        counts: Whether the rows are the positions themselves.
    """

    axis: int
    shape: tuple[int, ...]
    table: Array
    counts: bool


def find_mask_forms(
    values: PositionalValues, columns: Mapping[ir.Value, Keys], max_length: int
) -> tuple[dict[ir.Value, MaskForm | str], bool]:
    """The form of each mask operand of an attention, or why it has none; and whether every length was looked at.

    Args:
        values: The positional values of the model.
        columns: Boolean masks or masks to add, which broadcast to [batch, heads, length, past + length], and the keys for which
            each has columns: all or the last ones, and a key of zeros. Keys without a column are hidden.
        max_length: The greatest number of tokens.

    Raises:
        GenerationError: The runtime cannot evaluate a mask.
    """
    masks = list(columns)
    if not masks:
        return {}, True
    evaluator = values.evaluator(masks)
    unlike = dict[ir.Value, str]()
    longest = next(evaluator.at([Step(max_length - 1, 1)]))
    forms: dict[ir.Value, MaskForm] = {}
    for value, array in zip(masks, longest, strict=True):
        last = Step(max_length - 1, 1)
        form = _form_of(_scores(array, last, columns[value].extra, values.seen(columns[value], last)), max_length)
        if isinstance(form, str):
            unlike[value] = form
        else:
            forms[value] = form
    heads = max(array.shape[-3] if array.ndim > 2 else 1 for array in longest)
    width = heads * len(masks)
    complete = max_length * max_length // 2 * width <= _ELEMENTS
    steps = steps_to_compare(
        values, max_length, int((AT_ONCE / width) ** 0.5), lambda n: n * n * width, complete=complete
    )
    for step, arrays in zip(steps, evaluator.at(steps), strict=True):
        for value, array in zip(masks, arrays, strict=True):
            if value in forms and value not in unlike:
                scores = _scores(array, step, columns[value].extra, values.seen(columns[value], step))
                problem = _difference(scores, step, forms[value])
                if problem:
                    unlike[value] = problem
    return {value: unlike.get(value) or forms[value] for value in masks}, complete


def steps_to_compare(
    values: PositionalValues, max_length: int, longest: int, size: Callable[[int], int], *, complete: bool
) -> list[Step]:
    """Steps to look at: of one token after each past, prompts, chunks, and batches.

    Args:
        values: The positional values of the model.
        max_length: The greatest number of tokens.
        longest: The greatest number of tokens of a prompt.
        size: How many elements the values have for a prompt of so many tokens. Lengths are a choice if these are too many in all.
        complete: Whether each past is looked at, not a choice.
    """
    steps = _possible_steps(max_length, longest, size, complete=complete)
    return [step for step in steps if step.length == 1] if values.takes_one_token else steps


def every_step(values: PositionalValues, evaluator: Evaluator, max_length: int) -> list[Step]:
    """Steps to look at for the values of an evaluator: of one token after every past, and the rest of `steps_to_compare`."""
    width = sum(array.size for array in next(evaluator.at([Step(0, 1)])))
    return steps_to_compare(values, max_length, max(1, AT_ONCE // width), lambda length: length * width, complete=True)


def _possible_steps(max_length: int, longest: int, size: Callable[[int], int], *, complete: bool) -> list[Step]:
    near = [*range(min(64, max_length)), max_length - 1]
    sample = sorted({*near, *np.linspace(0, max_length - 1, 64, dtype=int).tolist()})
    pasts = range(max_length) if complete else sample
    longest = min(max_length, longest)
    prompts: Sequence[int] = range(1, longest + 1)
    if sum(map(size, prompts)) > _ELEMENTS:
        powers = {1 << bits for bits in range(longest.bit_length())}
        several = {*range(1, 11), 100, longest, *(one + more for one in powers for more in (-1, 0, 1))}
        prompts = sorted(one for one in several if 0 < one <= longest)
    chunks = [
        Step(past, length)
        for past, length in ((1, 2), (3, 5), (16, 16), (31, 2), (63, 9), (max_length // 2, 3))
        if past + length <= max_length
    ]
    batches = [step for step in (Step(0, 4, 2), Step(5, 1, 2), Step(7, 3, 3)) if step.total <= max_length]
    return [Step(past, 1) for past in pasts] + [Step(0, n) for n in prompts] + chunks + batches


_Scores = tuple[Array | None, Array | None]


def _scores(array: Array, step: Step, extra: Extra, seen: int) -> _Scores:
    """A mask as what it adds, [batch, heads, length, total] with heads and batch broadcast, and its column for a key of zeros.

    Keys before the last `seen` ones are hidden. `None` for a value that does not broadcast to that.
    """
    if array.dtype == bool:
        array = np.where(array, np.float32(0), np.float32(-np.inf))
    array = array.astype(np.float32)
    array = array.reshape((1,) * (4 - array.ndim) + array.shape)
    wanted = (*array.shape[:2], step.length, seen + bool(extra))
    if any(size not in (1, other) for size, other in zip(array.shape, wanted, strict=True)):
        return None, None
    array = np.broadcast_to(array, wanted)
    column = None if not extra else array[..., 0] if extra == "first" else array[..., -1]
    array = array[..., 1:] if extra == "first" else array[..., :-1] if extra else array
    if seen < step.total:
        array = np.pad(array, [(0, 0)] * 3 + [(step.total - seen, 0)], constant_values=-np.inf)
    return array, column


def _form_of(found: _Scores, max_length: int) -> MaskForm | str:
    scores, column = found
    if scores is None:
        return _OTHER_SIZES
    sink = None if column is None else column[0, :, 0]
    if sink is not None and not np.isfinite(sink).all():
        return "the score of the key of zeros is no number"
    by_distance = scores[0, :, 0, ::-1]
    hidden = by_distance <= HIDING_BIAS
    if (hidden != hidden[:1]).any():
        return "the heads see different keys"
    visible = int(np.argmax(hidden[0])) if hidden[0].any() else max_length
    if visible == 0 or not hidden[0, visible:].all():
        return "the visible keys are no window that ends at the query"
    # A constant for all keys changes nothing, unless a sink stands beside them.
    bias = by_distance - (0 if sink is not None else by_distance[:, :1])
    bias[:, visible:] = 0
    added = bias if np.abs(bias).max() > 0 else None
    return MaskForm(-1 if visible == max_length else visible, added, sink)


def _difference(found: _Scores, step: Step, form: MaskForm) -> str:
    """Why a mask is not of a form in a step; "" if it is."""
    scores, column = found
    if scores is None:
        return _OTHER_SIZES
    distance = (step.past + np.arange(step.length))[:, None] - np.arange(step.total)[None, :]
    seen = distance >= 0
    if form.window >= 0:
        seen &= distance < form.window
    where = f"after {step.past} tokens, for {step.length} new ones"
    if ((scores > HIDING_BIAS) != seen).any():
        wanted = f"the {form.window} last ones" if form.window >= 0 else "that of the query and all before it"
        return f"{where}, other keys are visible than {wanted}"
    bias = np.zeros((1, 1), np.float32) if form.bias is None else form.bias
    expected = bias[:, np.clip(distance, 0, bias.shape[1] - 1)]
    left = np.where(seen, scores - expected, np.nan)
    scale = max(1.0, float(np.abs(bias).max()))
    if form.sink is not None:
        if column is None or (column != form.sink[:, None]).any():
            return f"{where}, the score of the key of zeros is another one"
        spread = np.nanmax(np.abs(left), axis=-1)
    else:
        spread = np.nanmax(left, axis=-1) - np.nanmin(left, axis=-1)
    return (
        ""
        if float(spread.max()) <= _TOLERANCE * scale
        else f"{where}, it adds something else than a function of distance"
    )


def find_row_forms(
    values: PositionalValues, rows: Sequence[ir.Value], max_length: int
) -> tuple[dict[ir.Value, RowForm | str], bool]:
    """The form of each value with a row for each new token, or why it has none; and whether every length was looked at.

    Raises:
        GenerationError: The runtime cannot evaluate a value.
    """
    found: dict[ir.Value, RowForm | str] = {}
    complete = True
    for value in rows:
        try:
            found[value], whole = _row_form(values, value, max_length)
            complete &= whole
        except GenerationError as error:
            found[value] = str(error)
    return found, complete


def _row_form(values: PositionalValues, value: ir.Value, max_length: int) -> tuple[RowForm | str, bool]:
    evaluator = values.evaluator([value])
    if values.takes_one_token:
        return _single_row_form(evaluator, max_length)
    few = min(5, max_length - 1)
    (small,), (larger,) = evaluator.at([Step(0, few), Step(0, few + 1)])
    axes = [axis for axis, (a, b) in enumerate(zip(small.shape, larger.shape, strict=False)) if a != b]
    if small.ndim != larger.ndim or len(axes) != 1 or small.shape[axes[0]] != few:
        return "it has no row for each new token", True
    axis = axes[0]
    if any(size != 1 for size in small.shape[:axis]):
        return "it has rows of something else before those of the tokens", True
    ((whole,),) = evaluator.at([Step(0, max_length)])
    table = whole.reshape(whole.shape[axis:])
    complete = table.size <= _ELEMENTS
    width = max(1, table[0].size)
    steps = steps_to_compare(values, max_length, AT_ONCE // width, lambda n: n * width, complete=complete)
    for step, (array,) in zip(steps, evaluator.at(steps), strict=True):
        expected = table[step.past : step.total]
        if array.ndim != small.ndim or array.shape[axis:] != expected.shape or not _close(array, expected):
            return (
                f"its rows after {step.past} tokens, for {step.length} new ones, are not those of their positions",
                complete,
            )
    counts = _counts(table)
    shape = (*small.shape[:axis], -1, *small.shape[axis + 1 :])
    return RowForm(axis, shape, table, counts), complete


def _single_row_form(evaluator: Evaluator, max_length: int) -> tuple[RowForm | str, bool]:
    """The same where a run takes one token: any of the first axes, which have one element each, may be that of the tokens."""
    arrays = [array for (array,) in evaluator.at([Step(past, 1) for past in range(max_length)])]
    shape = arrays[0].shape
    axis = next((axis for axis, size in enumerate(shape) if size != 1), len(shape)) - 1
    if axis < 0 or any(array.shape != shape for array in arrays):
        return "it has no row for each new token", True
    for step in (Step(0, 1, 2), Step(max_length - 1, 1, 3)):
        ((array,),) = evaluator.at([step])
        if array.shape[axis:] != shape[axis:] or not _close(array, arrays[step.past]):
            return "its rows are others for other sequences", True
    table = np.stack([array.reshape(shape[axis + 1 :]) for array in arrays])
    return RowForm(axis, (*shape[:axis], -1, *shape[axis + 1 :]), table, _counts(table)), True


def _counts(table: Array) -> bool:
    return table.ndim == 1 and table.dtype.kind == "i" and bool((table == np.arange(len(table))).all())


def _close(got: Array, expected: Array) -> bool:
    if got.dtype.kind != "f":
        return bool((got == expected).all())
    scale = float(np.abs(expected).max(initial=0))
    return bool((np.abs(got - expected) <= _TOLERANCE * scale).all())
