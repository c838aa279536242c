"""Declares modules of one's own as recipes, and draws their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.exports.varied_recipes import Recipe

BATCH = {0: "batch"}
BATCH_LENGTH = {0: "batch", 1: "length"}


def normal(*shape: int) -> Callable[[], Tensor]:
    """Standard normal numbers."""
    return lambda: torch.randn(shape)


def positive(*shape: int) -> Callable[[], Tensor]:
    """Numbers between 0 and 1."""
    return lambda: torch.rand(shape)


def integers(high: int, *shape: int, low: int = 0, dtype: torch.dtype = torch.int64) -> Callable[[], Tensor]:
    """Integers from `low` to below `high`."""
    return lambda: torch.randint(low, high, shape, dtype=dtype)


def bools(*shape: int) -> Callable[[], Tensor]:
    """Random truth values."""
    return lambda: torch.rand(shape) < 0.6


def constant(value: Any, dtype: torch.dtype | None = None) -> Callable[[], Tensor]:
    """A tensor of given numbers."""
    return lambda: torch.tensor(value, dtype=dtype)


class Family:
    """Recipes by name, to which modules and functions are added."""

    def __init__(self) -> None:
        self.recipes: dict[str, Recipe] = {}

    def add(
        self,
        name: str,
        make: Callable[[], nn.Module],
        inputs: Mapping[str, Callable[[], Tensor]],
        axes: Mapping[str, Mapping[int, str]] | None = None,
    ) -> None:
        """Add a module; without `axes` the first axis of the first input is dynamic.

        Args:
            name: The name of the recipe.
            make: Builds the module.
            inputs: By name of the parameter of ``forward``, how to draw it.
            axes: The dynamic axes by input.
        """
        dynamic = {next(iter(inputs)): BATCH} if axes is None else axes

        def build(attention: str) -> tuple[nn.Module, dict[str, Tensor]]:
            return make(), {key: draw() for key, draw in inputs.items()}

        self.recipes[name] = Recipe(build, dynamic)

    def function(
        self, inputs: Mapping[str, Callable[[], Tensor]], axes: Mapping[str, Mapping[int, str]] | None = None
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Add a function of tensors as a module."""

        def added(given: Callable[..., Any]) -> Callable[..., Any]:
            self.add(given.__name__, lambda: _Function(given), inputs, axes)
            return given

        return added


class _Function(nn.Module):
    def __init__(self, given: Callable[..., Any]) -> None:
        super().__init__()
        self.given = given

    def forward(self, **values: Tensor) -> Any:
        return self.given(**values)
