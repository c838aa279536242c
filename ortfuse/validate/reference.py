"""The original evaluated in float64: the yardstick that tells rounding from error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from ortfuse.errors import VerificationError
from ortfuse.rewrite.scopes import scopes
from ortfuse.validate.runtime import Arrays, Session, weight_bytes

LARGEST = 256 << 20
"""Models with more bytes of weights are not evaluated in float64: it would take longer than all the rest."""

_NARROW = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


def in_float64(model: ir.Model) -> ir.Model:
    """A copy of `model` in which every float16, bfloat16 and float32 is float64: weights, constants, casts, inputs."""
    copy = model.clone()
    for scope in scopes(copy):
        for value in scope.graph.initializers.values():
            _widen_initializer(value)
        for value in (*scope.graph.inputs, *scope.graph.outputs):
            _widen_type(value)
        for node in scope.graph:
            _widen_node(node)
    return copy


def _widen_type(value: ir.Value) -> None:
    if value.dtype in _NARROW:
        # A new type: a clone shares its types with the original.
        value.type = ir.TensorType(ir.DataType.DOUBLE)


def _widen_initializer(value: ir.Value) -> None:
    if value.const_value is not None and value.const_value.dtype in _NARROW:
        value.const_value = _widened(value.const_value)
        value.type = ir.TensorType(ir.DataType.DOUBLE)


def _widened(tensor: Any) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy().astype(np.float64), name=tensor.name)


def _widen_node(node: ir.Node) -> None:
    for output in node.outputs:
        _widen_type(output)
    for name, attribute in list(node.attributes.items()):
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in _NARROW:
            node.attributes[name] = ir.AttrTensor(name, _widened(attribute.value))
        elif node.op_type == "Constant" and attribute.type in (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS):
            node.attributes.pop(name)
            node.attributes["value"] = ir.AttrTensor("value", ir.Tensor(np.asarray(attribute.value, np.float64)))
        elif (
            name in ("to", "dtype")
            and attribute.type == ir.AttributeType.INT
            and attribute.value in {int(d) for d in _NARROW}
        ):
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.DOUBLE))


class Reference:
    """Evaluates a model in float64, in the runtime where it has kernels for that, else by ONNX's reference."""

    def __init__(self, model: ir.Model) -> None:
        self.reason: str | None = None
        """Why there is no float64 evaluation, `None` if there is."""
        self._session: Session | None = None
        self._proto: onnx.ModelProto | None = None
        if weight_bytes(model) > LARGEST:
            self.reason = f"the weights exceed {LARGEST >> 20} MB"
            return
        wide = in_float64(model)
        try:
            self._session = Session(wide, optimise=False)
        except VerificationError:
            # Some operators have no float64 kernel.
            self._proto = ir.to_proto(wide)

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Arrays | None:
        """All outputs in float64, or `None` (see `reason`)."""
        if self.reason is not None:
            return None
        widened = {name: _wide(array) for name, array in inputs.items()}
        if self._session is not None:
            try:
                return self._session.run(widened)
            except VerificationError as error:
                self.reason = str(error)
                return None
        try:
            with np.errstate(all="ignore"):
                evaluator = ReferenceEvaluator(self._proto)
                return dict(zip(evaluator.output_names, evaluator.run(None, widened), strict=True))
        except Exception as error:
            # The reference implementation lacks contrib operators, and some of its own fail on legal input.
            self.reason = f"ONNX's reference cannot evaluate the model in float64: {type(error).__name__}"
            return None


def _wide(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(np.float64) if array.dtype.name in ("float16", "bfloat16", "float32") else array
