"""Verify on each of several targets that runs on this machine, and tell which were left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir import walk
from ortfuse.ir.traits import MICROSOFT
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.unrepresentable_models import Runnable
from ortfuse.targets import Target, TargetSpec
from ortfuse.targets.joint_target import JointTarget

if TYPE_CHECKING:
    from ortfuse.verification import Verdict


def members_of(target: Target) -> Sequence[Target]:
    """Return the targets that one stands for; itself if it stands for none."""
    return target.members if isinstance(target, JointTarget) else (target,)


def verify_on_each(target: Target, verify: Callable[[], Verdict]) -> Verdict:
    """Return one verdict for all targets that a target stands for.

    Args:
        target: A target, or several (`ortfuse.targets.joint_target`).
        verify: Compares the models on the current execution target.

    Returns:
        The verdict on the first target that runs here, with the runs on the others: each says where it was. Notes name the
        targets and releases that nothing ran on.

    Raises:
        VerificationError: The original cannot be executed on a target that runs here, or no target does.
    """
    members = members_of(target)
    specs = list({one.spec.name: one.spec for one in members}.values())
    left = {spec.name: problem for spec in specs if len(specs) > 1 and (problem := _problem(spec))}
    here = [spec for spec in specs if spec.name not in left] or specs[:1]
    verdicts = []
    for spec in here:
        with executing_for(spec):
            verdicts.append(verify())
    verdict = verdicts[0] if len(here) == 1 else _joint(here, verdicts)
    verdict.notes += [f"not verified on {name}: {problem}" for name, problem in left.items()]
    verdict.notes += [f"not verified on {text}" for text in _other_builds(members, here)]
    return verdict


def refused_nodes(target: Target, model: Runnable) -> Iterator[str]:
    """Say which nodes of com.microsoft in a model the kernels of the target refuse or compute wrongly.

    Args:
        target: The target on which the model was verified.
        model: The model; of one that is not `ir.Model` nothing is said.
    """
    if not isinstance(model, ir.Model):
        return
    facts, found = Facts(model), dict[str, list[str]]()
    for node in walk.nodes(model):
        limit = target.limit(node, facts) if node.domain == MICROSOFT else None
        if limit is not None:
            found.setdefault(f"{node.op_type} {limit.needed}", []).append(node.name or str(node.outputs[0].name))
    for needed, names in found.items():
        operator, _, takes = needed.partition(" ")
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{operator} {names[0]!r}{more} is not for {target.spec.name}, whose kernel takes {takes}"


def _problem(spec: TargetSpec) -> str:
    """The reason why models do not run for a target here; empty if they do."""
    from ortfuse.inspection.describe_targets import problem_of_running

    return problem_of_running(spec)


def _joint(specs: Sequence[TargetSpec], verdicts: Sequence[Verdict]) -> Verdict:
    first = verdicts[0]
    trials = [
        replace(trial, inputs=f"{trial.inputs} on {spec.name}")
        for spec, verdict in zip(specs, verdicts, strict=True)
        for trial in verdict.trials
    ]
    notes = [note for verdict in verdicts for note in verdict.notes]
    runtime = next((verdict.runtime for verdict in verdicts if verdict.runtime is not None), None)
    names = " and ".join(spec.name for spec in specs)
    return replace(first, trials=trials, notes=[*dict.fromkeys(notes), f"verified on {names}"], runtime=runtime)


def _other_builds(members: Sequence[Target], here: Sequence[TargetSpec]) -> Iterator[str]:
    """The builds whose kernels a result was made for, and that are not those which ran."""
    from ortfuse.inspection.describe_targets import other_build_here

    ran = [one for one in members if one.spec in here and one.spec.runs_on]
    return filter(None, map(other_build_here, ran))
