"""Taking over what ONNX's version converter made of a skeleton.

First everything is checked and put into a plan, then the plan is carried out, which cannot fail: a model is converted
completely or not touched.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from ortfuse.errors import TargetError
from ortfuse.targets.skeleton import STUB_DOMAIN, Skeleton, graph_attributes


@dataclass
class _New:
    """A node that the converter made, or changed."""

    proto: onnx.NodeProto
    attributes: list[ir.Attr]


@dataclass
class _GraphPlan:
    """The nodes of one graph in their new order, and the constants it gets."""

    graph: ir.Graph
    order: list[ir.Node | _New]
    constants: list[tuple[str, ir.TensorProtocol]] = field(default_factory=list)


class Plan:
    """What is to be changed under one root.

    Args:
        skeleton: What was sent.
        converted: What came back.
        is_function: Whether the root is a function's body, which cannot have initializers.

    Raises:
        TargetError: The converter returned something that is not a valid replacement.
    """

    def __init__(self, skeleton: Skeleton, converted: onnx.ModelProto, is_function: bool) -> None:
        self._skeleton = skeleton
        self._is_function = is_function
        self._sent = dict(skeleton.sent)
        self._plans = list(self._plan(skeleton.root, converted.graph))
        # Fully built before anything changes, so that a mistake of the converter's cannot leave half a model.
        self._check_outputs()

    def apply(self, names: set[str]) -> None:
        """Change the graphs; `names` are all value names of the model, and gets those of the new values.

        Nodes that the converter did not change stay the objects they are.
        """
        for plan in self._plans:
            _Application(plan, self._skeleton, self._is_function, names).run()

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
                plan.order.append(_New(item, [ir.serde.deserialize_attribute(value) for value in item.attribute]))
        if plan.constants or plan.order != list(graph):
            yield plan

    def _check_outputs(self) -> None:
        for plan in self._plans:
            kept = {item for item in plan.order if isinstance(item, ir.Node)}
            made = {name for item in plan.order if isinstance(item, _New) for name in item.proto.output}
            for node in plan.graph:
                lost = [value for value in node.outputs if self._skeleton.numbers.get(value) not in made]
                if node not in kept and any(value.uses() or value.is_graph_output() for value in lost):
                    raise TargetError(
                        f"ONNX's version converter lost an output of {node.op_type} '{node.name}' on the way to opset "
                        f"{self._skeleton.opset}; give --max-opset {self._skeleton.current} to stay below"
                    )


class _Application:
    """Carries out the plan of one graph."""

    def __init__(self, plan: _GraphPlan, skeleton: Skeleton, is_function: bool, names: set[str]) -> None:
        self._plan, self._skeleton, self._is_function, self._names = plan, skeleton, is_function, names
        self._made: dict[str, ir.Value] = {}

    def run(self) -> None:
        graph = self._plan.graph
        old_nodes = list(graph)
        kept = {item for item in self._plan.order if isinstance(item, ir.Node)}
        leading = [node for name, tensor in self._plan.constants if (node := self._constant(name, tensor)) is not None]
        waiting: list[ir.Node] = leading
        previous: ir.Node | None = None
        for item in self._plan.order:
            if isinstance(item, _New):
                waiting.append(self._node(item))
                continue
            self._insert(previous, waiting, old_nodes)
            waiting, previous = [], item
        self._insert(previous, waiting, old_nodes)
        for node in reversed(old_nodes):
            if node not in kept:
                graph.remove(node, safe=True)

    def _insert(self, previous: ir.Node | None, nodes: Sequence[ir.Node], old_nodes: Sequence[ir.Node]) -> None:
        if not nodes:
            return
        if previous is None:
            self._plan.graph.insert_before(old_nodes[0], nodes)
        else:
            self._plan.graph.insert_after(previous, nodes)

    def _constant(self, number: str, tensor: ir.TensorProtocol) -> ir.Node | None:
        if self._is_function:
            value = self._new_value(number, number)
            return ir.node("Constant", [], {"value": tensor}, outputs=[value])
        shape = ir.Shape(tensor.shape.numpy())
        value = ir.Value(
            name=self._fresh_name(number), type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor
        )
        self._plan.graph.register_initializer(value)
        self._made[number] = value
        return None

    def _node(self, new: _New) -> ir.Node:
        proto = new.proto
        olds = [self._skeleton.values.get(name) for name in proto.output]
        stem = next((old.name for old in olds if old is not None and old.name), proto.op_type)
        inputs = [self._value(name) if name else None for name in proto.input]
        outputs = [ir.Value(name="") if not name else self._new_value(name, stem) for name in proto.output]
        origin = next((old.producer() for old in olds if old is not None), None)
        node = ir.Node(proto.domain, proto.op_type, inputs, new.attributes, outputs=outputs)
        if origin is not None:
            node.name, node.doc_string = origin.name, origin.doc_string
            node.metadata_props.update(origin.metadata_props)
        for old, value in zip(olds, outputs, strict=True):
            if old is not None:
                self._replace(old, value)
        return node

    def _replace(self, old: ir.Value, new: ir.Value) -> None:
        new.type, new.shape, new.doc_string = old.type, old.shape, old.doc_string
        new.metadata_props.update(old.metadata_props)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        new.name = old.name

    def _value(self, number: str) -> ir.Value:
        made = self._made.get(number)
        return self._skeleton.values[number] if made is None else made

    def _new_value(self, number: str, stem: str) -> ir.Value:
        old = self._skeleton.values.get(number)
        value = ir.Value(name=self._fresh_name(stem) if old is None else None)
        if old is None:
            self._made[number] = value
        else:
            # Numbers stand for the values of now: nodes made from here on, in all graphs, use the new one.
            self._skeleton.values[number] = value
            self._skeleton.numbers[value] = number
        return value

    def _fresh_name(self, stem: str) -> str:
        name = next(name for number in itertools.count(1) if (name := f"{stem}_{number}") not in self._names)
        self._names.add(name)
        return name
