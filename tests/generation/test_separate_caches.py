"""Decoders whose caches are stacked, joined, flattened, cut or transposed: each attention gets caches of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from stacked_decoders import GROUPS, HEADS, LAYERS, LAYOUTS, SIZE, write_stacked

import ortfuse
from ortfuse.generation.plain_loop import PlainLoop, input_types
from ortfuse.io.convert_model_objects import enter
from ortfuse.runtime.session import Session

PROMPTS = [[5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8, 9], [11]]


def is_right(path: Path, done: ortfuse.GeneratorResult) -> None:
    """Whole generations are those of the decoder, also of prompts of several lengths in one batch."""
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first
    source = enter(path / "m.onnx", copy=True)[0]
    wanted = []
    for prompt in PROMPTS:
        loop = PlainLoop(Session(source), done.decoder, input_types(source))
        scores, tokens = loop.step(np.array([prompt])), []
        for _ in range(12):
            tokens.append(int(scores[0, -1].argmax()))
            scores = loop.step(np.array([tokens[-1:]]))
        wanted.append(tokens)
    model = ortfuse.Generator(path / "out")
    assert model.generate(PROMPTS, max_new_tokens=12) == wanted


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, tmp_path: Path) -> None:
    write_stacked(tmp_path / "m.onnx", LAYOUTS[name])
    done = ortfuse.generator(tmp_path / "m.onnx", tmp_path / "out", max_length=60, verify=True)
    assert not done.kept
    assert done.interface.mixed_lengths
    assert [cache.past for cache in done.interface.caches] == [
        f"past_key_values.{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")
    ]
    assert {cache.shape for cache in done.interface.caches} == {(-1, GROUPS, 60, SIZE)}
    nodes = [node for node in done.model.graph if node.op_type == "GroupQueryAttention"]
    assert {(node.attributes["num_heads"].value, node.attributes["kv_num_heads"].value) for node in nodes} == {
        (HEADS, GROUPS)
    }
    assert {node.op_type for node in done.model.graph if node.op_type in ("Split", "Concat", "Unsqueeze", "Pad")} <= {
        "Unsqueeze"
    }
    is_right(tmp_path, done)
