"""A model with its weights and data files, as a session in Node.js is created of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .find_packages import NodeError
from .tensors import Array

_LARGEST = 2**31 - 2**20
"""The most bytes of a model in memory: a serialised one cannot be larger."""


def load_arguments(
    source: str | bytes, weights: Mapping[str, Array], folder: str
) -> tuple[str, bytes, list[dict[str, str]]]:
    """Return the path of a model, or else its bytes with the weights in it, and its data files.

    Args:
        source: The path, or a serialised model.
        weights: Weights that the serialised model does not contain.
        folder: The folder of its data files.

    Raises:
        NodeError: The model with its weights is larger than a serialised model can be.
    """
    import onnx

    if isinstance(source, str):
        model = onnx.load(source, load_external_data=False)
        return source, b"", _data_files(model, Path(source).parent)
    model = onnx.ModelProto.FromString(source)
    if sum(array.nbytes for array in weights.values()) + len(source) > _LARGEST:
        raise NodeError("the model has more than 2 GB of weights in memory, which WebAssembly does not take")
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = weights[tensor.name].tobytes()
    return "", model.SerializeToString() if weights else source, _data_files(model, Path(folder))


def _data_files(model: Any, folder: Path) -> list[dict[str, str]]:
    """The data files of a model, by their names in it."""
    names = {
        entry.value
        for tensor in _tensors(model.graph)
        if tensor.data_location == tensor.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return [{"name": name, "file": str(folder / name)} for name in sorted(names)]


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from _tensors(inner)
