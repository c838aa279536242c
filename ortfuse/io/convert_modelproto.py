"""Convert between ModelProto and graph without the losses and uninformative errors of a plain conversion.

`onnx_ir.from_proto` drops what it cannot represent (sparse initializers, training information, the first of two
initializers with the same name), and reports what it cannot read by dumping the protobuf text of everything around it.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import onnx
import onnx_ir
from onnx_ir import serde

from ortfuse.errors import InvalidModelError
from ortfuse.ir import walk

_GRAPH_TYPES = {onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS}
_ELEMENT_TYPES = set(onnx.TensorProto.DataType.values())
_MAX_REASON = 300
_TYPES = "ortfuse.types"
"""Key under which the main graph has the types that it cannot represent, by the name of the input or output."""


def from_proto(proto: onnx.ModelProto, *, name: str) -> onnx_ir.Model:
    """Convert a ModelProto to a graph. The tensors of the graph refer to the protobuf's data without copying them.

    Args:
        proto: The model; not changed.
        name: The model's name in error messages, such as its path.

    Raises:
        InvalidModelError: The model has parts that cannot be represented, or that contradict each other.
    """
    try:
        _check_representable(proto, name)
        with _quiet():
            model = serde.deserialize_model(proto)
        if any(walk.subgraphs(node) for node in model.graph) or model.functions:
            _check_nested(proto, name)
    except RecursionError:
        raise InvalidModelError(f"{name}: its subgraphs are nested too deeply") from None
    except UnicodeDecodeError as error:
        raise InvalidModelError(f"{name}: a name in it is not UTF-8 ({error.reason}); the file is damaged") from None
    except serde.SerdeError as error:
        raise InvalidModelError(f"{name}: {_diagnosis(proto) or _reason(error)}") from error
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the conversion's log messages and warnings about faults that later checks raise as errors."""
    log = logging.getLogger(serde.__name__)
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        log.setLevel(before)


def _check_representable(proto: onnx.ModelProto, name: str) -> None:
    if proto.training_info:
        raise InvalidModelError(
            f"{name}: has training information, which ortfuse cannot keep; remove its training_info"
        )
    _check_initializers(proto.graph, name)
    seen: set[tuple[str, str, str]] = set()
    for function in proto.functions:
        identifier = (function.domain, function.name, function.overload)
        if identifier in seen:
            raise InvalidModelError(f"{name}: defines the function {function.domain}::{function.name} twice")
        seen.add(identifier)
        inside = f"{name}: function {function.domain}::{function.name}"
        if len(set(function.input)) != len(function.input):
            raise InvalidModelError(f"{inside} has two inputs of one name")
        produced = {*function.input, *(output for node in function.node for output in node.output)}
        for output in function.output:
            if output not in produced:
                raise InvalidModelError(f"{inside}: its output '{output}' is produced by no node")


def _check_initializers(graph: onnx.GraphProto, name: str) -> None:
    if graph.sparse_initializer:
        sparse = graph.sparse_initializer[0].values.name
        raise InvalidModelError(
            f"{name}: initializer '{sparse}' is sparse; make it dense (ortfuse has no sparse tensors)"
        )
    names = [tensor.name for tensor in graph.initializer]
    if "" in names:
        raise InvalidModelError(f"{name}: the initializer at position {names.index('')} has no name")
    if len(set(names)) != len(names):
        seen: set[str] = set()
        twice = next(n for n in names if n in seen or seen.add(n))  # type: ignore[func-returns-value]
        raise InvalidModelError(
            f"{name}: two initializers have the name '{twice}'; every value needs a name of its own"
        )


def _check_nested(proto: onnx.ModelProto, name: str) -> None:
    waiting = [proto.graph.node, *(function.node for function in proto.functions)]
    while waiting:
        for graph in _graphs_in(waiting.pop()):
            _check_initializers(graph, name)
            waiting.append(graph.node)


