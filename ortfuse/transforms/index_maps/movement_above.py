"""The data movement above a value: the chain along first operands, its structure as a key, and the values that it needs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import moves_elements
from ortfuse.ir.traits import MOVES

LONGEST = 6
"""The most operators between a value and those at which a map may stop."""

MOST_NODES = 64
"""The most nodes that are looked at."""

PRODUCTS = frozenset({"MatMul", "Gemm", "FusedMatMul"})
"""Operators that read a Transpose as it is."""


@dataclass(frozen=True)
class Link:
    """A node of a chain of data movement, with the operand along which the chain goes on.

    Attributes:
        node: The node.
        operand: The operand whose elements it moves.
    """

    node: ir.Node
    operand: ir.Value


def chain_above(output: ir.Value, facts: Facts) -> list[Link]:
    """Return the nodes that move the elements of a value, the last first, along the first of their operands."""
    found: list[Link] = []
    value = output
    while len(found) < LONGEST and (node := value.producer()) is not None and moves_elements(node, facts.dtype):
        operand = node.inputs[1 if node.op_type == "Where" else 0] if node.inputs else None
        if operand is None:
            break
        found.append(Link(node, operand))
        value = operand
    return found


def structure_above(output: ir.Value, facts: Facts) -> Hashable | None:
    """Return all that plans for a value depend on, without names; `None` if that is too much to tell."""
    numbers: dict[ir.Value, int] = {output: 0}
    found: list[Hashable] = [
        output.is_graph_output(),
        len(output.producer().outputs),  # type: ignore[union-attr]
        any(user.op_type in PRODUCTS for user in output.consumers()),
    ]
    for value in _grown(numbers):
        found += facts.dtype(value), facts.shape(value), facts.ints(value)
        node = value.producer()
        if node is None or not moves_elements(node, facts.dtype):
            found.append(id(value) if facts.is_const(value) and found[-1] is None else None)
            continue
        if max(len(numbers), len(node.inputs), len(node.outputs)) > MOST_NODES:
            return None
        operands = [-1 if one is None else numbers.setdefault(one, len(numbers)) for one in node.inputs]
        attributes = [(name, one.value) for name, one in node.attributes.items() if one.type.name != "TENSOR"]
        if len(attributes) < len(node.attributes):
            return None
        uses = tuple([len(one.uses()) + one.is_graph_output() for one in node.outputs])
        found += node.op_type, tuple(operands), tuple(attributes), uses, node.outputs.index(value)
    return tuple(found)


def _grown(numbers: dict[ir.Value, int]) -> Iterator[ir.Value]:
    """Yield the values that are numbered, those included that are while others are looked at."""
    done = 0
    while done < len(numbers):
        fresh = list(numbers)[done:]
        yield from fresh
        done += len(fresh)


def frontiers(chain: Sequence[Link], facts: Facts) -> Iterator[tuple[Sequence[ir.Value], bool]]:
    """Yield values to stop at, and whether others need them: none, the last that is shared, and those along the first inputs."""
    yield (), True
    shared = next((link.operand for link in chain if len(link.operand.uses()) > 1), None)
    if shared is not None:
        yield (shared,), True
    if chain and chain[0].node.op_type not in MOVES:
        return
    for link in reversed(chain[1:]):
        if is_moved(link.operand, facts) or (link.operand.producer() and facts.ints(link.operand) is not None):
            yield (link.operand,), False  # the map of known sizes as a whole reads nothing


def is_moved(value: ir.Value | None, facts: Facts) -> bool:
    """Return whether an operator with index maps makes a value."""
    node = None if value is None else value.producer()
    return node is not None and moves_elements(node, facts.dtype) and not facts.is_const(value)


def values_above(output: ir.Value, facts: Facts) -> list[ir.Value]:
    """Return the values from which a value is computed, the farthest first, as far as is looked."""
    found: dict[ir.Value, None] = {}
    waiting = [output]
    while waiting and len(found) < 2 * MOST_NODES:
        node = waiting.pop(0).producer()
        for value in node.inputs if node is not None and moves_elements(node, facts.dtype) else ():
            if value is not None and value not in found:
                found[value] = None
                waiting.append(value)
        if node is not None and node.op_type == "Shape" and node.inputs[0] is not None:
            found.setdefault(node.inputs[0])
    return list(reversed(found))
