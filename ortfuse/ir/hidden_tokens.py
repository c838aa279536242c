"""Read and note in a model's metadata which elements of its outputs belong to tokens that masks hide.

A model that runs without padding (`ortfuse.transforms.padding_free`) gives anything at hidden tokens. Who compares it with
another model has to know which elements those are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import onnx_ir as ir

KEY = "ortfuse.hidden_tokens"
"""The key of the metadata."""

HIDDEN_SCORE = -5000.0
"""The greatest score of a hidden key: next to a score of at least -1000, its weight is 0 in every float type."""

HIDING_BIAS = -9000.0
"""The greatest number that hides a key in a mask that is added: its sum with any ordinary score is a `HIDDEN_SCORE` or less."""

Axes = tuple[int | None, int]
"""The axis of the sequences (`None`: there is one sequence) and that of the positions."""


@dataclass(frozen=True)
class HiddenTokens:
    """The tokens of a model that one of its masks hides.

    Attributes:
        mask: The name of the mask, a value of shape [batch, sequence], which may have axes of size 1 between these.
        shows_zeros: Whether zeros of the mask are visible tokens; otherwise they are the hidden ones.
        is_added: Whether the mask is added to scores: numbers of at most `HIDDEN_SCORE` hide, whatever `shows_zeros`
            says.
        outputs: For each output with elements of hidden tokens, the axes of the tokens; several if one hidden token is enough.
        inputs: The inputs of floats, of shape [batch, sequence, ...], that may hold anything at hidden tokens.
    """

    mask: str
    shows_zeros: bool = False
    is_added: bool = False
    outputs: Mapping[str, tuple[Axes, ...]] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()

    @property
    def is_of(self) -> tuple[str, bool, bool]:
        """The mask, and how it is read."""
        return self.mask, self.shows_zeros, self.is_added


def note_hidden_tokens(model: ir.Model, found: HiddenTokens) -> None:
    """Add what is known of a mask to the metadata of a model: what other masks hide stays noted."""
    notes = {note.is_of: note for note in hidden_tokens(model)}
    known = notes.get(found.is_of)
    if known is not None:
        outputs = {
            name: tuple(dict.fromkeys([*known.outputs.get(name, ()), *found.outputs.get(name, ())]))
            for name in (*known.outputs, *found.outputs)
        }
        found = replace(known, outputs=outputs, inputs=tuple(dict.fromkeys([*known.inputs, *found.inputs])))
    notes[found.is_of] = found
    model.metadata_props[KEY] = json.dumps([asdict(note) for note in notes.values()])


def hidden_tokens(model: ir.Model) -> tuple[HiddenTokens, ...]:
    """Return what the metadata of a model says of hidden tokens, for each mask; nothing if it is damaged."""
    text = model.metadata_props.get(KEY)
    try:
        data: Any = [] if text is None else json.loads(text)
        # Metadata written before there could be several masks is that of one.
        return tuple(_of_mask(one) for one in (data if isinstance(data, list) else [data]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ()


def _of_mask(data: Any) -> HiddenTokens:
    outputs = {str(name): tuple(_axes(pair) for pair in pairs) for name, pairs in data["outputs"].items()}
    inputs = tuple(str(name) for name in data["inputs"])
    flags = (bool(data["shows_zeros"]), bool(data.get("is_added", False)))
    return HiddenTokens(str(data["mask"]), *flags, outputs, inputs)


def _axes(pair: Any) -> Axes:
    sequence, position = pair
    if not isinstance(position, int) or not isinstance(sequence, int | None):
        raise ValueError(pair)
    return sequence, position
