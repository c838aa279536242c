"""Static properties of a pattern: its captures, its operators and their depths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ortfuse.ir.traits import COMMUTES, PARAMETER_INPUTS
from ortfuse.rewrite.pattern.language import (
    Alt,
    Attr,
    Chain,
    Op,
    Opt,
    Out,
    Part,
    Pattern,
    Rest,
)
from ortfuse.rewrite.pattern.rearrangement import MOST_MOVES, Rearrange
from ortfuse.rewrite.pattern.siblings import Siblings

Below = tuple[tuple["int | None", frozenset[str]], ...]
"""The operator types that must produce inputs of a node, by position, or at any position for `None`."""


def operators_below(pattern: Pattern) -> dict[str, tuple[Below, ...]]:
    """For each operator that may be at the root, the alternatives of what must produce its inputs."""
    found: dict[str, tuple[Below, ...]] = {}
    for op_type, below in _roots(pattern):
        found[op_type] = (*found.get(op_type, ()), below)
    return found


def _roots(pattern: Pattern) -> Iterator[tuple[str, Below]]:
    if isinstance(pattern, Siblings):
        pattern = pattern.roots[0]
    root: Pattern = pattern.node if isinstance(pattern, Out) else pattern
    if isinstance(root, Alt):
        for option in root.options:
            yield from _roots(option)
    elif isinstance(root, Op):
        anywhere = len(root.inputs) == 2 and root.op_type in COMMUTES
        # Parameters given as inputs shift the positions after the first.
        certain = 1 if root.op_type in PARAMETER_INPUTS else len(root.inputs)
        operands = [(None if anywhere else position, operand) for position, operand in enumerate(root.inputs[:certain])]
        yield root.op_type, tuple((position, heads) for position, operand in operands if (heads := _must_be(operand)))
    elif isinstance(root, Chain):
        # Each part is below the node at the root, or below further nodes of the same chain.
        wanted = [heads for part in root.children() if (heads := _must_be(part))]
        below = tuple((None, heads | root.ops) for heads in wanted)
        yield from ((op_type, below) for op_type in root.ops)
        if root.heads != root.ops:
            # The chain may shrink to its one part that is no option.
            for part in root.children():
                if not isinstance(part, Opt):
                    yield from _roots(part)
    else:
        yield from ((op_type, ()) for op_type in root.heads or ())


def _must_be(operand: Pattern | None) -> frozenset[str] | None:
    return None if operand is None or isinstance(operand, (Opt, Rest)) else operand.heads


def capture_names(pattern: Pattern) -> frozenset[str]:
    """Every name that a match of `pattern` has; names in an alternative or option not taken are bound to `None`."""
    names: set[str] = set()
    for part in pattern.walk():
        names.update(name for name in (getattr(part, "name", None), part.label) if name is not None)
        if isinstance(part, Op):
            names.update(wanted.name for wanted in part.attributes.values() if isinstance(wanted, Attr))
            names.update(part.others)
            names.update(name for body in part.bodies.values() for name in body.inputs)
            if part.all_attributes is not None:
                names.add(part.all_attributes.name)
        if isinstance(part, Chain) and part.capture is not None:
            names.add(part.capture.name)
    return frozenset(names)


def captured_attributes(pattern: Pattern) -> dict[str, tuple[tuple[str, str], ...]]:
    """For each captured attribute, the operators of the pattern that have it and its name there."""
    found: dict[str, tuple[tuple[str, str], ...]] = {}
    for part in pattern.walk():
        if not isinstance(part, Op):
            continue
        for name, wanted in part.attributes.items():
            if isinstance(wanted, Attr):
                found[wanted.name] = (*found.get(wanted.name, ()), (part.op_type, name))
    return found


def op_depths(pattern: Pattern) -> dict[str, int]:
    """For each operator of the pattern, the largest number of nodes between it and the root, counting the root."""
    depths: dict[str, int] = {}
    deepest: dict[int, int] = {}
    stack = [(pattern, 0)]
    while stack:
        part, depth = stack.pop()
        if deepest.get(id(part), -1) >= depth:
            continue
        deepest[id(part)] = depth
        below = depth
        if isinstance(part, Op):
            depths[part.op_type] = max(depths.get(part.op_type, 0), depth)
            below = depth + 1
        elif isinstance(part, (Rearrange, Part)):
            below = depth + (MOST_MOVES if isinstance(part, Rearrange) else 1)
            for op_type in part.heads or ():
                depths[op_type] = max(depths.get(op_type, 0), below - 1)
        elif isinstance(part, Chain):
            # A chain of n parts takes up to n - 1 nodes, one more for its scalar, and unary ones.
            below = depth + len(part.parts) + 1
            for op_type in part.ops:
                depths[op_type] = max(depths.get(op_type, 0), below - 1)
        # What is in a body is not between the root and a node of its graph.
        stack.extend((child, below) for child in _in_one_graph(part))
    return depths


def required_ops(pattern: Pattern) -> frozenset[str]:
    """Operator types without which `pattern` cannot match; graphs that lack one can be rejected early."""
    if isinstance(pattern, Opt):
        return frozenset()
    if isinstance(pattern, Alt):
        return frozenset.intersection(*(required_ops(option) for option in pattern.options))
    own = frozenset({pattern.op_type}) if isinstance(pattern, Op) else frozenset[str]()
    return own.union(*(required_ops(child) for child in _in_one_graph(pattern)))


def names_in_bodies(pattern: Pattern) -> frozenset[str]:
    """The names of values that there are only inside bodies."""
    parts = [part for part in pattern.walk() if isinstance(part, Op)]
    return frozenset(name for part in parts for body in part.bodies.values() for name in body.names())


def _in_one_graph(pattern: Pattern) -> Sequence[Pattern]:
    """The patterns directly below one, without those in bodies."""
    return pattern.operands() if isinstance(pattern, Op) else pattern.children()
