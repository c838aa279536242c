"""Find the nodes of a model that each executed node stands for.

At session creation the runtime folds constants, fuses nodes and inserts others between them, but the values that it
keeps keep their names. An executed node stands for the node whose value it computes, and for those above that no
executed node computes: these were fused with it. A node with neither name is found by the runtime's way to derive
names: `x_nchwc` computes `x`. A convolution may be called after what it begins with; that it adds and activates too,
its own inputs and attributes say. A kernel for the very operator of its node cannot compute others too, apart from what
moves or pads its inputs; these were fused with what stands before them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from ortfuse.ir import walk
from ortfuse.ir.graph_transaction import NODES_KEY, RULE_KEY
from ortfuse.ir.nn_module_of_node import common_module, module_of
from ortfuse.ir.traits import MOVES, SIZES, has

Made = Literal["", "fused", "inserted"]
"""The runtime's change: none, fused several nodes into one, or inserted a node."""

LAYOUT = frozenset({"ReorderInput", "ReorderOutput", "Transpose", "Cast", "MemcpyToHost", "MemcpyFromHost"})
"""Operators that the runtime inserts to change the layout, type or place of a value."""


@dataclass(frozen=True)
class Origin:
    """The nodes that an executed node stands for.

    Attributes:
        nodes: The names of nodes of the model.
        module: The module of the original network that they have in common; empty if that is not known.
        rule: The rule of ortfuse that made one of them; empty if none did.
        block: What the rule made of the same nodes; empty without a rule.
        made: What the runtime did.
    """

    nodes: tuple[str, ...] = ()
    module: str = ""
    rule: str = ""
    block: str = ""
    made: Made = ""


def origins(model: ir.Model, executed: ir.Model) -> dict[str, Origin]:
    """The origin of each executed node, by its name.

    Args:
        model: The model; its nodes have names, each its own.
        executed: The graph that the runtime made of it.
    """
    known = _Names(model)
    nodes = list(walk.nodes(executed))
    ends = {node: list(known.of(node)) for node in nodes}
    inserted = {node for node, found in ends.items() if _is_inserted(node, found)}
    taken = {end for node, found in ends.items() if node not in inserted for end in found}
    for node, found in ends.items():
        if node not in inserted and len(found) == 1:
            found += _goes_on(node, found[0], taken)
            taken.update(found)
    fixed = _computed_before(model)
    inside: dict[ir.Node, list[ir.Node]] = {}
    for node in nodes:
        plain = any(end.op_type == node.op_type for end in ends[node])
        found = ends[node] if node in inserted else list(_fused_with(ends[node], taken, fixed, plain))
        taken.update(found)
        inside[node] = found
    _add_what_follows(model, {node: some for node, some in inside.items() if node not in inserted}, taken | fixed)
    made: dict[ir.Node, Made] = {
        node: "inserted" if node in inserted else _made(node, found) for node, found in inside.items()
    }
    own = {node.name or "": _origin(found, made[node]) for node, found in inside.items()}
    return own | _of_neighbours(inside, inserted)


class _Names:
    """Find nodes of a model by the names that the runtime gives to what it makes of them."""

    def __init__(self, model: ir.Model) -> None:
        # Bodies of functions may call their values as the main graph does, which comes first.
        nodes = list(walk.nodes(model))[::-1]
        self._by_value = {value.name: node for node in nodes for value in node.outputs if value.name}
        self._by_name = {node.name: node for node in nodes if node.name}

    def of(self, executed: ir.Node) -> Iterable[ir.Node]:
        """The nodes whose values an executed node computes."""
        values = [value.name for value in executed.outputs if value.name]
        found = [node for name in values if (node := self._by_value.get(name)) is not None]
        if found:
            return dict.fromkeys(found)
        whole = (*([executed.name] if executed.name else []), *values)
        names = (part for text in whole for part in _parts(text))
        one = next((node for name in names if (node := self._by_name.get(name) or self._by_value.get(name))), None)
        return [] if one is None else [one]


def _parts(text: str) -> Iterator[str]:
    """A name, and what is left of it without what is behind or before an underscore or slash."""
    cuts = [found.start() for found in re.finditer("[_/]", text)]
    return (
        part for part in (text, *(text[:cut] for cut in reversed(cuts)), *(text[cut + 1 :] for cut in cuts)) if part
    )


