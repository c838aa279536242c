"""Decoders whose caches are laid out in other ways than keys and values of each layer, or keep the last tokens alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from cases.caching import filled
from drawing import Input
from exporting import Case
from torch import nn
from transformers import Cache, DynamicCache
from transformers.cache_utils import StaticLayer

LAYERS = 2
LENGTH = 64
"""How many tokens buffers of a fixed length hold."""

Tensors = tuple[torch.Tensor, ...]


class WindowedDecoder(nn.Module):
    """A decoder with the caches of its configuration: layers with a window keep its tokens but one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.config = model, model.config

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
        """Logits and the caches after the step."""
        cache = DynamicCache(config=self.config)
        pairs = ((past_key_0, past_value_0), (past_key_1, past_value_1))
        for layer, (key, value) in zip(cache.layers, pairs, strict=True):
            layer.lazy_initialization(key, value)
            layer.keys, layer.values = key, value
            if hasattr(
                layer, "cumulative_length"
            ):  # what is cut off is not counted: masks are those of the tokens kept
                layer.cumulative_length = key.shape[-2]
        out = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        found = {"logits": out.logits}
        for number, layer in enumerate(cache.layers):
            found |= {f"present_key_{number}": layer.keys, f"present_value_{number}": layer.values}
        return found


class StaticDecoder(nn.Module):
    """A decoder that writes into buffers of a fixed length, from a position on."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position: torch.Tensor,
        past_key_0: torch.Tensor,
        past_value_0: torch.Tensor,
        past_key_1: torch.Tensor,
        past_value_1: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        """Logits and the buffers after the step."""
        cache = Cache(layers=[StaticLayer(max_cache_len=LENGTH) for _ in range(LAYERS)])
        pairs = ((past_key_0, past_value_0), (past_key_1, past_value_1))
        for layer, (key, value) in zip(cache.layers, pairs, strict=True):
            layer.dtype, layer.device, layer.is_initialized = key.dtype, key.device, True
            layer.keys, layer.values, layer.cumulative_length = key.clone(), value.clone(), position[0].clone()
        out = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        found = {"logits": out.logits}
        for number, layer in enumerate(cache.layers):
            found |= {f"present_key_{number}": layer.keys, f"present_value_{number}": layer.values}
        return found


class StackedDecoder(nn.Module):
    """A decoder of two layers with one input for the caches, and one output."""

    def __init__(self, model: nn.Module, unpack: Callable[..., Tensors], pack: Callable[..., torch.Tensor]) -> None:
        """Take the functions that make keys and values [batch, heads, length, size] of the input, and the output of these."""
        super().__init__()
        self.model, self.config, self.unpack, self.pack = model, model.config, unpack, pack

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, past: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Logits and the cache after the step."""
        cache = filled(self.unpack(past))
        out = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
        return {"logits": out.logits, "present": self.pack(*tensors)}


