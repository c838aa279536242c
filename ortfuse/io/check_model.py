"""Validate the structure of a model in one linear pass over the nodes, without reading the weights.

`onnx.checker` is not used: it works on the serialized model, weights included, and does not know the runtime's own
operators. The checks: every value is produced exactly once, before it is used and in a scope visible to its users; names
are unique where required; every node is a legal use of its operator; tensors have as many bytes as they claim; functions
are not recursive.
"""

from __future__ import annotations

import onnx
import onnx_ir

from ortfuse.errors import InvalidModelError
from ortfuse.io import check_tensor_bytes
from ortfuse.io.check_node import OperatorCheck, check_imports
from ortfuse.io.convert_modelproto import has_kept_type
from ortfuse.ir import walk
from ortfuse.ir.enumerate_tensors import tensors_of
from ortfuse.ir.traits import MICROSOFT, NAMES_INPUTS, has
from ortfuse.ir.walk import describe


class RepairableError(InvalidModelError):
    """A fault that ONNX Runtime accepts and `ortfuse.io.repair_graph` fixes."""


def check(model: onnx_ir.Model, *, name: str) -> None:
    """Check that a model is a valid ONNX graph; about 5 microseconds per node.

    Args:
        model: The model; not changed.
        name: The model's name in error messages, such as its path.

    Raises:
        InvalidModelError: The model is not valid; the message names the node or value.
    """
    if model.ir_version is None or not 1 <= model.ir_version <= onnx.IR_VERSION:
        raise InvalidModelError(
            f"{name}: has IR version {model.ir_version}; the installed onnx {onnx.__version__} knows versions 1 to "
            f"{onnx.IR_VERSION}: upgrade onnx, or export the model again"
        )
    if not model.opset_imports:
        raise InvalidModelError(f"{name}: imports no opset; set opset_import to the version it was exported for")
    check_imports(model.opset_imports, name=name)
    try:
        scope = _Scope(name, OperatorCheck(model.opset_imports, model.functions, in_function=False))
        scope.check_text(model.producer_name, model.producer_version, model.domain, model.doc_string)
        scope.check_text(*model.metadata_props, *model.metadata_props.values(), *model.opset_imports)
        scope.enter(model.graph)
        for value in model.graph.inputs:
            if value.dtype in (None, onnx_ir.DataType.UNDEFINED) and not has_kept_type(model.graph, value):
                raise InvalidModelError(f"{name}: graph input '{value.name}' has no element type")
        for function in model.functions.values():
            _check_function(function, model, name)
    except RecursionError:
        raise InvalidModelError(f"{name}: its subgraphs are nested too deeply") from None
    _check_calls(model, name)


def _check_function(function: onnx_ir.Function, model: onnx_ir.Model, name: str) -> None:
    name = f"{name}: function {function.domain}::{function.name}"
    check_imports(function.opset_imports, name=name)
    scope = _Scope(name, OperatorCheck(function.opset_imports, model.functions, in_function=True))
    scope.check_text(function.domain, function.name, function.overload, *function.attributes, *function.opset_imports)
    scope.enter(function.graph)


_NESTED = {
    *(onnx_ir.AttributeType.GRAPH, onnx_ir.AttributeType.GRAPHS),
    *(onnx_ir.AttributeType.TENSOR, onnx_ir.AttributeType.TENSORS),
}