def _graphs_in(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type in _GRAPH_TYPES:
                yield from [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs


def _diagnosis(proto: onnx.ModelProto) -> str | None:
    """Locate the most common reasons why a conversion fails, which the conversion's own errors do not."""
    waiting: list[onnx.GraphProto | onnx.FunctionProto] = [proto.graph, *proto.functions]
    while waiting:
        graph = waiting.pop()
        initializers = graph.initializer if isinstance(graph, onnx.GraphProto) else ()
        for tensor in initializers:
            if tensor.data_type not in _ELEMENT_TYPES:
                return (
                    f"initializer '{tensor.name}' has the element type {tensor.data_type}, which ONNX does not define"
                )
            for entry in tensor.external_data:
                if entry.key in ("offset", "length") and not entry.value.isdecimal():
                    return (
                        f"initializer '{tensor.name}' has the {entry.key} {entry.value!r} in its external data, which is no "
                        "number of bytes; the file is damaged"
                    )
        inputs = [value if isinstance(value, str) else value.name for value in graph.input]
        if found := _duplicate_output(graph.node, [*inputs, *(tensor.name for tensor in initializers)]):
            return found
        waiting.extend(_graphs_in(graph.node))
    return None


def _duplicate_output(nodes: Iterable[onnx.NodeProto], sources: Iterable[str]) -> str | None:
    producers = dict.fromkeys(sources, "a graph input or an initializer")
    for node in nodes:
        title = f"{node.op_type} node '{node.name}'" if node.name else f"{node.op_type} node"
        for output in node.output:
            if output in producers:
                return (
                    f"{title} produces '{output}', which is already {producers[output]}; "
                    "every value must be produced once: rename one of them"
                )
            if output:
                producers[output] = f"produced by {title}"
    return None


def _reason(error: BaseException) -> str:
    """The innermost error of a chain, with the name nearest to it: the outer errors quote whole graphs."""
    place = ""
    while (inner := error.__cause__ or error.__context__) is not None:
        if named := re.search(r'\bname: "([^"]+)"', str(error)):
            place = f" at '{named[1]}'"
        error = inner
    text = " ".join(str(error).split())
    kind = "has a part that ortfuse cannot represent" if isinstance(error, NotImplementedError) else "is damaged"
    return f"{kind}{place}: {text[:_MAX_REASON] or type(error).__name__}"


def to_proto(model: onnx_ir.Model) -> onnx.ModelProto:
    """Convert a graph to a ModelProto. External weights stay external; the others are stored in the ModelProto.

    Raises:
        InvalidModelError: Something in the graph cannot be written, such as an initializer without data.
        ModelFileError: A weight can no longer be read from the file the model was loaded from.
    """
    proto, weights = separate(model)
    for weight in weights:
        if weight.tensor is None:
            proto.graph.initializer.add().CopyFrom(weight.header)
            continue
        initializer = proto.graph.initializer.add()
        if isinstance(weight.tensor, onnx_ir.ExternalTensor):
            serde.serialize_tensor_into(initializer, weight.tensor)
            initializer.name = weight.header.name
        else:
            initializer.CopyFrom(weight.header)
            initializer.raw_data = weight.tensor.tobytes()
    return proto


class Weight(NamedTuple):
    """An initializer of the main graph in the form in which it is written.

    Attributes:
        header: The TensorProto, without the data if they are in `tensor`.
        tensor: The tensor with the data, or None if the header is complete.
    """

    header: onnx.TensorProto
    tensor: onnx_ir.TensorProtocol | None


def separate(model: onnx_ir.Model, threshold: int = 0) -> tuple[onnx.ModelProto, list[Weight]]:
    """Convert a graph to a ModelProto without the initializers of the main graph, which are returned one by one.

    Args:
        model: The graph; not changed.
        threshold: Initializers with fewer bytes are converted whole, data included.

    Raises:
        InvalidModelError: Something in the graph cannot be written, such as an initializer without data.
    """
    try:
        weights = [_weight(value, threshold) for value in model.graph.initializers.values()]
        # The converter accesses attributes without checking types, so a stand-in can hide the weights from it.
        stand_in = cast(onnx_ir.Model, _Proxy(model, graph=_without_tensors(model.graph)))
        with _quiet():
            proto = serde.serialize_model(stand_in)
    except (serde.SerdeError, TypeError, ValueError) as error:
        raise InvalidModelError(f"graph '{model.graph.name}': cannot be written: it {_reason(error)}") from error
    del proto.graph.initializer[:]
    for function in proto.functions:
        function.domain = function.domain  # the default domain is a field, too, which onnx.checker asks for
    _put_types(proto, model.graph.meta.get(_TYPES, {}))
    return proto, weights


def keep_types(model: onnx_ir.Model, types: dict[str, onnx.TypeProto]) -> None:
    """Keep types of inputs and outputs that a graph cannot represent, until the model is converted back."""
    model.graph.meta[_TYPES] = types


def has_kept_type(graph: onnx_ir.Graph, value: onnx_ir.Value) -> bool:
    """Whether an input or output has a type that a graph cannot represent."""
    return value.name in graph.meta.get(_TYPES, {})


def _put_types(proto: onnx.ModelProto, types: dict[str, onnx.TypeProto]) -> None:
    for value in (*proto.graph.input, *proto.graph.output):
        if value.name in types:
            value.type.CopyFrom(types[value.name])


def _weight(value: onnx_ir.Value, threshold: int) -> Weight:
    tensor = value.const_value
    if tensor is None:
        raise InvalidModelError(f"initializer '{value.name}' has no data; give it a const_value")
    header = onnx.TensorProto()
    if isinstance(tensor, onnx_ir.TensorProtoTensor) and tensor.nbytes < threshold:
        header.CopyFrom(tensor.raw)
    elif tensor.dtype == onnx_ir.DataType.STRING:
        serde.serialize_tensor_into(header, tensor)
    else:
        header.data_type = tensor.dtype.value
        header.dims.extend(tensor.shape.numpy())
        if tensor.doc_string:
            header.doc_string = tensor.doc_string
        for key, content in tensor.metadata_props.items():
            header.metadata_props.add(key=key, value=content)
        if tensor.nbytes >= threshold or isinstance(tensor, onnx_ir.ExternalTensor):
            header.name = value.name or ""
            return Weight(header, tensor)
        header.raw_data = tensor.tobytes()
    header.name = value.name or ""
    return Weight(header, None)


class _Proxy:
    """A proxy for an object with some attributes replaced; the object itself is not changed."""

    def __init__(self, of: Any, **exchanged: Any) -> None:
        self._of = of
        self.__dict__.update(exchanged)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


def _without_tensors(graph: onnx_ir.Graph) -> _Proxy:
    """The graph without initializers, but for what else is known of some: annotations of quantised ones."""
    annotated = {name: value for name, value in graph.initializers.items() if value.meta}
    nothing = onnx_ir.tensor([0.0]) if annotated else None
    # The type and shape of an initializer are stored in the initializer; value_info that repeats them is omitted.
    bare = {name: _Proxy(value, const_value=nothing, type=None, shape=None) for name, value in annotated.items()}
    return _Proxy(graph, initializers=bare)
