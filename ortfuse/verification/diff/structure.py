"""Compare the graphs of two models: nodes of one alone, and attributes, constants and operands of common nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.ir import walk
from ortfuse.serialization import derived
from ortfuse.verification.diff.constants import apart, constant_of, described, same_tensor
from ortfuse.verification.diff.matching import Matching

LONGEST = 60
"""The most characters of an attribute that are shown."""


@dataclass(frozen=True)
class Only:
    """A node that one model alone has.

    Attributes:
        node: Its name, or that of its first output.
        operator: Its operator, with the domain unless that is ai.onnx.
    """

    node: str
    operator: str


@dataclass(frozen=True)
class AttributeDifference:
    """An attribute in which a node of both models differs.

    Attributes:
        node: The name of the node in the first model, or that of its first output.
        operator: Its operator.
        attribute: The name of the attribute.
        first: The attribute in the first model, as text; empty if it is not there.
        second: The attribute in the second model.
    """

    node: str
    operator: str
    attribute: str
    first: str
    second: str


@dataclass(frozen=True)
class ConstantDifference:
    """A constant in which both models differ.

    Attributes:
        constant: Its name in the first model.
        second_constant: Its name in the second model.
        node: The name of the node that takes it; empty if none does.
        operator: The operator of that node.
        operand: At which position the node takes it.
        first: Type, shape and, of a single number, the value in the first model.
        second: The same of the second model.
        elements: How many elements differ; `None` if the shapes do.
        largest: The largest difference of an element; `None` if that is no number.
    """

    constant: str
    second_constant: str
    node: str
    operator: str
    operand: int
    first: str
    second: str
    elements: int | None
    largest: float | None


@dataclass(frozen=True)
class OperandDifference:
    """An operand that a node of both models takes from elsewhere.

    Attributes:
        node: The name of the node in the first model, or that of its first output.
        operator: Its operator.
        operand: The position of the operand.
        first: The value that it takes in the first model; empty for none.
        second: The value that it takes in the second model.
    """

    node: str
    operator: str
    operand: int
    first: str
    second: str


@dataclass(frozen=True)
class Structure:
    """The difference of two models as graphs.

    Attributes:
        nodes: The numbers of nodes of both models; constants are none.
        only_first: The nodes that the first model alone has.
        only_second: The nodes that the second model alone has.
        attributes: The attributes of nodes of both in which they differ.
        constants: The constants in which they differ.
        operands: The operands that nodes of both take from elsewhere.
        interface: Differences of inputs, outputs, opsets and functions, in words.
        renamed: How many values both have under other names.
    """

    nodes: tuple[int, int]
    only_first: Sequence[Only]
    only_second: Sequence[Only]
    attributes: Sequence[AttributeDifference]
    constants: Sequence[ConstantDifference]
    operands: Sequence[OperandDifference]
    interface: Sequence[str]
    renamed: int

    @property
    @derived()
    def same_nodes(self) -> bool:
        """Whether both have the same nodes on the same operands; attributes and constants may be others."""
        return not (self.only_first or self.only_second or self.operands)

    @property
    def same(self) -> bool:
        """Whether nothing differs but names."""
        return self.same_nodes and not (self.attributes or self.constants or self.interface)


def compare_structure(first: ir.Model, second: ir.Model, matching: Matching) -> Structure:
    """Compare two models as graphs, given the matches of their nodes and values; neither is changed."""
    ours, theirs = (
        [node for node in walk.nodes(model) if node.op_type != "Constant" or node.domain] for model in (first, second)
    )
    seconds = matching.seconds
    operands: list[OperandDifference] = []
    constants: dict[tuple[ir.Value, ir.Value], ConstantDifference | None] = {}
    for node, twin in matching.nodes.items():
        operands += _operands(node, twin, matching, constants)
    for one, other in matching.graphs:
        _unused(one, other, constants)
    return Structure(
        (len(ours), len(theirs)),
        [Only(name_of(node), operator_of(node)) for node in ours if node not in matching.nodes],
        [Only(name_of(node), operator_of(node)) for node in theirs if node not in seconds],
        [found for node, twin in matching.nodes.items() for found in _attributes(node, twin)],
        [found for found in constants.values() if found is not None],
        operands,
        [*_interface(first, second, matching)],
        sum(value.name != twin.name for value, twin in matching.values.items()),
    )


def name_of(node: ir.Node) -> str:
    """The name of a node, or else that of its first named output."""
    return node.name or next((value.name for value in node.outputs if value.name), "")


def operator_of(node: ir.Node) -> str:
    """The operator of a node, with its domain unless that is ai.onnx."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _attributes(node: ir.Node, twin: ir.Node) -> Iterator[AttributeDifference]:
    for name in {**node.attributes, **twin.attributes}:
        one, other = node.attributes.get(name), twin.attributes.get(name)
        if (one is None or not walk.graphs_of(one)) and not _same_attribute(one, other):
            yield AttributeDifference(name_of(node), operator_of(node), name, _text(one), _text(other))


