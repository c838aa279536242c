"""Remarks on loops that stay as they are although they look like recurrent networks: states are made of products of states."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.loop_structure import dependents, loop_of, needed
from ortfuse.ir.traits import CONTRACTS
from ortfuse.ir.walk import describe, nested_nodes
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
            between = dependents(state.before) & needed([state.after], loop.body)
            nodes = {one.producer() for one in between - {state.before}}
            found |= {name for one in nodes if one is not None and (name := _product(one)) is not None}
    return sorted(found)


def _product(node: ir.Node) -> str | None:
    """The operator of a product that a node is, or has in a body of its own."""
    inner = [node, *nested_nodes(node)]
    return next((one.op_type for one in inner if one.op_type in _PRODUCTS and not one.domain), None)
