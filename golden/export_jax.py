"""Exports the golden models of JAX: ``python golden/export_jax.py [NAME ...]``.

Needs jax2onnx with flax. Writes ``golden/models/jax_<arch>.jax.onnx``, and a ``.json`` beside each.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime as ort
from flax import nnx
from jax2onnx import to_onnx

FOLDER = Path(__file__).parent / "models"
TOLERANCE = 1e-4
SIZE_LIMIT = 400_000
SEED = 20240229
LENGTH, TOKENS, WIDTH, HEADS, GROUPS = 12, 50, 32, 4, 2


def rotated(x: jax.Array) -> jax.Array:
    """Rotary embedding of neighbouring elements; x is [batch, length, heads, size]."""
    size = x.shape[-1]
    angles = jnp.arange(LENGTH)[:, None] / 10000 ** (jnp.arange(0, size, 2) / size)
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    even, odd = x[..., ::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1).reshape(x.shape)


class Block(nnx.Module):
    """Grouped causal attention and a gated feed-forward network, each after an RMS normalisation."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        def linear(before: int, after: int) -> nnx.Linear:
            return nnx.Linear(before, after, use_bias=False, rngs=rngs)

        self.before_attention, self.before_gate = nnx.RMSNorm(WIDTH, rngs=rngs), nnx.RMSNorm(WIDTH, rngs=rngs)
        few = WIDTH * GROUPS // HEADS
        self.query, self.key, self.value = linear(WIDTH, WIDTH), linear(WIDTH, few), linear(WIDTH, few)
        self.out, self.gate, self.up = linear(WIDTH, WIDTH), linear(WIDTH, 2 * WIDTH), linear(WIDTH, 2 * WIDTH)
        self.down = linear(2 * WIDTH, WIDTH)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x and what the block adds to it."""
        batch, length, width = x.shape
        h = self.before_attention(x)
        query = rotated(self.query(h).reshape(batch, length, HEADS, -1))
        key, value = (one(h).reshape(batch, length, GROUPS, WIDTH // HEADS) for one in (self.key, self.value))
        key, value = (jnp.repeat(one, HEADS // GROUPS, axis=2) for one in (rotated(key), value))
        seen = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.reshape(batch, length, width))
        h = self.before_gate(x)
        return x + self.down(nnx.silu(self.gate(h)) * self.up(h))


class Decoder(nnx.Module):
    """A decoder of text with rotary positions."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed, self.norm = nnx.Embed(TOKENS, WIDTH, rngs=rngs), nnx.RMSNorm(WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])
        self.head = nnx.Linear(WIDTH, TOKENS, use_bias=False, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        """A score of every token at each position."""
        x = self.embed(ids.astype(jnp.int32))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


CASES: dict[str, Callable[[nnx.Rngs], nnx.Module]] = {"jax_decoder.jax": Decoder}


def spread(model: nnx.Module) -> None:
    """Move gains away from 1."""
    rng = np.random.default_rng(SEED)

    def moved(value: Any) -> Any:
        shifted = np.asarray(value) + 0.2 * rng.standard_normal(np.shape(value))
        return value if np.ndim(value) != 1 else jnp.asarray(shifted.astype(np.float32))

    nnx.update(model, jax.tree.map(moved, nnx.state(model, nnx.Param)))


def error_of(path: Path, model: nnx.Module) -> float:
    """The largest difference between the results of ONNX Runtime (graph optimizations off) and of JAX."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(SEED).integers(0, TOKENS, (3, LENGTH)).astype(np.float32)
    (found,) = session.run(None, {session.get_inputs()[0].name: ids})
    return float(np.abs(found - np.asarray(model(jnp.asarray(ids)))).max())


def main(names: Sequence[str]) -> None:
    """Export what is named, or everything.

    Raises:
        ValueError: A model differs from JAX, or is too large.
    """
    for name in names or CASES:
        model = CASES[name](nnx.Rngs(SEED))
        spread(model)
        exported = to_onnx(model, [("B", LENGTH)], model_name=name)
        path = FOLDER / f"{name}.onnx"
        onnx.save(exported, path)
        error = error_of(path, model)
        if not error < TOLERANCE or path.stat().st_size > SIZE_LIMIT:
            raise ValueError(f"{path}: {path.stat().st_size} bytes, error {error:.2g}")
        blocks = 2
        record = {
            "exporter": "jax",
            "attention": "sdpa",
            "jax": jax.__version__,
            "opset": next(one.version for one in exported.opset_import if not one.domain),
            "error": float(f"{error:.2g}"),
            "sites": {
                "attention": blocks, "layer_norm": 0, "rms_norm": 2 * blocks + 1, "batch_norm": 0, "group_norm": 0, "conv": 0,
                "linear": 7 * blocks + 1, "rotary": blocks, "rotary_tensors": 2 * blocks,
                "layers": blocks, "activations": {"silu": blocks},
            },
        }  # fmt: skip
        path.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
        print(f"{path.name}: {path.stat().st_size} bytes, error {error:.2g}")


if __name__ == "__main__":
    main(sys.argv[1:])
