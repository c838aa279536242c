"""Exports the golden models of PaddlePaddle: ``python golden/export_paddle.py [NAME ...]``.

Needs paddlepaddle with paddle2onnx. Writes ``golden/models/paddle_<arch>.paddle.onnx``, and a ``.json`` beside each.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import paddle
import paddle.nn.functional as F  # noqa: N812
from paddle import nn
from paddle.static import InputSpec

FOLDER = Path(__file__).parent / "models"
TOLERANCE = 1e-4
SIZE_LIMIT = 400_000
SEED = 20240229
OPSET = 11
"""What its models of text are usually exported at: axes are attributes, and LayerNormalization is spelled out."""
WIDTH, HEADS, CHARACTERS, BLOCKS, LAYERS = 32, 4, 20, 2, 2


class Attention(nn.Layer):
    """Queries, keys and values of one projection, unbound by their first axis."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """x is [batch, length, width]."""
        size = WIDTH // HEADS
        packed = self.project(x).reshape([0, -1, 3, HEADS, size]).transpose([2, 0, 3, 1, 4])
        query, key, value = packed[0] * size**-0.5, packed[1], packed[2]
        weights = F.softmax(query.matmul(key.transpose([0, 1, 3, 2])), axis=-1)
        return self.out(weights.matmul(value).transpose([0, 2, 1, 3]).reshape([0, -1, WIDTH]))


class Mixing(nn.Layer):
    """Attention and a feed-forward network, each after a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.LayerNorm(WIDTH, epsilon=1e-6), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.feed = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """x and what the block adds to it."""
        x = x + self.attention(self.before(x))
        return x + self.feed(self.behind(x))


class Recogniser(nn.Layer):
    """Reads a line of text of any width: convolutions, mixing along the width, a recurrent layer, a score of each character."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2D(3, 16, 3, 2, 1, bias_attr=False), nn.BatchNorm2D(16), nn.Hardswish(),
            nn.Conv2D(16, WIDTH, 3, 2, 1), nn.BatchNorm2D(WIDTH), nn.GELU(),
        )  # fmt: skip
        self.mixing = nn.LayerList([Mixing() for _ in range(BLOCKS)])
        self.norm, self.recurrent = nn.LayerNorm(WIDTH), nn.LSTM(WIDTH, 16, num_layers=LAYERS)
        self.score = nn.Linear(16, CHARACTERS)

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        """Probabilities of the characters at each place."""
        x = self.stem(image)
        sizes = paddle.shape(x)
        x = x.flatten(2).transpose([0, 2, 1])
        for block in self.mixing:
            x = block(x)
        x = self.norm(x).transpose([0, 2, 1]).reshape([-1, WIDTH, sizes[2], sizes[3]]).mean(2)
        steps, _ = self.recurrent(x.transpose([0, 2, 1]))
        return F.softmax(self.score(steps), axis=-1)


CASES: dict[str, Callable[[], nn.Layer]] = {"paddle_recogniser.paddle": Recogniser}


def spread(model: nn.Layer) -> None:
    """Move gains, biases and statistics away from 1 and 0."""
    rng = np.random.default_rng(SEED)
    for name, value in model.state_dict().items():
        if "_variance" in name:
            value.set_value((0.5 + rng.random(value.shape)).astype(np.float32))
        elif len(value.shape) == 1:
            value.set_value((value.numpy() + 0.2 * rng.standard_normal(value.shape)).astype(np.float32))


def error_of(path: Path, model: nn.Layer) -> float:
    """The largest difference between the results of ONNX Runtime (graph optimizations off) and of Paddle."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    image = np.random.default_rng(SEED).standard_normal((2, 3, 16, 40)).astype(np.float32)
    (found,) = session.run(None, {session.get_inputs()[0].name: image})
    return float(np.abs(found - model(paddle.to_tensor(image)).numpy()).max())


def main(names: Sequence[str]) -> None:
    """Export what is named, or everything.

    Raises:
        ValueError: A model differs from Paddle, or is too large.
    """
    for name in names or CASES:
        paddle.seed(SEED)
        model = CASES[name]()
        model.eval()
        spread(model)
        path = FOLDER / f"{name}.onnx"
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / "model"
            specs = [InputSpec([-1, 3, 16, -1], "float32", "image")]
            paddle.onnx.export(model, str(written), input_spec=specs, opset_version=OPSET)
            exported = onnx.load(f"{written}.onnx")
        onnx.save(exported, path)
        error = error_of(path, model)
        if not error < TOLERANCE or path.stat().st_size > SIZE_LIMIT:
            raise ValueError(f"{path}: {path.stat().st_size} bytes, error {error:.2g}")
        record = {
            "exporter": "paddle",
            "attention": "eager",
            "paddle": paddle.__version__,
            "opset": next(one.version for one in exported.opset_import if not one.domain),
            "error": float(f"{error:.2g}"),
            "sites": {
                "attention": BLOCKS, "layer_norm": 2 * BLOCKS + 1, "rms_norm": 0, "batch_norm": 2, "group_norm": 0, "conv": 2,
                "linear": 4 * BLOCKS + 1, "rotary": 0, "rotary_tensors": 0,
                "layers": BLOCKS, "recurrent": LAYERS, "activations": {"gelu": BLOCKS + 1, "hardswish": 1},
            },
        }  # fmt: skip
        path.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
        print(f"{path.name}: {path.stat().st_size} bytes, error {error:.2g}")


if __name__ == "__main__":
    main(sys.argv[1:])