class JoinedDecoder(StackedDecoder):
    """A decoder of two layers with one input for the caches of each, and one output."""

    def forward(  # type: ignore[override]
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, past_0: torch.Tensor, past_1: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Logits and the caches after the step."""
        cache = filled((*self.unpack(past_0), *self.unpack(past_1)))
        out = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        joined = [self.pack(layer.keys, layer.values) for layer in cache.layers]
        return {"logits": out.logits, "present_0": joined[0], "present_1": joined[1]}


class MovedDecoder(StackedDecoder):
    """A decoder of two layers with keys and values in layouts of their own."""

    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        past_key_0: torch.Tensor,
        past_value_0: torch.Tensor,
        past_key_1: torch.Tensor,
        past_value_1: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        """Logits and the caches after the step."""
        batch = input_ids.shape[0]
        given = (past_key_0, past_value_0), (past_key_1, past_value_1)
        cache = filled([tensor for pair in given for tensor in self.unpack(batch, *pair)])
        out = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        found = {"logits": out.logits}
        for number, layer in enumerate(cache.layers):
            key, value = self.pack(layer.keys, layer.values)
            found |= {f"present_key_{number}": key, f"present_value_{number}": value}
        return found


def _stacked(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.stack(tensors[:2]), torch.stack(tensors[2:])])


def _unstacked(past: torch.Tensor) -> Tensors:
    return past[0, 0], past[0, 1], past[1, 0], past[1, 1]


def _unbound(past: torch.Tensor) -> Tensors:
    return tuple(one for layer in past.unbind(0) for one in layer.unbind(0))


def _joined_by_size(key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    both = torch.cat([key, value], dim=-1)
    return both.transpose(1, 2).flatten(2)


def _split_by_size(past: torch.Tensor) -> Tensors:
    return past.view(*past.shape[:2], 2, 32).transpose(1, 2).split(16, dim=-1)


def _joined_by_heads(key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.cat([key, value], dim=1)


def _split_by_heads(past: torch.Tensor) -> Tensors:
    return past.chunk(2, dim=1)


def _flattened(key: torch.Tensor, value: torch.Tensor) -> Tensors:
    return key.transpose(2, 3).flatten(0, 1), value.flatten(0, 1)


def _unflattened(batch: Any, key: torch.Tensor, value: torch.Tensor) -> Tensors:
    return key.view(batch, 4, 16, key.shape[2]).transpose(2, 3), value.view(batch, 4, value.shape[1], 16)


def _tokens_first(key: torch.Tensor, value: torch.Tensor) -> Tensors:
    return key.permute(2, 0, 1, 3), value.permute(2, 0, 1, 3)


def _tokens_third(_: Any, key: torch.Tensor, value: torch.Tensor) -> Tensors:
    return key.permute(1, 2, 0, 3), value.permute(1, 2, 0, 3)


def cases(
    made: Callable[..., nn.Module], windows: Mapping[str, Callable[[str], nn.Module]], inputs: Mapping[str, Input]
) -> tuple[Case, ...]:
    """The cases.

    Args:
        made: Builds a decoder with caches of [batch, 2, length, 16] by its kind of attention, or of four heads with `keys=4`.
        windows: Decoders of which layers have a window of 7 tokens: the first one, or both where the name ends in `_all`.
        inputs: Tokens, mask and positions by name.
    """
    given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    sizes = ({"batch": 2, "sequence": 4, "past": 13}, {"batch": 3, "sequence": 1, "past": 20})
    rows = ({**sizes[0], "rows": 8}, {**sizes[1], "rows": 12})
    kept = ({**sizes[0], "kept": 5}, {**sizes[1], "kept": 6})
    attentions, exporters = ("sdpa", "eager"), ("ts", "dynamo")

    def normal(*dims: str | int) -> Input:
        return Input(dims, "normal")

    def wrapped(kind: type[StackedDecoder], unpack: Any, pack: Any, keys: int = 2) -> Callable[[str], nn.Module]:
        return lambda attention: kind(made(attention, keys), unpack, pack)

    whole = {"past": normal(2, 2, "batch", 2, "past", 16)}
    by_size = {f"past_{layer}": normal("batch", "past", 64) for layer in range(LAYERS)}
    by_heads = {f"past_{layer}": normal("batch", 4, "past", 16) for layer in range(LAYERS)}
    flat = {
        f"past_{kind}_{layer}": normal("rows", 16, "past") if kind == "key" else normal("rows", "past", 16)
        for layer in range(LAYERS)
        for kind in ("key", "value")
    }
    first = {
        f"past_{kind}_{layer}": normal("past", "batch", 2, 16) for layer in range(LAYERS) for kind in ("key", "value")
    }
    made_of = {
        "llama_stacked": (wrapped(StackedDecoder, _unstacked, _stacked), whole, sizes),
        "llama_unbound": (wrapped(StackedDecoder, _unbound, _stacked), whole, sizes),
        "llama_by_size": (wrapped(JoinedDecoder, _split_by_size, _joined_by_size), by_size, sizes),
        "llama_by_heads": (wrapped(JoinedDecoder, _split_by_heads, _joined_by_heads), by_heads, sizes),
        "llama_flat": (wrapped(MovedDecoder, _unflattened, _flattened, 4), flat, rows),
        "llama_tokens_first": (wrapped(MovedDecoder, _tokens_third, _tokens_first), first, sizes),
    }
    found = [
        Case(name, model, given | caches, measured, attentions, exporters)
        for name, (model, caches, measured) in made_of.items()
    ]
    buffers = {
        f"past_{kind}_{layer}": normal("batch", 2, LENGTH, 16) for layer in range(LAYERS) for kind in ("key", "value")
    }
    places = {"attention_mask": Input(("batch", LENGTH), "mask"), "position": Input((1,), "tokens", high=40)}
    found.append(
        Case(
            "llama_static",
            lambda attention: StaticDecoder(made(attention, 2)),
            {"input_ids": inputs["input_ids"]} | places | buffers,
            tuple({name: size for name, size in one.items() if name != "past"} for one in sizes),
            attentions,
            exporters,
        )
    )
    for name, model in windows.items():
        lengths = ("kept", "kept" if name.endswith("_all") else "past")
        caches = {
            f"past_{kind}_{layer}": normal("batch", 2, length, 16)
            for layer, length in enumerate(lengths)
            for kind in ("key", "value")
        }
        kinds = ("eager",) if name.startswith(("gemma2", "gpt_oss")) else attentions
        found.append(Case(f"{name}_cut", model, dict(inputs) | caches, kept, kinds, exporters))
    return tuple(found)
