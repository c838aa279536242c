"""What weights are rounded to is kept while a search goes on, and no longer."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from ortfuse.quantization.rounded_weights_cache import Rounded
from patterns.precision._block_quantized_weights import blocks_of
from patterns.precision._linear_pattern import Whole8
from patterns.precision.weight_only_quantization import Corrected

BLOCKS = [blocks_of(bits, 16, zeros=zeros) for bits in (4, 8) for zeros in (True, False)]


class Counting:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, array: np.ndarray) -> tuple[np.ndarray, ...]:
        self.calls += 1
        return (np.rint(array).astype(np.int8), np.float32(self.calls))


def tensors(count: int) -> list[ir.Tensor]:
    return [ir.tensor(np.full((10, 10), number, np.float32)) for number in range(count)]


def test_a_weight_is_rounded_once_in_a_search_and_anew_outside_of_one() -> None:
    rounded, rounding, (weight,) = Rounded(), Counting(), tensors(1)
    with rounded.kept(1000):
        assert rounded.of(weight, rounding)[0] is rounded.of(weight, rounding)[0]
        assert rounding.calls == 1
    for _ in range(2):
        rounded.of(weight, rounding)
    assert rounding.calls == 3


def test_what_was_read_last_is_kept() -> None:
    rounded, rounding, weights = Rounded(), Counting(), tensors(3)
    with rounded.kept(250):
        for weight in (weights[0], weights[1], weights[0], weights[2], weights[0]):
            rounded.of(weight, rounding)
        assert rounding.calls == 3
        rounded.of(weights[1], rounding)
        assert rounding.calls == 4


def test_a_weight_that_is_gone_is_not_taken_for_a_new_one() -> None:
    """Keys are the places of tensors in memory, which are given to others."""
    rounded, rounding = Rounded(), Counting()
    with rounded.kept(10_000):
        for number in range(20):
            weight = ir.tensor(np.full((10, 10), number, np.float32))
            assert rounded.of(weight, rounding)[0][0, 0] == number
            del weight


@pytest.mark.parametrize(
    "rounding",
    [*(Whole8(columns, signed) for columns in (True, False) for signed in (True, False)), *BLOCKS],
    ids=repr,
)
def test_what_stands_for_rounded_weights_has_their_types_and_shapes(rounding: Any) -> None:
    weight = np.random.default_rng(0).standard_normal((32, 6)).astype(np.float32)
    found, others = rounding(weight), rounding.stand_in(weight.shape)
    assert [(one.dtype, one.shape) for one in others] == [(one.dtype, one.shape) for one in found]


def test_times_do_not_wait_for_weights_to_be_rounded() -> None:
    rounded, weight = Rounded(), ir.tensor(np.ones((32, 6), np.float32))
    with rounded.kept(10_000):
        with rounded.for_times():
            other = rounded.of(weight, Whole8(columns=True, signed=True))
        assert (other[0] == 1).all()
        assert (rounded.of(weight, Whole8(columns=True, signed=True))[0] > 1).all()


def test_what_a_product_lacks_is_computed_once_for_a_weight_and_a_way_to_round_it_and_not_for_times() -> None:
    rng = np.random.default_rng(0)
    means, given, matrix = rng.standard_normal(32), np.ones(6, np.float32), rng.standard_normal((32, 6))
    weight = ir.tensor(matrix.astype(np.float32))
    made = BLOCKS[0]
    one, other = (Corrected(made, means.tobytes(), given.tobytes(), weight) for _ in range(2))
    rounded = Rounded()
    with rounded.kept(1000):
        (found,) = rounded.of(weight, one)
        assert rounded.of(weight, other)[0] is found
        with rounded.for_times():
            assert (rounded.of(weight, other)[0] == given).all()
    whole, scales, zeros = made(weight.numpy())
    near = ((whole - zeros[:, None].astype(np.float32)) * scales[:, None]).reshape(32, 6)
    np.testing.assert_allclose(found, given + means @ (weight.numpy() - near), rtol=1e-5)
