"""Invariants that must hold after every edit of a graph: for debugging only, since each check walks the whole model.

With them a mistake in a rule, a pass or the rewriter shows up at the edit that makes it, not as a wrong output at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import RewriteError
from ortfuse.ir.dims import Dim, DimLike
from ortfuse.ir.walk import Scope, scopes


@dataclass(frozen=True)
class Debugging:
    """Options for finding mistakes in rules and passes.

    Attributes:
        seed: If given, sites are visited in a random order that depends on the seed, instead of consumers first.
        checks: Whether to check the whole graph after every rewrite and every pass, and to compare the incrementally
            updated facts with facts computed afresh; takes time quadratic in the size of the model.
    """

    seed: int | None = None
    checks: bool = False

    def inspect(self, model: ir.Model, facts: Facts, what: str, unsorted: Collection[ir.Graph] = ()) -> None:
        """Check the invariants after `what`, a rule or pass, if checks are asked for.

        Args:
            model: The model.
            facts: The facts kept up to date through all edits.
            what: The rule or pass that edited last.
            unsorted: Graphs that need not be in topological order yet.

        Raises:
            RewriteError: Something does not hold; the message names the rule or pass and the value.
        """
        if not self.checks:
            return
        for problem in problems(model, facts, unsorted):
            raise RewriteError(
                f"after {what}: {problem}. This is a mistake in {what} or in ortfuse: please report it with the model"
            )


def problems(model: ir.Model, facts: Facts, unsorted: Collection[ir.Graph] = ()) -> Iterator[str]:
    """The violations of invariants in a model or in the facts about it, in words; none if all is well."""
    for scope in scopes(model):
        yield from _use_problems(scope)
        if scope.graph not in unsorted:
            yield from _order_problems(scope)
        yield from _type_problems(scope, facts)
    if not unsorted:
        yield from _fact_problems(model, facts)


def _use_problems(scope: Scope) -> Iterator[str]:
    """Check that uses and producers agree with each other, and that domains are imported."""
    for node in scope.graph:
        if node.graph is not scope.graph:
            yield f"{_node(node)} is in a graph that it does not know"
        if node.domain not in scope.root.opset_imports:
            yield f"{_node(node)} is of the domain '{node.domain}', which is not imported"
        for index, value in enumerate(node.inputs):
            if value is not None and not any(use.node is node and use.idx == index for use in value.uses()):
                yield f"{_node(node)} uses '{value.name}', which does not know of it"
        for value in node.outputs:
            if value.producer() is not node:
                yield f"'{value.name}' is an output of {_node(node)}, which it does not know"
            for use in value.uses():
                if use.node.graph is None or use.node.inputs[use.idx] is not value:
                    yield f"'{value.name}' has a use by {_node(use.node)} that is none"


def _order_problems(scope: Scope) -> Iterator[str]:
    """Check that every value is produced before it is used in its graph."""
    seen: set[ir.Node] = set()
    for node in scope.graph:
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if value is not None and producer is not None and producer.graph is scope.graph and producer not in seen:
                yield f"{_node(node)} stands before {_node(producer)}, which produces its input '{value.name}'"
            if producer is not None and producer.graph is None:
                yield f"{_node(node)} uses an output of {_node(producer)}, which is in no graph"
        seen.add(node)


def _type_problems(scope: Scope, facts: Facts) -> Iterator[str]:
    """Check that declared element types agree with the facts."""
    for node in scope.graph:
        for value in node.outputs:
            known = facts.dtype(value)
            if known is not None and value.dtype not in (None, known) and isinstance(value.type, ir.TensorType):
                yield f"'{value.name}' is declared as {value.dtype} but is {known}"


def _fact_problems(model: ir.Model, facts: Facts) -> Iterator[str]:
    """Check that updated facts are at least as precise as facts computed afresh, and do not contradict them.

    They may be more precise: what was known of a value before it was rewritten is kept.
    """
    afresh = Facts(model)
    for scope in scopes(model):
        for node in scope.graph:
            for value in node.outputs:
                if (found := _disagreement(facts, afresh, value)) is not None:
                    yield f"of '{value.name}' ({_node(node)}) the facts kept up say {found[0]}, computed afresh {found[1]}"


def _disagreement(kept: Facts, afresh: Facts, value: ir.Value) -> tuple[object, object] | None:
    if kept.dtype(value) != afresh.dtype(value) and afresh.dtype(value) is not None:
        return kept.dtype(value), afresh.dtype(value)
    mine, theirs = kept.shape(value), afresh.shape(value)
    if theirs is not None and (mine is None or len(mine) != len(theirs)):
        return mine, theirs
    if mine is not None and theirs is not None and not _agree(mine, theirs):
        return mine, theirs
    ints, other = kept.ints(value), afresh.ints(value)
    if other is not None and (ints is None or not _agree(ints.elements, other.elements)):
        return ints, other
    if afresh.is_const(value) and kept.is_const(value):
        one, two = kept.const(value), afresh.const(value)
        if one is not None and two is not None and not _equal(one, two):
            return one, two
    return None


def _agree(kept: tuple[DimLike | float | None, ...], afresh: tuple[DimLike | float | None, ...]) -> bool:
    return all(_agrees(mine, theirs) for mine, theirs in zip(kept, afresh, strict=True))


def _agrees(kept: DimLike | float | None, afresh: DimLike | float | None) -> bool:
    if afresh is None or (isinstance(afresh, Dim) and (afresh.fresh or isinstance(kept, Dim))):
        # Two different formulas may still have the same value; an unknown one cannot contradict anything.
        return not (isinstance(afresh, Dim) and not afresh.fresh and isinstance(kept, Dim) and kept.fresh)
    return kept == afresh or (isinstance(afresh, Dim) and kept is not None)


def _equal(one: np.ndarray, two: np.ndarray) -> bool:
    return one.dtype == two.dtype and np.array_equal(one, two, equal_nan=one.dtype.kind == "f")


def _node(node: ir.Node) -> str:
    return f"{node.op_type} '{node.name or ', '.join(output.name or '' for output in node.outputs)}'"
