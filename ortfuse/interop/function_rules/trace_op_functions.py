"""Trace plain Python functions of `op` and values, as onnxscript's rewriter takes them, and record their nodes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import RuleError

_ATTRIBUTE_TYPES = {
    "float": ir.AttributeType.FLOAT,
    "int": ir.AttributeType.INT,
    "bool": ir.AttributeType.INT,
    "str": ir.AttributeType.STRING,
    "Sequence[int]": ir.AttributeType.INTS,
    "Sequence[float]": ir.AttributeType.FLOATS,
}
"""Annotations that mark parameters as attributes, as in onnxscript."""


@dataclass(frozen=True)
class Traced:
    """The nodes that a plain function creates, and which of its parameters may be absent."""

    function: ir.Function
    optional: frozenset[str]


def trace(function: Callable[..., Any]) -> Traced:
    """Run a function of `op` and values on stand-ins and record the nodes it creates.

    A parameter is an attribute if it is annotated as one (`alpha: float`), has a number as its default, or is passed as a
    keyword to an operator; one whose default is None is an input that may be absent.

    Raises:
        RuleError: The function does anything with its arguments other than pass them to operators.
    """
    name = getattr(function, "__name__", "function")
    name = "function" if name == "<lambda>" else name
    _, *parameters = inspect.signature(function).parameters.values() or (None,)
    tape = _Tape(name)
    symbols = {}
    for parameter in parameters:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise RuleError(f"function {name}: its parameters must be named one by one, without *{parameter.name}")
        symbols[parameter.name] = Symbol(tape, parameter.name, attribute=_attribute_of(parameter))
    try:
        result = function(Operators(tape), **symbols)
    except RuleError:
        raise
    except Exception as error:
        raise RuleError(
            f"function {name} cannot be read as a formula: {type(error).__name__}: {error}; it may only apply operators "
            "(op.Name(...), + - * / **) to its arguments"
        ) from error
    outputs = [tape.value(output, "the result") for output in _as_list(result)]
    values = [symbol for symbol in symbols.values() if symbol.attribute is None and not symbol.is_keyword]
    graph = ir.Graph([symbol.as_value() for symbol in values], outputs, nodes=tape.nodes, opset_imports={"": 1})
    attributes = [symbol.as_attribute() for symbol in symbols.values() if symbol not in values]
    optional = frozenset(parameter.name for parameter in parameters if parameter.default is None)
    return Traced(ir.Function("", name, graph=graph, attributes=attributes), optional)


def _as_list(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _attribute_of(parameter: inspect.Parameter) -> ir.Attr | None:
    """The attribute that a parameter stands for by its annotation or default; `None` if it is not one."""
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    default = None if parameter.default is inspect.Parameter.empty else parameter.default
    if default is not None:
        return ir.convenience.convert_attribute(parameter.name, default)
    kind = _ATTRIBUTE_TYPES.get(text.rpartition("typing.")[2] if "[" in text else text)
    return None if kind is None else ir.Attr(parameter.name, kind, None)


class _Tape:
    """Record the nodes created so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[ir.Node] = []

    def node(self, op_type: str, inputs: Sequence[Any], keywords: dict[str, Any]) -> Any:
        """Create a node; returns its only output, or all of them, as symbols."""
        domain = keywords.pop("_domain", None) or ""
        keywords.pop("_version", None)
        asked = keywords.pop("_outputs", 1)
        names = list(asked) if isinstance(asked, (tuple, list)) else [None] * asked
        for option in [key for key in keywords if key.startswith("_")]:
            if keywords.pop(option):
                raise RuleError(f"function {self.name}: op.{op_type}: {option} cannot be read as a formula; use guards")
        values = [None if operand is None else self.value(operand, f"op.{op_type}") for operand in inputs]
        attributes = [self._attribute(key, value) for key, value in keywords.items() if value is not None]
        number = len(self.nodes)
        outputs = [ir.Value(name=name or f"{op_type}_{number}_{index}") for index, name in enumerate(names)]
        node = ir.Node(domain, op_type, values, attributes, outputs=outputs, name=f"{op_type}_{number}")
        self.nodes.append(node)
        made = [Symbol(self, output.name or "", output) for output in outputs]
        return made[0] if len(made) == 1 else made

    def value(self, operand: Any, where: str) -> ir.Value:
        """The value for an operator's input: a value as it is, or a constant for a number."""
        if isinstance(operand, Symbol):
            return operand.as_value()
        if isinstance(operand, (bool, int, float, tuple, list, np.ndarray, np.generic)):
            array = np.asarray(operand)
            if array.dtype == np.float64:
                return self._constant("value_float", float(array)) if not array.shape else self._tensor(array)
            if array.dtype.kind in "ifb":
                return self._tensor(array)
        raise RuleError(f"function {self.name}: {operand!r} in {where} is neither a value nor a number")

    def _tensor(self, array: np.ndarray[Any, Any]) -> ir.Value:
        return self._constant("value", ir.tensor(array))

    def _constant(self, key: str, value: Any) -> ir.Value:
        node = ir.Node("", "Constant", [], [ir.convenience.convert_attribute(key, value)])
        node.outputs[0].name = f"constant_{len(self.nodes)}"
        self.nodes.append(node)
        return node.outputs[0]

    @staticmethod
    def _attribute(key: str, value: Any) -> ir.Attr:
        if isinstance(value, Symbol):
            return value.as_reference(key)
        return ir.convenience.convert_attribute(key, value)


