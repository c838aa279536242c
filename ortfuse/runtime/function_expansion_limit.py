"""Refuse models whose functions expand to more nodes than the runtime can load."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Container, Iterable, Iterator

import onnx
import onnx_ir as ir

from ortfuse.errors import ModelFileError, VerificationError
from ortfuse.io import wire_format
from ortfuse.io.data_file import DataFile
from ortfuse.ir.count_expanded_nodes import beyond, expanded_nodes, total
from ortfuse.targets.kernel_table_cache import table_of
from ortfuse.targets.registry import default_spec

Name = tuple[str, str, str]
_FUNCTIONS = 25
"""Field number of ModelProto.functions (onnx.proto)."""

_LOADING = "ONNX Runtime puts them all in the place of the calls when it loads a model"


class ExpansionError(VerificationError):
    """Calls of functions stand for too many nodes for the runtime to load the model."""


def demand_bounded(source: str | bytes) -> None:
    """Raise if calls of functions stand for too many nodes.

    Args:
        source: The path of a model file, or a serialised model.

    Raises:
        ExpansionError: They do.
    """
    if reason := _reason(source):
        raise ExpansionError(f"{reason}, and {_LOADING}")


def not_loadable(model: ir.Model) -> str | None:
    """A note that the runtime is not asked to load a model, since calls of functions stand for too many nodes; else `None`."""
    reason = beyond(expanded_nodes(model, _with_kernels())) if model.functions else None
    return reason and f"the result was not loaded: {reason}, and {_LOADING}"


def _with_kernels() -> frozenset[tuple[str, str]]:
    """The operators that the runtime may execute as they are, although there are functions for them."""
    operators = table_of(default_spec()).operators
    return frozenset(name for name, operator in operators.items() if operator.kernels)


def _reason(source: str | bytes) -> str | None:
    if isinstance(source, bytes):
        return _beyond(source)
    try:
        with DataFile(os.fspath(source)).mapped() as content:
            return _beyond(content)
    except (OSError, ValueError, ModelFileError):
        return None  # the runtime says what is wrong with the file


def _beyond(content: wire_format.Buffer) -> str | None:
    """Why a model is not loaded; `None` if it may be. Only models with functions are parsed, without their weights."""
    try:
        if all(number != _FUNCTIONS for number, *_ in wire_format.fields(content, 0, len(content))):
            return None
        model = onnx.ModelProto.FromString(wire_format.outline(content, 1 << 10).skeleton)
    except Exception:  # the runtime says what is wrong with the model
        return None
    kept = _with_kernels()
    functions = {
        (function.domain, function.name, function.overload): function
        for function in model.functions
        if (function.domain, function.name) not in kept
    }
    sizes = {name: sum(1 for _ in _nodes(function.node)) for name, function in functions.items()}
    calls = {name: _calls(function.node, functions) for name, function in functions.items()}
    nodes = total(sizes, calls, _calls(model.graph.node, functions))
    return None if nodes is None else beyond(nodes)  # of a circle, the runtime says that itself


def _calls(nodes: Iterable[onnx.NodeProto], functions: Container[Name]) -> Counter[Name]:
    names = ((node.domain, node.op_type, node.overload) for node in _nodes(nodes))
    return Counter(name for name in names if name in functions)


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those in their subgraphs."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                waiting += graph.node
