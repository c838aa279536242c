"""One batch in a process of its own, so that a crash of native code, a hang or a lack of memory ends only the batch.

The case at hand is written to a file before it is tried: what a dead process leaves there is what killed it.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

import ortfuse
from ortfuse.errors import OrtfuseError, VerificationError

from .judge import Failure, HangError, judge, limited
from .known import known_cause
from .models import Sample, samples
from .mutations import mutated_bytes, mutated_structure

MEMORY = 8 << 30
"""Bytes of address space that a batch may take."""

STAGE = "stage"
"""The file that says what a batch was doing."""


class Batch:
    """What came of a number of cases."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tried = self.executed = self.rewritten = 0
        self.operators: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.failures: dict[str, dict[str, Any]] = {}
        self.known: Counter[str] = Counter()

    def note(self, failure: Failure, content: bytes, feeds: list[dict[str, Any]] | None = None) -> None:
        """Keep the first failure of each signature, with its model."""
        if (why := known_cause(failure)) is not None:
            self.known[why] += 1
            return
        entry = self.failures.setdefault(failure.signature, {"count": 0, "detail": failure.detail})
        entry["count"] += 1
        if entry["count"] == 1:
            entry["model"] = f"{abs(hash(failure.signature)) % 10**8}.onnx"
            (self.folder / entry["model"]).write_bytes(content)
            if feeds is not None:
                import pickle

                (self.folder / entry["model"]).with_suffix(".feeds").write_bytes(pickle.dumps(feeds))

    def to_dict(self) -> dict[str, Any]:
        """Everything as data for JSON."""
        return {key: value for key, value in vars(self).items() if key != "folder"}


def run_models(batch: Batch, number: int, count: int, nearly: bool) -> None:
    """Judge `count` random models; in every second batch many are at the edges of what is defined."""

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(samples(nearly=nearly, edges=bool(number % 2)))
    def each(sample: Sample) -> None:
        content = sample.model.SerializeToString()
        (batch.folder / "current.onnx").write_bytes(content)
        batch.tried += 1
        try:
            failure, hits = judge(sample.model, sample.feeds, on_stage=(batch.folder / STAGE).write_text)
        except VerificationError as error:
            batch.outcomes[f"not executed: {str(error)[:60]}"] += 1
            return
        batch.executed += 1
        batch.rewritten += bool(hits)
        batch.operators.update(sample.operators)
        batch.rules.update(hits)
        if failure is not None:
            batch.note(failure, content, sample.feeds)

    each()


def run_mutations(batch: Batch, number: int, count: int) -> None:
    """Load and optimise `count` damaged files."""
    whole: list[bytes] = []

    @seed(number)
    @settings(
        max_examples=20, database=None, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
    )
    @given(samples())
    def collect(sample: Sample) -> None:
        whole.append(sample.model.SerializeToString())

    collect()
    rng = random.Random(number)
    path = batch.folder / "current.onnx"
    for _ in range(count):
        content = rng.choice([mutated_bytes, mutated_structure, mutated_structure])(rng.choice(whole), rng)
        path.write_bytes(content)
        batch.tried += 1
        failure = try_file(path, batch.outcomes)
        if failure is not None:
            batch.note(failure, content)


def try_file(path: Path, outcomes: Counter[str], seconds: int = 60) -> Failure | None:
    """Load a file, optimise it and save the result; every end but a result or an error of ortfuse's is a failure."""
    try:
        with limited(seconds):
            result = ortfuse.optimize(path, level="all")
            result.save(path.with_suffix(".out"))
        if result.report.failures:
            return Failure("exception", "; ".join(result.report.failures), "")
        outcomes["result"] += 1
    except OrtfuseError as error:
        outcomes[type(error).__name__] += 1
    except HangError:
        return Failure("hang", traceback.format_exc().splitlines()[-3].strip(), f"more than {seconds} s")
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = " < ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.name}" for frame in reversed(frames[-3:]))
        return Failure("exception", f"{type(error).__name__} {place}", traceback.format_exc()[-2000:])
    return None


def main(kind: str, number: int, count: int, folder: Path, nearly: bool) -> None:
    """Run one batch and print it as JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    batch = Batch(folder)
    if kind == "models":
        run_models(batch, number, count, nearly)
    else:
        run_mutations(batch, number, count)
    print(json.dumps(batch.to_dict()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5] == "nearly")
