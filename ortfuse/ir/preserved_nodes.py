"""Mark nodes of the user's rules and forced choices, and workarounds that move data, so that later passes preserve them.

A change may move such a node, give it other operands or remove it where nothing needs it. It may not compute its value by
other operators.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.traits import MOVES, SIZES, has
from ortfuse.ir.walk import nested_nodes

_KEY = "ortfuse.kept"
"""The entry of a node's `meta` that says who wants it to stay. It is not written to files."""

_MOVABLE = frozenset({"Cast", "CastLike", "Constant", "ConstantOfShape", "Range"})
"""Operators besides data movement that other operators need around them, and that stay only if a rule makes nothing else."""


def keeper(node: ir.Node) -> str:
    """The reason why a node is preserved, in words; empty if it is not."""
    found: str = node.meta.get(_KEY, "")
    return found


def keep(nodes: Iterable[ir.Node], who: str) -> None:
    """Mark nodes to stay."""
    for node in nodes:
        node.meta[_KEY] = who


def release(nodes: Iterable[ir.Node]) -> None:
    """Take the marks off: the next run has rules and forced choices of its own."""
    for node in nodes:
        node.meta.pop(_KEY, None)


def telling(nodes: Collection[ir.Node]) -> list[ir.Node]:
    """The nodes that a rule was written for: those that do not only move elements or count them, if there are any."""
    found = [node for node in nodes if not (has(node, MOVES) or has(node, SIZES) or node.op_type in _MOVABLE)]
    return found or list(nodes)


def taken_apart(
    removed: Sequence[ir.Node],
    matched: Sequence[ir.Node],
    replaced: Mapping[ir.Value, ir.Value],
    added: Iterable[ir.Node],
) -> Refusal | None:
    """Why a change must not be made, because it takes a node apart that is to stay; `None` if it does not.

    Nodes of the same operator that the change added take the place of such a node, and stay as well.

    Args:
        removed: The nodes that the change removed.
        matched: The nodes that a rule matched; empty if the change is no rewrite.
        replaced: The values that were replaced, each with its replacement.
        added: The nodes that were added.
    """
    gone = [node for node in _with_nested(removed) if keeper(node)]
    if not gone or not replaced or all(_is_constant(new) for new in replaced.values()):
        return None  # the usual case first; what is dead or a constant need not stay
    if matched:
        concerned = {*_with_nested(matched), *(old.producer() for old in replaced)}
        gone = [node for node in gone if node in concerned]
    there: dict[tuple[str, str, str], list[ir.Node]] = {}
    producers = (new.producer() for new in replaced.values())
    for node in _with_nested([*added, *(node for node in producers if node is not None)]):
        there.setdefault(node.op_identifier(), []).append(node)
    for node in gone:
        if node.op_identifier() not in there:
            return refuse("kept", node, found=keeper(node))
    for node in gone:
        keep(there[node.op_identifier()], keeper(node))
    return None


def _with_nested(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    for node in nodes:
        yield node
        yield from nested_nodes(node)


def _is_constant(value: ir.Value) -> bool:
    node = value.producer()
    return value.const_value is not None if node is None else node.op_type == "Constant" and not node.domain