class Symbol:
    """A stand-in for a value; a parameter that is passed as a keyword turns out to be an attribute."""

    def __init__(
        self, tape: _Tape, name: str, made: ir.Value | None = None, *, attribute: ir.Attr | None = None
    ) -> None:
        self._tape, self._name, self._made, self.attribute = tape, name, made, attribute
        self.is_keyword = False

    def as_value(self) -> ir.Value:
        """The value, or for an attribute the constant that holds its number."""
        if self.attribute is not None:
            keys = {ir.AttributeType.FLOAT: "value_float", ir.AttributeType.INT: "value_int",
                    ir.AttributeType.INTS: "value_ints", ir.AttributeType.FLOATS: "value_floats"}  # fmt: skip
            key = keys.get(self.attribute.type, "value_string")
            node = ir.Node("", "Constant", [], [ir.RefAttr(key, self._name, self.attribute.type)])
            self._tape.nodes.append(node)
            return node.outputs[0]
        if self.is_keyword:
            raise RuleError(
                f"function {self._tape.name}: {self._name} is both a value and an attribute; annotate it as what it is "
                f"({self._name}: float)"
            )
        if self._made is None:
            self._made = ir.Value(name=self._name)
        return self._made

    def as_reference(self, key: str) -> ir.Attr:
        """The attribute `key` of an operator, referring to this parameter."""
        if self.attribute is None:
            if self._made is not None:
                raise RuleError(f"function {self._tape.name}: the attribute {key} cannot be the value {self._name}")
            self.is_keyword = True
        kind = ir.AttributeType.UNDEFINED if self.attribute is None else self.attribute.type
        return ir.RefAttr(key, self._name, kind)

    def as_attribute(self) -> ir.Attr:
        """This parameter as an attribute of the function."""
        if self.attribute is not None:
            return self.attribute
        return ir.Attr(self._name, ir.AttributeType.UNDEFINED, None)

    def _apply(self, op_type: str, *operands: Any) -> Any:
        return self._tape.node(op_type, operands, {})

    def __add__(self, other: Any) -> Any:
        return self._apply("Add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._apply("Add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._apply("Sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._apply("Sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._apply("Mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._apply("Mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._apply("Div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._apply("Div", other, self)

    def __pow__(self, other: Any) -> Any:
        return self._apply("Pow", self, other)

    def __matmul__(self, other: Any) -> Any:
        return self._apply("MatMul", self, other)

    def __neg__(self) -> Any:
        return self._apply("Neg", self)

    def __bool__(self) -> bool:
        raise RuleError(
            f"function {self._tape.name} decides by {self._name}, which has no value here: what depends on the model "
            "belongs in a guard"
        )


class Operators:
    """`op.Name(inputs..., attribute=...)` creates a node; `_domain` and `_outputs` are as in onnxscript's rewriter."""

    def __init__(self, tape: _Tape) -> None:
        self._tape = tape

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)
        return lambda *inputs, **keywords: self._tape.node(op_type, inputs, keywords)
