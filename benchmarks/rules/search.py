"""Leave rules out where they fire, in the cheapest models first, until one shows a saving.

Every row is kept with the hash of its model and the versions of its rules: a stopped search goes on, and a changed rule is tried
again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

from benchmarks import isolated
from benchmarks.estimate import SAME, gain
from benchmarks.rules import trial
from benchmarks.rules.corpus import SOURCES, Sample

LIMIT = 600.0
"""Seconds for a call."""

TOGETHER = 8
"""Rules that are left out together, after each saved nothing in another model."""

MODELS, RULES = 8, 24
"""Models that are optimised, and rules that are left out, in a call."""

Row = dict[str, Any]
_Work = tuple[Sample, trial.Task]
_Member = TypeVar("_Member")


@dataclass
class Search:
    """A search for evidence.

    Attributes:
        samples: The models.
        versions: The version of each rule; rules that are not named are not left out.
        rows: The row of each model that was optimised, by name: see `trial.whole`, with the model's `hash`, the `versions` of
            the rules that fired, and the rows `without` each rule that was left out, with its version.
        keep: Called with the name and the row of a model after each change of the row.
        tries: The most models in which a rule is left out.
        jobs: Models that are worked on at a time.
        until: When no further model is begun, on the clock of `time.monotonic`.
    """

    samples: Sequence[Sample]
    versions: Mapping[str, str]
    rows: dict[str, Row]
    keep: Callable[[str, Row], None]
    tries: int = 12
    jobs: int = 1
    until: float = float("inf")
    _hashes: dict[str, str] = field(default_factory=dict)

    def optimise_all(self, tell: Callable[[str], None]) -> None:
        """Optimise each model whose row is missing, or was made by other versions of its rules."""
        lacking = [
            (sample, trial.Task(sample.path, sample.inputs, sample.max_opset))
            for sample in self.samples
            if not self._holds(sample)
        ]
        self._each(_batches(lacking, MODELS), self._take_whole, tell)

    def leave_out(self, names: Sequence[str], tell: Callable[[str], None]) -> bool:
        """Leave out rules and passes until each has shown a saving, or has been tried often enough; whether all are done."""
        while time.monotonic() < self.until:
            plan: dict[str, list[str]] = {}
            for name in names:
                if (sample := self.next_model(name)) is not None:
                    plan.setdefault(sample.name, []).append(name)
            if not plan:
                return True
            tell(f"leaving out {sum(map(len, plan.values()))} rules and passes in {len(plan)} models")
            self._each(self._packed(plan), self._take_without, tell)
        return False

    def _packed(self, plan: Mapping[str, list[str]]) -> list[list[_Work]]:
        """The tasks of a plan, as many to a call as leave out `RULES`."""
        calls: list[list[_Work]] = [[]]
        room = RULES
        for sample in self.samples:
            for part in _batches(plan.get(sample.name, ()), RULES):
                row = {key: self.rows[sample.name][key] for key in ("all", "rules")}
                work = sample, trial.Task(sample.path, sample.inputs, sample.max_opset, row, self._groups(part))
                if len(part) > room:
                    calls.append([])
                    room = RULES
                calls[-1].append(work)
                room -= len(part)
        return calls

    def next_model(self, name: str) -> Sample | None:
        """The next model to leave a rule out of; `None` if there is none, or enough is known."""
        tried = self.tried(name)
        if len(tried) >= self.tries or any(gain(left, whole) > SAME for left, whole in tried.values()):
            return None
        architectures = {sample.architecture for sample in self.samples if sample.name in tried}
        waiting = [sample for sample in self.fired_in(name) if sample.name not in tried and self._has_prices(sample)]
        return min(waiting, key=lambda sample: self._order(sample, architectures), default=None)

    def fired_in(self, name: str) -> list[Sample]:
        """The models in which a rule, or a pass, changes something."""
        return [sample for sample in self.samples if self.sites(name, sample)]

    def sites(self, name: str, sample: Sample) -> int:
        """The sites of a rule, or the changes of a pass, in a model."""
        row = self.rows.get(sample.name, {})
        if name.startswith(trial.PASS):
            return int(row.get("passes", {}).get(name.removeprefix(trial.PASS), 0))
        return int(row.get("rules", {}).get(name, 0))

    def tried(self, name: str) -> dict[str, tuple[Row, Row]]:
        """The models from which a rule was left out: the row without it, and the prices with it."""
        found = {}
        for sample in self.samples:
            row = self.rows.get(sample.name, {})
            left = row.get("without", {}).get(name)
            if left is not None and left["version"] == self._version(name):
                found[sample.name] = (left, row["all"])
        return found

    def _order(self, sample: Sample, known: set[str]) -> tuple[Any, ...]:
        """Tests of the standard last; an architecture that is not known yet first; then by time."""
        return sample.source == SOURCES[-1], sample.architecture in known, self.rows[sample.name]["seconds"]

    def _has_prices(self, sample: Sample) -> bool:
        return "all" in self.rows.get(sample.name, {})

    def _version(self, name: str) -> str:
        return "" if name.startswith(trial.PASS) else self.versions.get(name, "")

    def _hash(self, sample: Sample) -> str:
        if sample.name not in self._hashes:
            self._hashes[sample.name] = sample.hash()
        return self._hashes[sample.name]

    def _holds(self, sample: Sample) -> bool:
        """Whether the row of a model is there, and made by the rules of today."""
        row = self.rows.get(sample.name)
        if row is None or row["hash"] != self._hash(sample):
            return False
        return all(self.versions.get(name) == version for name, version in row["versions"].items())

    def _take_whole(self, work: _Work, row: Row) -> str:
        sample, _ = work
        before = self.rows.get(sample.name, {})
        same = before.get("hash") == self._hash(sample) and before.get("all") == row.get("all")
        row |= {
            "source": sample.source,
            "hash": self._hash(sample),
            "versions": {name: self.versions.get(name, "") for name in row.get("rules", ())},
            "without": before.get("without", {}) if same else {},
        }
        self.rows[sample.name] = row
        self.keep(sample.name, row)
        return f"{len(row.get('rules', ()))} rules fire" + (f" ({row['error']})" if "error" in row else "")

    def _groups(self, names: Sequence[str]) -> list[list[str]]:
        """Names to leave out together: those that changed no price where they were left out before."""

        def idle(name: str) -> bool:
            tried = self.tried(name)
            return bool(tried) and all(gain(left, whole) == 0 for left, whole in tried.values())

        groups: list[list[str]] = []
        for is_idle, some in groupby(sorted(names, key=idle), key=idle):
            groups += _batches(list(some), TOGETHER if is_idle else 1)
        return groups

    def _take_without(self, work: _Work, found: Row) -> str:
        sample, task = work
        row, names = self.rows[sample.name], [name for group in task.groups for name in group]
        if "error" in found:  # the call itself failed: no evidence, and no further try
            found = {name: {**row["all"], "failed": found["error"]} for name in names}
        row["without"] |= {name: {**left, "version": self._version(name)} for name, left in found.items()}
        self.keep(sample.name, row)
        saving = [name for name, left in found.items() if gain(left, row["all"]) > SAME]
        return f"{len(saving)} of {len(names)} save something"

    def _each(
        self, calls: Sequence[list[_Work]], take: Callable[[_Work, Row], str], tell: Callable[[str], None]
    ) -> None:
        """Do tasks in processes of their own, `jobs` at a time; those of a call that fails one by one."""
        waiting, count = deque(calls), sum(map(len, calls))
        number = 0
        with ThreadPoolExecutor(self.jobs) as pool:
            running: dict[Future[isolated.Outcome], list[_Work]] = {}
            while waiting or running:
                while waiting and len(running) < self.jobs and time.monotonic() < self.until:
                    call = waiting.popleft()
                    tasks = [task for _, task in call]
                    running[pool.submit(isolated.call, trial.done, tasks, limit=LIMIT)] = call
                if not running:
                    return
                done = next(as_completed(running))
                call, outcome = running.pop(done), done.result()
                if outcome.error is not None and len(call) > 1:
                    waiting.extendleft([work] for work in reversed(call))
                    continue
                rows = [{"error": outcome.error, "seconds": 0.0}] if outcome.error is not None else outcome.value
                for work, row in zip(call, rows, strict=True):
                    number += 1
                    tell(f"{number}/{count} {work[0].name}: {take(work, row)}")


def _batches(members: Sequence[_Member], most: int) -> list[list[_Member]]:
    return [list(members[start : start + most]) for start in range(0, len(members), most)]
