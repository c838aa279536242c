"""Recipes of small models, and their export by any exporter at any opset, checked against PyTorch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime as ort
import torch
from drawing import spread_weights
from exporting import ExportError, strip_traces
from torch import nn

Exporter = Literal["ts", "dynamo"]
SEED = 20261126
TOLERANCE = 1e-3
SIZE_LIMIT = 2_000_000

Built = tuple[nn.Module, Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class Recipe:
    """Describe a small model.

    Attributes:
        build: Take an implementation of attention (``eager`` or ``sdpa``), return the module and its inputs by name.
        axes: The dynamic axes of inputs, by name and axis.
        spread: Whether weights, gains, biases and statistics get random values.
    """

    build: Callable[[str], Built]
    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    spread: bool = True


@dataclass(frozen=True)
class Variant:
    """One file to make: a recipe by name, the exporter, its opset, and whether its axes are dynamic."""

    recipe: str
    exporter: Exporter
    opset: int
    dynamic: bool

    @property
    def name(self) -> str:
        """``dab_detr.dynamo21``; ``.fixed`` at the end if all sizes are fixed."""
        return f"{self.recipe}.{self.exporter}{self.opset}" + ("" if self.dynamic else ".fixed")


class _Positional(nn.Module):
    """A module with inputs by position and a flat tuple of outputs."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_flat(self.module(**dict(zip(self.names, values, strict=True)))))


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in _flat(item)]


def export(recipe: Recipe, variant: Variant, folder: Path) -> str:
    """Write ``folder/NAME.onnx`` and return a line about it.

    Raises:
        ExportError: the file is too large, or computes something else than PyTorch.
        Exception: whatever the model or the exporter raises.
    """
    torch.manual_seed(SEED)
    module, inputs = recipe.build("eager" if variant.exporter == "ts" and variant.opset < 14 else "sdpa")
    if recipe.spread:
        spread_weights(module, SEED)
    positional = _Positional(module.eval(), list(inputs)).eval()
    with torch.no_grad():
        expected = positional(*inputs.values())
    if not expected or not all(bool(torch.isfinite(one.double()).all()) for one in expected):
        raise ExportError("no outputs, or outputs that are not finite")
    axes = {name: dict(recipe.axes[name]) for name in inputs if name in recipe.axes} if variant.dynamic else {}
    path, made = folder / f"{variant.name}.onnx", folder / f".{variant.name}.tmp"
    try:
        _run(positional, dict(inputs), axes, variant, made)
        strip_traces(made)
        if made.stat().st_size > SIZE_LIMIT:
            raise ExportError(f"{made.stat().st_size} bytes")
        _check(made, inputs, expected)
        made.rename(path)
    finally:
        made.unlink(missing_ok=True)
    return f"{path.stat().st_size} bytes, {len(onnx.load(path).graph.node)} nodes"


def attention_by_hand(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> torch.Tensor:
    """Attention in the operators that the exporter has before opset 14."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if is_causal:
        scores = scores + torch.full(scores.shape[-2:], float("-inf")).triu(1)
    if attn_mask is not None:
        mask = attn_mask.to(query.dtype)
        scores = scores + (mask if attn_mask.dtype != torch.bool else (1 - mask) * -1e9)
    return scores.softmax(-1) @ value


def _run(
    module: nn.Module,
    inputs: dict[str, torch.Tensor],
    axes: Mapping[str, Mapping[int, str]],
    variant: Variant,
    path: Path,
) -> None:
    shared: dict[str, Any] = {"input_names": list(inputs), "opset_version": variant.opset}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if variant.exporter == "ts":
            if variant.opset < 14:
                nn.functional.scaled_dot_product_attention = attention_by_hand
            torch.onnx.export(module, tuple(inputs.values()), str(path), dynamo=False, dynamic_axes=axes, **shared)
            return
        shapes = (tuple(dict.fromkeys(axes.get(name, {}), torch.export.Dim.DYNAMIC) for name in inputs),)
        given = shapes if axes else None
        values = tuple(inputs.values())
        kept = {"external_data": False, "verbose": False}
        torch.onnx.export(module, values, str(path), dynamo=True, dynamic_shapes=given, **kept, **shared)


def _check(path: Path, inputs: Mapping[str, torch.Tensor], expected: tuple[torch.Tensor, ...]) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    accepted = {value.name for value in session.get_inputs()}
    found = session.run(None, {name: value.numpy() for name, value in inputs.items() if name in accepted})
    if len(found) != len(expected):
        raise ExportError(f"{len(found)} outputs, PyTorch has {len(expected)}")
    for got, want in zip(found, (one.detach().numpy() for one in expected), strict=True):
        if np.shape(got) != want.shape:
            raise ExportError(f"an output is {np.shape(got)}, in PyTorch {want.shape}")
        if want.size and not _close(np.asarray(got), want):
            raise ExportError("differs from PyTorch")


def _close(got: np.ndarray, want: np.ndarray) -> bool:
    error = float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max())
    return math.isfinite(error) and error < TOLERANCE * max(1.0, float(np.abs(want.astype(np.float64)).max()))
