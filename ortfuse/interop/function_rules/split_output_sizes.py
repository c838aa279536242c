"""Match the outputs of Split in its three equivalent forms: equal parts, sizes as attribute, sizes as input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite.pattern import Guard, Match, redundant


@dataclass(frozen=True)
class Parts:
    """The outputs of a Split of a formula: so many parts, of these sizes or, if there are none, equal but for the last."""

    count: int
    sizes: tuple[int, ...] | None

    @classmethod
    def of(cls, node: ir.Node, sizes: Any) -> Parts:
        """The parts of a node, whose sizes are known unless they are equal."""
        return cls(len(node.outputs), None if sizes is None else tuple(sizes))

    def values(self, name: str) -> dict[str, list[Any]]:
        """How instances spell them."""
        return {f"{name}.sizes": [self.sizes], f"{name}.number": [self.count if self.sizes is None else None]}

    def __str__(self) -> str:
        return f"{self.count} equal parts" if self.sizes is None else f"parts of {', '.join(map(str, self.sizes))}"


def same_parts(parts: Mapping[str, Parts]) -> Iterator[Guard]:
    """A guard for each Split that a pattern captured with its sizes."""
    for name, wanted in parts.items():
        yield _has(name, wanted)


def _has(name: str, wanted: Parts) -> Guard:
    @redundant("instances are of these parts")
    def has_its_parts(match: Match) -> Refusal | None:
        """The parts are those of the formula, in whatever spelling."""
        whole = match[name].producer()
        found = _sizes(whole, match.get(f"{name}.sizes"), match.facts) if whole is not None else None
        if whole is not None and len(whole.outputs) == wanted.count:
            equal = wanted.sizes is None and match.get(f"{name}.sizes") is None
            if equal or (found is not None and found == (wanted.sizes or _equal(sum(found), wanted.count))):
                return None
        return match.refuse("condition", name, str(wanted))

    return has_its_parts


def _sizes(node: ir.Node, given: Any, facts: Facts) -> tuple[int, ...] | None:
    """The sizes of the parts, if they are known."""
    if given is not None:
        return tuple(given) if all(isinstance(size, int) for size in given) else None
    shape = facts.shape(node.inputs[0])
    axis = node.attributes.get("axis")
    if shape is None or (axis is not None and axis.is_ref()):
        return None
    size = shape[0 if axis is None else axis.as_int()]
    return _equal(size, len(node.outputs)) if isinstance(size, int) else None


def _equal(size: int, count: int) -> tuple[int, ...]:
    """The parts of a Split without sizes: all alike but for the last, which may be smaller."""
    part = -(-size // count)
    return (*(part,) * (count - 1), size - part * (count - 1))
