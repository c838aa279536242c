"""Synthetic stacks of transformer blocks, spelled as a TorchScript export spells them, with tiny weights."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

HIDDEN, HEADS, INNER = 8, 2, 16


class _Stack:
    def __init__(self) -> None:
        self.graph = ir.Graph([], [], nodes=[], opset_imports={"": 17}, name="stack")
        self.rng = np.random.default_rng(0)

    def weight(self, array: object) -> ir.Value:
        tensor = ir.tensor(np.asarray(array), name=f"w{len(self.graph.initializers)}")
        value = ir.Value(
            name=tensor.name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape)
        )
        self.graph.register_initializer(value)
        return value

    def random(self, *shape: int) -> ir.Value:
        return self.weight(self.rng.standard_normal(shape).astype(np.float32) * 0.3)

    def op(self, op_type: str, *inputs: ir.Value, **attributes: object) -> ir.Value:
        node = ir.Node("", op_type, inputs, ir.convenience.convert_attributes(attributes))  # type: ignore[arg-type]
        self.graph.append(node)
        return node.outputs[0]

    def constant(self, array: object) -> ir.Value:
        return self.op("Constant", value=ir.tensor(np.asarray(array)))

    def linear(self, x: ir.Value, inner: int, outer: int) -> ir.Value:
        return self.op("Add", self.random(outer), self.op("MatMul", x, self.random(inner, outer)))

    def size(self, x: ir.Value, axis: int) -> ir.Value:
        gathered = self.op("Gather", self.op("Shape", x), self.constant(np.int64(axis)), axis=0)
        return self.op("Unsqueeze", gathered, self.constant(np.array([0])))

    def split(self, x: ir.Value, perm: list[int]) -> ir.Value:
        tail = (self.constant(np.array([HEADS])), self.constant(np.array([HIDDEN // HEADS])))
        shape = self.op("Concat", self.size(x, 0), self.size(x, 1), *tail, axis=0)
        return self.op("Transpose", self.op("Reshape", x, shape), perm=perm)

    def norm(self, x: ir.Value) -> ir.Value:
        deviation = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        square = self.op("Pow", deviation, self.constant(np.float32(2)))
        variance = self.op("Add", self.op("ReduceMean", square, axes=[-1]), self.constant(np.float32(1e-5)))
        normalised = self.op("Div", deviation, self.op("Sqrt", variance))
        return self.op("Add", self.op("Mul", normalised, self.random(HIDDEN)), self.random(HIDDEN))

    def attention(self, x: ir.Value) -> ir.Value:
        query = self.split(self.linear(x, HIDDEN, HIDDEN), [0, 2, 1, 3])
        key = self.split(self.linear(x, HIDDEN, HIDDEN), [0, 2, 3, 1])
        value = self.split(self.linear(x, HIDDEN, HIDDEN), [0, 2, 1, 3])
        scores = self.op("Div", self.op("MatMul", query, key), self.constant(np.float32(2)))
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), value)
        merged = self.op("Transpose", mixed, perm=[0, 2, 1, 3])
        shape = self.op("Concat", self.size(x, 0), self.size(x, 1), self.constant(np.array([HIDDEN])), axis=0)
        return self.linear(self.op("Reshape", merged, shape), HIDDEN, HIDDEN)

    def gelu(self, x: ir.Value) -> ir.Value:
        erf = self.op("Erf", self.op("Div", x, self.constant(np.float32(2**0.5))))
        product = self.op("Mul", x, self.op("Add", erf, self.constant(np.float32(1))))
        return self.op("Mul", product, self.constant(np.float32(0.5)))

    def block(self, x: ir.Value) -> ir.Value:
        x = self.norm(self.op("Add", self.attention(x), x))
        inner = self.linear(self.gelu(self.linear(x, HIDDEN, INNER)), INNER, HIDDEN)
        return self.norm(self.op("Add", inner, x))


def transformer_stack(nodes: int) -> ir.Model:
    """A model of as many blocks as make about `nodes` nodes; input and output [batch, sequence, 8], float32."""
    stack = _Stack()
    x = ir.Value(name="x", shape=ir.Shape(["batch", "sequence", HIDDEN]), type=ir.TensorType(ir.DataType.FLOAT))
    stack.graph.inputs.append(x)
    value = x
    while len(stack.graph) < nodes:
        value = stack.block(value)
    value.name, value.type, value.shape = "y", x.type, x.shape
    stack.graph.outputs.append(value)
    for index, node in enumerate(stack.graph):
        node.name = f"n{index}"
        for output in node.outputs:
            output.name = output.name or f"v{index}"
    return ir.Model(stack.graph, ir_version=8)
