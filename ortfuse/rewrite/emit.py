"""Build the nodes of a replacement: a pattern expression used as a template that a match fills in."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import RuleError
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.schemas import is_input, needed_opset
from ortfuse.ir.traits import PARAMETER_INPUTS
from ortfuse.rewrite.emit_data_movement import part, rearranged
from ortfuse.rewrite.pattern.language import (
    Alt,
    Attr,
    Built,
    Computed,
    Const,
    Op,
    Opt,
    Out,
    Part,
    Pattern,
    Product,
    Rest,
    Scalar,
    Sum,
    Var,
)
from ortfuse.rewrite.pattern.match_operators import Match
from ortfuse.rewrite.pattern.rearrangement import Rearrange
from ortfuse.rewrite.pattern.siblings import Siblings


class Emitter:
    """Build the nodes of one replacement; they are not yet part of any graph."""

    def __init__(self, match: Match, opset: int, dtype: ir.DataType | None, rule: str) -> None:
        """`opset`: the ai.onnx version of the scope; `dtype`: the element type of the literals of sums and products."""
        self.match, self.opset, self.dtype, self.rule = match, opset, dtype, rule
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []
        self.problem: Refusal | None = None
        self._values: dict[int, ir.Value | None] = {}
        self._built: dict[int, ir.Node] = {}
        self._templates: dict[int, Pattern] = {}

    def results(self, pattern: Pattern) -> list[ir.Value | None]:
        """The values that a whole replacement computes, one for each root of the match.

        Raises:
            RuleError: A built replacement has not as many results as the pattern.
        """
        while isinstance(pattern, Built):
            pattern = self._template(pattern)
        made = pattern.roots if isinstance(pattern, Siblings) else (pattern,)
        if len(made) != len(self.match.roots):
            raise RuleError(
                f"rule {self.rule}: its replacement has {len(made)} results, and its pattern {len(self.match.roots)}"
            )
        return [self.build(one) for one in made]

    def build(self, pattern: Pattern) -> ir.Value | None:
        """The value that computes `pattern`; `None` for an absent optional input."""
        key = id(pattern)
        if key not in self._values:
            self._values[key] = self._build(pattern)
        return self._values[key]

    def _build(self, pattern: Pattern) -> ir.Value | None:
        if isinstance(pattern, Var):
            value = self.match[pattern.name]
            if value is not None and not isinstance(value, ir.Value):
                raise RuleError(f"rule {self.rule}: {pattern.name} is no value of the graph")
            return value
        if isinstance(pattern, Op):
            return self._node(pattern).outputs[0]
        if isinstance(pattern, Out):
            node = pattern.node if isinstance(pattern.node, Op) else self._template(pattern.node)
            if not isinstance(node, Op):
                raise RuleError(f"rule {self.rule}: {node} has no outputs to choose from")
            return self._node(node).outputs[pattern.index]
        if isinstance(pattern, Built):
            return self.build(self._template(pattern))
        if isinstance(pattern, (Rearrange, Part)):
            operand = self.build(pattern.inner)
            if operand is None:
                return None
            return (
                rearranged(self, pattern, operand) if isinstance(pattern, Rearrange) else part(self, pattern, operand)
            )
        if isinstance(pattern, Opt):
            return self.build(pattern.inner)
        if isinstance(pattern, Alt):
            # Alternatives named as those of the pattern mean the one that matched there, others the first that is present.
            if (chosen := self.match.choices.get(pattern.label or "")) is not None:
                return self.build(pattern.options[chosen])
            return next((value for value in map(self.build, pattern.options) if value is not None), None)
        if isinstance(pattern, Computed):
            found = self._computed(pattern)
            if found is None:
                return None
            return (
                self.tensor(found) if isinstance(found, ir.Tensor | ir.LazyTensor) else self.constant(np.asarray(found))
            )
        if isinstance(pattern, Const):
            return self.constant(self._literal(pattern.value))
        if isinstance(pattern, Scalar):
            return self.constant(self._literal(float(self.match[pattern.name])))
        if isinstance(pattern, (Sum, Product)):
            return self._chain(pattern)
        raise RuleError(f"rule {self.rule}: {type(pattern).__name__} ({pattern}) cannot stand in a replacement")

    def _template(self, pattern: Built) -> Pattern:
        if id(pattern) not in self._templates:
            self._templates[id(pattern)] = pattern.function(self.match)
        return self._templates[id(pattern)]

    def _computed(self, pattern: Computed) -> np.ndarray[Any, Any] | ir.TensorProtocol | None:
        """A computed constant; a problem if its numbers overflow or are undefined where the captured ones are not."""
        try:
            with np.errstate(over="raise", divide="raise", invalid="raise"):
                found: np.ndarray[Any, Any] | ir.TensorProtocol | None = pattern.function(self.match)
                return found
        except FloatingPointError as error:
            self.problem = refuse("inexact", self.match.root, found=f"a constant ({error})", needed="a finite number")
            return np.zeros((), np.float32)

    def _literal(self, number: float) -> np.ndarray[Any, Any]:
        if self.dtype is None:
            self.problem = refuse("dtype", self.match.root, found=None)
            return np.asarray(number, np.float32)
        with np.errstate(over="ignore"):
            array = np.asarray(number, dtype=self.dtype.numpy())
        if math.isfinite(number) and self.dtype.is_floating_point() and not np.isfinite(array):
            self.problem = refuse("inexact", self.match.root, found=repr(number), needed=str(self.dtype))
        return array

    def _chain(self, pattern: Sum | Product) -> ir.Value | None:
        parts = [(sign, self.build(part)) for sign, part in pattern.parts]
        number = pattern.scalar
        if pattern.capture is not None:
            captured = float(self.match[pattern.capture.name])
            number = number * captured if isinstance(pattern, Product) else number + captured
        present = sorted(((sign, value) for sign, value in parts if value is not None), key=lambda part: -part[0])
        if not present or present[0][0] < 0:
            raise RuleError(f"rule {self.rule}: {pattern} needs a first part with a plus sign")
        plus, minus = ("Mul", "Div") if isinstance(pattern, Product) else ("Add", "Sub")
        total = present[0][1]
        for sign, value in present[1:]:
            total = self.node(plus if sign > 0 else minus, [total, value]).outputs[0]
        if number != pattern.neutral:
            total = self.node(plus, [total, self.constant(self._literal(number))]).outputs[0]
        return total

    def _node(self, pattern: Op) -> ir.Node:
        if id(pattern) not in self._built:
            inputs: list[ir.Value | None] = []
            for operand in pattern.inputs:
                if isinstance(operand, Rest):
                    inputs += self.match[operand.name]
                else:
                    inputs.append(None if operand is None else self.build(operand))
            while inputs and inputs[-1] is None:
                inputs.pop()
            attributes = dict(self.match[pattern.all_attributes.name]) if pattern.all_attributes is not None else {}
            attributes |= {name: self._attribute(value) for name, value in pattern.attributes.items()}
            if not pattern.domain:
                self._turn_into_inputs(pattern.op_type, inputs, attributes)
            self._built[id(pattern)] = self.node(
                pattern.op_type, inputs, attributes, pattern.domain, pattern.output_count
            )
        return self._built[id(pattern)]

    def _turn_into_inputs(self, op_type: str, inputs: list[ir.Value | None], attributes: dict[str, Any]) -> None:
        """Make inputs of the integer parameters that the scope's opset has no attributes for, as the axes of a reduction."""
        for name, position in PARAMETER_INPUTS.get(op_type, {}).items():
            if name not in attributes or not is_input(op_type, name, position, self.opset):
                continue
            value = attributes.pop(name)
            if value is not None:
                inputs.extend([None] * (position + 1 - len(inputs)))
                inputs[position] = self.constant(np.asarray(value, np.int64))

    def _attribute(self, value: Any) -> Any:
        if isinstance(value, Attr):
            return self.match[value.name]
        found = float(self.match[value.name]) if isinstance(value, Scalar) else value
        found = found(self.match) if callable(found) else found
        if isinstance(found, float) and not _is_held(found, exactly=self.dtype == ir.DataType.DOUBLE):
            self.problem = refuse("inexact", self.match.root, found=repr(found), needed="a float32 attribute")
        return found

    def node(
        self,
        op_type: str,
        inputs: list[ir.Value | None],
        attributes: dict[str, Any] | None = None,
        domain: str = "",
        outputs: int = 1,
    ) -> ir.Node:
        """One new node. An ai.onnx operator newer than the scope's opset is marked with the version it needs.

        That is told by its attributes, by the number of its inputs, and by the types of those that are new constants.
        """
        present = {name: value for name, value in (attributes or {}).items() if value is not None}
        types = tuple(
            f"tensor({one.dtype.name.lower()})" if one is not None and one.dtype and one in self.initializers else ""
            for one in inputs
        )
        node = ir.Node(
            domain,
            op_type,
            inputs,
            ir.convenience.convert_attributes(present),
            num_outputs=outputs,
            version=1 if domain else max(self.opset, needed_opset(op_type, frozenset(present), len(inputs), types)),
        )
        self.nodes.append(node)
        return node

    def constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        """One new constant."""
        return self.tensor(ir.Tensor(array))

    def tensor(self, tensor: ir.TensorProtocol) -> ir.Value:
        """One new constant, which may be one that is computed when it is read."""
        value = ir.Value(const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()))
        self.initializers.append(value)
        return value


def _is_held(number: float, *, exactly: bool) -> bool:
    """Whether an attribute, a float32, holds the number: exactly, or but for rounding."""
    with np.errstate(over="ignore"):
        held = float(np.float32(number))
    return held == number if exactly else math.isfinite(held) == math.isfinite(number) and (held != 0 or number == 0)


Build = Callable[[Match], "np.ndarray[Any, Any] | None"]