def _is_inserted(node: ir.Node, ends: Collection[ir.Node]) -> bool:
    return node.op_type in LAYOUT and all(end.op_type != node.op_type for end in ends)


def _goes_on(node: ir.Node, end: ir.Node, taken: Collection[ir.Node]) -> Iterator[ir.Node]:
    """The nodes that a fused convolution computes besides its own: the sum with its fourth input, and its activation."""
    if end.op_type != "Conv":
        return
    activation = node.attributes.get_string("activation", "")
    waiting = ["Add"] * (len(node.inputs) > 3) + [activation] * bool(activation)
    for operator in waiting:
        readers = [use.node for use in end.outputs[0].uses()]
        if len(readers) != 1 or readers[0].op_type != operator or readers[0] in taken:
            return
        end = readers[0]
        yield end


def _computed_before(model: ir.Model) -> set[ir.Node]:
    """The nodes that the runtime may compute when a session is created: of constants, and of sizes that are known then."""
    varying = {value for value in model.graph.inputs if value.const_value is None}
    bodies = [graph for graph in walk.graphs(model) if graph is not model.graph]
    varying |= {value for graph in bodies for value in graph.inputs}
    fixed: set[ir.Node] = set()
    for node in walk.nodes(model):
        used = list(walk.used_values(node))
        producers = [value.producer() for value in used]
        constant = varying.isdisjoint(used) and all(one is None or one in fixed for one in producers)
        if constant or has(node, SIZES):
            fixed.add(node)
    return fixed


def _fused_with(
    ends: Iterable[ir.Node], taken: Collection[ir.Node], fixed: Collection[ir.Node], plain: bool
) -> Iterator[ir.Node]:
    """Nodes, and those above them that neither others stand for nor are computed beforehand; only what moves, if `plain`."""
    seen, waiting = set(ends), deque(ends)
    while waiting:
        node = waiting.popleft()
        yield node
        above = dict.fromkeys(value.producer() for value in walk.used_values(node))
        new = [one for one in above if one is not None and one not in seen and one not in taken and one not in fixed]
        new = [one for one in new if not plain or has(one, MOVES) or one.op_type == "Cast"]
        seen.update(new)
        waiting += new


def _add_what_follows(model: ir.Model, inside: Mapping[ir.Node, list[ir.Node]], accounted: Collection[ir.Node]) -> None:
    """Add nodes that nothing stands for yet to what stands for a node before them."""
    owner = {one: node for node, found in inside.items() for one in found}
    for one in walk.nodes(model):
        if one in accounted or one in owner:
            continue
        above = (value.producer() for value in walk.used_values(one))
        before = next((owner[node] for node in above if node is not None and node in owner), None)
        if before is not None:
            inside[before].append(one)
            owner[one] = before


def _made(node: ir.Node, inside: Sequence[ir.Node]) -> Made:
    """Whether an executed node computes what several did; what only moves or casts may just have been taken out."""
    computing = [one for one in inside if not (has(one, MOVES) or one.op_type == "Cast")]
    other = len(inside) > 1 and all(one.op_type != node.op_type for one in inside)
    return "fused" if other or len(computing) > 1 else ""


def _of_neighbours(inside: Mapping[ir.Node, list[ir.Node]], inserted: Collection[ir.Node]) -> dict[str, Origin]:
    """Inserted nodes without an origin of their own, as of what reads or computes the value that they change."""
    found = {}
    for node in inserted:
        if inside[node]:
            continue
        readers = [reader for value in node.outputs for reader in value.consumers()]
        near = [
            *readers,
            *(one for value in node.inputs if value is not None and (one := value.producer()) is not None),
        ]
        origin = next((inside[one] for one in near if inside.get(one)), [])
        found[node.name or ""] = _origin(origin[:1], "inserted")
    return found


def _origin(inside: Collection[ir.Node], made: Made) -> Origin:
    names = tuple(node.name or "" for node in inside)
    ruled: Mapping[str, ir.Node] = {rule: node for node in inside if (rule := node.metadata_props.get(RULE_KEY))}
    rule = next(iter(ruled), "")
    block = ruled[rule].metadata_props.get(NODES_KEY, "") if rule else ""
    return Origin(names, common_module(map(module_of, inside)), rule, block, made)
