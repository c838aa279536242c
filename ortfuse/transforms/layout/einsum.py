"""Layout of Einsum: any axis order of operands and result, expressed in the equation.

einsum("bhid,bhjd->bhij", transpose(x), y) = einsum("bihd,bhjd->bhij", x, y)

The kernel transposes operands to the order of the labels in the result, with those that are summed over last. It then transposes
the product of the first two, whose labels are those of both operands, of the left one, and of the right one. So a Transpose
of an operand mostly costs as much in the equation as before, and is a node less. One of the result can cost more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import attribute_value
from ortfuse.transforms.layout.count_transposed_elements import typical_elements
from ortfuse.transforms.layout.layout_unit import Port, State, Unit, layout
from ortfuse.transforms.layout.permutation import Order, unmoved
from ortfuse.transforms.layout.reordered_node import Draft

_READABLE = re.compile(r"[a-z]+(,[a-z]+)*->[a-z]*", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Term:
    """An operand of an Einsum, or its result.

    Attributes:
        node: The Einsum.
        ports: What the term is of.
        number: Its number, operands first.
        labels: The label of each axis.
        price: How many elements the kernel transposes if the term has its labels in an order.
    """

    node: ir.Node
    ports: tuple[Port, ...]
    number: int
    labels: str
    price: Callable[[str], int]

    def follow(self, port: int, order: Order) -> State | None:
        """See `Unit`."""
        return State((order,))

    def cost(self, state: State) -> int:
        """See `Unit`."""
        return self.price(self._moved(state))

    def write(self, draft: Draft, state: State) -> None:
        """See `Unit`."""
        terms = _terms(draft.settings["equation"].as_string())
        terms[self.number] = self._moved(state)
        draft.settings["equation"] = ir.AttrString("equation", f"{','.join(terms[:-1])}->{terms[-1]}")

    def _moved(self, state: State) -> str:
        return "".join(self.labels[axis] for axis in state.orders[0])


@layout("Einsum")
def equation(node: ir.Node, facts: Facts) -> list[Unit]:
    """The operands and the result of an Einsum as units; none if its equation is implicit, repeats labels or leaves some out."""
    terms = _terms(attribute_value(node, "equation", facts))
    values = [*node.inputs, node.outputs[0]]
    if len(terms) != len(values) or any(len({*term}) < len(term) for term in terms):
        return []
    if any(facts.rank(value) != len(term) for value, term in zip(values, terms, strict=True)):
        return []
    prices = _prices(terms, values, facts)
    found: list[Unit] = []
    for number, (value, labels) in enumerate(zip(values, terms, strict=True)):
        if value is not None and len(labels) > 1 and not facts.is_const(value):
            is_result = number == len(node.inputs)
            port = Port(value, 0 if is_result else number, is_result, unmoved(len(labels)))
            found.append(Term(node, (port,), number, labels, prices[number]))
    return found


def _terms(text: str) -> list[str]:
    """The labels of each operand and of the result; none if the equation is of another form."""
    text = text.replace(" ", "")
    left, _, result = text.partition("->")
    return [*left.split(","), result] if _READABLE.fullmatch(text) else []


def _prices(terms: Sequence[str], values: Sequence[ir.Value | None], facts: Facts) -> list[Callable[[str], int]]:
    """Return the cost of each term.

    An operand costs one element less than a Transpose in front of the kernel, which is a further node.
    """
    *operands, result = terms
    sizes = [typical_elements(value, facts) for value in values]
    longer = _longer(terms, values, facts)

    def of_operand(number: int) -> Callable[[str], int]:
        return lambda labels: 0 if _follows(labels, result, longer) else sizes[number] - 1

    def of_result(labels: str) -> int:
        turned = [
            size
            for term, size in zip(operands, sizes[:-1], strict=True)
            if _follows(term, result, longer) and not _follows(term, labels, longer)
        ]
        return sum(turned) + (0 if len(operands) < 2 or _follows(labels, _made(operands), longer) else sizes[-1])

    return [*map(of_operand, range(len(operands))), of_result]


def _longer(terms: Sequence[str], values: Sequence[ir.Value | None], facts: Facts) -> Mapping[str, bool]:
    """Whether the axes of each label may be longer than 1."""
    found: dict[str, bool] = {}
    for term, value in zip(terms, values, strict=True):
        for label, size in zip(term, facts.shape(value) or (), strict=True):
            found[label] = found.get(label, False) or size != 1
    return found


def _follows(labels: str, order: str, longer: Mapping[str, bool]) -> bool:
    """Whether labels come in an order, and those that are not in it last."""
    places = [order.index(label) if label in order else len(order) for label in labels if longer[label]]
    return places == sorted(places)


def _made(operands: Sequence[str]) -> str:
    """The labels of what the kernel makes: of the batch, then of the left operand, then of the right one."""
    left, right = operands[:2]
    return "".join(sorted(left, key=lambda label: label not in right)) + right
