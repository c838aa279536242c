"""Arguments that several commands share and that are not options of ortfuse: models, option files, reports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FILES = "Files and reports"
"""The title of these arguments in the help."""

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX file.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        help="TOML file with options. Options on the command line take precedence.",
        rich_help_panel=FILES,
    ),
]
Models = Annotated[
    Path | None,
    typer.Option(
        "--models",
        metavar="FILE.toml",
        help="TOML file with an entry per model: its inputs, sizes, passes, tolerance and known failures. Options on the "
        "command line take precedence.",
        rich_help_panel=FILES,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="PATTERN",
        help="Node, operator, module, class or value that may be in lower precision, such as 'op:MatMul' or "
        "'module:encoder.layer.*'. All else stays in float32. Repeatable.",
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="PATTERN",
        help="Node, operator, module, class or value that stays in float32, as for --only. Repeatable.",
    ),
]
Json = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE.json", help="Write the whole report as JSON to this file.", rich_help_panel=FILES
    ),
]
Check = Annotated[
    Path | None,
    typer.Option(
        "--check",
        metavar="FILE.json",
        help="Compare with a report of the same command (--json), and exit with code 3 on a regression: more nodes, fewer "
        "fused sites, a larger error, or a lower speedup beyond noise.",
        rich_help_panel=FILES,
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE.html",
        help="Write the report as one HTML page, which needs no network.",
        rich_help_panel=FILES,
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback on errors.", rich_help_panel=FILES)]
