"""`--report FILE.html`: what is shared by the commands that have it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ortfuse.cli.terminal import out

if TYPE_CHECKING:
    from ortfuse.page import Page


def check_report(path: Path | None) -> None:
    """Check that a page can be made and written, before minutes of work are spent on its contents.

    Raises:
        OptionError: A library for it is not installed.
        OutputError: The file cannot be written.
    """
    if path is not None:
        from ortfuse.page import demand_libraries

        demand_libraries(path)


def write_report(path: Path, page: Page) -> None:
    """Write a page, and say where."""
    from ortfuse.page import write_page

    write_page(page, path)
    out.print(f"written: {path}", markup=False, highlight=False)
