"""Exports the golden models of Keras: ``KERAS_BACKEND=torch python golden/export_keras.py [NAME ...]``.

Needs Keras and, by the backend, TensorFlow with tf2onnx, or PyTorch with onnxscript. Networks are those of
``keras.applications`` with few channels; images have their channels last. Writes ``golden/models/<arch>.<exporter>.onnx``, and a
``.json`` beside each that says which layers the network has. Exporters are ``tf`` (Keras's own export, with TensorFlow),
``keras`` (the same with PyTorch, which traces to TorchScript) and ``dynamo`` (PyTorch's, for what the former cannot export).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import onnxruntime as ort
from keras import layers
from keras.src.applications import convnext, densenet, efficientnet, mobilenet_v2, mobilenet_v3, resnet

FOLDER = Path(__file__).parent / "models"
TOLERANCE = 1e-4
SIZE_LIMIT = 400_000
SEED = 20240229
OPSET = 17
IMAGE = (32, 32, 3)
LENGTH = 9
_OPTIONS = {"input_shape": IMAGE, "weights": None, "classes": 10}


def mobilenet2() -> keras.Model:
    """MobileNet 2 with 8 to 16 channels between its blocks."""
    return mobilenet_v2.MobileNetV2(alpha=0.05, **_OPTIONS)


def mobilenet3() -> keras.Model:
    """MobileNet 3 with gates and hard swish, four blocks."""

    def stack(x: Any, kernel: int, activation: Any, se_ratio: float) -> Any:
        x = mobilenet_v3._inverted_res_block(x, 1, 8, 3, 2, se_ratio, mobilenet_v3.relu, 0)
        x = mobilenet_v3._inverted_res_block(x, 3, 8, 3, 1, None, mobilenet_v3.relu, 1)
        x = mobilenet_v3._inverted_res_block(x, 4, 16, kernel, 2, se_ratio, activation, 2)
        return mobilenet_v3._inverted_res_block(x, 4, 16, kernel, 1, se_ratio, activation, 3)

    return mobilenet_v3.MobileNetV3(stack, last_point_ch=64, **_OPTIONS)


def efficient() -> keras.Model:
    """EfficientNet, a block of each kind."""
    return efficientnet.EfficientNet(0.1, 0.1, 32, **_OPTIONS)


def resnet2() -> keras.Model:
    """ResNet 2: normalised before each convolution."""

    def stack(x: Any) -> Any:
        x = resnet.stack_residual_blocks_v2(x, 4, 2, name="conv2")
        return resnet.stack_residual_blocks_v2(x, 8, 2, stride1=1, name="conv3")

    return resnet.ResNet(stack, True, True, **_OPTIONS)


def dense() -> keras.Model:
    """DenseNet: two blocks of two layers, a transition between them."""
    image = layers.Input(IMAGE)
    x = layers.Conv2D(8, 3, 2, padding="same", use_bias=False)(image)
    for block in range(2):
        for layer in range(2):
            x = densenet.conv_block(x, 4, f"block{block}_{layer}")
        if block == 0:
            x = densenet.transition_block(x, 0.5, "transition")
    x = layers.Activation("relu")(layers.BatchNormalization(epsilon=1.001e-5)(x))
    return keras.Model(image, layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(x)))


def xception() -> keras.Model:
    """Xception: separable convolutions, each normalised, around a strided one."""
    image = layers.Input(IMAGE)
    x = layers.Activation("relu")(layers.BatchNormalization()(layers.Conv2D(8, 3, 2, use_bias=False)(image)))
    for channels in (12, 16):
        skip = layers.BatchNormalization()(layers.Conv2D(channels, 1, 2, padding="same", use_bias=False)(x))
        for _ in range(2):
            x = layers.SeparableConv2D(channels, 3, padding="same", use_bias=False)(layers.Activation("relu")(x))
            x = layers.BatchNormalization()(x)
        x = layers.add([layers.MaxPooling2D(3, 2, padding="same")(x), skip])
    return keras.Model(image, layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(x)))


def next_() -> keras.Model:
    """ConvNeXt: depthwise convolutions, LayerNormalization of the channels, GELU."""
    return convnext.ConvNeXt((1, 1, 2, 1), (8, 8, 16, 16), layer_scale_init_value=0.5, **_OPTIONS)


def unet() -> keras.Model:
    """UNet: down, up by nearest neighbours and by a transposed convolution, joined with what came before."""
    image = layers.Input(IMAGE)

    def twice(x: Any, channels: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
            x = layers.LeakyReLU(0.1)(layers.BatchNormalization()(x))
        return x

    first = twice(image, 8)
    second = twice(layers.MaxPooling2D()(first), 12)
    x = twice(layers.AveragePooling2D(2)(second), 16)
    x = twice(layers.concatenate([layers.UpSampling2D()(x), second]), 12)
    x = twice(layers.concatenate([layers.Conv2DTranspose(8, 2, 2)(x), first]), 8)
    return keras.Model(image, layers.Conv2D(1, 1, activation="sigmoid")(x))


def translator() -> keras.Model:
    """A transformer whose tokens attend to those before them that are none of padding, and a convolution over them."""
    tokens = layers.Input((None,), dtype="int32")
    x = layers.Embedding(50, 32, mask_zero=True)(tokens)
    mask = keras.ops.not_equal(tokens, 0)
    for _ in range(2):
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        y = layers.MultiHeadAttention(4, 8)(y, y, query_mask=mask, value_mask=mask, key_mask=mask, use_causal_mask=True)
        x = layers.add([x, y])
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        y = layers.Dense(48, activation=lambda z: keras.activations.gelu(z, approximate=True))(y)
        x = layers.add([x, layers.Dense(32)(y)])
    x = layers.BatchNormalization()(layers.Conv1D(24, 3, padding="causal")(x))
    return keras.Model(tokens, layers.Dense(50)(layers.Activation("relu")(x)))


CASES: dict[str, Callable[[], keras.Model]] = {
    "keras_mobilenet2.tf": mobilenet2,
    "keras_mobilenet3.tf": mobilenet3,
    "translator.tf": translator,
    "keras_densenet.tf": dense,
    "keras_xception.tf": xception,
    "keras_mobilenet3.keras": mobilenet3,
    "keras_efficientnet.keras": efficient,
    "keras_resnet2.keras": resnet2,
    "keras_unet.keras": unet,
    "keras_convnext.dynamo": next_,
}
"""By name of the file, whose ending says how it is exported."""


def spread_weights(model: keras.Model) -> None:
    """Give every weight a value that an error in a rewrite would show in: no bias of 0, no gain or variance of 1."""
    rng = np.random.default_rng(SEED)
    for weight in model.weights:
        shape = tuple(weight.shape)
        if "variance" in weight.path:
            value = 0.5 + rng.random(shape)
        elif len(shape) < 2:
            value = keras.ops.convert_to_numpy(weight) + 0.2 * rng.standard_normal(shape)
        else:
            value = rng.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))
        weight.assign(value.astype("float32"))


def given(model: keras.Model, batch: int) -> np.ndarray[Any, Any]:
    """An input: numbers, or tokens that end with some of padding."""
    rng, shape = (
        np.random.default_rng(SEED),
        (batch, *(LENGTH if size is None else size for size in model.inputs[0].shape[1:])),
    )
    if keras.backend.standardize_dtype(model.inputs[0].dtype) == "int32":
        tokens = rng.integers(1, 50, shape, np.int32)
        tokens[-1, -3:] = 0
        return tokens
    return rng.standard_normal(shape).astype(np.float32)


def export(model: keras.Model, path: Path) -> None:
    """Write the model, without what an exporter notes about its own run."""
    image = given(model, 2)
    model(image)
    if path.suffixes[-2] == ".dynamo":
        import torch

        sizes = (({0: "batch"},),)
        torch.onnx.export(
            model.eval(), (torch.from_numpy(image),), str(path), dynamo=True, external_data=False, dynamic_shapes=sizes
        )
    else:
        model.export(str(path), format="onnx", verbose=False, opset_version=OPSET)
    proto = onnx.load(path)
    for node in proto.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    del proto.graph.value_info[:]
    del proto.metadata_props[:]
    onnx.save(proto, path)


def error_of(path: Path, model: keras.Model) -> float:
    """The largest difference between ONNX Runtime (graph optimizations off) and Keras."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    worst = 0.0
    for batch in (2, 3):
        image = given(model, batch)
        wanted = keras.ops.convert_to_numpy(model(image, training=False))
        (found,) = session.run(None, {session.get_inputs()[0].name: image})
        worst = max(worst, float(np.abs(np.asarray(found) - wanted).max()))
    return worst


