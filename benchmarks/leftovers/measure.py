"""Operators that are left in results, beside those of another commit, and whether results are right.

    python -m benchmarks.exports.varied
    python -m benchmarks.leftovers 51e0454 golden/models benchmarks/.varied

The other commit is checked out beside this one for as long as that takes; `--other-python` names an interpreter that has it
installed instead. Every operator counts once; `--executed` asks the runtime, too, about models whose counts differ. Operators
outside fusions are data movement, elementwise operators, casts, shape arithmetic and reductions. Results are kept in `--keep`,
those of the other commit are made once. `--write` stores the summary.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.engine.against import ROOT, checked_out
from benchmarks.isolated import call, preload
from benchmarks.leftovers.checking_results import check, executed
from benchmarks.leftovers.kinds import KERNEL, LEFTOVERS, kinds, operators, read
from benchmarks.leftovers.optimising import Tree, optimise
from benchmarks.results import Results

SIDES = ("before", "after")


def files_of(places: Sequence[Path]) -> list[Path]:
    """The models in files and folders."""
    found = [sorted(place.glob("*.onnx")) if place.is_dir() else [place] for place in places]
    return [path.absolute() for group in found for path in group if not path.name.startswith(".")]


def optimised(
    tree: Tree, sources: Sequence[Path], folder: Path, limit: float, fresh: bool
) -> dict[str, dict[str, Any]]:
    """Optimise the sources into a folder, without those that are there, and describe each result."""
    folder.mkdir(parents=True, exist_ok=True)
    ledger = folder / "results.json"
    known: dict[str, dict[str, Any]] = {} if fresh or not ledger.exists() else json.loads(ledger.read_text())
    hashes = {path: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in sources}
    wanted = [path for path in sources if known.get(path.stem, {}).get("source") != hashes[path]]
    for number, done in enumerate(optimise(tree, [(path, folder / path.name) for path in wanted], limit)):
        row: dict[str, Any] = {"source": hashes[done.source], "seconds": done.seconds, "error": done.error}
        if not done.error:
            model = read(str(folder / done.source.name))
            row |= {"operators": dict(operators(model)), "kinds": dict(kinds(model))}
        known[done.source.stem] = row
        if number % 10 == 0 or done.source == wanted[-1]:
            ledger.write_text(json.dumps(known, indent=1))
            print(f"{folder.name}: {number + 1} of {len(wanted)}", file=sys.stderr, flush=True)
    return known


@contextmanager
def other_tree(commit: str, python: Path | None) -> Iterator[Tree]:
    """The other commit, by its own interpreter or checked out beside this one."""
    if python is not None:
        yield Tree(str(python))
        return
    with checked_out(commit) as folder:
        yield Tree(sys.executable, folder)


def compared(rows: Mapping[str, Mapping[str, Mapping[str, Any]]], names: Sequence[str]) -> dict[str, Any]:
    """Compare the rows of both sides.

    Args:
        rows: By side, then by model.
        names: The models.
    """
    before, after = (rows[side] for side in SIDES)
    good = [name for name in names if not before[name]["error"] and not after[name]["error"]]
    counts = {name: [sum(side[name]["operators"].values()) for side in (before, after)] for name in good}
    totals: dict[str, Counter[str]] = {side: Counter() for side in SIDES}
    for name in good:
        for side in SIDES:
            totals[side].update(rows[side][name]["kinds"])
    return {
        "models": len(names),
        "operators": [sum(pair[side] for pair in counts.values()) for side in (0, 1)],
        "more": {name: pair for name, pair in sorted(counts.items()) if pair[1] > pair[0]},
        "fewer": {name: pair for name, pair in sorted(counts.items()) if pair[1] < pair[0]},
        "kinds": {one: [totals[side][one] for side in SIDES] for one in (*LEFTOVERS, KERNEL)},
        "leftovers": [sum(totals[side][one] for one in LEFTOVERS) for side in SIDES],
        "by operator": {
            one: [totals[side][one] for side in SIDES]
            for one in sorted(totals["before"] | totals["after"])
            if ": " in one
        },
        "failed": {
            side: {name: rows[side][name]["error"] for name in names if rows[side][name]["error"]} for side in SIDES
        },
        "slow": {name: after[name]["seconds"] for name in good if after[name]["seconds"] > 5},
    }


def summary(commit: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is stored of a comparison."""
    told = ("models", "operators", "leftovers", "kinds", "more", "failed", "wrong")
    return {"beside": commit, **{one: found[one] for one in told if one in found}, "with fewer": len(found["fewer"])}


