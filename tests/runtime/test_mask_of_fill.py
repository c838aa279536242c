"""Batches with a given share of visible tokens."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import model

import ortfuse
from ortfuse.errors import OptionError, VerificationError
from ortfuse.runtime.inputs.mask_of_fill import lengths, with_fill

BODY = "c = Cast <to = 9> (mask)  y = Where(c, x, low)"
INPUTS = "float[b, s] x, int64[b, s] mask"


@pytest.mark.parametrize("fill", [0.05, 0.3, 0.55, 0.97, 1.0])
def test_lengths_have_the_share_and_differ(fill: float) -> None:
    found = lengths(16, 128, fill, np.random.default_rng(0))
    assert found.sum() == round(fill * 16 * 128)
    assert 1 <= found.min() <= found.max() <= 128
    assert fill == 1.0 or len(set(found)) > 1


def test_each_sequence_keeps_a_token_even_if_the_share_is_smaller() -> None:
    assert lengths(3, 4, 0.01, np.random.default_rng(0)).tolist() == [1, 1, 1]
    assert lengths(3, 0, 0.5, np.random.default_rng(0)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(("body", "shown"), [(BODY, 1), (BODY.replace("Where(c, x, low)", "Where(c, low, x)"), 0)])
def test_masks_of_either_sense_show_the_share(body: str, shown: int) -> None:
    made = model(body, INPUTS, "float[b, s] y", initializers="float low = {-1e30}")
    inputs = {"x": np.zeros((4, 8), np.float32), "mask": np.ones((4, 8), np.int64)}
    found = with_fill(made, inputs, 0.25, 0)
    assert (found["mask"] == shown).sum() == 8
    assert found["x"] is inputs["x"]


@pytest.mark.parametrize(("body", "low"), [("s = Add(x, mask)", -1000), ("m = Mul(mask, low)  s = Add(x, m)", 1)])
def test_masks_of_floats_show_the_share_with_axes_of_size_1_between(body: str, low: float) -> None:
    made = model(
        f"{body}  y = Softmax(s)", "float[b, h, q, s] x, float[b, 1, 1, s] mask", "float[b, h, q, s] y",
        initializers="float low = {-1e30}",
    )  # fmt: skip
    inputs = {"x": np.zeros((4, 2, 3, 8), np.float32), "mask": np.zeros((4, 1, 1, 8), np.float32)}
    found = with_fill(made, inputs, 0.25, 0)["mask"]
    assert found.shape == (4, 1, 1, 8)
    assert (found == 0).sum() == 8
    assert found.min() <= low or found.max() == low


def test_a_model_without_a_mask_has_no_fill() -> None:
    with pytest.raises(VerificationError, match="mask of shape"):
        with_fill(model("y = Relu(x)"), {"x": np.zeros((2, 3), np.float32)}, 0.3, 0)


def test_bench_names_the_fill_and_refuses_it_beside_inputs() -> None:
    made = model(BODY, INPUTS, "float[b, s] y", initializers="float low = {-1e30}")
    found = ortfuse.benchmark({"one": made}, sizes={"b": 4, "s": 8}, fill=0.5, rounds=1, bench_budget=0)
    assert "fill 0.5" in found.inputs
    with pytest.raises(OptionError, match="fill"):
        ortfuse.Options(fill=0.5, inputs=[{}], bench=True)
    with pytest.raises(OptionError, match="at most 1"):
        ortfuse.Options(fill=1.5, bench=True)
