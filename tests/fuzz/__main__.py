"""The long run.

    python -m tests.fuzz --minutes 30 [--seed 0] [--nearly]

Batches of random models and of damaged files take turns, each in a process of its own. Figures go to the summary `trust.fuzz`
of the benchmarks, and failing models (made small) to the folder that is printed.
"""

from __future__ import annotations

import argparse
import json
import pickle
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
from onnx import printer

from benchmarks.results import Results

from .judge import judge
from .reduce import reduced
from .worker import STAGE

ROOT = Path(__file__).parents[2]
COUNTS = {"models": 400, "mutations": 800}
"""Cases in a batch."""

_BATCH_SECONDS = 900


def run(minutes: float, first: int, nearly: bool, folder: Path) -> dict[str, Any]:
    """Run batches until the time is up; the sums of what they found."""
    totals = {kind: _Total() for kind in COUNTS}
    ends = time.monotonic() + 60 * minutes
    number = first
    while time.monotonic() < ends:
        for kind, total in totals.items():
            place = folder / f"{kind}.{number}"
            place.mkdir()
            total.add(*_batch(kind, number, place, nearly), place)
            print(f"{kind} {number}: {total.tried} tried, {len(total.failures)} kinds of failures", flush=True)
        number += 1
    return {kind: total.to_dict() for kind, total in totals.items()}


def _batch(kind: str, number: int, place: Path, nearly: bool) -> tuple[dict[str, Any] | None, str]:
    command = [sys.executable, "-m", "tests.fuzz.worker", kind, str(number), str(COUNTS[kind]), str(place)]
    try:
        done = subprocess.run(
            [*command, "nearly" if nearly else "plain"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=_BATCH_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None, f"hang of a batch after {_BATCH_SECONDS} s"
    if done.returncode:
        return None, f"the process ended with {done.returncode}: {done.stderr[-500:]}"
    return json.loads(done.stdout.splitlines()[-1]), ""


class _Total:
    def __init__(self) -> None:
        self.tried = self.executed = self.rewritten = 0
        self.operators: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.known: Counter[str] = Counter()
        self.failures: dict[str, dict[str, Any]] = {}

    def add(self, found: dict[str, Any] | None, problem: str, place: Path) -> None:
        if found is None:
            (place / "current.onnx").rename(place / "killed.onnx")
            stage = (place / STAGE).read_text() if (place / STAGE).exists() else "optimising"
            entry = {"count": 1, "detail": problem, "model": "killed.onnx"}
            found = {"failures": {f"crash while {stage}": entry}}
            if stage == "running the original":
                found = {"failures": {}, "outcomes": {"the runtime crashed on the original": 1}}
        for name in ("tried", "executed", "rewritten"):
            setattr(self, name, getattr(self, name) + found.get(name, 0))
        for name in ("operators", "rules", "outcomes", "known"):
            getattr(self, name).update(found.get(name, {}))
        for signature, entry in found["failures"].items():
            mine = self.failures.setdefault(signature, {**entry, "model": str(place / entry["model"]), "count": 0})
            mine["count"] += entry["count"]

    def to_dict(self) -> dict[str, Any]:
        return {
            "tried": self.tried,
            "executed by the runtime": self.executed,
            "rewritten by rules": self.rewritten,
            "operators covered": len(self.operators),
            "rules covered": dict(self.rules.most_common()),
            "outcomes": dict(self.outcomes.most_common(12)),
            "known failures": dict(self.known),
            "failures": self.failures,
        }


def _make_small(failures: dict[str, dict[str, Any]]) -> None:
    for entry in failures.values():
        path = Path(entry["model"])
        if not path.with_suffix(".feeds").exists():
            continue
        model, feeds = onnx.load(path), pickle.loads(path.with_suffix(".feeds").read_bytes())
        before, _ = judge(model, feeds)

        def fails(candidate: onnx.ModelProto, given: list[Any], kind: str | None = before and before.kind) -> bool:
            found, _ = judge(candidate, given)
            return found is not None and found.kind == kind

        if before is not None:
            small, given = reduced(model, feeds, fails)
            onnx.save(small, path.with_suffix(".small.onnx"))
            path.with_suffix(".feeds").write_bytes(pickle.dumps(given))
            entry["small"] = printer.to_text(small)[:4000]


def brief(found: dict[str, Any]) -> dict[str, Any]:
    """Return the summary: the number of rules covered, and of each kind of failure the number of cases."""
    return {
        kind: {
            **entry,
            "rules covered": len(entry["rules covered"]),
            "failures": {signature: one["count"] for signature, one in entry["failures"].items()},
        }
        for kind, entry in found.items()
    }


def main() -> None:
    """Run, write the figures, and end with 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nearly", action="store_true", help="constants a millionth off neutral ones, too")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ortfuse-fuzz-"))
    print(f"failing models go to {folder}")
    found = run(options.minutes, options.seed, options.nearly, folder)
    failures = {**found["models"]["failures"], **found["mutations"]["failures"]}
    _make_small(failures)
    for entry in failures.values():
        entry["model"] = Path(entry["model"]).name
    command = f"python -m tests.fuzz --minutes {options.minutes:g} --seed {options.seed}" + " --nearly" * options.nearly
    Results("trust.fuzz", options.output).store(command, brief(found), raw=found)
    for signature, entry in failures.items():
        print(f"{entry['count']} x {signature}\n{entry['detail'][-600:]}\n{entry.get('small', '')}\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
