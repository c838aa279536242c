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
from pathlib import Path
from typing import Annotated, Any

import typer

from ortfuse.pipeline import load_catalogue
from ortfuse.proof import prove
from ortfuse.proof.mutation import Score, is_noticed, mutants

RESULTS = Path(__file__).parent / "results" / "proofs.json"
BEFORE = {"rules": 50, "instances": 1653, "near misses": 999, "mutants": 141, "noticed": 22}
COUNTS = (
    "instances", "options", "options_covered", "pairs", "pairs_covered", "near_misses", "near_misses_fired",
    "counterexamples_tried",
)  # fmt: skip


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Parts of rule names; all rules without any.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Write benchmarks/results/proofs.json.")] = False,
) -> None:
    """Prove every rule and each of its mutants."""
    warnings.simplefilter("ignore")
    totals: dict[str, Any] = dict.fromkeys(("rules", "proved", *COUNTS), 0)
    score, failing = Score(), {}
    seconds = {"proofs": 0.0, "mutation": 0.0}
    for rule in load_catalogue([]).rules():
        if names and not any(name in rule.name for name in names):
            continue
        started = time.process_time()
        report = prove(rule)
        seconds["proofs"] += time.process_time() - started
        totals["rules"] += 1
        totals["proved"] += report.proved
        if not report.proved:
            failing[rule.name] = list(dict.fromkeys(report.failures))[:3]
        for count in COUNTS:
            totals[count] += getattr(report, count)
        started = time.process_time()
        for mutant in mutants(rule):
            noticed = is_noticed(mutant, known=report.failures)
            score.add(mutant, noticed)
            if not noticed:
                typer.echo(f"not noticed: {mutant.name}")
        seconds["mutation"] += time.process_time() - started
    figures = {
        **totals,
        "not_proved": failing,
        "mutation": {
            "mutants": score.mutants, "noticed": score.noticed, "redundant": score.redundant,
            "share_of_relevant": round(score.share, 3), "unnoticed": score.unnoticed, "stale": score.stale,
        },
        "before": BEFORE,
        "cpu_seconds": {name: round(taken) for name, taken in seconds.items()},
    }  # fmt: skip
    typer.echo(json.dumps(figures, indent=1))
    if write:
        RESULTS.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
