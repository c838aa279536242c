"""Registry of operators: one entry per operator, whose facets several packages declare.

A facet is one thing that is known of operators: the shape function, the value range, the cost, the layout interface. The
package that uses it declares it, as a typed table of the registry. `op_info` returns all facets and traits of one operator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import onnx_ir as ir

from ortfuse.errors import OperatorError
from ortfuse.ir.traits import BROADCASTS, JOINS, MOVES, SUM, add_traits, has, traits_of

T = TypeVar("T")

Key = tuple[str, str]
"""An operator: its domain, which is empty for ai.onnx, and its type."""


def key_of(operator: str) -> Key:
    """Return the domain and type of an operator that is written as in the sets of traits, such as `com.microsoft.Gelu`."""
    domain, _, op_type = operator.rpartition(".")
    return domain, op_type


class Facet(dict[Key, T], Generic[T]):
    """One thing that is known of operators, by domain and type.

    Args:
        name: The name of the facet in `op_info` and `describe`, unique among all facets.
        meaning: The facet in words, for listings.
    """

    def __init__(self, name: str, meaning: str) -> None:
        super().__init__()
        self.name, self.meaning = name, meaning
        if name in _FACETS:
            raise ValueError(f"facet {name} is declared twice")
        _FACETS[name] = self
        self.update(_WAITING.pop(name, {}))

    def register(self, *operators: str, domain: str = "") -> Callable[[T], T]:
        """Make the decorated function the facet of operators.

        Args:
            operators: Operators as in the sets of traits: with their domain, unless that is ai.onnx.
            domain: The domain of all of them, in place of a prefix.

        Raises:
            OperatorError: One of them has the facet already.
        """

        def add(entry: T) -> T:
            for operator in operators:
                key = (domain, operator) if domain else key_of(operator)
                if (known := self.get(key)) is not None and _source_of(known) != _source_of(entry):
                    raise OperatorError(
                        f"{operator}: its facet `{self.name}` is registered by {_source_of(known)} already, and again by "
                        f"{_source_of(entry)}; remove one of them"
                    )
                self[key] = entry
            return entry

        return add

    def of(self, node: ir.Node) -> T | None:
        """Return the facet of a node's operator; `None` if it has none."""
        return self.get((node.domain, node.op_type))


def _source_of(entry: object) -> str:
    """Return where the entry of a facet is defined: its module and name."""
    return f"{getattr(entry, '__module__', '?')}.{getattr(entry, '__qualname__', repr(entry))}"


_FACETS: dict[str, Facet[Any]] = {}
_WAITING: dict[str, dict[Key, Any]] = {}
"""Facets that were described before the package that declares them was imported."""


@dataclass(frozen=True)
class OpInfo:
    """All that is known of an operator.

    Attributes:
        domain: The domain; empty for ai.onnx.
        op_type: The operator.
        traits: The traits, as in `ortfuse.ir.traits`.
        facets: The facets by name, of those packages that are imported.
    """

    domain: str
    op_type: str
    traits: frozenset[str]
    facets: Mapping[str, object]

    @property
    def name(self) -> str:
        """The operator as it stands in sets: with its domain, unless that is ai.onnx."""
        return f"{self.domain}.{self.op_type}" if self.domain else self.op_type


def op_info(domain: str, op_type: str) -> OpInfo:
    """Return all that is known of an operator; an empty entry for one that nobody described."""
    key = domain, op_type
    facets = {name: facet[key] for name, facet in _FACETS.items() if key in facet}
    name = f"{domain}.{op_type}" if domain else op_type
    return OpInfo(domain, op_type, traits_of(name), facets)


def facets() -> Mapping[str, str]:
    """Return the meaning of each facet by name, of those packages that are imported."""
    return {name: facet.meaning for name, facet in _FACETS.items()}


def describe(*operators: str, traits: str = "", **facets: object) -> None:
    """Enter operators into the registry, or add to their entries.

    Args:
        operators: Operators as in the sets of traits: with their domain, unless that is ai.onnx.
        traits: Traits, separated by spaces.
        facets: Facets by name; one of a package that is not imported yet takes effect once it is.

    Raises:
        ValueError: There is no such trait.
    """
    for operator in operators:
        add_traits(operator, traits.split())
        for name, entry in facets.items():
            table = _FACETS[name] if name in _FACETS else _WAITING.setdefault(name, {})
            table[key_of(operator)] = entry


SIZE_OPERANDS: Facet[Collection[int]] = Facet(
    "size_operands", "the operands whose elements tell sizes or numbers of iterations"
)

ChannelAxes: TypeAlias = tuple[int, int, int]

CHANNEL_AXES: Facet[ChannelAxes] = Facet(
    "channel_axes", "an axis of the first operand, another operand, and its axis of the same size"
)

FLOAT32_UNLESS: Facet[str] = Facet(
    "float32_unless", "the attribute without which the operator computes or outputs float32"
)

RECURRENT_ACTIVATIONS: Facet[tuple[str, ...]] = Facet(
    "recurrent_activation",
    "the attributes that are alpha and beta where RNN, GRU and LSTM apply the operator to their gates",
)

LinearOperands: TypeAlias = tuple[tuple[int, ...], ...]
"""Groups of operands: outputs are linear in those of a group together, apart from a constant, while all others are fixed."""

LINEAR: Facet[LinearOperands] = Facet("linear", "groups of operands in which the outputs are linear")


def linear_operands(node: ir.Node) -> LinearOperands:
    """Return the groups of operands in which a node is known to be linear; they follow from traits if no facet tells them."""
    if (known := LINEAR.of(node)) is not None:
        return known
    if has(node, JOINS) or has(node, SUM):
        return (tuple(range(len(node.inputs))),)
    return ((0,),) if has(node, MOVES) else ()


def sums_products(node: ir.Node) -> bool:
    """Whether a node sums products of two operands, as MatMul and Conv do: it is linear in each, and not elementwise."""
    return len(linear_operands(node)) > 1 and not has(node, BROADCASTS)
