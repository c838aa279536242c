"""Heads of sizes that the kernel does not take are padded in the buffers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cached_decoders import GROUPS, HEADS, WIDTH, write

import ortfuse
from ortfuse.api.generator import generator


def _sized(path: Path, keys: int, values: int) -> Path:
    random = np.random.default_rng(7)
    shapes = {
        "queries": (WIDTH, HEADS * keys),
        "keys": (WIDTH, GROUPS * keys),
        "values": (WIDTH, GROUPS * values),
        "joined": (HEADS * values, WIDTH),
    }
    edits = [
        *((f"float[batch, 2, {length}, 16] {name}_k", f"float[batch, 2, {length}, {keys}] {name}_k") for length, name in (("past", "past"), ("total", "new"))),
        *((f"float[batch, 2, {length}, 16] {name}_v", f"float[batch, 2, {length}, {values}] {name}_v") for length, name in (("past", "past"), ("total", "new"))),
        ("[0, 0, 4, 16]", f"[0, 0, 4, {keys}]"),
        ("  ks = Constant<value_ints = [0, 0, 2, 16]>()", f"  ks = Constant<value_ints = [0, 0, 2, {keys}]>()\n  vs = Constant<value_ints = [0, 0, 2, {values}]>()"),
        ("Reshape(v0, ks)", "Reshape(v0, vs)"),
        ("MatMul(x, wq)", "MatMul(x, queries)"),
        ("MatMul(x, wk)", "MatMul(x, keys)"),
        ("MatMul(x, wv)", "MatMul(x, values)"),
        ("[0, 0, 64]", f"[0, 0, {HEADS * values}]"),
        ("  y = Add(y2, x)", "  y3 = MatMul(y2, joined)\n  y = Add(y3, x)"),
    ]  # fmt: skip
    numbers = {name: (random.standard_normal(shape) / 6).astype(np.float32) for name, shape in shapes.items()}
    return write(path, edits, numbers)


@pytest.mark.parametrize(("keys", "values"), [(12, 12), (24, 16), (16, 24), (10, 3), (16, 16)])
def test_heads_are_padded_up_to_what_the_kernel_takes(keys: int, values: int, tmp_path: Path) -> None:
    done = generator(
        _sized(tmp_path / "sized.onnx", keys, values), tmp_path / "out", max_length=40, verify=True, int8_caches=False
    )
    assert not done.kept
    assert done.comparison is not None
    assert done.comparison.equal
    size = -(-max(keys, values) // 8) * 8
    assert {cache.shape for cache in done.interface.caches} == {(-1, GROUPS, 40, size)}
    model, prompts = ortfuse.Generator(tmp_path / "out"), [[4, 8, 15], [7]]
    assert model.generate(prompts, max_new_tokens=9) == [model.generate([one], max_new_tokens=9)[0] for one in prompts]