def _same_attribute(one: ir.Attr | None, other: ir.Attr | None) -> bool:
    if one is None or other is None or one.type != other.type or one.is_ref() or other.is_ref():
        return (
            one is not None and other is not None and one.is_ref() and other.is_ref()
            and one.ref_attr_name == other.ref_attr_name
        )  # fmt: skip
    if one.type == ir.AttributeType.TENSOR:
        return same_tensor(one.as_tensor(), other.as_tensor())
    if one.type == ir.AttributeType.TENSORS:
        tensors = one.as_tensors(), other.as_tensors()
        return len(tensors[0]) == len(tensors[1]) and all(map(same_tensor, *tensors))
    if one.type in (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS):
        return str(one.value) == str(other.value)  # NaN is NaN
    try:
        return bool(one.value == other.value)
    except ValueError:  # of arrays inside
        return str(one.value) == str(other.value)


def _text(attribute: ir.Attr | None) -> str:
    if attribute is None:
        return ""
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    if attribute.type == ir.AttributeType.TENSOR:
        return described(attribute.as_tensor())
    text = str(attribute.value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _operands(
    node: ir.Node,
    twin: ir.Node,
    matching: Matching,
    constants: dict[tuple[ir.Value, ir.Value], ConstantDifference | None],
) -> Iterator[OperandDifference]:
    """Operands from elsewhere; constants at the same position are compared."""
    for number in range(max(len(node.inputs), len(twin.inputs))):
        value, other = (one.inputs[number] if number < len(one.inputs) else None for one in (node, twin))
        if value is None and other is None:
            continue
        one, two = constant_of(value), constant_of(other)
        if one is not None and two is not None and value is not None and other is not None:
            if (value, other) not in constants:
                constants[value, other] = _constant((value, one), (other, two), node, number)
            continue
        unmatched = value is not None and other is not None and one is None and two is None
        if unmatched and (matching.counterpart(value) is other or _both_alone(value, other, matching)):
            continue
        names = (value.name or "" if value else "", other.name or "" if other else "")
        yield OperandDifference(name_of(node), operator_of(node), number, *names)


def _both_alone(value: ir.Value | None, other: ir.Value | None, matching: Matching) -> bool:
    """Whether neither has a counterpart: their nodes are told of already."""
    if value is None or other is None or value in matching.values:
        return False
    ours, theirs = value.producer(), other.producer()
    return ours is not None and theirs is not None and ours not in matching.nodes and theirs not in matching.seconds


def _constant(
    one: tuple[ir.Value, ir.TensorProtocol],
    other: tuple[ir.Value, ir.TensorProtocol],
    node: ir.Node | None,
    number: int,
) -> ConstantDifference | None:
    (value, tensor), (twin, second) = one, other
    if same_tensor(tensor, second):
        return None
    elements, largest = apart(tensor, second) if tuple(tensor.shape) == tuple(second.shape) else (None, None)
    where = ("", "") if node is None else (name_of(node), operator_of(node))
    names = (value.name or "", twin.name or "")
    return ConstantDifference(*names, *where, number, described(tensor), described(second), elements, largest)


def _unused(
    one: ir.Graph, other: ir.Graph, constants: dict[tuple[ir.Value, ir.Value], ConstantDifference | None]
) -> None:
    """Compare constants that no node takes, or nodes of one model alone: by name."""
    seen = {value for pair in constants for value in pair}
    for name, value in one.initializers.items():
        twin = other.initializers.get(name)
        if twin is None or value in seen or twin in seen:
            continue
        tensors = constant_of(value), constant_of(twin)
        if tensors[0] is not None and tensors[1] is not None:
            constants[value, twin] = _constant((value, tensors[0]), (twin, tensors[1]), None, 0)


def _interface(first: ir.Model, second: ir.Model, matching: Matching) -> Iterator[str]:
    for domain in {**first.graph.opset_imports, **second.graph.opset_imports}:
        versions = [model.graph.opset_imports.get(domain) for model in (first, second)]
        if versions[0] != versions[1]:
            said = [f"opset {version}" if version is not None else "none" for version in versions]
            yield f"{domain or 'ai.onnx'}: {said[0]} in A, {said[1]} in B"
    for key in {**first.functions, **second.functions}:
        if (key in first.functions) != (key in second.functions):
            yield f"function {'.'.join(key[:2])} is only in {'A' if key in first.functions else 'B'}"
    for what, ours, theirs in (
        ("input", first.graph.inputs, second.graph.inputs),
        ("output", first.graph.outputs, second.graph.outputs),
    ):
        yield from _ports(what, ours, theirs, matching)


def _ports(what: str, ours: Sequence[ir.Value], theirs: Sequence[ir.Value], matching: Matching) -> Iterator[str]:
    names = {value.name: value for value in theirs}
    taken = set()
    for value in ours:
        twin = matching.counterpart(value)
        twin = twin if twin in theirs else names.get(value.name)
        if twin is None:
            yield f"{what} {value.name} is only in A"
            continue
        taken.add(twin)
        one, other = (f"{port.dtype}{port.shape}" for port in (value, twin))
        if value.name != twin.name:
            yield f"{what} {value.name} in A is {twin.name} in B"
        if one != other:
            yield f"{what} {value.name}: {one} in A, {other} in B"
    yield from (f"{what} {value.name} is only in B" for value in theirs if value not in taken)
    if len(set(ours)) == len(taken) == len(theirs):
        order = [matching.counterpart(value) or names.get(value.name) for value in ours]
        if order != list(theirs):
            yield f"the {what}s come in another order"
