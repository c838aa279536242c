"""Builds models of transformers by the names of their classes, and gives cached decoders any number of layers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers as tf
from cases.caching import CachedDecoder, CrossDecoder
from torch import nn


def build(kind: str, config: str, options: Mapping[str, Any], attention: str = "sdpa") -> nn.Module:
    """A model with random weights by the names of its class and its configuration's; eager where it has no SDPA."""
    made = getattr(tf, config)(**options)
    try:
        return getattr(tf, kind)._from_config(made, attn_implementation=attention)
    except ValueError:
        return getattr(tf, kind)._from_config(made, attn_implementation="eager")


def built(kind: str, config: str, **options: Any) -> functools.partial[nn.Module]:
    """Return the function of a case that builds the model."""
    return functools.partial(build, kind, config, options)


def layered(
    base: type[CachedDecoder] | type[CrossDecoder], plain: Sequence[str], layers: int
) -> type[CachedDecoder] | type[CrossDecoder]:
    """The decoder class with a ``forward`` for `layers` layers, where the class itself has one for two.

    Exporters take the inputs' names from the signature, so every key and value has a parameter there.

    Args:
        base: How a step is run.
        plain: The inputs before the caches.
        layers: How many keys and values there are in each cache.
    """
    past = _names("past", layers)
    cross = _names("cross", layers) if issubclass(base, CrossDecoder) else []

    def forward(self: Any, **values: torch.Tensor) -> dict[str, torch.Tensor]:
        caches = [[values[name] for name in names] for names in (past, cross) if names]
        return self.step(*caches, **{name: values[name] for name in plain})

    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
    named = [inspect.Parameter(name, keyword) for name in ("self", *plain, *past, *cross)]
    forward.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    return type(f"{base.__name__}Of{layers}", (base,), {"forward": forward})


def _names(prefix: str, layers: int) -> list[str]:
    return [f"{prefix}_{kind}_{layer}" for layer in range(layers) for kind in ("key", "value")]
