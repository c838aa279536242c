"""Optimise models with all rules, and without some; run in processes of their own (`benchmarks.isolated`)."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import ortfuse
from benchmarks.estimate import PRICES, weigh
from ortfuse.errors import OrtfuseError
from ortfuse.pipeline import RunReport
from ortfuse.runtime.bench import typical_inputs
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.targets import Target, default_spec, shipped_tables

PASS = "pass "
"""The beginning of what stands for a pass among rules."""

ALWAYS = ("finalize",)
"""Passes without which there is no result."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A model to optimise.

    Attributes:
        path: The model.
        inputs: The file of its inputs; `None` for inputs of usual sizes.
        max_opset: The limit for the opset of results; `None` is that of the target.
        row: The row of `whole`, if something is to be left out.
        groups: Names that are left out together; if this changes the prices, one by one. None for `whole`.
    """

    path: Path
    inputs: Path | None
    max_opset: int | None = None
    row: Row = field(default_factory=dict)
    groups: Sequence[Sequence[str]] = ()


def done(tasks: Sequence[Task]) -> list[Row]:
    """Do some tasks one after the other, in a process that has loaded the rules: see `whole` and `without`."""
    return [without(task) if task.groups else whole(task) for task in tasks]


def whole(task: Task) -> Row:
    """Optimise a model with everything.

    Returns:
        The pass list, the sites of each rule, the changes of each pass, the prices of the original and the result, and the
        seconds that this took. Without prices, `error` says why.
    """
    started = time.monotonic()
    model = ortfuse.load(task.path)
    report = _manager(task.max_opset).run(model)
    fired, changes = _hits(report), _changes(report)
    row: Row = {"list": report.pass_list.partition(",")[0].partition(";")[0], "rules": fired, "passes": changes}
    try:
        given = _inputs(task)
        row |= {"original": weigh(ortfuse.load(task.path), given), "all": weigh(model, given)}
    except OrtfuseError as error:
        row["error"] = str(error)[:200]
    return {**row, "seconds": round(time.monotonic() - started, 2)}


def without(task: Task) -> dict[str, Row]:
    """Optimise a model without each of some rules and passes.

    Returns:
        By name the prices without it, `lost` (rules with fewer sites then) and `instead` (rules with more).
    """
    given = _inputs(task)
    found: dict[str, Row] = {}
    for names in task.groups:
        row = _without(task, given, names)
        if len(names) == 1 or ("error" not in row and all(row[price] == task.row["all"][price] for price in PRICES)):
            found |= {name: {**row, "together": len(names)} if len(names) > 1 else row for name in names}
        else:
            found |= {name: _without(task, given, [name]) for name in names}
    return found


def _without(task: Task, inputs: Inputs, names: Sequence[str]) -> Row:
    passes = [name.removeprefix(PASS) for name in names if name.startswith(PASS)]
    rules = [name for name in names if not name.startswith(PASS)]
    model = ortfuse.load(task.path)
    try:
        report = _manager(task.max_opset).without(passes).without_rules(rules).run(model)
        row: Row = {**weigh(model, inputs)}
    except OrtfuseError as error:
        return {"error": str(error)[:200]}
    before: Counter[str] = Counter(task.row["rules"])
    after: Counter[str] = Counter(_hits(report))
    changed = {"lost": before - after, "instead": after - before}
    return row | {kind: {name: n for name, n in rows.items() if name not in names} for kind, rows in changed.items()}


@functools.cache
def _manager(max_opset: int | None) -> ortfuse.PassManager:
    target = Target(costs=shipped_tables(default_spec())[0])
    return ortfuse.PassManager(ortfuse.Options(target=target, max_opset=max_opset))


def _inputs(task: Task) -> Inputs:
    if task.inputs is None:
        return typical_inputs(ortfuse.load(task.path))[1]
    with np.load(task.inputs) as stored:
        return dict(stored)


def _hits(report: RunReport) -> dict[str, int]:
    found: Counter[str] = Counter()
    for leaf in (leaf for item in report.passes for leaf in item.leaves()):
        found.update(leaf.hits)
    return dict(found)


def _changes(report: RunReport) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for leaf in (leaf for item in report.passes for leaf in item.leaves()):
        if leaf.changes and leaf.name not in ALWAYS:
            found[leaf.name] += leaf.changes
    return dict(found)
