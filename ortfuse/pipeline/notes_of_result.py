"""Notes of a report on what a result still has, or lacks, on its target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from ortfuse.ir import walk
from ortfuse.ir.traits import MICROSOFT
from ortfuse.pipeline.rule_catalogue import Catalogue
from ortfuse.targets import DEFECTS, Target
from ortfuse.targets.joint_target import JointTarget
from ortfuse.transforms import Context
from ortfuse.transforms.choose_legal_form import full_name

K = TypeVar("K")

LOWERING = "lower_operators"
"""The pass of rules that lower operators which the target lacks."""


def notes_of_result(context: Context, target: Target, catalogue: Catalogue, *, loads_in: str | None) -> Iterator[str]:
    """Yield a text for each fact about a result that its user should know.

    Args:
        context: The context of the passes that made the result.
        target: The target of the pipeline.
        catalogue: The rules of the pipeline.
        loads_in: The release of the runtime that was asked for; `None` for the installed one, which tells itself what it lacks.
    """
    yield from _avoided_bugs(context, catalogue)
    yield from _unknown_operators(context, target)
    if loads_in is not None:
        for one in target.members if isinstance(target, JointTarget) else (target,):
            if one.spec.is_default:  # other targets leave such nodes to the processor
                yield from _missing_kernels(context, one)
    yield from _limits(context, catalogue)
    yield from _refused_nodes(context, target)


def _avoided_bugs(context: Context, catalogue: Catalogue) -> Iterator[str]:
    """Say where the runtime would go wrong on the model as it was."""
    defects = {name: reason for name, reason in catalogue.reasons().items() if reason in DEFECTS}
    for name, hits in context.log.hits().items():
        if hits and (defect := defects.get(name)) is not None:
            yield (
                f"{name}, {hits} times: when it optimises a model, ONNX Runtime {defect.value}; that happens to the model "
                "as it was, and not to the result"
            )


def _unknown_operators(context: Context, target: Target) -> Iterator[str]:
    """Say which operators of ONNX and ONNX Runtime the result has that the target does not know at all."""
    model, known = context.model, target.table.operators
    left = Counter(
        full_name(node.domain, node.op_type)
        for node in walk.nodes(model)
        if node.domain in ("", MICROSOFT)
        and (node.domain, node.op_type) not in known
        and node.op_identifier() not in model.functions
    )
    if left:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(left.items()))
        yield f"{target.table.runtime} has no such operators, and nothing lowers them: {names}"


def _missing_kernels(context: Context, target: Target) -> Iterator[str]:
    """Say which nodes a target has no kernel for and cannot execute otherwise, so that it does not load the result."""
    model, facts = context.model, context.facts
    sites: list[tuple[str, str]] = []
    for scope in walk.scopes(model):
        imports = scope.root.opset_imports
        for node in scope.graph:
            refusal = target.check_node(node, imports, facts)
            if refusal is None or refusal.code != "no_kernel" or node.op_identifier() in model.functions:
                continue
            if target.may_have_kernel(node, imports, facts) or target.instead_of_kernel(node, imports, facts):
                continue
            sites.append((refusal.reason, node.name or str(node.outputs[0].name)))
    for reason, names in _grouped(sites):
        yield f"the result does not load in {target.table.runtime}: {reason} ({_where(names)})"


def _limits(context: Context, catalogue: Catalogue) -> Iterator[str]:
    """Say where the limits of a kernel kept an operator from what it would have become, so that others compute it."""
    lowering = {rule.name for rule in catalogue.passes().get(LOWERING, ())}
    misses = context.log.limited(lowering)
    reasons = {(miss.rule, str(miss.refusal.needed)): miss.refusal.reason for miss in reversed(misses)}
    for key, names in _grouped([((miss.rule, str(miss.refusal.needed)), miss.site) for miss in misses]):
        yield f"{key[0]} was stopped {_where(names)}, so other operators compute that: {reasons[key]}"


def _refused_nodes(context: Context, target: Target) -> Iterator[str]:
    """Say which nodes of com.microsoft that the model had are there still, though their kernel refuses them."""
    sites: list[tuple[tuple[str, str], str]] = []
    reasons: dict[tuple[str, str], str] = {}
    for node in walk.nodes(context.model):
        limit = target.certain_limit(node, context.facts) if node.domain == MICROSOFT else None
        if limit is not None:
            key = (node.op_type, str(limit.needed))
            reasons.setdefault(key, limit.reason)
            sites.append((key, node.name or str(node.outputs[0].name)))
    for key, names in _grouped(sites):
        yield f"{key[0]} stays {_where(names)}, and nothing lowers it: {reasons[key]}"


def _grouped(sites: Iterable[tuple[K, str]]) -> Iterable[tuple[K, list[str]]]:
    """The names of sites by what is said of them."""
    found: dict[K, list[str]] = {}
    for key, name in sites:
        found.setdefault(key, []).append(name)
    return found.items()


def _where(names: Sequence[str]) -> str:
    """The first of some sites by its name, and the number of others."""
    return f"at '{names[0]}'" + (f" and at {len(names) - 1} more" if len(names) > 1 else "")
