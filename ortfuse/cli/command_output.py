"""Write the result of a command to the terminal and, where asked for, as JSON and as an HTML page."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from ortfuse.cli.json_output import check_json, refused, write_json
from ortfuse.cli.options_as_flags import Bundle
from ortfuse.cli.parsing import NO
from ortfuse.cli.shared_arguments import Debug, Json, Report
from ortfuse.cli.terminal import err, guarded, out, progress_line
from ortfuse.errors import OptionError, OrtfuseError
from ortfuse.options.target_in_file_name import TARGET, has_target, with_target

if TYPE_CHECKING:
    from ortfuse.io.convert_model_objects import AnyModel
    from ortfuse.options import Options
    from ortfuse.profiling import SideBySide
    from ortfuse.report.document import Block, Document


class Answer(Bundle):
    """The places that a command gives its answer to: the terminal, and the files of `--json` and `--report`."""

    def __init__(self, command: str, json_file: Path | None, report: Path | None) -> None:
        """Check that the files can be written, before minutes of work are spent on their contents.

        Raises:
            OptionError: A library for pages is not installed.
            OutputError: A file cannot be written.
        """
        check_json(json_file)
        if report is not None:
            from ortfuse.report.html.write_page import demand_libraries

            demand_libraries(report)
        self._command, self._json, self._report = command, json_file, report

    @classmethod
    def arguments(cls, command: str) -> Mapping[str, tuple[Any, Any]]:
        """Return `--json`, `--report` and `--debug`."""
        return {"json_file": (Json, None), "report": (Report, None), "debug": (Debug, False)}

    @classmethod
    @contextlib.contextmanager
    def opened(cls, command: str, values: Mapping[str, Any]) -> Iterator[Answer]:
        """Turn errors of the command into one line, unless with `--debug`."""
        with guarded(values["debug"]):
            yield cls(command, values["json_file"], values["report"])

    def for_target(self, label: str) -> Answer:
        """The files for one target of several: `{target}` in their names stands for it.

        Raises:
            OptionError: A name has no place for it.
            OutputError: A file cannot be written.
        """
        for name, path in (("json", self._json), ("report", self._report)):
            if path is not None and not has_target(path):
                raise OptionError(name, f"{path}: give it {TARGET} in its name too, which each target replaces")
        found = [None if path is None else Path(with_target(path, label)) for path in (self._json, self._report)]
        return Answer(self._command, *found)

    @property
    def has_page(self) -> bool:
        """Whether a page is asked for."""
        return self._report is not None

    def give(
        self, document: Document, content: Mapping[str, Any], page: Callable[[], Document | None] | None = None
    ) -> None:
        """Print a document, and write the files: the same document as a page, and the content as JSON.

        Args:
            document: The document.
            content: The content.
            page: Makes the document of the page, if that has more on it; `None` if there is nothing to show.
        """
        from ortfuse.report.terminal.document import show_document

        show_document(out, document)
        write_json(self._json, self._command, content)
        shown = document if page is None or not self.has_page else page()
        if shown is not None:
            self._write_page(shown)

    def refuse(self, model: Path, why: Exception, blocks: Sequence[Block] = (), prefix: str = "") -> NoReturn:
        """Say why there is no result, after a prefix, and in the files too, and exit with code 1.

        Args:
            model: The model.
            why: The constraint that nothing keeps.
            blocks: What was tried, for a page.
            prefix: The words before the reason on the terminal.
        """
        print_refusal(f"{prefix}{why}")
        write_json(self._json, self._command, refused(model, why))
        from ortfuse.report.documents.unmet_constraints import unmet_document

        self._write_page(unmet_document(str(model), str(why), blocks))
        raise typer.Exit(NO) from None

    def _write_page(self, page: Document) -> None:
        if self._report is not None:
            from ortfuse.report.html.write_page import write_page

            write_page(page, self._report)
            out.print(f"written: {self._report}", highlight=False)


def print_refusal(why: str) -> None:
    """Say why nothing was written."""
    err.print(f"{why}; nothing was written", style="red", markup=False, highlight=False, soft_wrap=True)


def profiled(before: AnyModel, after: AnyModel, options: Options) -> SideBySide | None:
    """The profiles of two models on the same inputs; `None`, with a note on the reason, if one cannot be profiled."""
    from ortfuse.api.profile import side_by_side

    try:
        with progress_line() as progress:
            return side_by_side(before, after, options, progress)
    except OrtfuseError as error:
        out.print(f"the page has no profiles: {error}", highlight=False)
        return None
