"""Apply to a model the changes that ONNX's version converter made to its skeleton.

First everything is checked and turned into a plan, then an editor carries the plan out: a model is converted completely or
not at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from ortfuse.errors import TargetError
from ortfuse.ir.editor import Editor
from ortfuse.targets.opset_converter_skeleton import STUB_DOMAIN, Skeleton, graph_attributes

_ALLOWS_ZERO = 14
"""The opset from which on a Reshape can be told that a target of 0 is a size."""


@dataclass
class _ConvertedNode:
    """A node that the converter created or changed."""

    proto: onnx.NodeProto
    attributes: list[ir.Attr]


@dataclass
class _GraphPlan:
    """The nodes of one graph in their new order, and the constants to be added to it."""

    graph: ir.Graph
    order: list[ir.Node | _ConvertedNode]
    constants: list[tuple[str, ir.TensorProtocol]] = field(default_factory=list)


class Plan:
    """The changes to be made under one root.

    Args:
        skeleton: The skeleton that was sent to the converter.
        converted: The model that it returned.
        is_function: Whether the root is a function's body, which cannot have initializers.

    Raises:
        TargetError: The converter returned something that is not a valid replacement.
    """

    def __init__(self, skeleton: Skeleton, converted: onnx.ModelProto, is_function: bool) -> None:
        self._skeleton = skeleton
        self._is_function = is_function
        self._sent = dict(skeleton.sent)
        self._plans = list(self._plan(skeleton.root, converted.graph))
        # Built completely before anything is changed, so that a mistake of the converter cannot leave a model half converted.
        self._check_outputs()

    def apply(self, names: set[str], editor: Editor, author: str) -> None:
        """Change the graphs; `names` must hold all value names of the model, and the names of new values are added to it.

        Nodes that the converter did not change remain the same objects.

        Raises:
            TargetError: An inspector objects to the conversion of a node.
        """
        for plan in self._plans:
            _Application(plan, self._skeleton, self._is_function, names, editor, author).run()

    def _plan(self, graph: ir.Graph, proto: onnx.GraphProto) -> Iterator[_GraphPlan]:
        plan = _GraphPlan(graph, [])
        for tensor in proto.initializer:
            if tensor.name not in self._skeleton.values:
                plan.constants.append((tensor.name, ir.serde.deserialize_tensor(tensor)))
        for item in proto.node:
            node = self._skeleton.nodes.get(item.name)
            if node is not None and (item.name not in self._sent or item == self._sent[item.name]):
                plan.order.append(node)
                converted = {attribute.name: attribute.g for attribute in item.attribute}
                for key, inner in graph_attributes(node):
                    yield from self._plan(inner, converted[key])
            elif item.domain != STUB_DOMAIN:
                attributes = [ir.serde.deserialize_attribute(value) for value in item.attribute]
                if self._skeleton.opset >= _ALLOWS_ZERO and _restores_shape(item, proto):
                    attributes.append(ir.AttrInt64("allowzero", 1))
                plan.order.append(_ConvertedNode(item, attributes))
        if plan.constants or plan.order != list(graph):
            yield plan

    def _check_outputs(self) -> None:
        for plan in self._plans:
            kept = {item for item in plan.order if isinstance(item, ir.Node)}
            made = {name for item in plan.order if isinstance(item, _ConvertedNode) for name in item.proto.output}
            for node in plan.graph:
                lost = [value for value in node.outputs if self._skeleton.numbers.get(value) not in made]
                if node not in kept and any(value.uses() or value.is_graph_output() for value in lost):
                    raise TargetError(
                        f"ONNX's version converter lost an output of {node.op_type} '{node.name}' on the way to opset "
                        f"{self._skeleton.opset}; give --max-opset {self._skeleton.current} to stay below"
                    )


def _restores_shape(made: onnx.NodeProto, graph: onnx.GraphProto) -> bool:
    """Whether a node of the converter's gives a tensor the shape of another, as around a Softmax of several axes.

    A size of 0 there is one, and copies none, which the converter forgets.
    """
    shapes = {node.output[0] for node in graph.node if node.op_type == "Shape"} if made.op_type == "Reshape" else set()
    return len(made.input) > 1 and made.input[1] in shapes


class _Application:
    """Carry out the plan for one graph."""

    def __init__(
        self, plan: _GraphPlan, skeleton: Skeleton, is_function: bool, names: set[str], editor: Editor, author: str
    ) -> None:
        self._plan, self._skeleton, self._is_function, self._names = plan, skeleton, is_function, names
        self._editor, self._author = editor, author
        self._made: dict[str, ir.Value] = {}
        self._old_nodes = list(plan.graph)
        self._previous: ir.Node | None = None

    def run(self) -> None:
        waiting = [node for name, tensor in self._plan.constants if (node := self._constant(name, tensor)) is not None]
        for item in self._plan.order:
            if isinstance(item, ir.Node):
                self._insert(waiting)
                waiting, self._previous = [], item
                continue
            olds = [self._skeleton.values.get(name) for name in item.proto.output]
            waiting.append(self._node(item, olds))
            if any(old is not None for old in olds):
                self._replace(waiting, olds)
                waiting = []
        self._insert(waiting)
        kept = {item for item in self._plan.order if isinstance(item, ir.Node)}
        self._editor.remove(*[node for node in self._old_nodes if node not in kept])

    def _insert(self, nodes: Sequence[ir.Node]) -> None:
        if nodes and self._previous is None:
            self._editor.insert_before(self._old_nodes[0], *nodes)
        elif nodes and self._previous is not None:
            self._editor.insert_after(self._previous, *nodes)
        self._previous = nodes[-1] if nodes else self._previous

    def _replace(self, nodes: Sequence[ir.Node], olds: Sequence[ir.Value | None]) -> None:
        """Replace the old values by the outputs of the last of the new nodes."""
        pairs = [(old, new) for old, new in zip(olds, nodes[-1].outputs, strict=True) if old is not None]
        producers = dict.fromkeys(node for old, _ in pairs if (node := old.producer()) is not None)
        with self._editor.change(self._author, nodes=list(producers)) as change:
            self._insert(nodes)
            for old, new in pairs:
                self._editor.replace(old, new)
        if change.refusal is not None:
            raise TargetError(
                f"what ONNX's version converter makes of '{change.site}' for opset {self._skeleton.opset} is not the same: "
                f"{change.refusal}; give --max-opset {self._skeleton.current} to stay below"
            )

    def _constant(self, number: str, tensor: ir.TensorProtocol) -> ir.Node | None:
        if self._is_function:
            value = self._new_value(number, number)
            return ir.node("Constant", [], {"value": tensor}, outputs=[value])
        shape = ir.Shape(tensor.shape.numpy())
        value = ir.Value(
            name=self._fresh_name(number), type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor
        )
        self._editor.register_initializer(self._plan.graph, value)
        self._made[number] = value
        return None

    def _node(self, new: _ConvertedNode, olds: Sequence[ir.Value | None]) -> ir.Node:
        """Build a node that the converter created, not yet in the graph, marked with the opset that it is written for."""
        proto = new.proto
        stem = next((old.name for old in olds if old is not None and old.name), proto.op_type)
        inputs = [self._value(name) if name else None for name in proto.input]
        outputs = [ir.Value(name="") if not name else self._new_value(name, stem) for name in proto.output]
        origin = next((old.producer() for old in olds if old is not None), None)
        return ir.Node(
            proto.domain,
            proto.op_type,
            inputs,
            new.attributes,
            outputs=outputs,
            version=None if proto.domain else self._skeleton.opset,
            name=None if origin is None else origin.name,
            doc_string=None if origin is None else origin.doc_string,
            metadata_props=None if origin is None else dict(origin.metadata_props),
        )

    def _value(self, number: str) -> ir.Value:
        made = self._made.get(number)
        return self._skeleton.values[number] if made is None else made

    def _new_value(self, number: str, stem: str) -> ir.Value:
        old = self._skeleton.values.get(number)
        value = ir.Value(name=self._fresh_name(stem) if old is None else None)
        if old is None:
            self._made[number] = value
        else:
            # A number refers to the current value: nodes built from here on, in all graphs, use the new one.
            self._skeleton.values[number] = value
            self._skeleton.numbers[value] = number
        return value

    def _fresh_name(self, stem: str) -> str:
        name = next(name for number in itertools.count(1) if (name := f"{stem}_{number}") not in self._names)
        self._names.add(name)
        return name
