"""Build skeletons of graphs, small stand-ins without weights, for ONNX's version converter.

ONNX's version converter takes a whole model as protobuf, weights included, and returns a new one. A model may be larger than
memory, and its nodes carry data that the converter would lose, so it is given a *skeleton*: the same graph with

- a number as the name of each value and node, so that missing names, and names used twice in different graphs, do no harm;
- a *stub*, a node in a private domain that the converter skips, for each node that needs no conversion (of another domain,
  the same in both opsets, or made for another opset) and for each large constant;
- an If in place of every node with subgraphs, whatever its operator: the converter does not look into subgraphs of others.

`ortfuse.targets.apply_converter_changes` compares what comes back with what was sent and applies the differences.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import TargetError
from ortfuse.ir import walk
from ortfuse.ir.schemas import changes
from ortfuse.ir.traits import CONTROL_FLOW

STUB_DOMAIN = "ortfuse.stub"
SMALL = 64
"""Constants with up to this many elements are included in the skeleton: the converter's adapters read axes and sizes."""

# Types that the converter's own graph cannot represent.
_NOT_SHOWN = (ir.AttributeType.SPARSE_TENSOR, ir.AttributeType.SPARSE_TENSORS)

_SAME_SINCE_13_NAMES = (
    "Abs Add And Cast CastLike Ceil Clip Concat Constant ConstantOfShape Conv CumSum Div Dropout Equal "
    "Erf Exp Expand Flatten Floor Gather GatherElements GatherND Gemm Greater GreaterOrEqual Identity "
    "IsInf IsNaN LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max Min Mul Neg NonZero Not Or Pow "
    "Range Reciprocal Relu Reshape ScatterND Shape Sigmoid Sign Size Slice Softmax Sqrt Squeeze Sub Tanh "
    "Tile Transpose Unsqueeze Where"
)
_SAME_SINCE_13 = frozenset(_SAME_SINCE_13_NAMES.split())
"""Operators whose versions after 13 only add element types, or attributes whose defaults preserve the old meaning."""

_FLATTENED = ("Softmax", "LogSoftmax")
"""Operators on all axes from `axis` on before opset 13, and on this axis since."""