def changed_operators(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Return the operators of which there are more or fewer, in words: ``+1 Transpose, -2 Reshape``."""
    changed = {name: after.get(name, 0) - before.get(name, 0) for name in sorted({*before, *after})}
    return ", ".join(f"{count:+d} {name}" for name, count in changed.items() if count)


def _print(found: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]) -> None:
    table = Table(title=f"Operators left in {found['models']} results", title_justify="left")
    for heading in ("kind", "before", "after", "change"):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    lines = {"all": found["operators"], "outside fusions": found["leftovers"], **found["kinds"]}
    for one, (old, new) in lines.items():
        table.add_row(one, str(old), str(new), f"{100 * (new - old) / max(old, 1):+.1f} %")
    Console(width=130).print(table)
    for name, (old, new) in found["more"].items():
        sides = [rows[side][name]["operators"] for side in SIDES]
        print(f"more: {name}: {old} -> {new}: {changed_operators(*sides)}")
    for side in SIDES:
        for name, reason in found["failed"][side].items():
            print(f"failed {side}: {name}: {reason}")


def main(
    commit: Annotated[str, typer.Argument(help="The commit to compare with.")],
    models: Annotated[list[Path], typer.Argument(help="Models, or folders of them.")],
    other_python: Annotated[Path | None, typer.Option(help="Interpreter with the other commit installed.")] = None,
    keep: Annotated[Path, typer.Option(help="Folder for the results.")] = ROOT / "benchmarks" / ".leftovers",
    limit: Annotated[float, typer.Option(help="Seconds that one model may take.")] = 180.0,
    checks: Annotated[bool, typer.Option(help="Whether to check results against the originals.")] = True,
    executions: Annotated[
        bool, typer.Option("--executed", help="Count executed operators where counts differ.")
    ] = False,
    fresh: Annotated[bool, typer.Option(help="Make the results of this commit again.")] = True,
    write: Annotated[bool, typer.Option("--write", help="Store the summary.")] = False,
) -> None:
    """Print the comparison; the exit code is 1 if a result is wrong, fails, or has more operators than before."""
    sources = files_of(models)
    if not sources:
        raise typer.BadParameter(
            f"no models in {', '.join(map(str, models))}; python -m benchmarks.exports.varied makes some"
        )
    names = [path.stem for path in sources]
    with other_tree(commit, other_python) as other:
        before = optimised(other, sources, keep / "before", limit, fresh=False)
    after = optimised(Tree(sys.executable, ROOT), sources, keep / "after", limit, fresh=fresh)
    rows = {"before": before, "after": after}
    found = compared(rows, names)
    _print(found, rows)
    if executions:
        _print_executed(found, sources, keep)
    if checks:
        found["wrong"] = _wrong([path for path in sources if not after[path.stem]["error"]], keep / "after")
    (keep / "comparison.json").write_text(json.dumps(found, indent=1) + "\n")
    if write:
        Results("leftovers").store(
            f"python -m benchmarks.leftovers {commit} {' '.join(map(str, models))}{'' if checks else ' --no-checks'} --write",
            summary(commit, found),
        )
    raise typer.Exit(1 if found.get("wrong") or found["more"] or found["failed"]["after"] else 0)


def _print_executed(found: dict[str, Any], sources: Sequence[Path], keep: Path) -> None:
    found["executed"] = {}
    for path in sources:
        if path.stem in found["more"] or path.stem in found["fewer"]:
            outcome = call(executed, path, [keep / side / path.name for side in SIDES], limit=120.0)
            found["executed"][path.stem] = outcome.value or outcome.error
            print(f"executed: {path.stem}: {outcome.value or outcome.error}", flush=True)


def _wrong(sources: Sequence[Path], folder: Path) -> dict[str, str]:
    preload(["ortfuse", "onnxruntime"])
    found = {}
    for path in sources:
        outcome = call(check, path, folder / path.name, limit=180.0)
        reason = outcome.error or outcome.value
        if reason:
            found[path.stem] = reason
            print(f"wrong: {path.stem}: {reason}", flush=True)
    return found
