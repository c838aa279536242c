"""The commands about rules: `passes` and `test-rules`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ortfuse.cli.arguments import Debug, Json, check_folder
from ortfuse.cli.given_options import Given, with_options
from ortfuse.cli.json_output import check_json, write_json
from ortfuse.cli.parsing import NO
from ortfuse.cli.terminal import guarded, out, progress_line
from ortfuse.options.parse_text import whole_number


@with_options
def passes(
    given: Given,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Pass, rule, family of rules or pass list to describe.", show_default=False
        ),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(
            "--family",
            metavar="FAMILY",
            help="Family whose rules alone are listed, such as attention.",
            show_default=False,
        ),
    ] = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """List all passes, rules and pass lists: ortfuse passes fold

    With the name of a pass, describe it, its options and an example. With a rule, show its formula, exactness, operators and
    source. With a family, list its rules. With a pass list, list its passes, and the models that auto takes it for.
    """
    with guarded(debug):
        from ortfuse.pipeline import lists_with, load_catalogue
        from ortfuse.pipeline.descriptions import described
        from ortfuse.report.terminal.catalogue import show_named, show_passes

        check_json(json_file)
        known = lists_with(given.get("lists", []))
        found = described(load_catalogue(given.get("patterns", [])), known)
        chosen = found.of(name or "", family or "")
        if name is None:
            show_passes(out, chosen, () if family else known.values())
        else:
            show_named(out, chosen)
        write_json(json_file, "passes", chosen.to_dict())


def test_rules(
    rules: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files or folders with rules.", show_default=False)
    ],
    spellings: Annotated[
        int,
        typer.Option(
            "--spellings",
            parser=whole_number(0),
            metavar="NUMBER",
            help="Number of spellings to try for pairs of options, beyond one for each option.",
        ),
    ] = 24,
    counterexamples: Annotated[
        Path, typer.Option("--counterexamples", help="Folder for models on which a rule is wrong.")
    ] = Path("counterexamples"),
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Test rules of your own from their declarations: ortfuse test-rules my_rules.py

    Build instances of each pattern, run both sides in ONNX Runtime, and compare each with float64. Then build near misses, on
    which the rule must stay silent or be right.

    The exit code is 1 if a rule fails. A small model that shows the failure is written.
    """
    with guarded(debug):
        from ortfuse.io.atomic_write import demand_no_link
        from ortfuse.io.files import save
        from ortfuse.pipeline import rules_in
        from ortfuse.report.terminal.console import show_rule_test
        from ortfuse.verification.rule_tests import run_rule_test

        check_json(json_file)
        check_folder(counterexamples)
        own = rules_in(rules)
        if not own:
            out.print("there is nothing to test: RULES is empty (passes have no rule test)", highlight=False)
        reports = []
        for rule in own:
            with progress_line() as progress:
                progress(f"testing {rule.name}")
                report = run_rule_test(rule, pairs=spellings)
            reports.append(report)
            show_rule_test(out, report)
            if report.smallest is not None:
                counterexamples.mkdir(parents=True, exist_ok=True)
                path = counterexamples / f"{rule.name}.onnx"
                demand_no_link(path, "remove it, or give another folder with --counterexamples")
                save(report.smallest[1], path)
                out.print(f"  written: {path}", markup=False, highlight=False)
        write_json(json_file, "test-rules", {"rules": [report.to_dict() for report in reports]})
    if not all(report.passed for report in reports):
        raise typer.Exit(NO)
