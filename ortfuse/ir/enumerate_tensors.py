"""Enumerate the tensors of a model and the places that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir

from ortfuse.ir.walk import describe, graphs

Replace = Callable[[onnx_ir.TensorProtocol], None]


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """A place in a model that holds a tensor: `owner` describes it, `replace` puts another tensor there."""

    tensor: onnx_ir.TensorProtocol
    owner: str
    replace: Replace


def tensors(model: onnx_ir.Model) -> Iterator[TensorSlot]:
    """Every tensor of a model: the initializers and the attributes, in all of its graphs."""
    for graph in graphs(model):
        for name, value in graph.initializers.items():
            if value.const_value is not None:
                yield TensorSlot(value.const_value, f"initializer '{name}'", _setter(value))
        for node in graph:
            for attribute in node.attributes.values():
                if tensors_of(attribute):
                    yield from _attribute_slots(node, attribute)


def _setter(value: onnx_ir.Value) -> Replace:
    def replace(tensor: onnx_ir.TensorProtocol) -> None:
        value.const_value = tensor

    return replace


def _attribute_slots(node: onnx_ir.Node, attribute: onnx_ir.Attr) -> Iterator[TensorSlot]:
    single = attribute.type == onnx_ir.AttributeType.TENSOR
    content = list(tensors_of(attribute))

    def replacer(index: int) -> Replace:
        def replace(tensor: onnx_ir.TensorProtocol) -> None:
            content[index] = tensor
            stored = tensor if single else tuple(content)
            changed = onnx_ir.Attr(attribute.name, attribute.type, stored, doc_string=attribute.doc_string)
            node.attributes[attribute.name] = changed

        return replace

    for index, tensor in enumerate(content):
        yield TensorSlot(tensor, f"attribute '{attribute.name}' of {describe(node)}", replacer(index))


def tensors_of(attribute: onnx_ir.Attr) -> tuple[onnx_ir.TensorProtocol, ...]:
    """The tensors in an attribute: one, several or, for attributes of other types, none.

    `Attr.as_tensor` would check the tensor against a protocol, member by member, which dominates the running time.
    """
    if attribute.type == onnx_ir.AttributeType.TENSOR and not attribute.is_ref():
        return (attribute.value,)
    if attribute.type == onnx_ir.AttributeType.TENSORS and not attribute.is_ref():
        return tuple(attribute.value)
    return ()


def constant_tensor(node: onnx_ir.Node) -> onnx_ir.TensorProtocol | None:
    """The value of a Constant node as a dense tensor; `None` if it is sparse or refers to an attribute of a function."""
    attribute = next(iter(node.attributes.values()), None)
    if attribute is None or attribute.is_ref():
        return None
    if attribute.name == "value":
        # as_tensor() is avoided: its check against a protocol class takes longer than the rest of the conversion.
        tensor: onnx_ir.TensorProtocol = attribute.value
        return tensor
    if attribute.name in ("value_string", "value_strings"):
        strings = [attribute.as_string()] if attribute.name == "value_string" else attribute.as_strings()
        shape = onnx_ir.Shape([] if attribute.name == "value_string" else [len(strings)])
        return onnx_ir.StringTensor([text.encode() for text in strings], shape=shape)
    dtype = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if attribute.name not in dtype:
        return None
    return onnx_ir.Tensor(np.asarray(attribute.value, dtype[attribute.name]))
