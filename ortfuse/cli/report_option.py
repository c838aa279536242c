"""`--report FILE.html`: what is shared by the commands that have it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ortfuse.cli.terminal import out, progress_line
from ortfuse.errors import OrtfuseError

if TYPE_CHECKING:
    from ortfuse.io.model_conversion import AnyModel
    from ortfuse.options import Options
    from ortfuse.profiling import SideBySide
    from ortfuse.report.document import Document


def check_report(path: Path | None) -> None:
    """Check that a page can be made and written, before minutes of work are spent on its contents.

    Raises:
        OptionError: A library for it is not installed.
        OutputError: The file cannot be written.
    """
    if path is not None:
        from ortfuse.report.html.write_page import demand_libraries

        demand_libraries(path)


def profiled(before: AnyModel, after: AnyModel, options: Options) -> SideBySide | None:
    """The profiles of two models on the same inputs; `None`, with a note on the reason, if one cannot be profiled."""
    from ortfuse.api.profile import side_by_side

    try:
        with progress_line() as progress:
            return side_by_side(before, after, options, progress)
    except OrtfuseError as error:
        out.print(f"the page has no profiles: {error}", markup=False, highlight=False)
        return None


def write_report(path: Path, page: Document) -> None:
    """Write a page, and say where."""
    from ortfuse.report.html.write_page import write_page

    write_page(page, path)
    out.print(f"written: {path}", markup=False, highlight=False)
