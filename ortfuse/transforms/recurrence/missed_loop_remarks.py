"""Remarks on loops that stay as they are although they look like recurrent networks: states are made of products of states."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.loop_structure import loop_of
from ortfuse.ir.traits import CONTRACTS
from ortfuse.ir.walk import describe, nested_nodes, used_values
from ortfuse.transforms.context import Context

_PRODUCTS = CONTRACTS | {"Conv"}

_LEFT = "holds states of a recurrent network"
"""How all of these remarks go on."""


def forget(context: Context) -> None:
    """Drop the remarks of an earlier round."""
    for text in [text for text in context.notes if _LEFT in text]:
        del context.notes[text]


def leave(node: ir.Node, kinds: str, why: str, context: Context) -> None:
    """Note why a loop stays as it is, if it holds recurrences of these kinds, or products that are made of their own results."""
    if held := kinds or ", ".join(multiplied(node, context.facts)):
        context.note(f"{describe(node)} {_LEFT} ({held}) and stays as it is: {why}")


def multiplied(node: ir.Node, facts: Facts) -> list[str]:
    """The operators of a body that multiply a loop-carried value by weights and make the next one of the product."""
    loop = loop_of(node, facts)
    found: set[str] = set()
    for state in () if loop is None else loop.states:
        if loop is not None and state.before is not state.after:
            below, above = _depending(state.before, loop.body), _needed(state.after, loop.body)
            found |= {name for one in below & above if (name := _product(one)) is not None}
    return sorted(found)


def _product(node: ir.Node) -> str | None:
    """The operator of a product that a node is, or has in a body of its own."""
    inner = [node, *nested_nodes(node)]
    return next((one.op_type for one in inner if one.op_type in _PRODUCTS and not one.domain), None)


def _depending(value: ir.Value, body: ir.Graph) -> set[ir.Node]:
    """The nodes of a body that depend on one of its inputs."""
    known, found = {value}, set()
    for node in body:
        if any(one in known for one in used_values(node)):
            found.add(node)
            known.update(node.outputs)
    return found


def _needed(value: ir.Value, body: ir.Graph) -> set[ir.Node]:
    """The nodes of a body that compute a value."""
    found: set[ir.Node] = set()
    waiting = [value]
    while waiting:
        node = waiting.pop().producer()
        if node is not None and node.graph is body and node not in found:
            found.add(node)
            waiting += used_values(node)
    return found
