"""Run, compare and measure models that the runtime loads but a graph cannot represent."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir
from onnx_ir import serde


@dataclass(frozen=True)
class AsItIs:
    """A model of which only the inputs and outputs are looked at.

    Attributes:
        source: The path of the model file, or the serialised model.
    """

    source: str | bytes

    @functools.cached_property
    def _proto(self) -> onnx.ModelProto:
        content = self.source if isinstance(self.source, bytes) else Path(self.source).read_bytes()
        proto = onnx.ModelProto()
        proto.ParseFromString(content)
        return proto

    @functools.cached_property
    def signature(self) -> ir.Model:
        """A model without nodes that has the same inputs and outputs; inputs with a default are left out."""
        graph = self._proto.graph
        defaults = {tensor.name for tensor in graph.initializer}
        inputs = [serde.deserialize_value_info_proto(one, None) for one in graph.input if one.name not in defaults]
        outputs = [serde.deserialize_value_info_proto(one, None) for one in graph.output]
        return ir.Model(ir.Graph(inputs, outputs, nodes=(), opset_imports={"": 1}), ir_version=8)

    @property
    def nodes(self) -> int:
        """The number of nodes of the main graph."""
        return len(self._proto.graph.node)

    @property
    def size(self) -> int:
        """The bytes of the model, without external data."""
        return len(self.source) if isinstance(self.source, bytes) else Path(self.source).stat().st_size


Runnable: TypeAlias = "ir.Model | AsItIs"
"""A model that can be run: a graph, or a model that no graph can represent."""


def signature_of(model: Runnable) -> ir.Model:
    """The model itself or, if no graph can represent it, one with its inputs and outputs alone."""
    return model.signature if isinstance(model, AsItIs) else model
