"""Strength of the rule tests: the models that they try, and the lost conditions that they notice.

    python -m benchmarks.trust.rule_tests --write        # all rules
    python -m benchmarks.trust.rule_tests batch --write  # rules with "batch" in their names; the others stay in the raw result

The test of every rule is run. On every model that it tries, each mutant of the rule (`mutation`) is run too: the rule without one
guard or check. If a mutant acts otherwise than the rule, one of these models must show it to be wrong. Conditions that the rule
declares redundant are counted apart; if one is noticed all the same, the declaration is wrong. Equal sizes whose mutants act
otherwise but never wrongly are counted apart too: the operators imply them. The summary is written when no rule is missing.
"""

from __future__ import annotations

import json
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Annotated, Any

import typer

from benchmarks.results import Results
from ortfuse.pipeline import load_catalogue
from ortfuse.verification.rule_tests import prove
from ortfuse.verification.rule_tests.mutation_testing import Score, Trial, mutants

COMMAND = "python -m benchmarks.trust.rule_tests --write"
COUNTS = (
    "instances", "options", "options_covered", "pairs", "pairs_covered", "near_misses", "near_misses_fired",
    "counterexamples_tried",
)  # fmt: skip

Row = dict[str, Any]


def measure(position: int) -> tuple[str, Row]:
    """Run the test of one rule of the catalogue, and try its mutants on the way."""
    warnings.simplefilter("ignore")
    rule = list(load_catalogue([]).rules())[position]
    tried = list(mutants(rule))
    trial = Trial(tried)
    started = time.process_time()

    def witness(seen: Any) -> bool:
        trial.see(seen)
        return True

    report = prove(rule, witness=witness)
    score = Score()
    for mutant in tried:
        score.add(mutant, mutant.condition in trial.found, trial.acted[mutant.condition])
    return rule.name, {
        **{count: getattr(report, count) for count in COUNTS},
        "failures": report.failures[:3],
        "passed": report.proved,
        "mutants": score.mutants,
        "redundant": score.redundant,
        "implied": score.implied,
        "unnoticed": score.unnoticed,
        "stale": score.stale,
        "noticed": trial.found,
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def summed(rows: dict[str, Row]) -> Row:
    """The figures of all rules."""
    found = rows.values()
    return {
        "rules": len(rows),
        "passed": sum(row["passed"] for row in found),
        **{count: sum(row[count] for row in found) for count in COUNTS},
        "not_passed": {name: row["failures"] for name, row in rows.items() if not row["passed"]},
        "mutants": sum(row["mutants"] for row in found),
        "noticed": sum(len(row["noticed"]) for row in found),
        "redundant": sum(row["redundant"] for row in found),
        **{kind: [name for row in found for name in row[kind]] for kind in ("implied", "unnoticed", "stale")},
        "cpu_seconds": round(sum(row["cpu_seconds"] for row in found)),
    }


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Parts of rule names; all rules without any.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes.")] = 2,
    write: Annotated[bool, typer.Option("--write", help="Write the raw result, and the summary.")] = False,
) -> None:
    """Test every rule and try each of its mutants."""
    every = [rule.name for rule in load_catalogue([]).rules()]
    chosen = [i for i, name in enumerate(every) if not names or any(part in name for part in names)]
    rows: dict[str, Row] = {}
    with ProcessPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(measure, position) for position in chosen]):
            name, row = future.result()
            rows[name] = row
            lost = [*row["unnoticed"], *(f"stale: {stale}" for stale in row["stale"]), *row["failures"]]
            typer.echo("\n   ".join([f"{name}: {len(row['noticed'])}/{row['mutants']}, {row['cpu_seconds']} s", *lost]))
    results = Results("trust.rule_tests")
    known = {**results.raw_rows(), **rows}
    figures = summed({name: known[name] for name in every if name in known} if write else rows)
    typer.echo(json.dumps(figures, indent=1))
    if write:
        results.add(rows)
    if write and known.keys() >= {*every}:
        results.store(COMMAND, figures)


if __name__ == "__main__":
    typer.run(main)
