"""The difference of two models: their graphs and, if they were run, their tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import onnx_ir as ir

from ortfuse.serialization import Record, derived, entry
from ortfuse.verification.diff.matching import Matching
from ortfuse.verification.diff.structure import Structure
from ortfuse.verification.diff.tensors import Tensors


@dataclass(frozen=True)
class ModelDifference(Record):
    """The difference of two models.

    Attributes:
        structure: Nodes, attributes, constants, operands and the interface.
        tensors: The tensors that both compute, if the models were run; else `None`.
        matching: The nodes and values that match.
    """

    structure: Structure = field(metadata=entry(inline=True))
    tensors: Tensors | None
    matching: Matching = field(repr=False, metadata=entry(omit=True))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'; '.join(self.summary().splitlines())}>"

    @property
    @derived()
    def same(self) -> bool:
        """Whether nothing differs but names, and no tensor that was compared."""
        return self.structure.same and (self.tensors is None or not self.tensors.differing)

    def name(self, value: ir.Value) -> str | None:
        """The name of a value of either model; values that match have that of the first."""
        return self._names.get(value, value.name)

    @cached_property
    def _names(self) -> Mapping[ir.Value, str | None]:
        return {twin: value.name for value, twin in self.matching.values.items()}

    def summary(self) -> str:
        """The answer, one finding a line."""
        found = self.structure
        if found.same and (self.tensors is None or not self.tensors.differing):
            said = ["they have the same nodes, attributes, constants, inputs and outputs"]
        else:
            said = [*_of_structure(found)]
        if found.renamed:
            said.append(
                f"{_counted(found.renamed, 'value')} {'has another name' if found.renamed == 1 else 'have other names'}"
            )
        if self.tensors is not None:
            said.append(of_tensors(self.tensors))
        return "\n".join(said)


def of_tensors(tensors: Tensors) -> str:
    """The first tensor that differs, in words."""
    sets = _counted(tensors.input_sets, "set") + " of inputs"
    rest = f"; {tensors.unmatched} more are in the first model alone" if tensors.unmatched else ""
    first = tensors.first
    if first is None:
        return f"all {_counted(tensors.compared, 'tensor')} that both compute are the same on {sets}{rest}"
    other = "" if first.second_tensor == first.tensor else f" ('{first.second_tensor}' in B)"
    how = first.difference.reason or f"by {first.difference.relative:.3g} of its scale"
    return (
        f"the first tensor that differs is '{first.tensor}'{other}, computed by {_computed(first.operator, first.node)} in A and "
        f"{_computed(first.second_operator, first.second_node)} in B: {how} ({first.inputs}); "
        f"{len(tensors.differing)} of {_counted(tensors.compared, 'tensor')} differ on {sets}{rest}"
    )


def _of_structure(found: Structure) -> Iterable[str]:
    for which, nodes in (("A", found.only_first), ("B", found.only_second)):
        if nodes:
            kinds = Counter(node.operator for node in nodes).most_common()
            yield f"only in {which}: {', '.join(f'{name} {count}' for name, count in kinds)}"
    if found.same_nodes:
        yield "they have the same nodes"
    if found.operands:
        yield f"{_counted(len(found.operands), 'operand')} of nodes of both are others"
    if found.attributes:
        yield f"{_counted(len(found.attributes), 'attribute')} of nodes of both are others"
    if found.constants:
        yield f"{_counted(len(found.constants), 'constant')} {'is another' if len(found.constants) == 1 else 'are others'}"
    yield from found.interface


def _computed(operator: str, node: str) -> str:
    return f"{operator} '{node}'"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
