"""Find the inputs and outputs of an operator that share a floating-point type, by its definition in the runtime."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.traits import DEQUANTISES, QUANTISES, STASHES, has
from ortfuse.ir.walk import subgraphs
from ortfuse.targets import Target, installed
from ortfuse.targets.kernel_table import Formal, Schema

TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_datatype", "output_dtype"})
"""Attributes that name the type of a result."""


@dataclass(frozen=True)
class Ports:
    """The float32 inputs and outputs of a node that change their type with it, by position; all others keep it.

    Attributes:
        inputs: Positions of inputs.
        outputs: Positions of outputs.
        reason: Why the node cannot compute in the other type at all; empty if it can.
    """

    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()
    reason: str = ""


def is_float(value: ir.Value | None, facts: Facts) -> bool:
    """Whether a value is a tensor of float32."""
    return value is not None and value.name != "" and facts.dtype(value) == ir.DataType.FLOAT


def ports(node: ir.Node, facts: Facts, half: ir.DataType, target: Target | None) -> Ports:
    """The inputs and outputs that change their type if a node computes in `half` instead of float32.

    Args:
        node: Any node without graphs.
        facts: The facts of its model.
        half: float16 or bfloat16.
        target: The runtime that has to have a kernel; `None` for any that follows the operator's definition.
    """
    operator = installed().table.operators.get((node.domain, node.op_type))
    schema = None if operator is None else operator.at(facts.version(node))
    if schema is None or subgraphs(node):
        return Ports(reason="its definition is not known")
    if has(node, QUANTISES | DEQUANTISES):
        return Ports(reason="its scales would be rounded")
    sides = [list(zip(node.inputs, _formals(schema.inputs), strict=False))]
    sides.append(list(zip(node.outputs, _formals(schema.outputs), strict=False)))
    if any(_is_uncertain(value, formal, schema, facts) for side in sides for value, formal in side):
        return Ports(reason="the type of a value is not known, or it is no tensor")
    narrow = f"tensor({half.name.lower()})"
    places = [
        frozenset(
            number
            for number, (value, formal) in enumerate(side)
            if is_float(value, facts) and narrow in schema.allowed(formal)
        )
        for side in sides
    ]
    if node.op_type in STASHES:
        places[1] &= {0}
    if not places[0] and not places[1]:
        return Ports(reason=f"it is not defined for {half.name.lower()} at version {facts.version(node)}")
    found = Ports(places[0], places[1])
    return found if target is None else _with_kernel(node, found, facts, half, target)


def _formals(formals: Sequence[Formal]) -> Iterator[Formal]:
    repeated = formals[-1:] if formals and formals[-1].variadic else ()
    return itertools.chain(formals, itertools.cycle(repeated))


def _is_uncertain(value: ir.Value | None, formal: Formal, schema: Schema, facts: Facts) -> bool:
    """Whether a value might hold float32 without being known as a tensor of it."""
    if value is None or value.name == "" or facts.dtype(value) is not None:
        return False
    return any("(float)" in kind for kind in schema.allowed(formal))


def _with_kernel(node: ir.Node, found: Ports, facts: Facts, half: ir.DataType, target: Target) -> Ports:
    """The ports if the target executes the node on these types, by a kernel or in float32 between Casts of its own."""
    inputs, outputs = (
        [
            "" if value is None or value.name == "" else half if number in places else facts.dtype(value)
            for number, value in enumerate(values)
        ]
        for values, places in ((node.inputs, found.inputs), (node.outputs, found.outputs))
    )
    version = facts.version(node)
    if target.supports(node.domain, node.op_type, version, inputs, outputs):
        return found
    between_casts = target.spec.half_in_float32 and half == ir.DataType.FLOAT16
    if between_casts and target.check_node(node, {node.domain: version}, facts) is None:
        return found  # a kernel for float32, between Casts that the runtime inserts
    return Ports(reason=f"{target.provider} has no kernel for {half.name.lower()}")
