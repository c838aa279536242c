"""Describe the known targets: their kernels, releases, constraints and known bugs, and whether they run on this machine."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.errors import OrtfuseError, TargetError
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.session import Session
from ortfuse.serialization import Record, entry
from ortfuse.targets import Target, TargetSpec, known_targets
from ortfuse.targets.kernel_table_cache import table_of
from ortfuse.targets.release_kernel_tables import releases_of
from ortfuse.targets.rule_speedups import shipped_costs

_TRIAL = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Add(x, x) }'
"""The model by which a target is tried: any runtime loads it, and any provider has its kernel."""


@dataclass(frozen=True)
class TargetInfo:
    """A target.

    Attributes:
        name: Its short name, as `--target` takes it.
        provider: The execution provider of the runtime.
        is_default: Whether it is the target where none is named.
        kernels: The build that its kernels were read from, such as `onnxruntime 1.32.0`; empty if they are not known here.
        operators: How many operators it has kernels of.
        releases: The releases whose kernels are stored, as `--runtime` takes them.
        constraints: How many operators have checks of their inputs and attributes.
        known_bugs: The known bugs that rules work around.
        costs: The machine or build on which the costs of rules were measured; empty if none were.
        tried: How results were tried on it.
        untried: Operators with kernels that no result was run with on a device: `--force` alone makes them.
        runs_here: Whether this machine runs models for it; `None` if that was not tried.
        problem: The reason why it does not, or why its kernels are not known; empty if there is none.
    """

    name: str
    provider: str
    is_default: bool
    kernels: str
    operators: int
    releases: list[str]
    constraints: int
    known_bugs: list[str]
    costs: str
    tried: str
    untried: list[str] = field(default_factory=list)
    runs_here: bool | None = field(default=None, metadata=entry(optional=True))
    problem: str = ""


@dataclass(frozen=True)
class DescribedTargets(Record):
    """The known targets.

    Attributes:
        targets: The targets, the default one first.
    """

    targets: list[TargetInfo]


def describe_targets(targets: Iterable[TargetSpec | Target] | None = None, *, run: bool = True) -> DescribedTargets:
    """Describe targets.

    Args:
        targets: The declarations, or targets with the kernels of one build; by default the declarations of ortfuse, of installed
            packages, and of folders that were named.
        run: Whether to run a model of one node on each.

    Raises:
        TargetError: A package offers a target that is none.
    """
    found = known_targets() if targets is None else targets
    described = [_described(one, run) for one in found]
    return DescribedTargets(sorted(described, key=lambda one: (not one.is_default, one.name)))


def _described(one: TargetSpec | Target, run: bool) -> TargetInfo:
    spec = one.spec if isinstance(one, Target) else one
    problem, kernels, operators, bugs = "", "", 0, spec.known_bugs
    try:
        table = one.table if isinstance(one, Target) else table_of(spec)
        kernels, operators = table.runtime, sum(bool(one.kernels) for one in table.operators.values())
        bugs = spec.bugs_on(platform.machine(), table.release)
    except TargetError as error:
        problem = str(error)
    failure = problem_of_running(one) if run else ""
    releases = releases_of(spec)
    return TargetInfo(
        name=spec.name,
        provider=spec.provider,
        is_default=spec.is_default,
        kernels=kernels,
        operators=operators,
        releases=[] if releases is None else releases.names,
        constraints=len(spec.constraints),
        known_bugs=sorted(bug.name.lower() for bug in bugs),
        costs=shipped_costs(spec).source,
        tried=spec.tried,
        untried=sorted(f"{domain}.{name}".strip(".") for domain, name in spec.untried),
        runs_here=not failure if run else None,
        problem=failure or problem,
    )


def problem_of_running(target: TargetSpec | Target) -> str:
    """Return the reason why no model runs for a target on this machine; empty if one does.

    Args:
        target: A declaration, or a target: models do not run for the kernels of a release that is not the one here.
    """
    spec = target.spec if isinstance(target, Target) else target
    try:
        spec.session_providers()  # raises for a target for which another one would stand in
        with executing_for(spec):
            Session(ir.from_onnx_text(_TRIAL))
    except OrtfuseError as error:
        return str(error)
    return other_build_here(target) if isinstance(target, Target) else ""


def other_build_here(target: Target) -> str:
    """Return words on the build that is here, if it is of another release than the kernels of a target; otherwise none."""
    try:
        here = table_of(target.spec)
    except TargetError:  # its kernels are not known here
        return ""
    same = target.table.release[:2] == here.release[:2]
    return "" if same else f"{target.table.runtime}: {here.runtime} is here"
