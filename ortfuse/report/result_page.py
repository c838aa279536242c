"""Write the HTML page of a `Result` from Python (`Result.page`)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ortfuse.api.result import Result
from ortfuse.errors import OptionError, OutputError
from ortfuse.io.convert_model_objects import enter
from ortfuse.io.list_external_data_files import weight_files
from ortfuse.report.documents.optimization import Drawn, optimization_document
from ortfuse.report.html.write_page import demand_libraries, write_page
from ortfuse.runtime.session_settings.settings_in_model import beside


def write_result_page(result: Result, path: str | os.PathLike[str], name: str = "") -> None:
    """Write the page of a result; see `Result.page`.

    Raises:
        OptionError: Jinja is not installed, or the model was left as it is, or the original is no longer there.
        OutputError: The file cannot be written.
        ModelFileError: The file of the original cannot be read.
    """
    demand_libraries(path)
    _demand_no_model(result, path)
    if result.unchanged:
        raise OptionError("page", f"there is nothing to show: the model was left as it is: {result.unchanged}")
    given = result.original
    is_file = isinstance(given, str | os.PathLike)
    if given is None or (is_file and result.written is not None and _same(given, result.written)):
        raise OptionError("page", "the original was replaced by the result; write the result to another file")
    original, optimised = enter(given)[0], enter(result.model, copy=False)[0]
    called = name or (Path(given).name if is_file else original.graph.name or "model")
    page = optimization_document(called, result, Drawn(original, optimised))
    repeats = ", ".join([repr(os.fspath(given)) if is_file else "model", *_keywords(result)])
    write_page(replace(page, command=f"ortfuse.optimize({repeats})"), path)


def _demand_no_model(result: Result, path: str | os.PathLike[str]) -> None:
    """Refuse to write over the models of a result, and over what belongs to them."""
    models = [Path(one) for one in (result.original, result.written) if isinstance(one, str | os.PathLike)]
    for model in models:
        if any(_same(path, file) for file in (model, beside(model), *weight_files(model))):
            raise OutputError(f"{os.fspath(path)}: belongs to the model {model}; name another file for the page")


def _keywords(result: Result) -> list[str]:
    return [f"{key}={value!r}" for key, value in result.options.to_dict().items()]


def _same(one: str | os.PathLike[str], other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
