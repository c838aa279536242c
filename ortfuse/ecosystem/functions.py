"""The forms in which a formula can be given as a function, and their common representation: a body of ONNX nodes.

- a function of onnxscript, made by `@onnxscript.script()`;
- an `onnx.FunctionProto` or `onnx_ir.Function`, such as a model-local function (`read_functions` reads those of a file);
- a plain Python function of an operator builder and values, as onnxscript's rewriter takes them: `lambda op, x: op.Relu(x)`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir

from ortfuse.ecosystem.tracing import trace
from ortfuse.errors import RuleError

AnyFunction = Callable[..., Any] | onnx.FunctionProto | ir.Function
"""A function of onnxscript, of ONNX or of the graph IR, or a plain Python function of `op` and values."""


@dataclass(frozen=True)
class Body:
    """A function as nodes.

    Attributes:
        name: Its name in messages.
        function: Its nodes, inputs, outputs and attributes.
        callees: The functions that it may call, by their identifiers.
        optional: The inputs that may be absent.
    """

    name: str
    function: ir.Function
    callees: Mapping[ir.OperatorIdentifier, ir.Function]
    optional: frozenset[str] = frozenset()


def body_of(given: AnyFunction, callees: Mapping[ir.OperatorIdentifier, ir.Function] | None = None) -> Body:
    """The nodes of a function in any of its forms.

    Args:
        given: The function.
        callees: Functions that it may call, such as the others of its model.

    Raises:
        RuleError: It is not a function, or a plain one that does more than apply operators to its arguments.
    """
    known = dict(callees or {})
    if isinstance(given, onnx.FunctionProto):
        given = ir.serde.deserialize_function(given)
    if isinstance(given, ir.Function):
        return Body(given.name, given, known)
    scripted = getattr(given, "function_ir", None)
    if isinstance(scripted, ir.Function):
        called = {inner.function_ir.identifier(): inner.function_ir for inner in _called(scripted)}
        return Body(scripted.name, scripted, {**called, **known})
    if callable(given):
        traced = trace(given)
        return Body(traced.function.name, traced.function, known, traced.optional)
    raise RuleError(
        f"{given!r} is no function: give one of onnxscript, an onnx.FunctionProto, an onnx_ir.Function, or a Python "
        "function of `op` and values"
    )


def _called(scripted: Any) -> list[Any]:
    return list(scripted.get_called_functions().values()) if hasattr(scripted, "get_called_functions") else []


def read_functions(path: str | os.PathLike[str]) -> dict[str, ir.Function]:
    """The model-local functions of a model file by their names.

    Raises:
        RuleError: There are none.
        OrtfuseError: The file cannot be read.
    """
    from ortfuse.model.io import load

    functions = load(path).functions
    if not functions:
        raise RuleError(f"{path}: the model has no functions of its own")
    return {function.name: function for function in functions.values()}
