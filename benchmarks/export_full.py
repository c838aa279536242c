"""Exports full-size models to measure on: ``python benchmarks/export_full.py [--folder FOLDER] [NAME ...]``.

Each model is one ``.onnx`` file with random weights inside it, checked against PyTorch, and a ``.json`` beside it, in
the form of the golden models (``golden/exporting.py``). Together they take ten gigabytes; they are not kept in git.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from export_each import export_each

FOLDER = Path(__file__).parent / ".models"
# Of an output's largest magnitude: float32 sums over thousands of terms, in another order.
TOLERANCE = 1e-4


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Models to export; all when none is named.")] = None,
    folder: Annotated[Path, typer.Option(help="Where to write the models.")] = FOLDER,
    limit: Annotated[float, typer.Option(help="Seconds that one export may take.")] = 900.0,
    fresh: Annotated[bool, typer.Option(help="Export again what is there already.")] = False,
) -> None:
    """Export full-size models; failures are recorded in FAILED.json in the folder."""
    try:
        failed = export_each(
            "full_cases", names or [], folder, tolerance=TOLERANCE, relative=True, limit=limit, fresh=fresh
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
