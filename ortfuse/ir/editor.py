"""The editor: the only code that changes graphs. Each edit updates the facts, is inspected and logged, and can be undone.

Every operation records how to undo it. Operations inside `with editor.change(...)` form one change; others are a change
each. Before a change is final, the inspectors see it as an `Edit`; if they object it is undone completely, and the author
can tell because the change, or the return value of the operation, is false.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import onnx_ir as ir

from ortfuse.ir import body_copies, walk
from ortfuse.ir.edit import Inspector
from ortfuse.ir.graph_transaction import NODES_KEY, RULE_KEY, Change, Changes, Listener, Recorder, operation
from ortfuse.ir.journal import (
    Assigned,
    Detached,
    Filled,
    Flip,
    Listed,
    Moved,
    Named,
    Ordered,
    Placed,
    Registered,
    Rewired,
    Shortened,
    following,
    put_in_order,
)
from ortfuse.ir.walk import nested_nodes


class Editor(Changes):
    """Change the graphs of a model. Rules and passes change a model only through its editor."""

    def __init__(
        self,
        model: ir.Model,
        facts: Listener,
        inspectors: Iterable[Inspector] = (),
        recorder: Recorder | None = None,
        author: str = "edit",
    ) -> None:
        super().__init__(model, facts, inspectors, recorder, author)
        self._ranks: dict[ir.Graph, dict[ir.Value, int]] = {}

    # Nodes.

    @operation(builds=True)
    def insert_before(self, place: ir.Node, *nodes: ir.Node) -> bool:
        """Insert nodes before `place`, in its graph. Domains that are not yet imported are added to the imports."""
        assert isinstance(place.graph, ir.Graph)
        place.graph.insert_before(place, nodes)
        return self._inserted(nodes, place.graph)

    @operation(builds=True)
    def insert_after(self, place: ir.Node, *nodes: ir.Node) -> bool:
        """Insert nodes after `place`, in its graph."""
        assert isinstance(place.graph, ir.Graph)
        place.graph.insert_after(place, nodes)
        return self._inserted(nodes, place.graph)

    @operation(builds=True)
    def append(self, graph: ir.Graph, *nodes: ir.Node) -> bool:
        """Append nodes at the end of a graph."""
        graph.extend(nodes)
        return self._inserted(nodes, graph)

    @operation(builds=True)
    def insert_copy(
        self,
        place: ir.Node,
        graph: ir.Graph,
        given: Sequence[ir.Value | None] = (),
        attributes: Mapping[str, ir.Attr] | None = None,
        names: set[str | None] | None = None,
    ) -> list[ir.Value]:
        """Insert copies of the nodes and constants of a graph before `place`; returns those of its outputs.

        Values of the graphs around it stay what they are, so `graph` must be nested in the graph of `place` or read none.
        `given` are the values that its inputs stand for, `None` for absent ones, and `attributes` what references to the
        attributes of a function stand for. `names` are those of the nodes of the graph of `place`, to which new ones are added.
        """
        assert isinstance(place.graph, ir.Graph)
        self.sort(graph)  # a copy takes what is computed later for a value of the graphs around it
        copy = graph.clone(allow_outer_scope_values=True)
        stands_for = dict(zip(copy.inputs, given, strict=True))
        for formal, value in stands_for.items():
            for use in tuple(formal.uses()):
                use.node.replace_input_with(use.idx, value)
        results: list[ir.Value] = [stands_for.get(output) or output for output in copy.outputs]
        if attributes is not None:
            body_copies.resolve_attributes(copy, attributes)
        nodes, constants = list(copy), list(copy.initializers.values())
        is_body = bool(given) or attributes is not None
        for value in (output for node in nodes for output in node.outputs if is_body and output.name):
            value.name = None  # there will be other copies
        _name_apart(nodes, {node.name for node in place.graph} if names is None else names)
        copy.outputs.clear()
        copy.initializers.clear()
        copy.remove(nodes)
        root = self.scope_of(place.graph).root
        for value in constants:
            assert value.const_value is not None
            if value.name in root.initializers or self._is_function(root):
                self.add_constant(place, value.const_value, value)
            else:
                self._register(root, value)
        self.insert_before(place, *nodes)
        return results

    @operation(builds=True)
    def narrowed_copy(
        self, body: ir.Graph, given: Mapping[ir.Value, ir.Value], inputs: Sequence[int], outputs: Sequence[int]
    ) -> ir.Graph:
        """A copy of a body, for a node that is then inserted, with only some of its inputs and outputs and what those need.

        `given` are the values around it that inputs stand for; no output may be such an input itself.
        """
        self.sort(body)
        return body_copies.narrowed(body, given, inputs, outputs)

    @operation(builds=True)
    def redirected_copy(
        self, body: ir.Graph, operands: Mapping[tuple[ir.Node, int], ir.Value], results: Mapping[int, ir.Value]
    ) -> ir.Graph:
        """A copy of a body, for a node that is then inserted, with inputs of the body for operands of nodes and for results."""
        self.sort(body)
        return body_copies.redirected(body, operands, results)

    def _inserted(self, nodes: Sequence[ir.Node], graph: ir.Graph) -> bool:
        self._journal.extend([Placed(node, graph) for node in nodes])
        # What is nested in a node must not use values any more once it is undone.
        self._journal.extend([Detached(inner) for node in nodes for inner in nested_nodes(node)])
        change = self._open
        assert change is not None
        change.added.update(dict.fromkeys(nodes))
        change.graph = change.graph or graph
        imports = self.scope_of(graph).root.opset_imports
        for node in nodes:
            if node.domain not in imports:
                self._import(imports, node.domain, node.version or 1)
            self.facts.node_added(node)
        return True

    @operation()
    def remove(self, *nodes: ir.Node) -> bool:
        """Remove nodes, with their subgraphs, that no other node needs; if one is needed, the change is refused when it ends."""
        change = self._open
        assert change is not None
        for node in nodes:
            assert isinstance(node.graph, ir.Graph)
            change.graph = change.graph or node.graph
            change.removed.append(node)
            self.facts.node_removed(node)
            # A nested node that kept its inputs would forever count as a user of values outside the removed subgraph.
            for inner in nested_nodes(node):
                self.facts.node_removed(inner)
                self._do(Detached(inner))
            self._do(Placed(node, node.graph))
        return True

    @operation()
    def move_before(self, place: ir.Node, *nodes: ir.Node) -> bool:
        """Move nodes to before another node of the same graph."""
        assert isinstance(place.graph, ir.Graph)
        for node in nodes:
            self._journal.append(Moved(node, place.graph, following(node, place.graph)))
            place.graph.insert_before(place, node)
        return True

    @operation()
    def sort(self, root: ir.Graph) -> bool:
        """Sort the nodes of a graph and of all graphs nested in it topologically."""
        self._journal.extend([Ordered(graph, list(graph)) for graph in walk.nested(root)])
        root.sort()
        return True

    @operation()
    def resize_outputs(self, node: ir.Node, count: int) -> bool:
        """Drop the last outputs of a node, which must be unused."""
        if count < len(node.outputs):
            self._journal.append(Shortened(node, node.outputs))
            node.resize_outputs(count)
        return True

    @operation()
    def set_version(self, node: ir.Node, version: int | None) -> bool:
        """Mark a node with the opset version it is written for."""
        if node.version != version:
            self._assign(node, "version", version)
        return True

    @staticmethod
    def discard(nodes: Iterable[ir.Node]) -> None:
        """Disconnect nodes that were built but are in no graph, so that they do not count as users of their inputs."""
        for node in nodes:
            if node.graph is None:
                node.resize_inputs(0)

    # Values.

    @operation()
    def replace(self, old: ir.Value, new: ir.Value) -> bool:
        """Replace all uses of `old`, graph outputs included, by `new`, which must have the same value in every run.

        The name and metadata of `old` pass to `new` if `new` was made in this change, or if callers of the model know
        `old` by its name. If `new` has a name it must keep, an Identity carries the name of a graph output.
        """
        change = self._open
        assert change is not None
        change.replaced.append((old, new))
        change.graph = change.graph or old.graph
        producer = new.producer()
        made = new.graph is None if producer is None else producer in change.added
        is_output, source = old.is_graph_output(), new
        if is_output and not _can_be_output(old, new):
            new = self._identity_of(old, new)
        self._rewire(old, source, new)
        if is_output:  # the signature of the model does not change, whatever it leaves out
            self._assign(new, "type", old.type or new.type)
            self._assign(new, "shape", old.shape)
        elif new.producer() is not None and not new.is_graph_output():
            self._assign(new, "type", new.type or old.type)
            self._assign(new, "shape", old.shape if new.shape is None else new.shape)
        if is_output or (made and old.producer() is not None and not new.is_graph_output()):
            self._hand_over(old, new)
        for value in dict.fromkeys((source, new)):
            self.facts.value_replaced(old, value)
        return True

    def _identity_of(self, old: ir.Value, new: ir.Value) -> ir.Value:
        """An Identity of `new` that can take the name of `old`."""
        assert old.graph is not None
        identity = ir.node("Identity", [new])
        self.append(old.graph, identity)
        return identity.outputs[0]

    def _rewire(self, old: ir.Value, source: ir.Value, new: ir.Value) -> None:
        """Let nodes use `source` instead of `old`, and graphs give `new`, which may be an Identity of it at their end."""
        made = (source.producer(), new.producer())
        uses = [use for use in old.uses() if use.node not in made]
        for node, index in uses:
            node.replace_input_with(index, source)
        if uses:
            self._journal.append(Rewired(uses, source, old))
        if old.is_graph_output():
            assert old.graph is not None
            outputs = old.graph.outputs
            self._journal.append(Listed(outputs, list(outputs)))
            for index, output in enumerate(outputs):
                if output is old:
                    outputs[index] = new

    def _hand_over(self, old: ir.Value, new: ir.Value) -> None:
        """Transfer the name and the metadata of `old` to `new`."""
        if new.doc_string is None and old.doc_string is not None:
            self._assign(new, "doc_string", old.doc_string)
        name = old.name
        if old.is_initializer():
            assert old.graph is not None
            self._do(Registered(old, old.graph, self._ranked(old.graph)))
        if name is not None:
            # A tensor shared by both must not lose its name together with the old value.
            self._assign(old, "const_value", None)
            self._rename(old, None)
            self._rename(new, name)
        if old.metadata_props:
            self._journal.append(Filled(new.metadata_props, dict(new.metadata_props)))
            new.metadata_props.update(old.metadata_props)

    @operation()
    def replace_by_constant(self, old: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        """Replace `old`, an output of a node, by a constant that takes its name; removing the node is left to the caller.

        The constant is an initializer, the canonical form, where possible. A function has no initializers, and a graph
        output that is an initializer is legal but trips up tools: in these cases it is a Constant node.
        """
        producer = old.producer()
        assert producer is not None
        assert isinstance(producer.graph, ir.Graph)
        if old.is_graph_output() or self._is_function(producer.graph):
            node = constant_node(tensor)
            new = node.outputs[0]
            new.type, new.shape = old.type, old.shape
            self.insert_before(producer, node)
            self.replace(old, new)
            return new
        new = _constant(tensor)
        self.replace(old, new)
        self._register(producer.graph, new)
        return new

    @operation(builds=True)
    def add_constant(self, place: ir.Node, tensor: ir.TensorProtocol, value: ir.Value | None = None) -> ir.Value:
        """Add a constant for use by `place`: an initializer of its main graph or, in a function, a Constant node before it.

        Args:
            place: A node in a graph.
            tensor: The constant.
            value: The value that becomes the constant, if nodes that use it have been built already.
        """
        assert isinstance(place.graph, ir.Graph)
        root = self.scope_of(place.graph).root
        value = _constant(tensor) if value is None else value
        if self._is_function(place.graph):
            node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[value])
            value.const_value = None
            self.insert_before(place, node)
        else:
            value.name = _unused_name(root, "const")
            self._register(root, value)
        return value

    @operation(builds=True)
    def register_initializer(self, graph: ir.Graph, value: ir.Value) -> bool:
        """Make a value that has a constant and a name an initializer of a graph."""
        self._register(graph, value)
        return True

    @operation()
    def drop_initializers(self, *values: ir.Value) -> bool:
        """Remove unused initializers from their graphs."""
        for value in values:
            assert value.graph is not None
            self._do(Registered(value, value.graph, self._ranked(value.graph)))
        return True

    @operation()
    def set_type(self, value: ir.Value, type_: ir.TypeProtocol | None, shape: ir.Shape | None) -> bool:
        """Declare the type and shape of a value."""
        self._assign(value, "type", type_)
        self._assign(value, "shape", shape)
        self.facts.type_changed(value)
        return True

    @operation()
    def rename(self, value: ir.Value, name: str | None) -> bool:
        """Give a value another name; an empty one marks an output of a node as left out."""
        self._rename(value, name)
        return True

    # Graphs, the model.

    @operation()
    def set_import(self, root: ir.Graph, domain: str, version: int | None) -> bool:
        """Set the version of a domain that a main graph or function imports; `None` removes the import."""
        imports = root.opset_imports
        if imports.get(domain) != version:
            self._import(imports, domain, version)
        return True

    @operation()
    def renew_facts(self) -> bool:
        """Recompute the facts of the whole model."""
        self.facts.renew()
        return True

    @operation()
    def set_ir_version(self, version: int) -> bool:
        """Set the IR version of the model."""
        self._assign(self.model, "ir_version", version)
        return True

    @operation()
    def set_inputs(self, values: Sequence[ir.Value]) -> bool:
        """Replace the inputs of the model by these."""
        inputs = self.model.graph.inputs
        self._journal.append(Listed(inputs, list(inputs)))
        inputs[:] = values
        return True

    @operation()
    def add_functions(self, new: Iterable[ir.Function]) -> bool:
        """Add functions to the model."""
        functions = self.model.functions
        self._journal.append(Filled(functions, dict(functions)))
        functions.update({function.identifier(): function for function in new})
        return True

    @operation()
    def remove_functions(self, identifiers: Collection[ir.OperatorIdentifier]) -> bool:
        """Remove functions; those that are still called are unknown operators to the facts once these are renewed."""
        functions = self.model.functions
        self._journal.append(Filled(functions, dict(functions)))
        for identifier in identifiers:
            del functions[identifier]
        return True

    # Building blocks of the operations.

    def _do(self, flip: Flip) -> None:
        flip()
        self._journal.append(flip)

    def _assign(self, thing: Any, name: str, value: Any) -> None:
        known = getattr(thing, name)
        if known is not value:
            setattr(thing, name, value)
            self._journal.append(Assigned(thing, name, known))

    def _rename(self, value: ir.Value, name: str | None) -> None:
        if value.name == name:
            return
        graph = value.graph if value.is_initializer() else None
        ranks = None if graph is None else self._ranked(graph)
        self._journal.append(Named(value, value.name, ranks))
        value.name = name
        if graph is not None and ranks is not None:
            put_in_order(graph, ranks)

    def _import(self, imports: dict[str, int], domain: str, version: int | None) -> None:
        self._journal.append(Filled(imports, dict(imports)))
        if version is None:
            del imports[domain]
        else:
            imports[domain] = version

    def _register(self, graph: ir.Graph, value: ir.Value) -> None:
        if value.is_initializer():
            return
        ranks = self._ranks.setdefault(graph, {})
        graph.register_initializer(value)
        if value in ranks:
            put_in_order(graph, ranks)  # it existed before, and returns to its old position
        elif ranks:
            ranks[value] = len(ranks)
        self._journal.append(Registered(value, graph, ranks))

    def _ranked(self, graph: ir.Graph) -> dict[ir.Value, int]:
        """The order of the initializers of a graph, recorded once one of them has been removed."""
        ranks = self._ranks.setdefault(graph, {})
        if not ranks:
            ranks.update((value, rank) for rank, value in enumerate(graph.initializers.values()))
        return ranks

    def _is_function(self, graph: ir.Graph) -> bool:
        return self.scope_of(graph).root is not self.model.graph


def _can_be_output(old: ir.Value, new: ir.Value) -> bool:
    """Whether `new` can take the name of the graph output `old`, which a node computes in the same graph."""
    producer, replaced = new.producer(), old.producer()
    return producer is not None and not new.is_graph_output() and (replaced is None or producer.graph is replaced.graph)


def _constant(tensor: ir.TensorProtocol) -> ir.Value:
    return ir.Value(type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor)


def constant_node(tensor: ir.TensorProtocol) -> ir.Node:
    """A Constant node with the tensor as its value."""
    return ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)])


def _name_apart(nodes: Iterable[ir.Node], there: set[str | None]) -> None:
    """Give nodes other names that have none, or one that a graph has: the runtime refuses two nodes of one name in a graph.

    The new names are added to those of the graph.
    """
    taken = {node.name for node in nodes}
    for node in nodes:
        if node.name is None or node.name in there:
            made = (f"node_{node.op_type}_{number}" for number in count(len(there)))
            node.name = next(name for name in made if name not in there and name not in taken)
        there.add(node.name)


def _unused_name(graph: ir.Graph, stem: str) -> str:
    counter = graph.meta.get("ortfuse.names", 0)
    while f"ortfuse_{stem}_{counter}" in graph.initializers:
        counter += 1
    graph.meta["ortfuse.names"] = counter + 1
    return f"ortfuse_{stem}_{counter}"


__all__ = ["NODES_KEY", "RULE_KEY", "Change", "Editor", "constant_node"]
