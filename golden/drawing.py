"""Draws what a golden model is fed and what its weights are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import torch
from torch import nn

PLUS = " + "


@dataclass(frozen=True)
class Input:
    """One model input: its dimensions and how to draw its values.

    A dimension is a fixed size, the name of a dynamic axis, or a sum of such names (``"past + sequence"``). ``kind``
    is ``tokens`` (int64 in [0, high)), ``mask`` (int64, ones followed by zeros, at least half ones, the first row
    full) or ``normal`` (float32, standard normal).
    """

    dims: tuple[str | int, ...]
    kind: Literal["tokens", "mask", "normal"]
    high: int = 0

    def draw(self, sizes: Mapping[str, int], generator: torch.Generator) -> torch.Tensor:
        """A random value whose named dimensions have the given sizes."""
        shape = [extent(dim, sizes) if isinstance(dim, str) else dim for dim in self.dims]
        if self.kind == "tokens":
            return torch.randint(0, self.high, shape, generator=generator)
        if self.kind == "normal":
            return torch.randn(shape, generator=generator)
        length = shape[-1]
        kept = torch.randint((length + 1) // 2, length + 1, [*shape[:-1], 1], generator=generator)
        kept[0] = length
        return (torch.arange(length) < kept).long()

    @property
    def axes(self) -> dict[int, str]:
        """Dynamic axes: position to name or sum of names."""
        return {axis: dim for axis, dim in enumerate(self.dims) if isinstance(dim, str)}


def extent(dim: str, sizes: Mapping[str, int]) -> int:
    """The size of a dynamic axis or of a sum of them."""
    return sum(sizes[name] for name in dim.split(PLUS))


def dynamic_axes(name: str, values: Sequence[torch.Tensor], sizes: Sequence[Mapping[str, int]]) -> dict[int, str]:
    """Which dimension of an output is which dynamic axis, or sum of two: the one of equal size in every run.

    A dimension that differs between the runs in another way gets a name of its own.
    """
    known = {tuple(extent(dim, assignment) for assignment in sizes): dim for dim in _sums_then_names(sizes[0])}
    observed = {axis: tuple(value.shape[axis] for value in values) for axis in range(values[0].ndim)}
    return {
        axis: known.get(extents, f"{name}_{axis}")
        for axis, extents in observed.items()
        if extents in known or len(set(extents)) > 1
    }


def _sums_then_names(names: Mapping[str, int]) -> Iterator[str]:
    for pair in combinations(names, 2):
        yield PLUS.join(pair)
    yield from names


def spread_weights(module: nn.Module, seed: int) -> None:
    """Give every parameter and running statistic a value that an error in a rewrite would show in.

    Fresh models have biases of 0, gains of 1, identity running statistics and projections so small that every softmax
    is uniform: a rewrite that drops a bias or swaps Q and K would go unnoticed. Matrices become normal with standard
    deviation 1/sqrt(fan-in), which keeps activations and attention scores near unit variance; vectors get noise on
    their initial value.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=generator, dtype=torch.float32).to(tensor.dtype)

    owners = {id(p): owner for owner in module.modules() for p in owner.parameters(recurse=False)}
    with torch.no_grad():
        for parameter in module.parameters():
            owner = owners[id(parameter)]
            if parameter.ndim < 2:
                parameter.add_(0.2 * noise(parameter))
            elif isinstance(owner, nn.Embedding):
                parameter.copy_(0.5 * noise(parameter))
            else:
                parameter.copy_(noise(parameter) / math.sqrt(_fan_in(parameter, owner)))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.add_(0.2 * noise(buffer))
            elif name.endswith("running_var"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))


def _fan_in(parameter: torch.Tensor, owner: nn.Module) -> int:
    """How many inputs each output of the parameter's operation sums over."""
    if type(owner).__name__ == "Conv1D":  # GPT-2's linear layer stores (in, out)
        return parameter.shape[0]
    if isinstance(owner, nn.Linear | nn.modules.conv._ConvNd):
        return math.prod(parameter.shape[1:])
    return parameter.shape[-1]
