"""Exports small models of architectures that are not golden: ``python benchmarks/export_unseen.py [NAME ...]``.

Coverage on them says how the rules do on what they were not written against:

    python benchmarks/coverage.py benchmarks/.unseen/*.onnx --output benchmarks/results/coverage_unseen.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from export_each import export_each

FOLDER = Path(__file__).parent / ".unseen"
TOLERANCE = 1e-4


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Models to export; all when none is named.")] = None,
    folder: Annotated[Path, typer.Option(help="Where to write the models.")] = FOLDER,
    limit: Annotated[float, typer.Option(help="Seconds that one export may take.")] = 240.0,
    fresh: Annotated[bool, typer.Option(help="Export again what is there already.")] = False,
) -> None:
    """Export; failures are recorded in FAILED.json in the folder."""
    try:
        failed = export_each(
            "unseen_cases", names or [], folder, tolerance=TOLERANCE, relative=True, limit=limit, fresh=fresh
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
