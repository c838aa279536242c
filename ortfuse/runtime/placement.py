"""Tell on which execution providers the runtime executes the nodes of a model, and in how many partitions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from ortfuse.runtime.current_execution_target import execution_target
from ortfuse.runtime.session import Session
from ortfuse.runtime.session_subprocess import RECORDS_PLACEMENT
from ortfuse.runtime.unrepresentable_models import Runnable


class PlacedNode(NamedTuple):
    """A node as the runtime executes it, after its own first optimisations: its domain, operator and name."""

    domain: str
    op_type: str
    name: str


@dataclass(frozen=True)
class Partition:
    """Nodes that a provider executes together: a compiled subgraph, or a single node.

    Attributes:
        provider: The execution provider.
        nodes: The nodes.
    """

    provider: str
    nodes: tuple[PlacedNode, ...]


@dataclass(frozen=True)
class Placement:
    """The placement of a model's nodes on execution providers.

    Attributes:
        provider: The provider of the target.
        partitions: The partitions, as the runtime lists them.
    """

    provider: str
    partitions: tuple[Partition, ...]

    @property
    def own_partitions(self) -> int:
        """The number of partitions that the target's provider executes; nodes, if it compiles none."""
        return sum(one.provider == self.provider for one in self.partitions)

    @property
    def off_provider(self) -> tuple[PlacedNode, ...]:
        """The nodes that other providers execute."""
        return tuple(node for one in self.partitions if one.provider != self.provider for node in one.nodes)


def placement(model: Runnable | str | os.PathLike[str] | bytes, *, optimise: bool = True) -> Placement:
    """Return the placement of a model's nodes in a session for the current target (`executing_for`).

    Args:
        model: A model, the path of one, or a serialised model.
        optimise: Whether the runtime applies its own optimisations.

    Raises:
        CrashError: The runtime crashes on the model.
        VerificationError: The runtime refuses the model, or does not tell the placement.
    """
    session = Session(model, optimise=optimise, settings={RECORDS_PLACEMENT: "1"})
    partitions = tuple(
        Partition(provider, tuple(PlacedNode(*node) for node in nodes)) for provider, nodes in session.placement()
    )
    return Placement(execution_target().session_providers()[0], partitions)
