"""Visitor over the body of a function, shared by conversions to patterns and to replacements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from ortfuse.errors import RuleError
from ortfuse.interop.function_rules.convert_function_to_nodes import Body, Given
from ortfuse.interop.function_rules.split_output_sizes import Parts
from ortfuse.ir import walk
from ortfuse.rewrite.pattern.language import Op, Pattern


@dataclass
class Captures:
    """The captures of a lifted pattern: values, attributes, numbers, and constants with required contents."""

    values: set[str] = field(default_factory=set)
    attributes: dict[str, Any] = field(default_factory=dict)
    """Maps names to defaults, `None` if there is none."""
    scalars: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    parts: dict[str, Parts] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """All captured names."""
        return {*self.values, *self.attributes, *self.scalars}


Known = np.ndarray[Any, Any] | Given | None


class Lifter:
    """Lift the values of one body.

    `labels` are the names under which values are captured, `defaults` the attributes of the outermost function. For a called
    function, `arguments` and `attributes` are those of the call.
    """

    def __init__(
        self,
        body: Body,
        captures: Captures,
        defaults: Mapping[str, Any],
        *,
        labels: Mapping[ir.Value, str] | None = None,
        arguments: Mapping[ir.Value, Pattern | None] | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.body, self.captures, self.defaults, self.labels = body, captures, defaults, labels or {}
        self._arguments, self._attributes = arguments or {}, attributes
        self._values: dict[ir.Value, Pattern] = {}
        self._nodes: dict[ir.Node, Op] = {}
        self._calls: dict[ir.Node, tuple[Lifter, ir.Function]] = {}

    # Methods in which the two kinds of lifting differ.

    def number(self, value: ir.Value, array: np.ndarray[Any, Any]) -> Pattern:
        """A constant as an operator's input."""
        raise NotImplementedError

    def given_number(self, value: ir.Value, given: Given) -> Pattern:
        """A constant whose value is an attribute of the function."""
        raise NotImplementedError

    def given_attribute(self, node: ir.Node, name: str) -> Any:
        """An attribute of a node whose value is an attribute of the function."""
        raise NotImplementedError

    def variable(self, value: ir.Value) -> Pattern:
        """An input of the function."""
        raise NotImplementedError

    def node(self, node: ir.Node) -> Op:
        """An operator."""
        raise NotImplementedError

    def chain(self, node: ir.Node) -> Pattern | None:
        """A sum or product; `None` if the node is not to become one."""
        return None

    def labelled(self, value: ir.Value, pattern: Pattern) -> Pattern:
        """The pattern of a value, with the name under which it is captured, if any."""
        return pattern

    # Methods that both share.

    def pattern(self, value: ir.Value) -> Pattern:
        """The pattern of a value."""
        if value not in self._values:
            self._values[value] = self._lift(value)
        return self._values[value]

    def operand(self, value: ir.Value | None) -> Pattern | None:
        """The pattern of an input that may be absent."""
        if value is None:
            return None
        return self._arguments[value] if value in self._arguments else self.pattern(value)

    def _lift(self, value: ir.Value) -> Pattern:
        node = value.producer()
        if value in self._arguments:
            argument = self._arguments[value]
            if argument is None:
                raise RuleError(f"function {self.body.name}: the call gives no {value.name}, which is needed here")
            return argument
        constant = self.constant(value)
        if isinstance(constant, np.ndarray):
            return self.number(value, constant)
        if isinstance(constant, Given):
            return self.given_number(value, constant)
        if node is None:
            return self.variable(value)
        if node.op_type == "Identity" and not node.domain:
            assert node.inputs[0] is not None
            return self.pattern(node.inputs[0])
        if any(walk.graphs_of(attribute) for attribute in node.attributes.values()):
            raise RuleError(
                f"function {self.body.name}: {walk.describe(node)} holds a graph; control flow cannot stand in a rule"
            )
        callee = self.body.callees.get(node.op_identifier())
        if callee is not None:
            return self._called(node, callee, value.index() or 0)
        chain = self.chain(node)
        if chain is not None:
            return self.labelled(value, chain)
        if node not in self._nodes:
            self._nodes[node] = self.node(node)
        made = self._nodes[node]
        return made[value.index() or 0] if len(node.outputs) > 1 else made

    def _called(self, node: ir.Node, function: ir.Function, index: int) -> Pattern:
        if node not in self._calls:
            given = [self.operand(value) for value in node.inputs]
            given += [None] * (len(function.inputs) - len(given))
            attributes = {name: attribute.value for name, attribute in function.attributes.items()}
            for name, attribute in node.attributes.items():
                attributes[name] = self.settled(attribute) if attribute.is_ref() else attribute.value
            callees = {key: callee for key, callee in self.body.callees.items() if callee is not function}
            inner = type(self)(
                Body(function.name, function, callees, is_typed=self.body.is_typed),
                self.captures,
                self.defaults,
                arguments=dict(zip(function.inputs, given, strict=True)),
                attributes=attributes,
            )
            self._calls[node] = inner, function
        inner, function = self._calls[node]
        return inner.pattern(function.outputs[index])

    def attribute(self, node: ir.Node, name: str) -> Any:
        """An attribute of a node: its value, or the stand-in for an attribute of the function."""
        given = self.body.given_attributes.get((node, name))
        if given is not None:
            return self.given_attribute(node, given.name)
        attribute = node.attributes[name]
        value = self.settled(attribute) if attribute.is_ref() else attribute.value
        if isinstance(value, Given):
            return self.given_attribute(node, value.name)
        if isinstance(value, ir.TensorProtocol):
            raise RuleError(
                f"function {self.body.name}: {walk.describe(node)} has a tensor as its attribute {name}, which cannot "
                "stand in a rule"
            )
        return tuple(value) if isinstance(value, (list, tuple)) else value

    def settled(self, reference: ir.Attr) -> Any:
        """The value of an attribute of the function: the one given by the call, otherwise its stand-in."""
        name = reference.ref_attr_name or ""
        if self._attributes is None:
            return Given(name, reference.type)
        value = self._attributes.get(name)
        if value is None:
            raise RuleError(f"function {self.body.name} is called without its attribute {name}")
        return value

    def constant(self, value: ir.Value) -> Known:
        """The constant that a value holds: given directly, cast to the type of another, or computed from constants alone."""
        node = value.producer()
        if node is None:
            return self._constant_without_node(value)
        if node.domain:
            return None
        if node.op_type == "Constant":
            return self._constant_of(node)
        if node.op_type in ("CastLike", "Identity"):
            return None if node.inputs[0] is None else self.constant(node.inputs[0])
        present = [operand for operand in node.inputs if operand is not None]
        known = [self.constant(operand) for operand in present]
        if not known or len(node.outputs) != 1 or any(a.is_ref() for a in node.attributes.values()):
            return None
        arrays = [array for array in known if isinstance(array, np.ndarray)]
        return _computed(node, arrays) if len(arrays) == len(present) == len(node.inputs) else None

    def _constant_without_node(self, value: ir.Value) -> Known:
        name = value.name or ""
        if value.const_value is None or name in self.body.constants:
            return None
        return self.body.given.get(name) or value.const_value.numpy()

    def _constant_of(self, node: ir.Node) -> Known:
        attribute = next(iter(node.attributes.values()))
        if attribute.is_ref():
            value = self.settled(attribute)
            return value if isinstance(value, Given) else np.asarray(value)
        if attribute.type == ir.AttributeType.TENSOR:
            return np.asarray(attribute.value.numpy())
        if attribute.name in ("value_float", "value_floats"):
            return np.asarray(attribute.value, np.float32 if self.body.is_typed else np.float64)
        if attribute.name in ("value_int", "value_ints"):
            return np.asarray(attribute.value, np.int64)
        raise RuleError(f"function {self.body.name}: {walk.describe(node)} holds no numbers, which a rule cannot have")


def decimal(number: Any) -> float:
    """A number as it was written: the shortest decimal that rounds to it in its type (1e-05, not 9.99999974e-06)."""
    return float(str(number)) if np.asarray(number).dtype.kind == "f" else float(number)


def _computed(node: ir.Node, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any] | None:
    """The result of a node on constants, in float64 to keep all digits; None if ONNX cannot evaluate it."""
    proto = ir.to_proto(node)
    assert isinstance(proto, onnx.NodeProto)
    names = [f"i{number}" for number in range(len(arrays))]
    del proto.input[:]
    proto.input.extend(names)
    feeds = {
        name: array.astype(np.float64) if array.dtype.kind == "f" else array
        for name, array in zip(names, arrays, strict=True)
    }
    try:
        found = cast(Any, ReferenceEvaluator(proto)).run(None, feeds)[0]
    except Exception:  # the evaluator raises whatever its operators raise; the node is then kept as a node
        return None
    return np.asarray(found)
