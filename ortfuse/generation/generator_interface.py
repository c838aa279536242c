"""Inputs and outputs of a generator, as its metadata states them: `ortfuse.Generator` and others run it by these."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import onnx_ir as ir

from ortfuse.errors import GenerationError
from ortfuse.serialization import Record

METADATA = "ortfuse_generator"
"""The key of the interface among the metadata of a model."""

ROWS_APART = (
    "prompts are computed apart by generators of several lengths without growing caches, states or other inputs"
)
"""Which generators compute the prompts of a batch one after the other."""

TOKENS, EMBEDDINGS, MASK, LOGITS = "input_ids", "inputs_embeds", "attention_mask", "logits"


@dataclass(frozen=True)
class CacheBuffer(Record):
    """Keys or values of one layer.

    Attributes:
        past: The input.
        present: The output.
        layer: The number of the layer, from 0.
        kind: `key` or `value`.
        shape: The sizes of the buffer: -1 for the batch, and the greatest length on axis `axis`.
        axis: The axis of the length.
        dtype: The element type, such as `float32`.
        in_place: Whether past and present are one buffer of the greatest length. Otherwise the output is longer than the
            input by the new tokens.
    """

    past: str
    present: str
    layer: int
    kind: Literal["key", "value"]
    shape: tuple[int, ...]
    axis: int
    dtype: str
    in_place: bool


@dataclass(frozen=True)
class StateBuffer(Record):
    """A state of constant size that a step hands to the next one; it starts with zeros.

    Attributes:
        before: The input.
        after: The output.
        shape: The sizes, with -1 for the batch.
        dtype: The element type.
    """

    before: str
    after: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class GeneratorInterface(Record):
    """The inputs and outputs of a generator.

    Each run takes the new tokens and a mask of as many columns as there are tokens after it, 1 for those of the sequence.
    A prompt may be padded on the right; afterwards each sequence goes on behind its own tokens.

    Attributes:
        tokens: Input, int64 or int32 [batch, new tokens], or embeddings [batch, new tokens, `embedding`].
        mask: Input, int64 [batch, past and new tokens].
        caches: Keys and values.
        states: States of constant size.
        fixed: Inputs that stay the same in all steps.
        once: Inputs of the model that runs once for each prompt, and gives others of `fixed`; empty if there is none.
        logits: Output, [batch, new tokens, vocabulary], or [batch, 1, vocabulary] with `last_logits`.
        vocabulary: The number of tokens that there are; 0 if it is not known.
        max_length: The greatest number of tokens in a sequence, of the prompt and generated.
        last_logits: Whether only the scores after the last token of each sequence are handed out.
        mixed_lengths: Whether prompts of several lengths may be in one batch.
        longest_run: The most new tokens of a run, so that a longer prompt is given in pieces; 0 for any number.
        embedding: The size of the embedding of a token; 0 if `tokens` are ids.
        shared_prefix: Whether the first tokens that all prompts of a batch have in common are computed once, unless a
            generation says otherwise.
    """

    tokens: str
    mask: str
    caches: tuple[CacheBuffer, ...]
    states: tuple[StateBuffer, ...]
    fixed: tuple[str, ...]
    logits: str
    vocabulary: int
    max_length: int
    last_logits: bool
    mixed_lengths: bool
    longest_run: int
    once: tuple[str, ...] = ()
    embedding: int = 0
    shared_prefix: bool = False

    @property
    def takes_rows_apart(self) -> bool:
        """Whether prompts of a batch can be computed one after the other: all that a prompt leaves behind is in buffers."""
        growing = any(not cache.in_place for cache in self.caches)
        return self.mixed_lengths and not (self.fixed or self.states or growing)


def write_interface(model: ir.Model, interface: GeneratorInterface) -> None:
    """State the interface in the metadata of a model."""
    model.metadata_props[METADATA] = json.dumps(interface.to_dict(), sort_keys=True)


def share_prefixes(model: ir.Model, interface: GeneratorInterface) -> GeneratorInterface:
    """Let prompts share their first tokens by default, and state it in the metadata of a model.

    Raises:
        GenerationError: Prompts cannot be computed one after the other.
    """
    if not interface.takes_rows_apart:
        raise GenerationError(f"{ROWS_APART}; leave --shared-prefix out")
    shared = replace(interface, shared_prefix=True)
    write_interface(model, shared)
    return shared


def interface_of(metadata: Mapping[str, str], source: str) -> GeneratorInterface:
    """The interface that the metadata of a model state.

    Raises:
        GenerationError: They state none, or not in a form that this release reads.
    """
    text = metadata.get(METADATA)
    if text is None:
        raise GenerationError(f"{source} is no generator of ortfuse; make one with `ortfuse generator MODEL -o FOLDER`")
    try:
        return _read(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        text = (
            f"its metadata {METADATA} are not those of this release ({error}); make the generator again of its decoder"
        )
        raise GenerationError(f"{source}: {text}") from error


def _read(data: dict[str, Any]) -> GeneratorInterface:
    caches = tuple(CacheBuffer(**{**one, "shape": tuple(one["shape"])}) for one in data.pop("caches"))
    states = tuple(StateBuffer(**{**one, "shape": tuple(one["shape"])}) for one in data.pop("states"))
    return GeneratorInterface(
        caches=caches, states=states, fixed=tuple(data.pop("fixed")), once=tuple(data.pop("once", ())), **data
    )
