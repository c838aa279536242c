"""Convert formulas given as onnxscript, ONNX or Python functions to one form: a body of ONNX nodes.

- a function of onnxscript, made by `@onnxscript.script()`;
- an `onnx.FunctionProto` or `onnx_ir.Function`, such as a model-local function (`read_functions` reads those of a file);
- a plain Python function of an operator builder and values, as onnxscript's rewriter takes them: `lambda op, x: op.Relu(x)`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir

from ortfuse.errors import RuleError
from ortfuse.interop.function_rules.trace_op_functions import trace

AnyFunction = Callable[..., Any] | onnx.FunctionProto | ir.Function
"""A function of onnxscript, of ONNX or of the graph IR, or a plain Python function of `op` and values."""


@dataclass(frozen=True)
class Given:
    """An attribute of the function whose value is not known yet, or a constant whose value is that attribute."""

    name: str
    type: ir.AttributeType


@dataclass(frozen=True)
class Body:
    """A function as nodes.

    Attributes:
        name: Its name in messages.
        function: Its nodes, inputs, outputs and attributes.
        callees: The functions that it may call, by their identifiers.
        optional: The inputs that may be absent.
        shapes: The shapes of inputs in the words of patterns; those of the others are what the values declare.
        names: What inputs are captured as, if not by their own names.
        constants: The values without a producer that are captured, and must be constants.
        given: The constants, by name, whose number is an attribute of the function.
        given_attributes: The attributes of nodes whose value is an attribute of the function.
        outputs: The outputs in the order that counts, by default that of the function.
        is_typed: Whether constants have the element types that they are to have in a replacement.
        integers: The values that are integers where instances are of floating-point numbers: shapes and indices, which are
            computed as they are written, since a product with a reciprocal is no quotient of integers.
    """

    name: str
    function: ir.Function
    callees: Mapping[ir.OperatorIdentifier, ir.Function]
    optional: frozenset[str] = frozenset()
    shapes: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    constants: frozenset[str] = frozenset()
    given: Mapping[str, Given] = field(default_factory=dict)
    given_attributes: Mapping[tuple[ir.Node, str], Given] = field(default_factory=dict)
    outputs: Sequence[ir.Value] = ()
    is_typed: bool = False
    integers: frozenset[ir.Value] = frozenset()

    def __post_init__(self) -> None:
        if not self.outputs:
            object.__setattr__(self, "outputs", tuple(self.function.outputs))


def body_of(given: AnyFunction | Body, callees: Mapping[ir.OperatorIdentifier, ir.Function] | None = None) -> Body:
    """The nodes of a function in any of its forms.

    Args:
        given: The function.
        callees: Functions that it may call, such as the others of its model.

    Raises:
        RuleError: It is not a function, or a plain one that does more than apply operators to its arguments.
    """
    if isinstance(given, Body):
        return given
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
    from ortfuse.io.load_and_save import load

    functions = load(path).functions
    if not functions:
        raise RuleError(f"{path}: the model has no functions of its own")
    return {function.name: function for function in functions.values()}
