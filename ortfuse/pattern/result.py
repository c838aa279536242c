"""What a try of a pattern comes to: a match, or the deepest point it reached and what stopped it there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ortfuse.dims import DimLike
from ortfuse.errors import PatternError

if TYPE_CHECKING:
    from ortfuse.pattern.machine import Machine


class Match:
    """One place where a pattern matched: `match["name"]` is what `name` captured (value, number, attribute or None)."""

    def __init__(self, root: ir.Value, machine: Machine) -> None:
        self.root = root
        self.facts = machine.facts
        self.bindings: dict[str, Any] = {**dict.fromkeys(machine.matcher.names), "root": root, **machine.bindings}
        self.choices: dict[str, int] = dict(machine.choices)
        self.nodes: list[ir.Node] = list(machine.nodes)
        self.extra_operands: list[tuple[int, ir.Value]] = machine.extra_operands
        self.extra_are_factors = machine.extra_are_factors

    def __getitem__(self, name: str) -> Any:
        try:
            return self.bindings[name]
        except KeyError:
            raise PatternError(f"the pattern captures no {name!r}; it captures {sorted(self.bindings)}") from None

    def get(self, name: str, default: Any = None) -> Any:
        """What `name` captured, or `default`."""
        return self.bindings.get(name, default)

    def choice(self, label: str) -> int:
        """Which option of the alternatives named `label` matched, from 0."""
        return self.choices[label]

    def shape(self, name: str) -> tuple[DimLike, ...] | None:
        """The symbolic shape of a captured value; `None` when its rank is unknown."""
        return self.facts.shape(self[name])

    def rank(self, name: str) -> int | None:
        """The rank of a captured value, or `None`."""
        return self.facts.rank(self[name])

    def dtype(self, name: str) -> ir.DataType | None:
        """The element type of a captured value, or `None`."""
        return self.facts.dtype(self[name])

    def const(self, name: str) -> Any:
        """The captured constant as a numpy array, or `None` if the value is no constant."""
        return self.facts.const(self[name])

    def is_used_elsewhere(self, name: str) -> bool:
        """Whether a captured value is a graph output or used by a node that did not match."""
        value, inside = self[name], set(self.nodes)
        return value.is_graph_output() or any(use.node not in inside for use in value.uses())

    def __repr__(self) -> str:
        names = ", ".join(f"{k}={v.name if isinstance(v, ir.Value) else v}" for k, v in self.bindings.items())
        return f"Match({self.root.name}: {names})"


class Miss:
    """The deepest point a failed attempt reached: which nodes matched, and what stopped it, in words on demand.

    With `whole` the pattern matched as a whole, and it was another use of an intermediate or a guard that stopped it.
    """

    __slots__ = ("_format", "matched", "nodes", "whole")

    def __init__(
        self,
        matched: int,
        reason: Callable[[], str],
        nodes: tuple[ir.Node, ...] = (),
        whole: bool = False,
    ) -> None:
        self.matched, self._format, self.nodes, self.whole = matched, reason, nodes, whole

    @property
    def reason(self) -> str:
        """What stopped the match, in words."""
        return self._format()


Guard = Callable[[Match], "str | None"]
"""A condition beyond the pattern: `None` when it holds, else the reason why not."""
