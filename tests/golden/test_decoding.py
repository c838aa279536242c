"""Decoders with a cache: what a step returns is fed back, 32 times, and every step stays as it was."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ortfuse

sys.path.insert(0, str(Path(__file__).parents[2] / "golden"))
import suite

STEPS = 32
NAMES = [name for name in suite.expected_names() if "_cache." in name or name.startswith(("t5_dec", "whisper_dec"))]


class Decoder:
    """A session whose outputs `present_*` become its inputs `past_*`."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.sizes = {"batch": 2, "sequence": 1, "past": 0, "source": 7}
        self.unnamed = {0: "batch", 2: "past"}  # axes of caches, where the exporter made up the names
        rng = np.random.default_rng(0)
        self.fixed = {
            value.name: rng.standard_normal(self.shape(value.shape)).astype(np.float32)
            for value in self.session.get_inputs()
            if value.name.startswith("cross_")
        }
        self.cache = {
            value.name: np.zeros(self.shape(value.shape), np.float32)
            for value in self.session.get_inputs()
            if value.name.startswith("past_")
        }

    def shape(self, dims: list[Any]) -> list[int]:
        named = [dim if dim in self.sizes else self.unnamed.get(axis) for axis, dim in enumerate(dims)]
        return [self.sizes[name] if isinstance(dim, str) else dim for dim, name in zip(dims, named, strict=True)]

    def step(self, token: int, past: int) -> np.ndarray:
        made = {
            "input_ids": np.full((2, 1), token, np.int64) + np.arange(2)[:, None],
            "attention_mask": np.ones((2, past + 1), np.int64),
            "encoder_attention_mask": np.array([[1] * 7, [1] * 4 + [0] * 3], np.int64),
            "position_ids": np.full((2, 1), past, np.int64),
        }
        wanted = {value.name for value in self.session.get_inputs()}
        feeds = {name: array for name, array in made.items() if name in wanted} | self.fixed | self.cache
        found = dict(zip(self.outputs, self.session.run(None, feeds), strict=True))
        self.cache = {
            f"past_{name.removeprefix('present_')}": array for name, array in found.items() if name != "logits"
        }
        return found["logits"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NAMES)
def test_steps_fed_back_stay_as_they_were(name: str, tmp_path: Path) -> None:
    original = suite.MODELS / f"{name}.onnx"
    optimised = tmp_path / "optimised.onnx"
    ortfuse.save(suite.optimised(name).model, optimised)
    before, after = Decoder(original), Decoder(optimised)
    token = 3
    for past in range(STEPS):
        wanted, found = before.step(token, past), after.step(token, past)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        token = int(wanted[0, -1].argmax()) % 98
    for key, cached in before.cache.items():
        np.testing.assert_allclose(after.cache[key], cached, rtol=1e-4, atol=1e-4)
