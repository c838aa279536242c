"""Instances of a rule: small models that spell its pattern out, built from the declaration alone.

Every freedom of the pattern (operand order, association, division or multiplication by the reciprocal, alternatives,
optional parts, rank of scalar constants, constants or inputs) is one choice; a `Chooser` decides them, so that the same
seed gives the same spelling in another element type.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortfuse.errors import RuleError
from ortfuse.ir.facts import Facts
from ortfuse.pattern.language import (
    COMMUTATIVE_OPS,
    Alt,
    Attr,
    Chain,
    Const,
    Op,
    Opt,
    Out,
    Pattern,
    Product,
    Rest,
    Scalar,
    Var,
)
from ortfuse.pattern.operators import PARAMETER_INPUTS
from ortfuse.rewrite import Rule

OPSETS = (23, 20, 17, 13)
"""The ai.onnx versions that instances are tried at, where the pattern's operators exist."""


class Chooser:
    """Answers each choice; seed 0 always takes the first option."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = random.Random(seed)

    def pick(self, count: int) -> int:
        """A number below `count`."""
        return 0 if self.seed == 0 or count < 2 else self._random.randrange(count)


@dataclass
class Instance:
    """A model, the symbols of its shapes and how its random inputs are bounded."""

    model: ir.Model
    symbols: tuple[str, ...]
    seed: int

    def inputs(self, sizes: Mapping[str, int], seed: int) -> dict[str, np.ndarray[Any, Any]]:
        """Random inputs with the symbols bound to `sizes`."""
        rng = np.random.default_rng(seed)
        made: dict[str, np.ndarray[Any, Any]] = {}
        for value in self.model.graph.inputs:
            assert value.shape is not None
            assert value.dtype is not None
            shape = [dim if isinstance(dim, int) else sizes[str(dim.value)] for dim in value.shape]
            assert value.name is not None
            made[value.name] = _random_array(rng, shape, value.dtype, "normal")
        return made


def _random_array(
    rng: np.random.Generator, shape: Sequence[int], dtype: ir.DataType, kind: str
) -> np.ndarray[Any, Any]:
    if dtype == ir.DataType.BOOL:
        return np.asarray(rng.random(shape) < 0.7)
    if dtype.is_integer():
        return np.asarray(rng.integers(0, 4, shape)).astype(dtype.numpy())
    array = np.asarray(rng.standard_normal(shape) * 1.5)
    if kind == "positive":
        array = np.abs(array) + 0.5
    return array.astype(dtype.numpy())


class Builder:
    """Builds one instance; also what a proof's own input makers work with (`input`, `constant`, `node`)."""

    def __init__(
        self, rule: Rule, shape_set: int, dtype: ir.DataType, seed: int, opset: int, *, typical: bool = False
    ) -> None:
        """`shape_set` counts among the proof's shape sets, or among its typical sizes."""
        self.rule, self.proof, self.dtype, self.opset = rule, rule.proof, dtype, opset
        self.shapes = self.proof.typical[shape_set] if typical else self.proof.shape_sets()[shape_set]
        self.attributes = self.proof.attribute_set(0 if typical else shape_set)
        self.chooser = Chooser(seed)
        # Numbers come from a generator of their own, so that they are the same whatever the spelling.
        self.numbers = np.random.default_rng(seed)
        self.graph = ir.Graph([], [], nodes=[], opset_imports={"": opset, "com.microsoft": 1}, name=rule.name)
        self._values: dict[Any, ir.Value | None] = {}
        self._nodes: dict[int, ir.Node] = {}
        self._chosen: dict[str, Any] = {}

    def instance(self) -> Instance:
        """The finished model; its one output is the pattern's root."""
        root = self.build(self.rule.pattern)
        if root is None:
            raise RuleError(f"rule {self.rule.name}: its pattern has no value at the root")
        if any(isinstance(replacement, Var) for replacement in self.rule.replacements):
            # A graph output keeps its name, so that an input could not take its place.
            root = self.node("Identity", [root]).outputs[0]
        self.graph.outputs.append(root)
        for node in self.graph:
            for output in node.outputs:
                output.name = output.name or f"v{id(output)}"
        model = ir.Model(self.graph, ir_version=10)
        facts = Facts(model)
        shape = facts.shape(root)
        root.type = ir.TensorType(facts.dtype(root) or self.dtype)
        root.shape = None if shape is None else ir.Shape([dim if isinstance(dim, int) else str(dim) for dim in shape])
        symbols = sorted(
            {str(dim.value) for v in self.graph.inputs for dim in v.shape or () if not isinstance(dim, int)}
        )
        return Instance(model, tuple(symbols), self.chooser.seed)

    def dims(self, name: str) -> list[int | str]:
        """The declared shape of a captured value."""
        if name not in self.shapes:
            raise RuleError(f"rule {self.rule.name}: its proof gives no shape for {name}")
        return [int(dim) if dim.isdigit() else dim for dim in self.shapes[name].split()]

    def input(self, name: str, shape: Sequence[int | str], dtype: ir.DataType | None = None) -> ir.Value:
        """A graph input."""
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype or self.dtype))
        self.graph.inputs.append(value)
        return value

    def constant(self, array: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """An initializer; numbers are of the instance's element type unless they are integers or booleans."""
        found = np.asarray(array)
        if dtype is not None or found.dtype.kind == "f":
            found = found.astype((dtype or self.dtype).numpy())
        tensor = ir.tensor(found, name=f"c{len(self.graph.initializers)}")
        value = ir.Value(
            name=tensor.name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(found.shape)
        )
        self.graph.register_initializer(value)
        return value

    def node(self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any] | None = None,
             domain: str = "", outputs: int = 1) -> ir.Node:  # fmt: skip
        """A node at the end of the graph."""
        present = {name: value for name, value in (attributes or {}).items() if value is not None}
        node = ir.Node(domain, op_type, inputs, ir.convenience.convert_attributes(present), num_outputs=outputs)
        self.graph.append(node)
        return node

    def build(self, pattern: Pattern) -> ir.Value | None:
        """The value that `pattern` describes, in the spelling the chooser decides."""
        key: Any = ("var", pattern.name) if isinstance(pattern, Var) else id(pattern)
        if key not in self._values:
            self._values[key] = self._build(pattern)
        return self._values[key]

    def _build(self, pattern: Pattern) -> ir.Value | None:
        if isinstance(pattern, Var):
            return self._variable(pattern)
        if isinstance(pattern, Const):
            return self._number(pattern.value)
        if isinstance(pattern, Scalar):
            return self._number(self._scalar(pattern.name))
        if isinstance(pattern, Opt):
            undeclared = isinstance(pattern.inner, Var) and pattern.inner.name not in self.shapes
            return None if undeclared or self.chooser.pick(3) == 1 else self.build(pattern.inner)
        if isinstance(pattern, Alt):
            return self.build(pattern.options[self.chooser.pick(len(pattern.options))])
        if isinstance(pattern, Out):
            return self._op(pattern.node).outputs[pattern.index]
        if isinstance(pattern, Op):
            return self._op(pattern).outputs[0]
        if isinstance(pattern, Chain):
            return self._chain(pattern)
        raise RuleError(f"rule {self.rule.name}: no instance can be built of {type(pattern).__name__}")

    def _number(self, number: float) -> ir.Value:
        with_axis = all(self.shapes.values()) and self.chooser.pick(4) == 1
        return self.constant(np.asarray([number] if with_axis else number, dtype=np.float64))

    def _scalar(self, name: str) -> float:
        return float(self._choice(name, self.proof.scalars.get(name, (0.5, 2.0))))

    def _choice(self, name: str, options: Sequence[Any]) -> Any:
        if name not in self._chosen:
            self._chosen[name] = options[self.chooser.pick(len(options))]
        return self._chosen[name]

    def _variable(self, pattern: Var) -> ir.Value:
        name = pattern.name
        maker = self.proof.inputs.get(name)
        if callable(maker):
            made: ir.Value = maker(self)
            return made
        dims = self.dims(name)
        declared = self.proof.constants.get(name)
        if declared is not None and not isinstance(declared, str):
            return self.constant(np.asarray(declared).reshape([int(dim) for dim in dims]))
        dtype = ir.DataType[maker.upper()] if maker is not None else self.dtype
        static = all(isinstance(dim, int) for dim in dims)
        if pattern.constant or declared is not None or (static and dims and maker is None and self.chooser.pick(2)):
            array = _random_array(
                self.numbers, [int(dim) for dim in dims], ir.DataType.DOUBLE, str(declared or "normal")
            )
            return self.constant(array.astype(dtype.numpy()), dtype)
        return self.input(name, dims, dtype)

    def _op(self, pattern: Op) -> ir.Node:
        if id(pattern) not in self._nodes:
            self._nodes[id(pattern)] = self._make(pattern)
        return self._nodes[id(pattern)]

    def _make(self, pattern: Op) -> ir.Node:
        if any(isinstance(operand, Rest) for operand in pattern.inputs):
            raise RuleError(
                f"rule {self.rule.name}: give a proof for variadic inputs by an alternative of fixed inputs"
            )
        inputs = [None if operand is None else self.build(operand) for operand in pattern.inputs]
        if len(inputs) == 2 and pattern.op_type in COMMUTATIVE_OPS and self.chooser.pick(2):
            inputs.reverse()
        attributes: dict[str, Any] = {}
        if pattern.all_attributes is not None:
            attributes |= self._choice(pattern.all_attributes.name, self.attributes[pattern.all_attributes.name])
        parameters: dict[int, ir.Value] = {}
        for name, wanted in pattern.attributes.items():
            value = self._choice(wanted.name, self._values_of(wanted.name)) if isinstance(wanted, Attr) else wanted
            if value is None:
                continue
            position = PARAMETER_INPUTS.get(pattern.op_type, {}).get(name)
            if self._is_attribute(pattern, name):
                attributes[name] = value
            elif position is not None:
                dtype = None if isinstance(value, (tuple, list, bool)) else self.dtype
                array = np.asarray(value, np.int64) if isinstance(value, (tuple, list)) else np.asarray(value)
                parameters[position] = self.constant(array, dtype)
        for position in sorted(parameters):
            inputs += [None] * (position - len(inputs))
            inputs.insert(position, parameters[position])
        while inputs and inputs[-1] is None:
            inputs.pop()
        return self.node(pattern.op_type, inputs, attributes, pattern.domain, pattern.output_count)

    def _values_of(self, name: str) -> Sequence[Any]:
        if name not in self.attributes:
            raise RuleError(f"rule {self.rule.name}: its proof gives no values for the attribute captured as {name}")
        return self.attributes[name]

    def _is_attribute(self, pattern: Op, name: str) -> bool:
        if pattern.domain:
            return True
        return name in onnx.defs.get_schema(pattern.op_type, self.opset, "").attributes

    def _chain(self, pattern: Chain) -> ir.Value | None:
        product = isinstance(pattern, Product)
        number = pattern.scalar
        if pattern.capture is not None:
            captured = self._scalar(pattern.capture.name)
            number = number * captured if product else number + captured
        parts = [(sign, self.build(part)) for sign, part in pattern.parts]
        operands = [(sign, value) for sign, value in parts if value is not None]
        if number != pattern.neutral or not any(sign > 0 for sign, _ in operands):
            operands.append(self._scalar_operand(number, product))
        # Any order and association that begins with a part to be added (multiplied).
        while len(operands) > 1:
            first = self.chooser.pick(len(operands) - 1) if self.chooser.seed else 0
            pair = [operands.pop(first), operands.pop(first)]
            operands.insert(first, self._combine(pair, product))
        sign, value = operands[0]
        if sign < 0:
            return self.node("Reciprocal" if product else "Neg", [value]).outputs[0]
        return value

    def _scalar_operand(self, number: float, product: bool) -> tuple[int, ir.Value]:
        if self.chooser.pick(2) and number != 0:
            return -1, self._number(1 / number if product else -number)
        return 1, self._number(number)

    def _combine(self, pair: list[tuple[int, ir.Value]], product: bool) -> tuple[int, ir.Value]:
        (first_sign, first), (second_sign, second) = pair
        plus, minus = ("Mul", "Div") if product else ("Add", "Sub")
        if first_sign == second_sign:
            operands = [second, first] if self.chooser.pick(2) else [first, second]
            return first_sign, self.node(plus, operands).outputs[0]
        operands = [first, second] if first_sign > 0 else [second, first]
        return 1, self.node(minus, operands).outputs[0]


def opsets_for(rule: Rule) -> list[int]:
    """The opsets at which all operators of the pattern exist, newest first."""
    if rule.proof.opset is not None:
        return [rule.proof.opset]
    return [
        opset for opset in OPSETS if all(_exists(part, opset) for part in rule.pattern.walk() if isinstance(part, Op))
    ]


def _exists(pattern: Op, opset: int) -> bool:
    if pattern.domain:
        return True
    try:
        schema = onnx.defs.get_schema(pattern.op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    parameters = PARAMETER_INPUTS.get(pattern.op_type, {})
    return all(name in schema.attributes or name in parameters for name in pattern.attributes)
