"""Assemble detected blocks into the layers of a whole model, without sums that are long skips."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.inspection.block_detectors import CONVOLUTIONAL, DETECTORS, NORMS, SKIPS, residual
from ortfuse.inspection.concat_blocks import joined
from ortfuse.inspection.convolution_chains import chains
from ortfuse.inspection.paths_between_values import ATTENTION, Block, layers, path
from ortfuse.ir import walk
from ortfuse.ir.traits import MOVES, has
from ortfuse.rewrite.pattern import Match, Matcher
from ortfuse.rewrite.pattern.find import matches


def find_blocks(model: ir.Model, facts: Facts) -> list[Block]:
    """The blocks of a model in the form that `PASSES` make, in order; some are parts of others.

    Sums across several blocks (long skips, positions added in every layer) are none themselves.
    """
    found = _without_long_skips(list(_residuals(model, facts)))
    held = [set(block.nodes) for block in found]
    # What lies beside whole residual blocks is a long skip too, as those of U-Nets are.
    found += [
        block
        for block in _joined(model, facts)
        if block.kind != "dense" or not any(nodes.issubset(block.nodes) for nodes in held)
    ]
    inside = {node for block in found for node in block.nodes if block.kind != "residual"}
    for kind in ("feed-forward", "squeeze-and-excite", "recurrent"):
        found += [
            block for block in _alone(kind, model, facts) if inside.isdisjoint(block.nodes) or not _is_part(block)
        ]
    found += chains(model, {node for block in found for node in block.nodes}, facts)
    order = {node: number for number, node in enumerate(walk.nodes(model))}
    found = sorted(_transformers(found), key=lambda block: order[_last(block)])
    counts: Counter[str] = Counter()
    named = []
    for block in found:
        named.append(replace(block, name=f"{block.kind} {counts[block.kind]}"))
        counts[block.kind] += 1
    return named


def _without_long_skips(found: list[Block]) -> list[Block]:
    """The blocks that do not hold another one entirely, nor end within one that they do not begin in, as sums with positions do.

    Those that end in the sum of several branches are part of that.
    """
    parts = {node for block in found for node in block.sums[1:]}
    found = [block for block in found if _last(block) not in parts]
    inner: dict[ir.Node, list[Block]] = {}
    for block in found:
        inner.setdefault(_last(block), []).append(block)
    found = [
        block
        for block in found
        if not any(
            other is not block and set(other.nodes) < set(block.nodes)
            for node in block.nodes
            for other in inner.get(node, ())
        )
    ]
    holders: dict[ir.Node, list[Block]] = {}
    for block in found:
        for node in set(block.nodes) - {_last(block), *block.sums}:
            holders.setdefault(node, []).append(block)
    return [
        block for block in found if all(set(block.nodes) < set(other.nodes) for other in holders.get(_last(block), ()))
    ]


def _is_part(block: Block) -> bool:
    """Whether a block is none where it stands within another: layers of it, and linear attention, which transformers have."""
    return block.kind == "feed-forward" or has(_last(block), ATTENTION)


def _joined(model: ir.Model, facts: Facts) -> list[Block]:
    """The blocks that end in a Concat; those that grow by one layer after the other are one."""
    detector = DETECTORS["joined"]
    made = (joined(match.root, facts) for match in matches(model, Matcher(detector.pattern, detector.guards), facts))
    found: list[Block] = []
    for block in made:
        if block is None:
            continue
        before = next((one for one in found if one.kind == block.kind == "dense" and _goes_on(one, block)), None)
        if before is not None:
            found.remove(before)
            block = replace(block, start=before.start, nodes=list(dict.fromkeys([*block.nodes, *before.nodes])))
        found.append(block)
    return found


def _goes_on(before: Block, block: Block) -> bool:
    return block.start is before.end or set(before.nodes) < set(block.nodes)


def _alone(kind: str, model: ir.Model, facts: Facts) -> list[Block]:
    """The blocks of one kind that are what a detector matches; overlapping ones, of layers in a row, are one."""
    detector = DETECTORS[kind]
    found: list[Block] = []
    for match in matches(model, Matcher(detector.pattern, detector.guards), facts):
        made = _of_match(kind, match, match.nodes[0])
        if found and set(layers(found[-1].nodes)) & {*layers(made.nodes), match.nodes[0]}:
            found[-1] = Block(kind, found[-1].start, made.end, list(dict.fromkeys([*found[-1].nodes, *made.nodes])))
        elif not found or match.nodes[0] not in found[-1].nodes:
            found.append(made)
    return found


def _last(block: Block) -> ir.Node:
    node = block.end.producer()
    assert node is not None
    return node


def _of_match(kind: str, match: Match, node: ir.Node) -> Block:
    if kind != "squeeze-and-excite":
        return Block(kind, match.get("x"), match.root, list(match.nodes))
    x, gate = match["x"], match["gate"]
    start = x if path(x, gate) else gate
    return Block(kind, start, match.root, [node, *path(start, gate if start is x else x)])


def _residuals(model: ir.Model, facts: Facts) -> Iterator[Block]:
    detector = DETECTORS["residual"]
    for match in matches(model, Matcher(detector.pattern, detector.guards), facts):
        found = residual(match.root, facts)
        if found is not None:
            yield found


def _transformers(found: Sequence[Block]) -> list[Block]:
    """The blocks, with those of attention and what follows it up to a feed-forward block put together."""
    by_end = {block.end: block for block in found if block.kind in ("attention", "feed-forward", *CONVOLUTIONAL)}
    kept: list[Block] = []
    taken: set[int] = set()
    ends: set[int] = set()
    for block in found:
        parts = _layer(block, by_end, ends) if block.kind == "feed-forward" else [block]
        if len(parts) == 1:
            kept.append(block)
            continue
        ends.add(id(block))
        taken |= {id(part) for part in parts}
        nodes = list(block.nodes)
        for later, earlier in itertools.pairwise(parts):
            nodes += [*earlier.nodes, *(path(earlier.end, later.start) if later.start is not None else [])]
        kind = "conformer" if any(part.kind in CONVOLUTIONAL for part in parts) else "transformer"
        kept.append(Block(kind, parts[-1].start, block.end, list(dict.fromkeys(nodes))))
    return [block for block in kept if id(block) not in taken]


def _layer(last: Block, by_end: dict[ir.Value, Block], ends: Container[int]) -> list[Block]:
    """The blocks of a layer, the last first: attention, perhaps a convolution, feed-forward; only the last if none attends.

    If there is a convolution, half of the feed-forward layers may stand before the attention, arXiv:2005.08100.
    """
    parts, previous = [last], _before(last, by_end)
    while previous is not None and previous.kind != "feed-forward":
        parts.append(previous)
        previous = _before(previous, by_end)
    while parts[-1].kind in CONVOLUTIONAL:  # what stands before the attention is no part of the layer
        previous = parts.pop()
    if previous is not None and previous.kind == "feed-forward" and id(previous) not in ends:
        half = any(part.kind in CONVOLUTIONAL for part in parts)
        parts += [previous] if half else []
    return parts


def _before(block: Block, by_end: dict[ir.Value, Block]) -> Block | None:
    """The block whose result this one starts from, but for normalisations and movement."""
    value = block.start
    while value is not None and value not in by_end:
        node = value.producer()
        passes = node is not None and (has(node, NORMS) or has(node, MOVES))
        if node is not None and node.op_type in SKIPS and node.outputs[0] in by_end:
            return by_end[node.outputs[0]]
        value = node.inputs[0] if node is not None and passes else None
    return None if value is None else by_end.get(value)
