"""Record the fusions and other changes that the runtime makes when it creates a session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.ir import walk
from ortfuse.profiling.kernels import Kernel
from ortfuse.serialization import Record


@dataclass(frozen=True)
class Fusion:
    """An operator that the runtime made of several nodes.

    Attributes:
        operator: The operator.
        name: The name of the executed node.
        nodes: The names of the nodes of the model that it stands for.
    """

    operator: str
    name: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Creation(Record):
    """The runtime's changes of a model at session creation.

    Attributes:
        before: The nodes of the model by operator, Constants left out.
        after: The nodes of the executed graph by operator; empty if that graph cannot be had.
        inserted: The inserted nodes by operator: changes of layout, type or place.
        inserted_seconds: What these take in a run.
        fused: The operators that were made of several nodes.
    """

    before: Mapping[str, int]
    after: Mapping[str, int]
    inserted: Mapping[str, int]
    inserted_seconds: float
    fused: tuple[Fusion, ...]

    def changes(self) -> dict[str, tuple[int, int]]:
        """The operators whose number changed, with the numbers before and after, the largest change first."""
        names = {*self.before, *self.after} if self.after else set()
        pairs = {name: (self.before.get(name, 0), self.after.get(name, 0)) for name in names}
        changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        return dict(sorted(changed.items(), key=lambda item: (-abs(item[1][0] - item[1][1]), item[0])))


def creation(model: ir.Model | None, executed: ir.Model | None, kernels: Sequence[Kernel]) -> Creation:
    """Compare a model with what is executed."""
    inserted = [one for one in kernels if one.origin == "inserted"]
    fused = tuple(Fusion(one.operator, one.name, one.nodes) for one in kernels if one.origin == "fused")
    return Creation(
        _operators(model),
        _operators(executed),
        dict(Counter(one.operator for one in inserted).most_common()),
        sum(one.seconds for one in inserted),
        fused,
    )


def _operators(model: ir.Model | None) -> dict[str, int]:
    if model is None:
        return {}
    names = (node.op_type for node in walk.nodes(model) if node.op_type != "Constant")
    return dict(Counter(names).most_common())
