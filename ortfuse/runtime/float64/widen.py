"""Widen a model: every float16, bfloat16 and float32 in it becomes float64, or half precision becomes float32.

This covers weights, constants, attributes that name a type (or default to float32), inputs, outputs, and everything in the
bodies of control flow; model functions are inlined first. Constants keep their values: 0.1 rounded to float32 remains that
number. Weights are widened when they are read, so the model needs no memory of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis import operators as _operators  # noqa: F401  (fills the registry)
from ortfuse.ir import walk
from ortfuse.ir.inlinable_functions import without_functions
from ortfuse.ir.operator_registry import FLOAT32_UNLESS

NARROW = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_datatype", "output_dtype", "softmax_precision"})
_INTRODUCED = {"GroupNormalization": 21}
"""The opset at which an operator gained the attribute, if later than the operator's first."""


def in_float64(model: ir.Model) -> ir.Model | None:
    """A copy of `model` that computes in float64; `None` if it has functions that cannot be put in the place of their calls."""
    copy = without_functions(model) if model.functions else model.clone()
    if copy is not None:
        Widening(NARROW, ir.DataType.DOUBLE).apply(copy)
    return copy


@dataclass(frozen=True)
class Widening:
    """A change of every floating-point type of some to a wider one.

    Attributes:
        narrow: The types that are widened.
        wide: The type that takes their place.
    """

    narrow: frozenset[ir.DataType]
    wide: ir.DataType

    def apply(self, model: ir.Model) -> None:
        """Widen a model without functions in place."""
        opset = model.graph.opset_imports.get("", 1)
        for graph in walk.nested(model.graph):
            for value in graph.initializers.values():
                if value.const_value is not None and value.const_value.dtype in self.narrow:
                    value.const_value = self._tensor(value.const_value)
                self._retype(value)
            for value in graph.inputs:
                self._retype(value)
            for node in graph:
                self._widen_node(node, opset)

    def _retype(self, value: ir.Value) -> None:
        if value.type is not None:
            # Create a new type: a clone shares its types with the original.
            value.type = self._type(value.type)

    def _type(self, kind: ir.TypeProtocol) -> ir.TypeProtocol:
        if isinstance(kind, ir.SequenceType | ir.OptionalType):
            return type(kind)(self._type(kind.elem_type), denotation=kind.denotation)
        if isinstance(kind, ir.TensorType) and kind.dtype in self.narrow:
            return ir.TensorType(self.wide, denotation=kind.denotation)
        return kind

    def _tensor(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        return ir.LazyTensor(
            lambda: ir.Tensor(tensor.numpy().astype(self.wide.numpy())),
            self.wide,
            ir.Shape(tensor.shape.numpy()),
            name=tensor.name,
        )

    def _widen_node(self, node: ir.Node, opset: int) -> None:
        for output in node.outputs:
            self._retype(output)
        for name, attribute in list(node.attributes.items()):
            wide = self._attribute(node, name, attribute)
            if wide is not attribute:
                node.attributes.pop(name)
                node.attributes[wide.name] = wide
        if node.domain or ir.DataType.FLOAT not in self.narrow:
            return
        if node.op_type == "ConstantOfShape" and "value" not in node.attributes:
            node.attributes["value"] = ir.AttrTensor("value", ir.Tensor(np.zeros(1, self.wide.numpy())))
        default = FLOAT32_UNLESS.of(node)
        if default is not None and default not in node.attributes and opset >= _INTRODUCED.get(node.op_type, 1):
            node.attributes[default] = ir.AttrInt64(default, int(self.wide))

    def _attribute(self, node: ir.Node, name: str, attribute: ir.Attr) -> ir.Attr:
        kind: Any = attribute.type
        types = ir.AttributeType
        if kind == types.TENSOR and attribute.value.dtype in self.narrow:
            return ir.AttrTensor(name, self._tensor(attribute.value))
        if node.op_type == "Constant" and kind in (types.FLOAT, types.FLOATS) and ir.DataType.FLOAT in self.narrow:
            return ir.AttrTensor("value", ir.Tensor(np.asarray(attribute.value, self.wide.numpy())))
        names_type = name in _TYPE_ATTRIBUTES or name == FLOAT32_UNLESS.of(node)
        if names_type and kind == types.INT and attribute.value in set(map(int, self.narrow)):
            return ir.AttrInt64(name, int(self.wide))
        return attribute
