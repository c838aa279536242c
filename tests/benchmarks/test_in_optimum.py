"""Decoders for Optimum: names of inputs and outputs, and the configuration by which it makes the first caches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from benchmarks.generation.in_optimum import config_of, renamed
from ortfuse.api.fused_decoder import fused_decoder
from ortfuse.api.generator import MAX_LENGTH
from ortfuse.options import Options
from ortfuse.runtime.session import Session

DECODER = Path(__file__).parents[2] / "golden" / "models" / "gpt2_cache.sdpa.ts.onnx"


def test_a_decoder_with_the_names_of_optimum_runs_with_empty_caches(tmp_path: Path) -> None:
    names = fused_decoder(DECODER, Options(), MAX_LENGTH, {}).names
    model = renamed(DECODER, names, tmp_path / "export.onnx")
    config = config_of(model, names)
    layers = range(config["num_hidden_layers"])
    wanted = {f"past_key_values.{layer}.{kind}" for layer in layers for kind in ("key", "value")}
    graph = onnx.load(tmp_path / "export.onnx").graph
    assert {value.name for value in graph.input} >= wanted | {"input_ids"}
    assert {value.name for value in graph.output} == {
        "logits", *(name.replace("past_key_values", "present") for name in wanted)
    }  # fmt: skip
    empty = np.zeros((1, config["num_key_value_heads"], 0, config["head_dim"]), np.float32)
    inputs = {
        "input_ids": np.array([[3, 4, 5]]),
        "attention_mask": np.ones((1, 3), np.int64),
        "position_ids": np.array([[0, 1, 2]]),
    }
    given = {name: array for name, array in inputs.items() if name in {value.name for value in graph.input}}
    session = Session(model, threads=1)
    found = session.run(given | dict.fromkeys(sorted(wanted), empty))
    assert found["present.0.key"].shape[2] == 3
