"""Coverage: the calls of attention, normalisation, ... in PyTorch that each optimiser turns into fused operators.

    python -m benchmarks.coverage                        # the golden models; writes the summary and its tables
    python -m benchmarks.coverage --tool ortfuse         # only this again; the other tools' results stay
    python -m benchmarks.coverage FILE... --output FILE  # any models with the record of calls beside them

Raw results are stored file by file, so a stopped run goes on where it was. The summary has sums over the models of each exporter;
of tools that were not measured again it keeps the sums over the same models.

Every tool gets the same file and runs in a process of its own with a time limit. ONNX Runtime runs the result on the inputs that
`ortfuse verify` makes, and both are compared as that command compares them. A result is broken if it does not load, refuses
inputs that the original accepts, or differs beyond the tolerance.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.checking import experiment, verdict
from benchmarks.coverage.misses import nearest
from benchmarks.coverage.report import ROWS, markdown, show, totals
from benchmarks.coverage.sites import FAMILIES, expected, fused
from benchmarks.isolated import call, preload
from benchmarks.models import GOLDEN
from benchmarks.peers import PACKAGES, SINGLE, TOOLS, TRANSFORMERS_TYPES, Peer, preloaded, transformers_for
from benchmarks.results import Results

CHECK_LIMIT = 600.0
HEADS, HIDDEN = 4, 32
"""Heads and hidden size of nearly all golden and unseen models; the transformers optimizer finds others itself."""


class File:
    """One model file on its way through all tools."""

    def __init__(self, source: Path, folder: Path, limit: float, chosen: Sequence[str]) -> None:
        self.source, self.folder, self.limit, self.chosen = source, folder, limit, chosen
        self.record = json.loads(source.with_suffix(".json").read_text())
        self.expected = expected(self.record["sites"])
        self._experiments = folder / "experiments.pickle"
        self._verdicts: dict[str, str] = {}
        made = call(experiment, source, self._experiments, limit=CHECK_LIMIT)
        self.notes: list[str] = made.value or []
        if made.error:
            self.notes.append(f"results cannot be checked: {made.error}")

    def measured(self) -> dict[str, Any]:
        """The file's entry in the results."""
        tools = {"original": self._weighed(self.source) | {"status": "ok"}}
        tools["original"] |= self._status(self.source)
        for tool in self.chosen:
            tools[tool] = self._best_kind() if tool == "transformers" else self._apply(SINGLE[tool])
        own = tools.get("ortfuse", {"fused": self.expected, "status": "not run"})
        missing = {family: n - own["fused"][family] for family, n in self.expected.items() if n > own["fused"][family]}
        entry = {
            "model": _name(self.source),
            "digest": _digest(self.source),
            "exporter": self.record["exporter"],
            "opset": self.record["opset"],
            "sites": self.expected,
            "notes": self.notes,
            "tools": tools,
        }
        if missing and own["status"] == "ok":
            found = call(nearest, self.source, missing, limit=self.limit)
            entry["misses"] = found.value if found.error is None else {"error": found.error}
            entry["missing"] = missing
        return entry

    def _apply(self, peer: Peer, name: str = "result") -> dict[str, Any]:
        """Apply a tool to the file, and return its entry."""
        target = self.folder / f"{name}.onnx"
        outcome = call(peer, self.source, target, limit=self.limit)
        entry: dict[str, Any] = {"seconds": round(outcome.seconds, 2)}
        if outcome.error is None and not target.is_file():
            outcome = type(outcome)(None, "wrote no file", outcome.seconds)
        if outcome.error is not None:
            return entry | {
                "status": "failed",
                "reason": outcome.error,
                "nodes": None,
                "fused": dict.fromkeys(FAMILIES, 0),
            }
        answer = outcome.value or {}
        entry |= {key: round(value, 4) if isinstance(value, float) else value for key, value in answer.items() if value}
        try:
            entry |= self._weighed(target)
        except Exception as error:
            entry |= {"status": "broken", "reason": f"cannot be read: {error}", "fused": dict.fromkeys(FAMILIES, 0)}
        else:
            entry |= self._status(target)
        for file in self.folder.glob(f"{name}.onnx*"):
            file.unlink()
        return entry

    def _weighed(self, path: Path) -> dict[str, Any]:
        found, nodes = fused(path)
        return {"nodes": nodes, "fused": found}

    def _status(self, path: Path) -> dict[str, str]:
        """Return whether a result is broken, and the reason; equal files are checked once."""
        if not self._experiments.is_file():
            return {"status": "unchecked"}
        key = hashlib.sha256(path.read_bytes()).hexdigest()
        if key not in self._verdicts:
            outcome = call(verdict, self._experiments, path, limit=CHECK_LIMIT)
            self._verdicts[key] = (outcome.error or outcome.value).replace(f"{self.folder}/", "")
        reason = self._verdicts[key]
        return {"status": "broken", "reason": reason} if reason else {"status": "ok"}

    def _best_kind(self) -> dict[str, Any]:
        """The transformers optimizer with the kind of model that fuses most without breaking the model."""
        tried = {
            kind: self._apply(transformers_for(kind, HEADS, HIDDEN), kind) | {"kind": kind}
            for kind in TRANSFORMERS_TYPES
        }
        best = max(tried.values(), key=self._merit)
        return best | {"kinds": {kind: entry["status"] for kind, entry in tried.items()}}

    def _merit(self, entry: Mapping[str, Any]) -> tuple[Any, ...]:
        sites = {family: min(entry["fused"][family], count) for family, count in self.expected.items()}
        order = ("failed", "broken", "unchecked", "ok")
        return order.index(entry["status"]), sites["attention"], sites["rotary"], sum(sites.values())


