"""The command `test-rules`: run the tests of rules that their declarations define."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ortfuse.cli.command_output import Answer
from ortfuse.cli.options_as_flags import with_options
from ortfuse.cli.parsing import NO
from ortfuse.cli.terminal import progress_line
from ortfuse.io.atomic_write import check_folder
from ortfuse.options.parse_text import whole_number


@with_options
def test_rules(
    rules: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files or folders with rules.")],
    spellings: Annotated[
        int,
        typer.Option(
            "--spellings",
            parser=whole_number(0),
            metavar="NUMBER",
            help="Number of spellings to try for pairs of options, beyond one for each option; by default 24.",
        ),
    ] = 24,
    counterexamples: Annotated[
        Path,
        typer.Option(
            "--counterexamples", help="Folder for models on which a rule is wrong; by default counterexamples."
        ),
    ] = Path("counterexamples"),
    *,
    answer: Answer,
) -> None:
    """Test rules of your own from their declarations: ortfuse test-rules my_rules.py

    Build instances of each pattern, run both sides in ONNX Runtime, and compare each with float64. Then build near misses, on
    which the rule must stay silent or be right.

    The exit code is 1 if a rule fails. A small model that shows the failure is written.
    """
    from ortfuse.io.atomic_write import demand_no_link
    from ortfuse.io.load_and_save import save
    from ortfuse.pipeline import rules_in
    from ortfuse.report.documents.rule_tests import rule_tests_document
    from ortfuse.verification.rule_tests import run_rule_test

    check_folder(counterexamples)
    reports, written = [], {}
    with progress_line(printed=True) as progress:
        for rule in rules_in(rules):
            progress(f"testing {rule.name}")
            report = run_rule_test(rule, pairs=spellings)
            reports.append(report)
            if report.smallest is not None:
                counterexamples.mkdir(parents=True, exist_ok=True)
                path = counterexamples / f"{rule.name}.onnx"
                demand_no_link(path, "remove it, or give another folder with --counterexamples")
                save(report.smallest[1], path)
                written[rule.name] = path
    answer.give(rule_tests_document(reports, written), {"rules": [report.to_dict() for report in reports]})
    if not all(report.passed for report in reports):
        raise typer.Exit(NO)
