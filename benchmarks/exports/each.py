"""Exports models to measure on, each in a process of its own, which returns its memory and whose crash is one failure."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from exporting import export_all, select

from benchmarks.isolated import call, preload

TOLERANCE = 1e-4
"""Tolerance over an output's largest magnitude: float32 sums over thousands of terms, in another order."""


def export_one(module: str, name: str, folder: Path, tolerance: float, relative: bool) -> str | None:
    """Export one variant of the cases in a module; why that failed, `None` if it did not."""
    variant = next(v for v in select(importlib.import_module(module).CASES, [name]) if v.name == name)
    return export_all([variant], folder, tolerance=tolerance, relative=relative).get(name)


def export_each(
    module: str, names: Sequence[str], folder: Path, *, tolerance: float, relative: bool, limit: float, fresh: bool
) -> dict[str, str]:
    """Export the variants that the names select of a module's cases; the failures by variant.

    Args:
        module: Has ``CASES``.
        names: As for ``golden/export.py``.
        folder: Also gets ``FAILED.json``.
        tolerance: Largest difference from PyTorch.
        relative: Whether that is of each output's largest magnitude.
        limit: Seconds for one export.
        fresh: Whether models that are there already are exported again.

    Raises:
        ValueError: a name selects nothing.
    """
    preload(["__main__", "torch", "transformers", "onnx", "onnxruntime", "onnxscript", module])
    folder.mkdir(parents=True, exist_ok=True)
    failures = {}
    for variant in select(importlib.import_module(module).CASES, names):
        path = folder / f"{variant.name}.onnx"
        if not fresh and path.with_suffix(".json").is_file() and path.is_file():
            continue
        outcome = call(export_one, module, variant.name, folder, tolerance, relative, limit=limit)
        if outcome.error is not None:  # of the process; what the exporter raises is the value, and in the ledger
            _record(folder / "FAILED.json", variant.name, outcome.error)
        reason = outcome.error or outcome.value
        if reason:
            failures[variant.name] = reason
        print(f"{variant.name}: {'FAILED ' + reason if reason else 'written'}, {outcome.seconds:.0f} s", flush=True)
    return failures


def _record(ledger: Path, name: str, reason: str) -> None:
    known = json.loads(ledger.read_text()) if ledger.exists() else {}
    ledger.write_text(json.dumps(dict(sorted((known | {name: reason}).items())), indent=2) + "\n")


def command(module: str, default_folder: Path, default_limit: float) -> Callable[..., None]:
    """The command line that exports the cases of a module; differences are measured by each output's magnitude."""

    def main(
        names: Annotated[list[str] | None, typer.Argument(help="Models to export; all when none is named.")] = None,
        folder: Annotated[Path, typer.Option(help="Where to write the models.")] = default_folder,
        limit: Annotated[float, typer.Option(help="Seconds that one export may take.")] = default_limit,
        fresh: Annotated[bool, typer.Option(help="Export all again.")] = False,
    ) -> None:
        """Export; failures are recorded in FAILED.json in the folder."""
        try:
            failed = export_each(
                module, names or [], folder, tolerance=TOLERANCE, relative=True, limit=limit, fresh=fresh
            )
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        if failed:
            raise typer.Exit(1)

    return main
