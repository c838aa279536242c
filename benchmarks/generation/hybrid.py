"""Decoders with states of constant size beside keys and values, such as the windows of convolutions and recurrent states."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from drawing import Input
from torch import nn
from transformers import DynamicCache

from benchmarks.exports.building import build

_PLAIN = ("input_ids", "attention_mask")


class _Hybrid(nn.Module):
    """A decoder whose inputs are the tensors of its cache by name: `conv_0`, `recurrent_0`, `past_key_1`, ..."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def step(self, plain: Mapping[str, torch.Tensor], held: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the model on the inputs and what its cache holds."""
        cache = DynamicCache(config=self.config)
        for name, tensor in held.items():
            layer, kind = _place(cache, name)
            layer.dtype, layer.device = tensor.dtype, tensor.device
            if kind in ("keys", "values"):
                setattr(layer, kind, tensor)
                layer.is_initialized = True
                continue
            getattr(layer, kind)[0] = tensor.clone()
            getattr(layer, f"is_{kind}_initialized")[0] = layer.has_previous_state[0] = True
            if kind == "conv_states":
                layer.conv_kernel_size[0] = tensor.shape[-1]
        out = self.model(**plain, past_key_values=cache, use_cache=True)
        found = {"logits": out.logits}
        for name in held:
            layer, kind = _place(out.past_key_values, name)
            tensor = getattr(layer, kind)
            found[f"new_{name}"] = tensor if kind in ("keys", "values") else tensor[0]
        return found


_KINDS = {"past_key": "keys", "past_value": "values", "conv": "conv_states", "recurrent": "recurrent_states"}


def _place(cache: DynamicCache, name: str) -> tuple[Any, str]:
    """The layer of a tensor, and which of its tensors it is."""
    kind, _, number = name.rpartition("_")
    return cache.layers[int(number)], _KINDS[kind]


def hybrid_inputs(layers: Sequence[Mapping[str, Sequence[int | str]]]) -> dict[str, Input]:
    """The tensors of a cache by name, for each layer those that it has: the sizes without the batch."""
    return {
        f"{kind}_{number}": Input(("batch", *sizes), "normal")
        for number, layer in enumerate(layers)
        for kind, sizes in layer.items()
    }


def hybrid(architecture: str, options: Mapping[str, Any], held: Sequence[str]) -> Callable[[str], nn.Module]:
    """The class of decoders with these tensors in their cache."""

    def made(attention: str) -> nn.Module:
        def forward(self: _Hybrid, **values: torch.Tensor) -> dict[str, torch.Tensor]:
            plain, tensors = ({name: values[name] for name in names} for names in (_PLAIN, held))
            return self.step(plain, tensors)

        keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
        named = [inspect.Parameter(name, keyword) for name in ("self", *_PLAIN, *held)]
        forward.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
        kind = type(f"{architecture}Hybrid", (_Hybrid,), {"forward": forward})
        model: nn.Module = kind(build(f"{architecture}ForCausalLM", f"{architecture}Config", options, attention))
        return model

    return made
