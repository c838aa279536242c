"""Lift functions into the pattern language: the body of a function becomes a pattern or a replacement.

Sums and products become chains, so that a lifted pattern matches modulo order, association and scalar coefficients like
one written by hand; constants that onnxscript casts to the type of their neighbour become plain numbers. Inputs become
variables, with the shapes that they are annotated with. An attribute of the function is captured as an attribute (`attr`)
where a node uses it as an attribute or parameter input, and as a number (`scalar`) where a Constant node uses it. Called
functions are inlined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import RuleError
from ortfuse.interop.function_rules.convert_function_to_nodes import Body, Given
from ortfuse.interop.function_rules.function_to_pattern_base import Captures, Lifter, decimal
from ortfuse.interop.function_rules.split_output_sizes import Parts
from ortfuse.ir import walk
from ortfuse.ir.traits import PARAMETER_INPUTS, PRODUCT, SUM
from ortfuse.rewrite.pattern.language import Attr, Chain, Computed, Const, Op, Opt, Pattern, Product, Scalar, Sum, Var
from ortfuse.rewrite.pattern.pattern_builders import const, var
from ortfuse.rewrite.pattern.siblings import Siblings

_MOST_ELEMENTS = 1 << 16
"""The most elements of a constant that a pattern may require."""


@dataclass(frozen=True)
class Lifted:
    """The patterns of a function's outputs, the indices of those that are roots, and what is captured."""

    outputs: tuple[Pattern, ...]
    roots: tuple[int, ...]
    labels: tuple[str, ...]
    captures: Captures

    def whole(self, outputs: Sequence[Pattern]) -> Pattern:
        """One pattern of those of the outputs that are roots, or of what replaces them."""
        made = [outputs[number] for number in self.roots]
        return made[0] if len(made) == 1 else Siblings(made)


def lift_pattern(body: Body) -> Lifted:
    """The pattern of a function.

    Outputs that are computed on the way to another, or by the same node, are intermediates; the others are roots.

    Raises:
        RuleError: The function cannot be lifted; the message names it and the node.
    """
    outputs = [_behind_identity(value) for value in body.outputs]
    roots = _roots(body, outputs)
    labels = tuple(f"{body.name}.{value.name}" for value in body.outputs)
    captures = Captures()
    kept = [outputs[number] for number in roots]
    others = {value: label for value, label in zip(outputs, labels, strict=True) if value not in kept}
    lifter = _PatternLifter(body, captures, _defaults(body), labels=others)
    return Lifted(tuple(lifter.pattern(value) for value in outputs), roots, labels, captures)


def lift_replacement(body: Body, captured: Captures) -> tuple[Pattern, ...]:
    """The replacements for the outputs, in order.

    Raises:
        RuleError: The function cannot be lifted, or needs something that the pattern does not capture.
    """
    for value in body.function.inputs:
        if body.names.get(value.name or "", value.name) not in captured.names:
            raise RuleError(
                f"function {body.name}: its input {value.name} is none of what the pattern captures "
                f"({', '.join(sorted(captured.names))})"
            )
    lifter = _ReplacementLifter(body, captured, _defaults(body))
    return tuple(lifter.pattern(value) for value in body.outputs)


def _defaults(body: Body) -> dict[str, Any]:
    return {name: attribute.value for name, attribute in body.function.attributes.items()}


def _behind_identity(value: ir.Value) -> ir.Value:
    while (node := value.producer()) is not None and node.op_type == "Identity" and not node.domain:
        above = node.inputs[0]
        assert above is not None
        value = above
    return value


def _roots(body: Body, outputs: list[ir.Value]) -> tuple[int, ...]:
    """The indices of the outputs that are not computed on the way to another; of several of one node the first."""
    for value, named in zip(outputs, body.outputs, strict=True):
        if value.producer() is None:
            raise RuleError(f"function {body.name}: its output {named.name} is an input, so that there is no pattern")
    above: set[ir.Node] = set()
    for value in outputs:
        pending = [operand.producer() for operand in value.producer().inputs if operand is not None]  # type: ignore[union-attr]
        while pending:
            node = pending.pop()
            if node is not None and node not in above:
                above.add(node)
                pending += [operand.producer() for operand in node.inputs if operand is not None]
    first = {value.producer(): number for number, value in reversed(list(enumerate(outputs)))}
    return tuple(sorted(number for node, number in first.items() if node not in above))


