"""Eliminate common subexpressions: merge nodes that compute the same from the same inputs.

Transforms:

- nodes of the same operator, version, attributes and inputs, with the same outputs present. Tensors in attributes count by
  value. Axes may be counted from either end, and be attributes or inputs. Inputs may come in either order for operators
  that commute to the bit;
- small integer tensors whose elements the facts know to be the same symbolic sizes, however they are computed;
- initializers of the same type, shape and bytes (see `find_equal_initializers`), also weights of two bodies, such as those of
  both branches of a decoder with and without past. One in the main graph takes their place.

Sizes of a model input are read from it, others from the first value that has them. So no value in between is kept for
its shape alone. Each size is read in one way (see `merge_size_reads`). Nodes of a subgraph are also merged into equal ones of
the graphs around it, never the reverse.

Does not handle:

- operators that draw random numbers or may be in training mode, operators of unknown domains, and nodes with subgraphs;
- nodes whose merging would move or rename a graph output. Two graph outputs that are equal stay two;
- operands of Max, Min and Sum in another order: which NaN or zero these return depends on it;
- signed quantised pairs, if the runtime makes those with one reader unsigned. It computes the readers of other pairs in float32;
- nodes whose merging the context's inspector rejects.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import UNKNOWN, parameter
from ortfuse.ir.purity import Purity
from ortfuse.ir.traits import ALONG_AXIS, COMMUTES, PICKS, REDUCES, has
from ortfuse.ir.walk import roots, subgraphs
from ortfuse.targets import Quirk
from ortfuse.transforms.canonicalize.hoist_shape_reads import ReadSizes
from ortfuse.transforms.canonicalize.merge_size_reads import merge_size_reads
from ortfuse.transforms.canonicalize.sink_shape_ops import settle
from ortfuse.transforms.cleanup.find_equal_initializers import SMALL, TensorPool, can_be_shared, content_key
from ortfuse.transforms.context import Context
from ortfuse.transforms.veto_edits_that_join_qdq_pairs import is_signed

_EXCHANGEABLE = COMMUTES - PICKS
"""Operators of two operands whose order makes no difference to the bits."""

_WITH_AXES = REDUCES | ALONG_AXIS & {"ArgMax", "ArgMin", "Hardmax", "LogSoftmax", "Softmax"} | {"Squeeze", "Unsqueeze"}
"""Operators of one operand, and of axes."""

Key = tuple[Hashable, ...]


@dataclass(frozen=True)
class CommonSubexpressionElimination:
    """Merge equal initializers and nodes that compute the same."""

    name: ClassVar[str] = "cse"

    def run(self, context: Context) -> int:
        """Merge duplicates; returns how many initializers and nodes were removed."""
        changes, purity = 0, Purity(context.model)
        for root in roots(context.model):
            merged = merge_size_reads(context, root, self.name)
            merger = _Merger(context, root, purity)
            merger.walk()
            changes += len(merged) + merger.shared + len(merger.duplicates) + settle(context, root, self.name)
        return changes


@dataclass
class _Frame:
    """A graph being walked: the nodes still to come, the constants visible, and the keys to forget at its end."""

    graph: ir.Graph
    nodes: Iterator[ir.Node]
    constants: TensorPool
    keys: list[Key] = field(default_factory=list)


class _Merger:
    """Walk one graph and its subgraphs in order, keeping track of the computations visible at each point."""

    def __init__(self, context: Context, root: ir.Graph, purity: Purity) -> None:
        self.duplicates: list[ir.Node] = []
        self.shared = 0
        self._context, self._root = context, root
        self._purity = purity
        self._sizes = ReadSizes(context, root, CommonSubexpressionElimination.name)
        self._visible: dict[Key, ir.Node] = {}
        self._constants, self._nested = TensorPool(), TensorPool()
        self._turned = Quirk.TURNS_SIGNED_PAIRS in context.target.quirks

    def walk(self) -> None:
        """Replace every duplicate by its first occurrence."""
        stack = [self._enter(self._root, None)]
        while stack:
            frame = stack[-1]
            node = next(frame.nodes, None)
            if node is None:
                for key in frame.keys:
                    del self._visible[key]
                stack.pop()
            elif inner := subgraphs(node):
                # Each subgraph is walked to its end before the next: subgraphs see this graph, but not each other.
                stack += [self._enter(graph, frame.constants) for graph in inner]
            else:
                self._visit(node, frame)

    def _enter(self, graph: ir.Graph, outer: TensorPool | None) -> _Frame:
        pool = self._constants if outer is None else TensorPool(outer)
        editor = self._context.editor
        for value in list(graph.initializers.values()):
            if not can_be_shared(value):
                continue
            first = pool.first_equal(value)
            if first is value:
                self._share_with_other_body(value, graph)
                continue
            with editor.change(CommonSubexpressionElimination.name) as change:
                editor.replace(value, first)
                editor.drop_initializers(value)
            self.shared += bool(change)
        return _Frame(graph, iter(graph), pool)

    def _share_with_other_body(self, value: ir.Value, graph: ir.Graph) -> None:
        """Put one weight into the main graph in the place of two equal ones of bodies that do not see each other.

        Small constants stay, so that nodes of bodies do not become loop-invariant before they are fused.
        """
        if graph is self._root or self._root is not self._context.model.graph:
            return
        if value.const_value is None or value.const_value.nbytes <= SMALL:
            return
        first, editor = self._nested.first_equal(value), self._context.editor
        if first is value or not first.is_initializer() or not (place := next(iter(self._root), None)):
            return
        with editor.change(CommonSubexpressionElimination.name) as change:
            shared = editor.add_constant(place, value.const_value)
            assert shared is not None
            for one in (first, value):
                editor.replace(one, shared)
                editor.drop_initializers(one)
        if change and shared is not None:
            self._constants.first_equal(shared)
            self.shared += 1

    def _visit(self, node: ir.Node, frame: _Frame) -> None:
        if not self._purity.is_pure(node) or (self._turned and is_signed(node, self._context.facts)):
            return
        key = self._sizes_key(node) or computation(node, self._root.opset_imports, self._context.facts)
        first = self._visible.get(key)
        if first is None:
            made = self._sizes.read_earlier(node)
            if made is not None:
                self.duplicates.append(node)
            self._visible[key] = made or node
            frame.keys.append(key)
        elif _can_stand_for(first, node) and self._merge(node, first):
            # Kept alive, since keys contain the `id` of values.
            self.duplicates.append(node)

    def _merge(self, node: ir.Node, first: ir.Node) -> bool:
        """Replace `node` by `first`; returns whether the change was accepted."""
        editor = self._context.editor
        with editor.change(CommonSubexpressionElimination.name, nodes=[node], instead=[first]) as change:
            for old, new in zip(node.outputs, first.outputs, strict=True):
                if old.name:
                    editor.replace(old, new)
            editor.remove(node)
        return bool(change)

    def _sizes_key(self, node: ir.Node) -> Key | None:
        """A key made of the symbolic sizes that a node computes, whichever way it does so; `None` for other nodes."""
        if len(node.outputs) != 1:
            return None
        sizes = self._context.facts.ints(node.outputs[0])
        if sizes is None or not sizes.elements or None in sizes.elements:
            return None
        return ("sizes", self._context.facts.dtype(node.outputs[0]), sizes.elements, sizes.shape)


def _can_stand_for(first: ir.Node, node: ir.Node) -> bool:
    """Whether `first` can replace `node` without moving or renaming a graph output."""
    for old, new in zip(node.outputs, first.outputs, strict=True):
        if bool(old.name) != bool(new.name):
            return False
        if old.is_graph_output() and (new.is_graph_output() or first.graph is not node.graph):
            return False
    return True


def computation(node: ir.Node, imports: Mapping[str, int], facts: Facts) -> Key:
    """A key that is equal for two nodes if and only if they compute the same."""
    inputs: Key = tuple([0 if value is None else id(value) for value in node.inputs])
    if has(node, _EXCHANGEABLE) and len(inputs) == 2 and inputs[0] > inputs[1]:  # type: ignore[operator]
        inputs = (inputs[1], inputs[0])
    attributes: Key = tuple(sorted(map(_attribute_key, node.attributes.values()))) if node.attributes else ()
    if has(node, _WITH_AXES):
        inputs, attributes = _by_axes(node, facts, inputs, attributes)
    # Nodes from the loaded model carry no version, nodes created by rules do.
    version = imports.get(node.domain, 1) if node.version is None else node.version
    return (node.op_type, node.domain, node.overload, version, len(node.outputs), inputs, attributes)


def _by_axes(node: ir.Node, facts: Facts, inputs: Key, attributes: Key) -> tuple[Key, Key]:
    """Inputs and attributes of a key with the axes counted from the front, if they and the rank are known."""
    rank, name = facts.rank(node.inputs[0]), "axis" if has(node, ALONG_AXIS) else "axes"
    axes = parameter(node, name, facts)
    if rank is None or axes is None or axes is UNKNOWN:
        return inputs, attributes
    rest = [attribute for attribute in attributes if attribute[0] != name]  # type: ignore[index]
    return inputs if name in node.attributes else inputs[:1], (*rest, (name, "from the front", axes))


def _attribute_key(attribute: ir.Attr) -> tuple[str, str, Any]:
    if attribute.is_ref():
        return attribute.name, "ref", attribute.ref_attr_name
    return attribute.name, attribute.type.name, _attribute_value(attribute)


def _attribute_value(attribute: ir.Attr) -> Hashable:
    kind, value = attribute.type, attribute.value
    if kind == ir.AttributeType.FLOAT:
        return struct.pack("<d", value)
    if kind == ir.AttributeType.FLOATS:
        return struct.pack(f"<{len(value)}d", *value)
    if kind == ir.AttributeType.TENSOR:
        return content_key(value)
    if kind == ir.AttributeType.TENSORS:
        return tuple(content_key(tensor) for tensor in value)
    if kind in (ir.AttributeType.INT, ir.AttributeType.STRING):
        plain: Hashable = value
        return plain
    if kind in (ir.AttributeType.INTS, ir.AttributeType.STRINGS):
        return tuple(value)
    return id(value)