def main(
    models: Annotated[
        list[Path] | None, typer.Argument(help="Model files; the golden models when none is named.")
    ] = None,
    limit: Annotated[float, typer.Option(help="Seconds that a tool may take for one model.")] = 120.0,
    output: Annotated[Path | None, typer.Option(help="File of the raw result; the summary goes beside it.")] = None,
    tool: Annotated[list[str] | None, typer.Option(help=f"Only these of {', '.join(TOOLS)}, measured again.")] = None,
    fresh: Annotated[bool, typer.Option(help="Measure everything again.")] = False,
    report: Annotated[
        Path | None, typer.Option(help="Where to write the tables; by default beside the summary, as .md.")
    ] = None,
) -> None:
    """Apply the tools to every model, check and count, and write results and tables."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    unknown = set(tool or ()) - set(TOOLS)
    if unknown:
        raise typer.BadParameter(f"no such tool: {', '.join(sorted(unknown))}")
    if models and output is None:
        raise typer.BadParameter("the summary in the tree is about the golden models; name a file with --output")
    preload(preloaded(tool or ()))
    paths = models or sorted(GOLDEN.glob("*.onnx"))
    command = "python -m benchmarks.coverage" + (" FILE..." if models else "")
    results = Results("coverage", output)
    known = results.raw_rows()
    entries = {name: known[name] for path in paths if (name := _name(path)) in known}
    for number, path in enumerate(paths, 1):
        before = {} if fresh else entries.get(_name(path), {})
        if before.get("digest") != _digest(path):
            before = {}
        wanted = [name for name in TOOLS if (name in tool if tool else name not in before.get("tools", {}))]
        if not wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            entries[_name(path)] = merged(before, File(path.resolve(), Path(folder), limit, wanted).measured())
        results.add({_name(path): entries[_name(path)]})
        console.print(f"{number}/{len(paths)} {_line(entries[_name(path)])}", highlight=False, markup=False)
    files = list(entries.values())
    run = store(results, command, files)
    show(console, run["result"]["totals"], files)
    default = results.summary.with_suffix("").with_suffix(".md") if output else results.summary.with_suffix(".md")
    (report or default).write_text(markdown(command, run, files))


def _name(path: Path) -> str:
    return path.name.removesuffix(".onnx")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def merged(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """A model's entry after some tools were applied again, with the earlier results of the others."""
    tools = {**before.get("tools", {}), **after["tools"]}
    ordered = {tool: tools[tool] for tool in ("original", *TOOLS) if tool in tools}
    kept = {} if "ortfuse" in after["tools"] else {key: before[key] for key in ("missing", "misses") if key in before}
    return {**after, **kept, "tools": ordered}


def store(results: Results, command: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Write the summary, and return the run that it has."""
    sums = totals(entries)
    for group, known in results.result().get("totals", {}).items():
        if group in sums and all(sums[group][key] == known[key] for key in ("files", "sites")):
            tools = {**known["tools"], **sums[group]["tools"]}
            sums[group]["tools"] = {tool: tools[tool] for tool in ROWS if tool in tools}
    found = {"transformers_kinds": list(TRANSFORMERS_TYPES), "totals": sums}
    return results.store(command, found, packages=PACKAGES)


def _line(entry: Mapping[str, Any]) -> str:
    """A file's progress line: what ortfuse missed, and which tools broke it."""
    missing = ", ".join(f"{count} {family}" for family, count in entry.get("missing", {}).items())
    bad = ", ".join(f"{tool} {it['status']}" for tool, it in entry["tools"].items() if it["status"] != "ok")
    return f"{entry['model']}: ortfuse misses {missing or 'nothing'}" + (f"; {bad}" if bad else "")