class _PatternLifter(Lifter):
    def number(self, value: ir.Value, array: np.ndarray[Any, Any]) -> Pattern:
        if array.size == 1 and value not in self.body.integers:
            return Const(decimal(array.reshape(-1)[0]))
        if array.size > _MOST_ELEMENTS:
            raise RuleError(
                f"function {self.body.name}: the constant {value.name} is too large for a pattern; make it an "
                "input, or free"
            )
        name = f"{self.body.name}.{value.name}"
        self.captures.constants[name] = array

        def is_it(found: ir.Value, facts: Any) -> bool:
            other = facts.const(found)
            return other is not None and other.shape == array.shape and bool(
                np.allclose(other.astype(np.float64), array.astype(np.float64), rtol=2e-6, atol=0)
            )  # fmt: skip

        return Var(name, is_it, f"the constant {value.name} of {self.body.name}", constant=True)

    def given_number(self, value: ir.Value, given: Given) -> Pattern:
        if given.type not in (ir.AttributeType.FLOAT, ir.AttributeType.INT):
            raise RuleError(
                f"function {self.body.name}: {_maker(value)} makes a tensor of the attribute {given.name}; only numbers, "
                "and parameters such as axes and shapes, can be captured"
            )
        self.captures.scalars[given.name] = self.defaults.get(given.name)
        return Scalar(given.name)

    def given_attribute(self, node: ir.Node, name: str) -> Any:
        self.captures.attributes[name] = self.defaults.get(name)
        return Attr(name)

    def variable(self, value: ir.Value) -> Pattern:
        name = value.name or ""
        self.captures.values.add(name)
        shape = self.body.shapes.get(name, _dims(value))
        made = const(name, shape) if name in self.body.constants else var(name, shape)
        return Opt(made) if name in self.body.optional else made

    def chain(self, node: ir.Node) -> Pattern | None:
        is_power = not node.domain and node.op_type == "Pow" and node.outputs[0] not in self.body.integers
        if is_power and node.inputs[0] is not None and node.inputs[1] is not None:
            exponent = self.constant(node.inputs[1])
            is_number = isinstance(exponent, np.ndarray) and exponent.size == 1
            return self.pattern(node.inputs[0]) ** decimal(exponent.reshape(-1)[0]) if is_number else None  # type: ignore[union-attr]
        if node.domain or node.op_type not in (SUM | PRODUCT) or node.outputs[0] in self.body.integers:
            return None
        operands = [operand for value in node.inputs if (operand := self.operand(value)) is not None]
        signs = (1, -1) if node.op_type in ("Sub", "Div") else (-1,) if node.op_type == "Reciprocal" else (1, 1)
        parts = list(zip(signs, operands, strict=False))
        if node.op_type == "Neg":
            parts.append((1, Const(-1.0)))
        made = (Sum if node.op_type in ("Add", "Sub") else Product).of(parts)
        # -(-x) would simplify to x, a pattern that matches anything: here the operators themselves are meant.
        return None if isinstance(made, Chain) and _is_nothing(made) else made

    def labelled(self, value: ir.Value, pattern: Pattern) -> Pattern:
        if value in self.labels:
            return pattern.named(self.labels[value])
        # What is used more than once is one value: it must not be merged into the sums and products around it.
        return pattern.named(f"{self.body.name}.{value.name}") if len(value.uses()) > 1 else pattern

    def node(self, node: ir.Node) -> Op:
        attributes = {name: self.attribute(node, name) for name in node.attributes}
        inputs: list[Pattern | None] = []
        keywords = {position: name for name, position in PARAMETER_INPUTS.get(node.op_type, {}).items()}
        for position, value in enumerate(node.inputs):
            known = None if value is None or node.domain else self._parameter(node, value)
            if position in keywords and known is not None:
                name = keywords[position]
                attributes[name] = (known,) if name == "axes" and isinstance(known, int) else known
            else:
                inputs.append(self.operand(value))
        labels = {self.labels[out]: number for number, out in enumerate(node.outputs) if out in self.labels}
        if (
            node.op_type == "Split"
            and not node.domain
            and len(inputs) == 1
            and not isinstance(attributes.get("split"), Attr)
        ):
            name = f"{self.body.name}.parts{len(self.captures.parts)}"
            self.captures.parts[name] = Parts.of(node, attributes.pop("split", None))
            attributes |= {"split": Attr(f"{name}.sizes"), "num_outputs": Attr(f"{name}.number")}
            labels[name] = 0
            return Op(node.op_type, inputs, attributes, node.domain, len(node.outputs), others=labels)
        if len(node.outputs) == 1:
            return Op(node.op_type, inputs, attributes, node.domain, label=next(iter(labels), None))
        return Op(node.op_type, inputs, attributes, node.domain, len(node.outputs), others=labels)

    def _parameter(self, node: ir.Node, value: ir.Value) -> Any:
        """The value required of a parameter input (axes, shape, ...); None if it is computed."""
        known = self.constant(value)
        if isinstance(known, Given):
            return self.given_attribute(node, known.name)
        if known is None or known.ndim > 1 or known.dtype.kind not in "if":
            return None
        if known.dtype.kind == "f":
            return decimal(known.reshape(-1)[0]) if known.size == 1 else None
        return tuple(int(element) for element in known) if known.ndim else int(known)


