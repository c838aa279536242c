"""Pattern with several roots, computed side by side from inputs that they share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from ortfuse.errors import PatternError
from ortfuse.rewrite.pattern.language import Alt, Attr, Chain, Const, Op, Opt, Out, Pattern, Rest, Scalar, Var


class Siblings(Pattern):
    """Several results of one rule. The first is the root of a match; only a whole pattern or replacement has them."""

    def __init__(self, roots: Iterable[Pattern]) -> None:
        self.roots = tuple(roots)
        if len(self.roots) < 2:
            raise PatternError("siblings() takes two patterns or more; a single one is written without it")
        if any(isinstance(part, Siblings) for root in self.roots for part in root.walk()):
            raise PatternError(f"{self}: siblings stand only around a whole pattern or replacement")

    @property
    def heads(self) -> frozenset[str] | None:
        return self.roots[0].heads

    def children(self) -> Sequence[Pattern]:
        return self.roots

    def __str__(self) -> str:
        return f"siblings({', '.join(map(str, self.roots))})"

    @cached_property
    def shared(self) -> tuple[tuple[str, ...], ...]:
        """For each root the variables that it certainly has in common with the first."""
        first = certain_variables(self.roots[0])
        return tuple(tuple(name for name in certain_variables(root) if name in first) for root in self.roots)

    @cached_property
    def twins(self) -> tuple[int | None, ...]:
        """For each root the last one before it that is the same but for the names that it alone has."""
        names = [frozenset(_names(root)) for root in self.roots]
        common = frozenset(
            name for number, own in enumerate(names) for name in own if any(name in other for other in names[:number])
        )
        made = [_signature(root, common) for root in self.roots]
        return tuple(
            next((before for before in reversed(range(number)) if made[before] == one), None)
            for number, one in enumerate(made)
        )

    def problem(self) -> str | None:
        """Why a root cannot be found: it is any value, has no variable of the first, or is of the node of another root."""
        nodes = [root.node if isinstance(root, Out) else root for root in self.roots]
        for number, root in enumerate(self.roots):
            if root.heads is None:
                return f"the sibling {root} matches any value; each needs an operator at its root"
            if not self.shared[number]:
                return f"the sibling {root} shares no variable with {self.roots[0]}; one that is not optional is needed"
            if any(nodes[number] is other for other in nodes[:number]):
                return f"the sibling {root} is of the same node as another; each needs one of its own"
        return None


def certain_variables(pattern: Pattern) -> list[str]:
    """The variables that every match of `pattern` binds to a value of its graph, in the order of the walk."""
    if isinstance(pattern, Var):
        return [pattern.name]
    if isinstance(pattern, Opt):
        return []
    if isinstance(pattern, Alt):
        options = [certain_variables(option) for option in pattern.options]
        return [name for name in options[0] if all(name in other for other in options)]
    below = pattern.operands() if isinstance(pattern, Op) else pattern.children()
    return list(dict.fromkeys(name for child in below for name in certain_variables(child)))


def _names(pattern: Pattern) -> Iterator[str]:
    """Every name in a pattern: of captures and of dimensions."""
    for part in pattern.walk():
        yield from (name for name in (getattr(part, "name", None), part.label) if name is not None)
        if part.axes is not None:
            yield from part.axes.names()
        if isinstance(part, Op):
            yield from (wanted.name for wanted in part.attributes.values() if isinstance(wanted, Attr))
            yield from part.others
        if isinstance(part, Chain) and part.capture is not None:
            yield part.capture.name


def _signature(pattern: Pattern, common: frozenset[str]) -> Any:
    """The demands of a pattern, in a form that is equal for patterns that differ only in names that are not common.

    Patterns of a kind that is compared by no means here are equal to themselves alone.
    """
    numbers: dict[str, int] = {}

    def token(name: str | None) -> Any:
        return name if name is None or name in common else numbers.setdefault(name, len(numbers))

    def axes(part: Pattern) -> Any:
        if part.axes is None:
            return None
        return str(part.axes.renamed({name: str(token(name)) for name in part.axes.names()}))

    def attribute(wanted: Any) -> Any:
        return (Attr, token(wanted.name), wanted.check) if isinstance(wanted, Attr) else repr(wanted)

    def made(part: Pattern | None) -> Any:
        if part is None:
            return None
        head = (type(part), token(part.label), axes(part))
        if isinstance(part, Var):
            return (*head, token(part.name), part.check, part.constant, part.computed)
        if isinstance(part, Const):
            return (*head, part.value)
        if isinstance(part, Scalar | Rest):
            return (*head, token(part.name))
        if isinstance(part, Opt | Alt):
            return (*head, *map(made, part.children()))
        if isinstance(part, Out) and isinstance(part.node, Op):
            return (*head, part.index, made(part.node))
        if isinstance(part, Chain):
            capture = None if part.capture is None else token(part.capture.name)
            return (*head, part.scalar, capture, *((sign, made(inner)) for sign, inner in part.parts))
        if isinstance(part, Op) and not part.bodies:
            everything = None if part.all_attributes is None else token(part.all_attributes.name)
            attributes = [(name, attribute(wanted)) for name, wanted in sorted(part.attributes.items())]
            others = [(token(name), number) for name, number in part.others.items()]
            own = (part.op_type, part.domain, part.output_count, part.may_stay, everything)
            return (*head, *own, tuple(attributes), tuple(others), *map(made, part.inputs))
        return id(part)

    return made(pattern)
