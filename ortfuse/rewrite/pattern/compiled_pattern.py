"""Compile a pattern: precompute the properties that matching it against many values reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import onnx_ir as ir

from ortfuse.errors import PatternError
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite.pattern.language import Alt, Pattern
from ortfuse.rewrite.pattern.pattern_properties import (
    Below,
    capture_names,
    captured_attributes,
    op_depths,
    operators_below,
    required_ops,
)
from ortfuse.rewrite.pattern.siblings import Siblings


class CompiledPattern:
    """A pattern with its guards, and the properties that matching reads.

    Attributes:
        pattern: The pattern.
        guards: The conditions beyond the pattern; each takes the match.
        emitted: The labels of intermediate values that the rule recomputes, so that they may be used elsewhere.
        heads: The operators that its root can be.
    """

    def __init__(
        self, pattern: Pattern, guards: tuple[Callable[[Any], Refusal | None], ...] = (), emitted: tuple[str, ...] = ()
    ) -> None:
        """Compile a pattern.

        Raises:
            PatternError: The pattern matches any value, or has siblings elsewhere than around all of it.
        """
        self.pattern, self.guards, self.emitted = pattern, guards, emitted
        if pattern.heads is None:
            raise PatternError(f"the pattern {pattern} matches any value; a rule needs an operator at its root")
        if any(isinstance(part, Siblings) for child in pattern.children() for part in child.walk()):
            raise PatternError(f"{pattern}: siblings stand only around a whole pattern or replacement")
        if isinstance(pattern, Siblings) and (problem := pattern.problem()) is not None:
            raise PatternError(problem)
        self.heads = pattern.heads

    @cached_property
    def shared(self) -> frozenset[int]:
        """The ids of the parts that occur more than once; they must match the same value."""
        counts: dict[int, int] = {}
        for parent in self.pattern.walk():
            for child in parent.children():
                counts[id(child)] = counts.get(id(child), 0) + 1
        return frozenset(key for key, count in counts.items() if count > 1)

    @cached_property
    def roots(self) -> frozenset[int]:
        """The ids of the parts that stand for the whole: the pattern, and its alternatives."""
        found, waiting = set(), [self.pattern]
        while waiting:
            part = waiting.pop()
            found.add(id(part))
            waiting += part.options if isinstance(part, Alt) else ()
        return frozenset(found)

    @cached_property
    def required(self) -> frozenset[str]:
        """The operators that every match has."""
        return required_ops(self.pattern)

    @cached_property
    def below(self) -> Mapping[str, tuple[Below, ...]]:
        """For each operator at the root, the alternatives of what must produce its inputs."""
        return operators_below(self.pattern)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that the pattern captures."""
        return capture_names(self.pattern)

    @cached_property
    def depths(self) -> Mapping[str, int]:
        """The depths at which each operator can stand."""
        return op_depths(self.pattern)

    @cached_property
    def attributes(self) -> Mapping[str, tuple[tuple[str, str], ...]]:
        """For each captured attribute, the operators that may have it and its name there."""
        return captured_attributes(self.pattern)

    def may_match(self, node: ir.Node, above: Sequence[str]) -> bool:
        """Whether the pattern allows a node whose inputs are produced by these operators (`producers`): an early reject."""
        return may_be_root(node, above, self.below)


def producers(node: ir.Node) -> tuple[str, ...]:
    """The operator that produces each input of a node; empty for an input that no node produces."""
    found = [None if value is None else value.producer() for value in node.inputs]
    return tuple(["" if producer is None else producer.op_type for producer in found])


def may_be_root(node: ir.Node, above: Sequence[str], below: Mapping[str, Sequence[Below]]) -> bool:
    """Whether the inputs of a node come from operators that one of the alternatives for its own operator allows there.

    Args:
        node: The node.
        above: The operators that produce its inputs (`producers`).
        below: For each operator at the root, the alternatives.
    """
    for one in below.get(node.op_type, ()):
        for position, heads in one:
            if position is None:
                if heads.isdisjoint(above):
                    break
            elif position >= len(above) or above[position] not in heads:
                break
        else:
            return True
    return False
