"""Executed kernels joined with graph, cost and origin, and their sums by module, rule, block or operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ortfuse.profiling.node_origins import Made, Origin
from ortfuse.profiling.profiler_trace import Executed
from ortfuse.profiling.roofline import Work
from ortfuse.serialization import Record, derived

NETWORK = "the network itself"
"""The group of nodes that belong to no module within it, or whose names do not say."""

UNCHANGED = "as in the model"
"""The group of nodes that neither a rule nor the runtime made."""

RUNTIME = "the runtime"
"""The origin of nodes that no rule of ortfuse made."""


@dataclass(frozen=True)
class Kernel(Record):
    """An executed node.

    Attributes:
        name: Its name in the executed graph.
        operator: The operator, without its domain.
        provider: The execution provider.
        calls: How often it is executed in a run.
        seconds: What it takes in a run, the median over runs, without the nodes in its body.
        nodes: The names of the nodes of the model that it stands for.
        module: The module of the original network that it belongs to; empty if that is not known.
        rule: The rule of ortfuse that made it; empty if none did.
        block: The names of the original nodes that the rule replaced, separated by `;`.
        origin: What the runtime did: nothing, `fused` several nodes into one, or `inserted` a node.
        flops: Operations in a run; `None` if they are not known.
        bytes: Bytes read and written in a run; `None` if they are not known.
        bound: `compute` or `memory`, by what takes longer at the peaks of the machine; empty if that is not known.
        roofline_seconds: The least seconds at these peaks; `None` if they are not known.
    """

    name: str
    operator: str
    provider: str
    calls: int
    seconds: float
    nodes: tuple[str, ...]
    module: str
    rule: str
    block: str
    origin: Made
    flops: int | None
    bytes: int | None
    bound: str = ""
    roofline_seconds: float | None = None

    @property
    def beyond(self) -> float:
        """How many times as fast as the roof: more than 1 where caches hold the data, or the peak was measured too low."""
        return 0.0 if self.roofline_seconds is None or not self.seconds else self.roofline_seconds / self.seconds

    @property
    @derived("roofline_fraction")
    def reached(self) -> float | None:
        """The fraction of the roof: 1 if it is as fast as the machine can be, or faster than its peaks were measured."""
        return None if self.roofline_seconds is None or not self.seconds else min(1.0, self.beyond)


def kernel(seen: Executed, origin: Origin | None, work: Work | None) -> Kernel:
    """Collect what is known of an executed node; its roofline bound is not known yet."""
    origin = origin or Origin()
    return Kernel(
        name=seen.name,
        operator=seen.operator,
        provider=seen.provider,
        calls=seen.calls,
        seconds=seen.seconds,
        nodes=origin.nodes,
        module=origin.module,
        rule=origin.rule,
        block=origin.block,
        origin=origin.made,
        flops=None if work is None else work.flops,
        bytes=None if work is None else work.bytes,
    )


@dataclass(frozen=True)
class Group(Record):
    """A sum over executed nodes.

    Attributes:
        name: What they have in common.
        kernels: How many they are.
        calls: How often they are executed in a run.
        seconds: What they take.
        share: The part of the time of all kernels.
        roofline_fraction: The fraction of the roof that those reach whose work is known; `None` if none is.
    """

    name: str
    kernels: int
    calls: int
    seconds: float
    share: float
    roofline_fraction: float | None


def groups(kernels: Sequence[Kernel], key: Callable[[Kernel], str]) -> tuple[Group, ...]:
    """The sums over nodes with the same key, the longest first; an empty key leaves out."""
    found: dict[str, list[Kernel]] = {}
    for one in kernels:
        if name := key(one):
            found.setdefault(name, []).append(one)
    total = sum(one.seconds for one in kernels)
    rows = (_group(name, some, total) for name, some in found.items())
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _group(name: str, kernels: Sequence[Kernel], total: float) -> Group:
    seconds = sum(one.seconds for one in kernels)
    calls = sum(one.calls for one in kernels)
    return Group(name, len(kernels), calls, seconds, seconds / total if total else 0.0, reached(kernels))


def reached(kernels: Iterable[Kernel]) -> float | None:
    """The fraction of the roof that nodes reach together; what is beyond it counts as at it."""
    known = [
        (min(one.roofline_seconds, one.seconds), one.seconds) for one in kernels if one.roofline_seconds is not None
    ]
    took = sum(seconds for _, seconds in known)
    return sum(least for least, _ in known) / took if took else None


def by_module(one: Kernel) -> str:
    """The module that a node belongs to."""
    return one.module or NETWORK


def by_role(one: Kernel) -> str:
    """The module that a node belongs to, with `*` for the numbers of layers: what is alike in all of them."""
    return ".".join("*" if part.isdecimal() else part for part in by_module(one).split("."))


def by_rule(one: Kernel) -> str:
    """The origin of a node."""
    return one.rule or (f"{RUNTIME}, {one.origin}" if one.origin else UNCHANGED)


def by_block(one: Kernel) -> str:
    """The fused block that a node is, or is part of; empty if it is none."""
    if one.rule:
        return f"{one.rule}: {_listed(one.block.split(';'))}"
    return f"{RUNTIME}, {one.operator}: {_listed(one.nodes)}" if one.origin == "fused" else ""


def by_kind_of_block(one: Kernel) -> str:
    """The fused blocks that a node is one of, wherever they are in the model; empty if it is none."""
    return by_block(one).partition(": ")[0]


def by_operator(one: Kernel) -> str:
    """The operator of a node."""
    return one.operator


VIEWS: Mapping[str, Callable[[Kernel], str]] = {
    "operator": by_operator,
    "block": by_block,
    "module": by_module,
    "role": by_role,
    "rule": by_rule,
}
"""How executed nodes are grouped."""


def _listed(names: Sequence[str]) -> str:
    """The last of the nodes, which computes the result, and how many there are."""
    return names[-1] if len(names) == 1 else f"{names[-1]} and {len(names) - 1} more"