class _ReplacementLifter(Lifter):
    def variable(self, value: ir.Value) -> Pattern:
        name = self.body.names.get(value.name or "", value.name or "")
        return Scalar(name) if name in self.captures.scalars else Var(name)

    def number(self, value: ir.Value, array: np.ndarray[Any, Any]) -> Pattern:
        if self.body.is_typed:
            return Computed(value.name or "constant", lambda match: array)
        if array.dtype.kind == "f" and array.ndim == 0:
            return Const(decimal(array[()]))
        if array.dtype.kind != "f":
            return Computed(value.name or "constant", lambda match: array)

        def in_its_type(match: Any) -> np.ndarray[Any, Any]:
            # Like plain numbers, constants take the element type of the result.
            dtype = match.facts.dtype(match.root)
            return array if dtype is None or not dtype.is_floating_point() else array.astype(dtype.numpy())

        return Computed(value.name or "constant", in_its_type)

    def given_number(self, value: ir.Value, given: Given) -> Pattern:
        self._demand(_maker(value), given.name)
        if given.type == ir.AttributeType.FLOAT:
            return Scalar(given.name)
        return Computed(given.name, lambda match: np.asarray(match[given.name], np.int64))

    def given_attribute(self, node: ir.Node, name: str) -> Any:
        self._demand(walk.describe(node), name)
        return Attr(name)

    def _demand(self, who: str, name: str) -> None:
        if name not in self.captures.attributes and name not in self.captures.scalars:
            raise RuleError(
                f"function {self.body.name}: {who} needs {name}, which the pattern does not capture and "
                "which has no default"
            )

    def settled(self, reference: ir.Attr) -> Any:
        found = super().settled(reference)
        captured = {*self.captures.attributes, *self.captures.scalars}
        if isinstance(found, Given) and found.name not in captured:
            return found if self.defaults.get(found.name) is None else self.defaults[found.name]
        return found

    def node(self, node: ir.Node) -> Op:
        attributes = {name: self.attribute(node, name) for name in node.attributes}
        inputs = [self.operand(value) for value in node.inputs]
        return Op(node.op_type, inputs, attributes, node.domain, len(node.outputs))


def _maker(value: ir.Value) -> str:
    """The producer of a constant, in words."""
    node = value.producer()
    return f"the initializer {value.name}" if node is None else walk.describe(node)


def _dims(value: ir.Value) -> str | None:
    """The shape that an input is annotated with (`FLOAT["b", "s", 64]`), if all of its dimensions are given."""
    dims = [] if value.shape is None else [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    return " ".join(map(str, dims)) if dims and None not in dims else None


def _is_nothing(chain: Chain) -> bool:
    """Whether a sum or product is trivial: a single part and no number."""
    alone = len(chain.parts) == 1 and chain.parts[0][0] == 1
    return alone and chain.scalar == chain.neutral and chain.capture is None
