"""Decoders whose key/value cache goes in and comes out as plain tensors, as a generating runtime needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from drawing import Input
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache

LAYERS = 2


def cache_inputs(prefix: str, heads: int, length: str | int, width: int, layers: int = LAYERS) -> dict[str, Input]:
    """Keys and values of all layers, (batch, heads, length, width) each."""
    spec = Input(("batch", heads, length, width), "normal")
    return {f"{prefix}_{kind}_{layer}": spec for layer in range(layers) for kind in ("key", "value")}


def filled(tensors: Sequence[torch.Tensor]) -> DynamicCache:
    """A cache that holds the tensors, in the order of ``cache_inputs``.

    The tensors are put in their places: ``update`` would concatenate them with empty ones, which an export shows.
    """
    cache = DynamicCache([(key[..., :0, :], value[..., :0, :]) for key, value in _pairs(tensors)])
    for layer, (key, value) in zip(cache.layers, _pairs(tensors), strict=True):
        layer.keys, layer.values = key, value
    return cache


def presents(cache: DynamicCache) -> dict[str, torch.Tensor]:
    """The tensors of a cache by output name."""
    named: dict[str, torch.Tensor] = {}
    for index, layer in enumerate(cache.layers):
        named |= {f"present_key_{index}": layer.keys, f"present_value_{index}": layer.values}
    return named


def _pairs(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))


class CachedDecoder(nn.Module):
    """A causal language model of two layers; positions follow from the past's length."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        past_key_0: torch.Tensor,
        past_value_0: torch.Tensor,
        past_key_1: torch.Tensor,
        past_value_1: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        """Logits and the grown cache; the mask covers past and present."""
        past = (past_key_0, past_value_0, past_key_1, past_value_1)
        return self.step(past, input_ids=input_ids, attention_mask=attention_mask)

    def step(self, past: Sequence[torch.Tensor], **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Run the model on the inputs and the past."""
        cache = filled(past)
        out = self.model(**inputs, past_key_values=cache, use_cache=True)
        return {"logits": out.logits, **presents(out.past_key_values)}


class PositionedDecoder(CachedDecoder):
    """A causal language model of two layers that is told its positions."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        past_key_0: torch.Tensor,
        past_value_0: torch.Tensor,
        past_key_1: torch.Tensor,
        past_value_1: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        """Logits and the grown cache; the mask covers past and present."""
        past = (past_key_0, past_value_0, past_key_1, past_value_1)
        return self.step(past, input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids)


class CrossDecoder(nn.Module):
    """An encoder-decoder model's decoder of two layers, for the steps after the first.

    The keys and values of the encoder's states come from their cache. The states themselves are not an input: the
    decoder only asks how long they are, and is shown a tensor of the same length.
    """

    def __init__(self, model: nn.Module, decoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.decoder, self.head, self.config = decoder, head, model.config

    def step(
        self, past: Sequence[torch.Tensor], cross: Sequence[torch.Tensor], **inputs: Any
    ) -> dict[str, torch.Tensor]:
        """Run the decoder on the inputs, its own past and the encoder's keys and values."""
        cache = EncoderDecoderCache(filled(past), filled(cross))
        stand_in = cross[0].transpose(1, 2).flatten(2)
        out = self.decoder(**inputs, encoder_hidden_states=stand_in, past_key_values=cache, use_cache=True)
        logits = self.head(out.last_hidden_state)
        return {"logits": logits, **presents(out.past_key_values.self_attention_cache)}


class UnmaskedCrossDecoder(CrossDecoder):
    """Whisper's: neither its tokens nor the encoder's frames are ever padded."""

    def forward(
        self,
        input_ids: torch.Tensor,
        past_key_0: torch.Tensor,
        past_value_0: torch.Tensor,
        past_key_1: torch.Tensor,
        past_value_1: torch.Tensor,
        cross_key_0: torch.Tensor,
        cross_value_0: torch.Tensor,
        cross_key_1: torch.Tensor,
        cross_value_1: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        """Logits and the grown self-attention cache."""
        past = (past_key_0, past_value_0, past_key_1, past_value_1)
        cross = (cross_key_0, cross_value_0, cross_key_1, cross_value_1)
        return self.step(past, cross, input_ids=input_ids)


class MaskedCrossDecoder(CrossDecoder):
    """T5's: the encoder's tokens are padded."""

    def forward(
        self,
        input_ids: torch.Tensor,
        encoder_attention_mask: torch.Tensor,
        past_key_0: torch.Tensor,
        past_value_0: torch.Tensor,
        past_key_1: torch.Tensor,
        past_value_1: torch.Tensor,
        cross_key_0: torch.Tensor,
        cross_value_0: torch.Tensor,
        cross_key_1: torch.Tensor,
        cross_value_1: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        """Logits and the grown self-attention cache."""
        past = (past_key_0, past_value_0, past_key_1, past_value_1)
        cross = (cross_key_0, cross_value_0, cross_key_1, cross_value_1)
        return self.step(past, cross, input_ids=input_ids, encoder_attention_mask=encoder_attention_mask)
