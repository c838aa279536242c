"""Masks of padded batches with a given share of visible tokens, and the lengths of their sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.errors import VerificationError
from ortfuse.runtime.inputs.input_roles import Use
from ortfuse.runtime.inputs.random_inputs import MASK_FILLER, Inputs, input_specs
from ortfuse.runtime.unrepresentable_models import Runnable, signature_of

_RANK = 2

SPREAD = 0.5
"""Lengths differ from their mean by up to this share of it."""


def lengths(batch: int, longest: int, fill: float, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Draw lengths whose sum is the share `fill` of all tokens, as nearly as each is from 1 to the longest.

    Args:
        batch: The number of sequences.
        longest: The length of the padded batch.
        fill: The share of visible tokens, from 0 to 1.
        rng: The generator.

    Returns:
        int64 of shape [batch].
    """
    least = min(1, longest)
    drawn = fill * longest * rng.uniform(1 - SPREAD, 1 + SPREAD, batch)
    found = np.clip(np.rint(drawn), least, longest).astype(np.int64)
    left = round(fill * longest * batch) - int(found.sum())
    while left:
        step = 1 if left > 0 else -1
        free = np.flatnonzero(found < longest if step > 0 else found > least)
        if not free.size:
            break
        chosen = rng.permutation(free)[: abs(left)]
        found[chosen] += step
        left -= step * chosen.size
    return found


def with_fill(model: Runnable, inputs: Inputs, fill: float, seed: int) -> Inputs:
    """Return inputs whose masks of shape [batch, sequence] show a share of the tokens, the first ones of each sequence.

    Axes of size 1 may be between the two. Masks that are added to scores are 0 at these tokens, and `MASK_FILLER` at others.

    Args:
        model: The model, whose graph says which inputs are masks.
        inputs: The inputs.
        fill: The share of visible tokens.
        seed: The seed of the lengths.

    Raises:
        VerificationError: No input is such a mask.
    """
    made = dict(inputs)
    for spec in input_specs(signature_of(model)):
        mask = spec.role.mask
        shape: tuple[int, ...] = made[spec.name].shape if spec.name in made else ()
        if mask is None or len(shape) < _RANK or any(size != 1 for size in shape[1:-1]):
            continue
        batch, longest = shape[0], shape[-1]
        shown = np.arange(longest) < lengths(batch, longest, fill, np.random.default_rng(seed))[:, None]
        numbers = np.where(shown, 0.0, MASK_FILLER) if mask is Use.BIAS else shown != (mask is Use.HIDE)
        made[spec.name] = numbers.astype(made[spec.name].dtype).reshape(shape)
    if all(made[name] is array for name, array in inputs.items()):
        raise VerificationError(
            "no input is a mask of shape [batch, sequence] or [batch, 1, 1, sequence], of which --fill could show a share"
        )
    return made