class Skeleton:
    """The skeleton of one root (the main graph or a function's body), and what each number in it stands for.

    Attributes:
        values: The value for each number.
        nodes: The node for each number.
        sent: Each node that the converter was asked to convert, in the form it was sent.
        numbers: The number of each value.
    """

    def __init__(self, root: ir.Graph, current: int, opset: int, facts: Facts) -> None:
        self.root, self.current, self.opset, self._facts = root, current, opset, facts
        self.values: dict[str, ir.Value] = {}
        self.nodes: dict[str, ir.Node] = {}
        self.sent: dict[str, onnx.NodeProto] = {}
        self.numbers: dict[ir.Value, str] = {}
        self._node_numbers: dict[ir.Node, str] = {}

    def effective(self, node: ir.Node) -> int:
        """The ai.onnx opset that `node` is written for: its own version if a rule made it for a newer opset."""
        return max(self.current, node.version or 0)

    def versions(self) -> list[int]:
        """The opsets that the nodes to be converted are written for, in ascending order."""
        return sorted(
            {
                self.effective(node)
                for node in walk.nodes_within(self.root)
                if self._is_shown(node, self.effective(node))
            }
        )

    def write(self, version: int) -> onnx.ModelProto:
        """The model to convert from `version`; only nodes written for that opset are included, the others as stubs."""
        self.sent = {}
        graph = self._write_graph(self.root, version)
        imports = [onnx.helper.make_opsetid("", version), onnx.helper.make_opsetid(STUB_DOMAIN, 1)]
        return onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)

    def _write_graph(self, graph: ir.Graph, version: int) -> onnx.GraphProto:
        proto = onnx.GraphProto(name="graph")
        inputs = dict.fromkeys(graph.inputs)
        proto.input.extend(self._typed(value) for value in inputs)
        for value in graph.initializers.values():
            if value not in inputs:
                self._write_initializer(proto, value)
        for node in graph:
            self._write_node(proto, node, version)
        for value in graph.outputs:
            proto.output.append(self._typed(value))
        return proto

    def _write_initializer(self, proto: onnx.GraphProto, value: ir.Value) -> None:
        tensor = value.const_value
        if tensor is not None and tensor.size <= SMALL and tensor.dtype != ir.DataType.STRING:
            written = proto.initializer.add()
            written.data_type = tensor.dtype.value
            written.dims.extend(tensor.shape.numpy())
            written.raw_data = tensor.tobytes()
            written.name = self._number(value)
        else:
            proto.node.add(op_type="Data", domain=STUB_DOMAIN, output=[self._number(value)])

    def _write_node(self, graph: onnx.GraphProto, node: ir.Node, version: int) -> None:
        name = self._node_numbers.setdefault(node, f"n{len(self._node_numbers)}")
        self.nodes[name] = node
        proto = graph.node.add(name=name, op_type="Other", domain=STUB_DOMAIN)
        proto.input.extend("" if value is None else self._number(value) for value in node.inputs)
        proto.output.extend("" if value.name == "" else self._number(value) for value in node.outputs)
        if any(True for _ in graph_attributes(node)):
            proto.op_type, proto.domain = "If", ""
            for key, inner in graph_attributes(node):
                attribute = proto.attribute.add(name=key, type=onnx.AttributeProto.GRAPH)
                attribute.g.CopyFrom(self._write_graph(inner, version))
        elif self.effective(node) == version and self._is_shown(node, version):
            proto.op_type, proto.domain = node.op_type, ""
            proto.attribute.extend(ir.serde.serialize_attribute(value) for value in node.attributes.values())
            self._count_axis_from_end(node, proto)
            self.sent[name] = onnx.NodeProto.FromString(proto.SerializeToString())

    def _count_axis_from_end(self, node: ir.Node, proto: onnx.NodeProto) -> None:
        """Call the last axis of a Softmax that: the converter does not know the rank, and flattens what other axes may be."""
        rank = self._facts.rank(node.inputs[0]) if node.op_type in _FLATTENED else None
        for attribute in proto.attribute:
            if rank is not None and attribute.name == "axis" and attribute.i == rank - 1:
                attribute.i = -1

    def _is_shown(self, node: ir.Node, version: int) -> bool:
        if node.domain or node.op_type in CONTROL_FLOW or not changes(node.op_type, version, self.opset):
            return False
        references = any(attribute.is_ref() for attribute in node.attributes.values())
        if not references and not any(attribute.type in _NOT_SHOWN for attribute in node.attributes.values()):
            return not _is_large_constant(node)
        if version >= 13 and node.op_type in _SAME_SINCE_13:
            return False
        what = "an attribute of its function" if references else "a sparse tensor"
        raise TargetError(
            f"{node.op_type} '{node.name}' differs between opset {version} and {self.opset}, and ONNX's version converter "
            f"cannot convert it because it has {what}; give --max-opset {version} to stay below"
        )

    def _number(self, value: ir.Value) -> str:
        number = self.numbers.get(value)
        if number is None:
            number = self.numbers[value] = f"v{len(self.numbers)}"
            self.values[number] = value
        return number

    def _typed(self, value: ir.Value) -> onnx.ValueInfoProto:
        proto = onnx.ValueInfoProto(name=self._number(value))
        if isinstance(value.type, ir.TensorType):
            proto.type.tensor_type.elem_type = value.type.dtype.value
        return proto


def graph_attributes(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """The graphs in the node's attributes, each with a unique name."""
    for attribute in node.attributes.values():
        yield from ((f"{attribute.name}.{index}", graph) for index, graph in enumerate(walk.graphs_of(attribute)))


def _is_large_constant(node: ir.Node) -> bool:
    # Constant has the same meaning in all versions.
    if node.op_type != "Constant":
        return False
    value = node.attributes.get("value")
    return value is None or value.value.size > SMALL