class _Scope:
    """The values visible at the current point of the traversal, by name.

    All nested graphs share one dictionary: a graph adds its names, and removes them on exit.
    """

    def __init__(self, name: str, operators: OperatorCheck) -> None:
        self._name = name
        self._operators = operators
        self._visible: dict[str, onnx_ir.Value] = {}
        self._own: set[str] = set()
        self._graphs: list[onnx_ir.Graph] = []

    def enter(self, graph: onnx_ir.Graph, *, named: bool = False) -> None:
        """Check a graph and everything nested in it; if it is `named`, its inputs may hide values outside."""
        self.check_text(graph.name, graph.doc_string, *graph.metadata_props, *graph.metadata_props.values())
        self._graphs.append(graph)
        own, self._own = self._own, set()
        inputs = {value.name or "" for value in graph.inputs} if named else set[str]()
        hidden = {name: self._visible.pop(name) for name in inputs & self._visible.keys()}
        self._declare_sources(graph)
        for node in graph:
            self._check_node(node)
        for value in graph.outputs:
            if value.name not in self._own or self._visible[value.name] is not value:
                raise self._unproduced_output(graph, value)
        for name in self._own:
            del self._visible[name]
        self._visible |= hidden
        self._own = own
        self._graphs.pop()

    def _declare_sources(self, graph: onnx_ir.Graph) -> None:
        for value in graph.inputs:
            if not value.name:
                raise InvalidModelError(f"{self._name}: an input of {_title(graph)} has no name")
            self._declare(value, "input")
        for name, value in graph.initializers.items():
            if value.name != name:
                raise InvalidModelError(
                    f"{self._name}: initializer '{name}' is registered for the value '{value.name}'"
                )
            if self._visible.get(name) is not value:
                self._declare(value, "initializer")
            self._check_initializer(value)

    def _declare(self, value: onnx_ir.Value, kind: str) -> None:
        name = value.name
        assert name is not None
        if name in self._own:
            raise InvalidModelError(
                f"{self._name}: two inputs or initializers of one graph have the name '{name}'; rename one"
            )
        if name in self._visible:
            raise RepairableError(
                f"{self._name}: {kind} '{name}' of a subgraph has the name of a value outside; rename it"
            )
        self.check_text(name, value.doc_string)
        self._visible[name] = value
        self._own.add(name)

    def check_text(self, *texts: str | None) -> None:
        """Check that texts are strings: protobuf returns bytes for text that is not UTF-8."""
        for text in texts:
            if isinstance(text, bytes):
                raise InvalidModelError(f"{self._name}: the text {text!r} is not UTF-8; the file is damaged")

    def _check_initializer(self, value: onnx_ir.Value) -> None:
        tensor = value.const_value
        if tensor is None:
            raise InvalidModelError(f"{self._name}: initializer '{value.name}' has no data")
        if (found := check_tensor_bytes.problem(tensor)) is not None:
            raise InvalidModelError(f"{self._name}: initializer '{value.name}' {found}; the file is damaged")
        fits = value.dtype in (None, tensor.dtype) and (value.shape is None or _fits(value.shape, tensor.shape))
        if not fits:
            # A declaration in value_info adds nothing to what the tensor says; one on a graph input is a promise to callers.
            raise (InvalidModelError if value.is_graph_input() else RepairableError)(
                f"{self._name}: initializer '{value.name}' is declared as {value.dtype} {value.shape} but holds "
                f"{tensor.dtype} {tensor.shape}"
            )

    def _check_node(self, node: onnx_ir.Node) -> None:
        visible, own = self._visible, self._own
        self.check_text(node.name, node.op_type, node.domain, node.overload, node.doc_string)
        if node.metadata_props:
            self.check_text(*node.metadata_props, *node.metadata_props.values())
        for value in node.inputs:
            if value is not None and visible.get(value.name) is not value:  # type: ignore[arg-type]
                raise self._unseen_input(node, value)
        if (found := self._operators.problem(node)) is not None:
            # ONNX Runtime always imports version 1, the only one, of its own domain, whether or not the model does.
            unimported = node.domain == MICROSOFT and node.domain not in self._operators.imports
            raise (RepairableError if unimported else InvalidModelError)(f"{self._name}: {describe(node)} {found}")
        if node.attributes:
            self._check_attributes(node)
        for output in node.outputs:
            name = output.name
            if not name:
                continue
            self.check_text(name, output.doc_string)
            if name in visible:
                raise self._duplicate_output(node, name)
            visible[name] = output
            own.add(name)

    def _check_attributes(self, node: onnx_ir.Node) -> None:
        for attribute in node.attributes.values():
            if attribute.type not in _NESTED:
                continue
            for graph in walk.graphs_of(attribute):
                self.enter(graph, named=has(node, NAMES_INPUTS))
            for tensor in tensors_of(attribute):
                if (found := check_tensor_bytes.problem(tensor)) is not None:
                    raise InvalidModelError(
                        f"{self._name}: the tensor in attribute '{attribute.name}' of {describe(node)} {found}; "
                        "the file is damaged"
                    )

    def _duplicate_output(self, node: onnx_ir.Node, name: str) -> InvalidModelError:
        other = self._visible[name].producer()
        first = f"produced by {describe(other)}" if other is not None else "a graph input or an initializer"
        return InvalidModelError(
            f"{self._name}: {describe(node)} produces '{name}', which is already {first}; "
            "every value must be produced once: rename one of them"
        )

    def _unseen_input(self, node: onnx_ir.Node, value: onnx_ir.Value) -> InvalidModelError:
        """The error for a node that cannot see its input, with the reason."""
        if not value.name:
            return InvalidModelError(f"{self._name}: {describe(node)} has an input value without a name")
        start = f"{self._name}: {describe(node)} uses '{value.name}'"
        producer = value.producer()
        if producer is not None and any(producer.graph is graph for graph in self._graphs):
            return RepairableError(f"{start} before {describe(producer)} produces it; sort the nodes")
        if value.name in self._visible:
            return InvalidModelError(f"{start}, but of another value of that name, which it cannot see")
        if producer is not None or value.is_graph_input() or value.is_initializer():
            return InvalidModelError(f"{start}, which belongs to a graph that it cannot see into")
        return InvalidModelError(
            f"{start}, which is a dangling input: no node produces it, and it is no graph input and no initializer; "
            "export the model again, or make it an input"
        )

    def _unproduced_output(self, graph: onnx_ir.Graph, value: onnx_ir.Value) -> InvalidModelError:
        start = f"{self._name}: output '{value.name}' of {_title(graph)}"
        if value.name in self._visible and value.name not in self._own:
            return InvalidModelError(f"{start} is a value from outside the subgraph; pass it through an Identity node")
        return InvalidModelError(f"{start} is produced by no node, and is neither an input nor an initializer of it")


def _title(graph: onnx_ir.Graph) -> str:
    return f"graph '{graph.name}'" if graph.name else "the graph"


def _fits(declared: onnx_ir.ShapeProtocol, actual: onnx_ir.ShapeProtocol) -> bool:
    return len(declared) == len(actual) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(declared, actual, strict=True)
    )


def _check_calls(model: onnx_ir.Model, name: str) -> None:
    """Check that no function is recursive, directly or through others."""
    if not model.functions:
        return
    calls = {
        identifier: [
            node.op_identifier()
            for node in walk.nodes_within(function.graph)
            if node.op_identifier() in model.functions
        ]
        for identifier, function in model.functions.items()
    }
    finished: set[onnx_ir.OperatorIdentifier] = set()
    for start in calls:
        path: dict[onnx_ir.OperatorIdentifier, None] = {}
        waiting = [(start, False)]
        while waiting:
            function, leaving = waiting.pop()
            if leaving:
                finished.add(path.popitem()[0])
            elif function in path:
                cycle = [*list(path)[list(path).index(function) :], function]
                names = " -> ".join(f"{domain}::{op_type}" for domain, op_type, _ in cycle)
                raise InvalidModelError(
                    f"{name}: functions call themselves: {names}; ONNX functions must not be recursive"
                )
            elif function not in finished:
                path[function] = None
                waiting += [(function, True), *((callee, False) for callee in calls[function])]
