"""Networks with fake quantisation, as tools for quantisation-aware training leave them: the activations and weights of layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.ao.quantization.fx._decomposed
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.exports.varied_declare import BATCH, Family, normal

family = Family()
RECIPES = family.recipes

LOWEST, HIGHEST, STEP, STEP_OF_WEIGHTS = -128, 127, 0.03, 0.002


class Quantised(nn.Module):
    """A weight [outputs, inputs] of a linear layer, whose steps are of each output if `by_output`, and its bias."""

    def __init__(self, given: Callable[..., Tensor], by_output: bool = False, *, outputs: int = 64) -> None:
        super().__init__()
        self.given, self.by_output = given, by_output
        self.weight, self.bias = nn.Parameter(torch.randn(outputs, 32) * 0.05), nn.Parameter(torch.randn(outputs))
        self.register_buffer("numbers", torch.randint(-60, 60, (outputs, 32), dtype=torch.int8))
        self.register_buffer("steps", torch.full((outputs,), STEP_OF_WEIGHTS))
        self.register_buffer("zeros", torch.zeros(outputs, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        return self.given(self, torch.fake_quantize_per_tensor_affine(x, STEP, 128, 0, 255))

    def fake(self) -> Tensor:
        """The weight, quantised and back."""
        if self.by_output:
            return torch.fake_quantize_per_channel_affine(self.weight, self.steps, self.zeros, 0, LOWEST, HIGHEST)
        return torch.fake_quantize_per_tensor_affine(self.weight, STEP_OF_WEIGHTS, 0, LOWEST, HIGHEST)

    def stored(self) -> Tensor:
        """A weight that is stored in 8 bits, as `torchao` converts it."""
        numbers = self.numbers, STEP_OF_WEIGHTS, 0, LOWEST, HIGHEST, torch.int8
        return torch.ops.quantized_decomposed.dequantize_per_tensor(*numbers)  # type: ignore[no-any-return]


MATRIX, ROWS = {"x": normal(8, 32)}, {"x": normal(2, 8, 32)}


def quantised(
    inputs: dict[str, Callable[[], Tensor]], by_output: bool = False, dynamic: bool = True
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Add a function of a quantised layer and its quantised input."""

    def added(given: Callable[..., Tensor]) -> Callable[..., Tensor]:
        family.add(given.__name__, lambda: Quantised(given, by_output), inputs, {"x": BATCH} if dynamic else {})
        return given

    return added


@quantised(MATRIX)
def quantised_linear(self: Quantised, x: Tensor) -> Tensor:
    return functional.linear(x, self.fake(), self.bias).relu()


@quantised(MATRIX, by_output=True)
def quantised_linear_by_output(self: Quantised, x: Tensor) -> Tensor:
    return functional.linear(x, self.fake(), self.bias).relu()


@quantised(MATRIX)
def quantised_product(self: Quantised, x: Tensor) -> Tensor:
    weight = torch.fake_quantize_per_tensor_affine(self.weight.t(), STEP_OF_WEIGHTS, 0, LOWEST, HIGHEST)
    return x @ weight + self.bias


@quantised(ROWS, dynamic=False)
def quantised_product_of_rows(self: Quantised, x: Tensor) -> Tensor:
    weight = torch.fake_quantize_per_tensor_affine(self.weight.t(), STEP_OF_WEIGHTS, 0, LOWEST, HIGHEST)
    return x @ weight + self.bias


@quantised(ROWS, dynamic=False)
def stored_linear_of_rows(self: Quantised, x: Tensor) -> Tensor:
    return functional.linear(x, self.stored(), self.bias)


@quantised(MATRIX, dynamic=False)
def stored_linear(self: Quantised, x: Tensor) -> Tensor:
    return functional.linear(x, self.stored(), self.bias)


@quantised(ROWS, dynamic=False)
def stored_pointwise(self: Quantised, x: Tensor) -> Tensor:
    return functional.conv1d(x.transpose(1, 2), self.stored().unsqueeze(-1), self.bias)