_NAMES = {"gelu": "gelu", "<lambda>": "gelu_tanh", "silu": "silu", "hard_silu": "hardswish", "relu": "relu"}


def _activation(layer: Any) -> str:
    """The activation that a layer computes, as PyTorch calls it; empty if none."""
    if getattr(layer, "max_value", None) == 6 and type(layer.input._keras_history.operation).__name__ == "Add":
        return "hardsigmoid"  # relu6(x + 3) / 6
    return _NAMES.get(getattr(getattr(layer, "activation", None), "__name__", ""), "")


def record(model: keras.Model, path: Path, error: float) -> dict[str, Any]:
    """What the network is made of, in the words of the other golden models."""
    every = list(model._flatten_layers(include_self=False, recursive=True))
    kinds = Counter(type(layer).__name__ for layer in every)
    activations = Counter(_activation(layer) for layer in every)
    convolutions = sum(count for kind, count in kinds.items() if kind.endswith("Conv2D"))
    proto = onnx.load(path)
    return {
        "exporter": path.suffixes[-2][1:],
        "attention": None,
        "keras": keras.__version__,
        "opset": next(one.version for one in proto.opset_import if not one.domain),
        "error": float(f"{error:.2g}"),
        "sites": {
            "attention": kinds["MultiHeadAttention"],
            "layer_norm": kinds["LayerNormalization"],
            "rms_norm": 0,
            "batch_norm": kinds["BatchNormalization"],
            "group_norm": 0,
            "conv": convolutions,
            "linear": kinds["Dense"],
            "rotary": 0,
            "activations": {name: count for name, count in activations.items() if name},
            "layers": len(model.layers),
        },
    }


def main(names: Sequence[str]) -> None:
    """Export what is named, or everything.

    Raises:
        ValueError: A model differs from Keras, or is too large.
    """
    backend = keras.backend.backend()
    made = [name for name in names or CASES if (backend == "tensorflow") == name.endswith(".tf")]
    for name in made:
        keras.utils.set_random_seed(SEED)
        model = CASES[name]()
        spread_weights(model)
        path = FOLDER / f"{name}.onnx"
        export(model, path)
        error = error_of(path, model)
        if not error < TOLERANCE or path.stat().st_size > SIZE_LIMIT:
            raise ValueError(f"{path}: {path.stat().st_size} bytes, error {error:.2g}")
        path.with_suffix(".json").write_text(json.dumps(record(model, path, error), indent=2) + "\n")
        print(f"{path.name}: {path.stat().st_size} bytes, error {error:.2g}")


if __name__ == "__main__":
    main(sys.argv[1:])
