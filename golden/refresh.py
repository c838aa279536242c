"""Compare the golden models with what is expected of them, and the index of the rules with the rules; store what they are now.

python golden/refresh.py [NAME ...] [--write]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ortfuse.pipeline.build_rule_index import refresh as refresh_index

sys.path.insert(0, str(Path(__file__).parent))
import suite


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Golden models; all by default.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Store what the models are now.")] = False,
) -> None:
    """Print what changed; with --write, make it the expectation. The exit code is 1 if something changed and is not stored."""
    console = Console(highlight=False)
    changed = False
    for name in names or suite.names():
        found = suite.outcome(suite.optimised(name).report)
        lines = suite.difference(suite.stored(name), found)
        if lines:
            changed = True
            console.print(f"[bold]{name}[/bold]")
            for line in lines:
                console.print(f"  {line}")
        if lines and write:
            suite.store(name, found)
            console.print("  stored")
    if refresh_index(Path(__file__).parents[1] / "patterns", write=write):
        changed = True
        console.print(f"patterns/rule_index.json {'written' if write else 'is not what the rules say'}")
    if not changed:
        console.print("all as expected")
    raise typer.Exit(1 if changed and not write else 0)


if __name__ == "__main__":
    typer.run(main)
