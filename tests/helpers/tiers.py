"""Divide the tests into tiers: `pytest -m fast` selects those of the daily loop, a plain run is everything.

The tier of a test follows from the processor seconds that its function took when durations were last recorded
(`tests/durations.json`, which `pytest --record-durations` writes):

- a function that is not in the file is new or quick, and all its cases are fast;
- of a function that is, as many cases are fast as take `MOST` seconds together, none if one case takes longer;
- with the mark `sample(n)` it is n cases, whatever they take; with the mark `slow` it is none.

Cases are spread evenly over families: what their names begin with, such as `bert` of `bert.sdpa.ts`.
"""

from __future__ import annotations

import json
import os
import re
import resource
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

DURATIONS = "tests/durations.json"
"""The file of durations, from the root of the checkout."""
MOST = 0.1
"""Processor seconds that the cases of one function may take in the fast tier."""
OTHERS = "all others"
"""Stands in the file for the functions that take less than `MOST` together."""

_SECONDS = "processor seconds"
_FAMILY = re.compile(r"[^\W_]*")
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

Durations = Mapping[str, tuple[int, float]]
"""The cases of test functions (`FILE::FUNCTION`, without folders), and the seconds that they took together."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tiers").addoption(
        "--record-durations",
        action="store_true",
        help="write the processor seconds of the tests that run to tests/durations.json",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fast: in the tier of the daily loop; given by itself")
    config.addinivalue_line("markers", "slow: never in the fast tier")
    config.addinivalue_line("markers", "sample(n): n of the cases are in the fast tier")
    if config.getoption("--record-durations"):
        config.pluginmanager.register(
            Recorder(config.rootpath / DURATIONS, is_worker=hasattr(config, "workerinput")), "recorder of durations"
        )


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    durations = read_durations(config.rootpath / DURATIONS)
    functions: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        functions.setdefault((item.path, name_of(item).partition("::")[2]), []).append(item)
    for cases in functions.values():
        marks = [mark for mark in ("slow", "sample") if cases[0].get_closest_marker(mark)]
        sample = cases[0].get_closest_marker("sample")
        number = fast_cases(
            durations, name_of(cases[0]), len(cases), "slow" in marks, sample.args[0] if sample else None
        )
        names = [getattr(getattr(case, "callspec", None), "id", "") for case in cases]
        for index in spread(names, number):
            cases[index].add_marker("fast")


def name_of(item: pytest.Item) -> str:
    """The file and the function of a test, without folders and parameters."""
    return f"{item.path.name}::{getattr(item, 'originalname', item.name)}"


def fast_cases(durations: Durations, name: str, cases: int, is_slow: bool = False, sample: int | None = None) -> int:
    """How many of the cases of a test function are in the fast tier."""
    if is_slow:
        return 0
    if sample is not None:
        return min(sample, cases)
    known, seconds = durations.get(name, (1, 0.0))
    return min(cases, int(MOST * known / seconds)) if seconds > MOST else cases


def spread(names: Sequence[str], number: int) -> list[int]:
    """The positions of so many names, spread evenly over their families, and over each family."""
    if number >= len(names):
        return list(range(len(names)))
    families: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        found = _FAMILY.match(name)
        families.setdefault(found.group() if found else "", []).append(index)
    order = [[family[place] for place in _evenly(len(family))] for family in families.values()]
    taken: list[int] = []
    for turn in range(max(map(len, order), default=0)):
        able = [family for family in order if len(family) > turn]
        left = number - len(taken)
        chosen = range(len(able)) if left >= len(able) else [index * len(able) // left for index in range(left)]
        taken += [able[index][turn] for index in chosen]
        if len(taken) == number:
            break
    return sorted(taken)


def _evenly(count: int) -> list[int]:
    """Positions from 0 on in an order of which each beginning is spread evenly: halves, then quarters."""
    found: dict[int, None] = {}
    parts = 1
    while len(found) < count:
        found |= dict.fromkeys(index * count // parts for index in range(parts))
        parts *= 2
    return list(found)


# Durations


def read_durations(file: Path) -> dict[str, tuple[int, float]]:
    """The durations on file; none if there is no such file."""
    if not file.is_file():
        return {}
    return {name: (int(cases), float(seconds)) for name, (cases, seconds) in json.loads(file.read_text()).items()}


def write_durations(file: Path, found: Durations) -> None:
    """Store durations, those below `MOST` as one sum."""
    listed = {name: one for name, one in sorted(found.items()) if one[1] >= MOST}
    others = [one for name, one in found.items() if name not in listed]
    listed[OTHERS] = (sum(cases for cases, _ in others), sum(seconds for _, seconds in others))
    lines = [f" {json.dumps(name)}: [{cases}, {seconds:.2f}]" for name, (cases, seconds) in listed.items()]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


class Recorder:
    """Measures each test, and writes the durations when the run ends; files of which nothing ran stay as they were."""

    def __init__(self, file: Path, is_worker: bool) -> None:
        self._file, self._is_worker = file, is_worker
        self._found: dict[str, tuple[int, float]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        item.user_properties.append((_SECONDS, (name_of(item), -processor_seconds())))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        if call.when == "teardown":
            (place,) = [place for place, (kind, _) in enumerate(item.user_properties) if kind == _SECONDS]
            measured: Any = item.user_properties[place][1]
            item.user_properties[place] = (_SECONDS, (measured[0], processor_seconds() + measured[1]))
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        taken: Any = dict(report.user_properties).get(_SECONDS)
        if report.when == "teardown" and taken is not None and not self._is_worker:
            name, seconds = taken
            cases, known = self._found.get(name, (0, 0.0))
            self._found[name] = (cases + 1, known + seconds)

    def pytest_sessionfinish(self) -> None:
        if self._found and not self._is_worker:
            files = {name.partition("::")[0] for name in self._found}
            before = read_durations(self._file)
            before.pop(OTHERS, None)
            kept = {name: one for name, one in before.items() if name.partition("::")[0] not in files}
            write_durations(self._file, kept | self._found)


def processor_seconds() -> float:
    """Processor seconds of this process and of its children, those that still run included where the system tells."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = sum(found.ru_utime + found.ru_stime for found in map(resource.getrusage, kinds))
    return used + _seconds_of_children("self")


def _seconds_of_children(process: str) -> float:
    total = 0.0
    for file in Path("/proc", process, "task").glob("*/children"):
        for child in _read(file).split():
            numbers = _read(Path("/proc", child, "stat")).rpartition(")")[2].split()
            total += sum(map(int, numbers[11:15])) / _TICKS + _seconds_of_children(child)
    return total


def _read(file: Path) -> str:
    """The text of the system there; empty for a process that has ended."""
    try:
        return file.read_text()
    except OSError:
        return ""
