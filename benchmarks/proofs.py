"""How strong the proofs of the catalogue are: what they try, and how many lost conditions they notice.

    python benchmarks/proofs.py --write

For every rule the proof is run, then again for each of its mutants (`ortfuse/proof/mutation.py`): the rule without one guard
or check. The proof of a mutant must fail otherwise than the rule's own. Conditions that a rule's proof declares redundant are
counted apart; one that is noticed all the same is an error of the declaration. `BEFORE` is what the same mutants gave with
six random spellings and the first near misses.
"""

from __future__ import annotations

import json
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from ortfuse.pipeline import load_catalogue
from ortfuse.proof import ProofReport, prove
from ortfuse.proof.mutation import Score, is_noticed, mutants

RESULTS = Path(__file__).parent / "results" / "proofs.json"
BEFORE = {"rules": 50, "instances": 1653, "near misses": 999, "mutants": 141, "noticed": 22}
COUNTS = (
    "instances", "options", "options_covered", "pairs", "pairs_covered", "near_misses", "near_misses_fired",
    "counterexamples_tried",
)  # fmt: skip


class Result(NamedTuple):
    """What the proof of one rule and those of its mutants gave."""

    report: ProofReport
    score: Score
    proof_seconds: float
    mutation_seconds: float


def measure(position: int) -> Result:
    """Prove one rule of the catalogue and each of its mutants."""
    warnings.simplefilter("ignore")
    rule = list(load_catalogue([]).rules())[position]
    started = time.process_time()
    report = prove(rule)
    proved = time.process_time()
    score = Score()
    for mutant in mutants(rule):
        score.add(mutant, is_noticed(mutant, known=report.failures))
    report.counterexamples.clear()
    return Result(report, score, proved - started, time.process_time() - proved)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Parts of rule names; all rules without any.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes.")] = 2,
    write: Annotated[bool, typer.Option("--write", help="Write benchmarks/results/proofs.json.")] = False,
) -> None:
    """Prove every rule and each of its mutants."""
    rules = list(load_catalogue([]).rules())
    chosen = [i for i, rule in enumerate(rules) if not names or any(name in rule.name for name in names)]
    results = []
    with ProcessPoolExecutor(jobs) as pool:
        for result in pool.map(measure, chosen):
            results.append(result)
            typer.echo(f"{result.report.rule}: {result.score.noticed}/{result.score.mutants} {result.score.unnoticed}")
    figures = {
        "rules": len(results),
        "proved": sum(result.report.proved for result in results),
        **{count: sum(getattr(result.report, count) for result in results) for count in COUNTS},
        "not_proved": {r.report.rule: r.report.failures[:3] for r in results if not r.report.proved},
        "mutation": {
            **{count: sum(getattr(r.score, count) for r in results) for count in ("mutants", "noticed", "redundant")},
            **{kind: [name for r in results for name in getattr(r.score, kind)] for kind in ("unnoticed", "stale")},
        },
        "before": BEFORE,
        "cpu_seconds": {
            "proofs": round(sum(r.proof_seconds for r in results)),
            "mutation": round(sum(r.mutation_seconds for r in results)),
        },
    }
    typer.echo(json.dumps(figures, indent=1))
    if write:
        RESULTS.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
