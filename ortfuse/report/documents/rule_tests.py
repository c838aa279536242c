"""The documents of rule tests: those of `ortfuse test-rules`, and of the pair of `ortfuse substitute`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ortfuse.report.document import Block, Document, Item, Items, Notes
from ortfuse.report.documents.optimization import optimization_document

if TYPE_CHECKING:
    # Needed for type checking only: these modules are not loaded unless a command uses them.
    import onnx_ir as ir

    from ortfuse.interop import Substitution
    from ortfuse.verification.rule_tests import RuleTestReport

MOST_FAILURES = 3
"""The most failures that are shown where no smallest model is known."""

LONGEST_MODEL = 40
"""The most lines of a model in ONNX's textual form."""


def rule_tests_document(reports: Sequence[RuleTestReport], written: Mapping[str, Path]) -> Document:
    """Show the rules that passed their tests, then those that failed, with the files of models on which they are wrong."""
    passed = [_item(one) for one in reports if one.passed]
    failed = [_item(one, written.get(one.rule)) for one in reports if not one.passed]
    none = [] if reports else ["there is nothing to test: RULES is empty (passes have no rule test)"]
    blocks: list[Block] = [Notes("", none), Items("Passed", passed, "green"), Items("Failed", failed, "bold red")]
    return Document("Rule tests", f"{len(passed)} of {len(reports)} rules passed.", blocks)


def refuted_document(report: RuleTestReport) -> Document:
    """Show the rule test of a pair that failed, so that nothing was substituted."""
    said = "nothing was replaced; --untested with --verify=sites or --verify does without the rule test"
    found = rule_tests_document([report], {})
    return replace(found, blocks=[*found.blocks, Notes("Substitution", [said])])


def substitution_document(name: str, done: Substitution) -> Document:
    """Show the pair and its rule test, what was substituted where, and what stopped it elsewhere."""
    result = optimization_document(name, done.result, offered=done.count > 0)
    blocks = [
        Notes("Pair", [f"{done.rule.name}: {done.rule.formula}"]),
        *(() if done.rule_test is None else rule_tests_document([done.rule_test], {}).blocks),
        *result.blocks,
        Notes("", [] if done.count else ["substituted nowhere; nothing was written"], style="bold red"),
    ]
    return Document(f"{name}, with a subgraph replaced", result.summary, blocks)


def _item(report: RuleTestReport, written: Path | None = None) -> Item:
    """Return the numbers of instances and near misses, the smallest model on which the rule fails, and other failures."""
    tried = f"{report.instances} instances"
    if report.passed:
        near = f"{report.near_misses} near misses ({report.near_misses_fired} rewritten and right)"
        return Item(f"{report.rule}: passed on {tried} and {near}")
    failures = list(dict.fromkeys(report.failures))
    smallest = report.smallest
    lines = failures[:MOST_FAILURES] if smallest is None else [smallest[0]]
    rest = len(failures) - len(lines)
    if smallest is not None:
        lines += [f"  {line}" for line in _as_text(smallest[1])]
    if rest:
        lines.append(f"and {rest} more failures, none on a smaller model; --json has them all")
    if written is not None:
        lines.append(f"written: {written}")
    return Item(f"{report.rule}: FAILED ({tried}, {report.near_misses} near misses tried)", lines)


def _as_text(model: ir.Model) -> list[str]:
    """The lines of a model in ONNX's textual form."""
    import onnx
    import onnx_ir as ir

    lines = str(onnx.printer.to_text(ir.to_proto(model))).strip().splitlines()
    return lines if len(lines) <= LONGEST_MODEL else [*lines[:LONGEST_MODEL], "..."]
