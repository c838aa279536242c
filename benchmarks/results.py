"""Results of benchmarks: the raw numbers in a folder that git ignores, one summary per question in the tree.

A question is a job of `benchmarks.jobs`; its name names the files:

- `benchmarks/.results/NAME.json`: the raw result, each processor apart.
- `benchmarks/summaries/NAME.json`: the summary, which the documents quote and a later run continues from.

A summary says which question it answers, the command that made it, and for each run the date, machine, versions and result.
Questions whose answer depends on the processor keep one run per kind of processor, all others one run.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.jobs import JOBS

HERE = Path(__file__).parent
SUMMARIES = HERE / "summaries"
RAW = HERE / ".results"
SUFFIX = ".summary.json"
"""The end of a summary's name beside a raw result that goes to a path of the user's."""

PACKAGES = ("ortfuse", "onnx", "onnx-ir", "onnxruntime")
DIGITS = 6
"""Significant digits of a number in a summary."""

WIDTH = 118
"""Objects and lists that fit into so many characters take one line."""

SHORT = 56
"""Members of so many characters share lines."""


class Results:
    """The results of one question.

    Attributes:
        name: The job.
        raw: The file of the raw result.
        summary: The file of the summary.
    """

    def __init__(self, name: str, output: Path | None = None, processor: str = "") -> None:
        """Name a question.

        Args:
            name: The job in `benchmarks.jobs`.
            output: The file of the raw result; the summary stands beside it. By default both go to their folders.
            processor: The kind of processor that the answer is about; empty if it depends on none.
        """
        self.name, self._processor = name, processor
        self.raw = output or RAW / f"{name}.json"
        self.summary = output.with_suffix(SUFFIX) if output else SUMMARIES / f"{name}.json"

    def result(self) -> dict[str, Any]:
        """Return the result that the summary has for this processor; empty if there is none."""
        found = [run for run in _runs(self.summary) if run.get("processor", "") == self._processor]
        return dict(found[0]["result"]) if found else {}

    def rows(self) -> dict[str, Any]:
        """Return the summarised rows by model."""
        return dict(self.result().get("models", {}))

    def raw_rows(self) -> dict[str, Any]:
        """Return the raw rows; empty if the raw result is not on this machine."""
        return dict(_content(self.raw).get(self._processor, {}))

    def store(
        self, command: str, result: Mapping[str, Any], *, raw: Mapping[str, Any] | None = None,
        packages: Sequence[str] = PACKAGES,
    ) -> dict[str, Any]:  # fmt: skip
        """Write the summary, add rows to the raw result, and return the run as the summary has it.

        Runs of other processors and other raw rows stay.

        Args:
            command: The command that made the result.
            result: The content of the summary; floating-point numbers are rounded to `DIGITS`.
            raw: Raw rows by name.
            packages: The packages whose versions are recorded, as far as they are installed.
        """
        run = {
            **({"processor": self._processor} if self._processor else {}),
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "versions": versions(packages),
            "result": rounded(result),
        }
        _write_summary(self.summary, self.name, command, [run])
        self.add(raw or {})
        return run

    def add(self, raw: Mapping[str, Any]) -> None:
        """Add rows by name to the raw result, and leave the summary as it is."""
        if raw:
            content = _content(self.raw)
            content[self._processor] = {**content.get(self._processor, {}), **raw}
            write(self.raw, json.dumps(content, indent=1))


def keep(name: str, made: Path) -> None:
    """Put a summary that was written elsewhere into its place; runs of other processors stay there."""
    _write_summary(SUMMARIES / f"{name}.json", name, _content(made)["command"], _runs(made))


def read(name: str) -> list[dict[str, Any]]:
    """Return the runs of a question; empty if there is no summary."""
    return _runs(SUMMARIES / f"{name}.json")


def machine() -> str:
    """Return the cores, the architecture and the version of Python."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of the packages that are installed."""

    def installed() -> Iterator[tuple[str, str]]:
        for package in packages:
            try:
                yield package, version(package)
            except PackageNotFoundError:
                continue

    return dict(installed())


def rounded(value: Any) -> Any:
    """Return JSON data with all floating-point numbers rounded to `DIGITS` significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, (list, tuple)) else value


def text(value: Any, before: int = 0, indent: int = 0) -> str:
    """Return JSON text: an object or list that fits takes one line, and short members of a longer one share lines.

    Args:
        value: JSON data.
        before: The characters in front of it in its line, besides the indentation.
        indent: The spaces in front of that line.
    """
    short = json.dumps(value)
    if not isinstance(value, (dict, list)) or not value or indent + before + len(short) <= WIDTH:
        return short
    inner = indent + 1
    keys = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    members = value.values() if isinstance(value, dict) else value
    lines: list[str] = []
    room = 0
    for key, one in zip(keys, members, strict=True):
        made = key + text(one, len(key), inner)
        if len(made) <= min(room, SHORT):
            lines[-1] += f", {made}"
            room -= len(made) + 2
        else:
            lines.append(made)
            room = WIDTH - inner - len(made) - 2 if len(made) <= SHORT else 0
    first, last = "{}" if isinstance(value, dict) else "[]"
    between = ",\n" + " " * inner
    return f"{first}\n{' ' * inner}{between.join(lines)}\n{' ' * indent}{last}"


def _runs(path: Path) -> list[dict[str, Any]]:
    return list(_content(path).get("runs", []))


def _content(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def _write_summary(path: Path, name: str, command: str, runs: Sequence[Mapping[str, Any]]) -> None:
    every = {run.get("processor", ""): run for run in (*_runs(path), *runs)}
    question = next((job.question for job in JOBS if job.name == name), name)
    ordered = [every[processor] for processor in sorted(every)]
    write(path, text({"question": question, "command": command, "runs": ordered}))


def write(path: Path, content: str) -> None:
    """Write a file of text aside and then in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".tmp")
    aside.write_text(content + "\n")
    aside.replace(path)
