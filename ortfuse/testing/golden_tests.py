"""Make a test for each of a user's models, which holds it to a stored expectation (`golden`).

    # tests/test_models.py
    from ortfuse.testing import golden

    test_models = golden("models.toml")

`pytest --ortfuse-refresh` stores what the models come to now, and shows what that changes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortfuse.api.models_file import ModelsFile, Settings
    from ortfuse.options import Options
    from ortfuse.testing.expectation import Expectation

REFRESH = "--ortfuse-refresh"
"""The flag of pytest by which expectations are stored."""

CHANGED = "ortfuse: what the refresh changed"
"""The name of the property of a test's report by which it says what it stored."""


@dataclass(frozen=True)
class Case:
    """One model with its expectation.

    Attributes:
        name: What it is called: its path from the folder of the models or of the file that names them.
        model: Its file.
        expected: The file of the expectation.
        table: The file of models, if there is one.
    """

    name: str
    model: Path
    expected: Path
    table: ModelsFile | None


def golden(
    models: str | os.PathLike[str], *, expected: str | os.PathLike[str] = "expected", options: Options | None = None
) -> Callable[..., None]:
    """Make a test with a case for each model: it has the fused sites, executed operators and verdict that are expected of it.

    Paths start from the folder of the file that calls this. The function that comes back is to be named `test_...` there.

    Args:
        models: A folder of models, a TOML file that names them with their options and known failures (`ortfuse.api.models_file`),
            a text file with a path a line, or a model.
        expected: The folder of the expectations, a JSON file a model. A model without one fails until `pytest --ortfuse-refresh`
            has stored it.
        options: How to optimise; what the file of models says goes before. Costs are those of the first table that ortfuse
            ships, so that the answer is the same on every machine, unless a target is named.

    Raises:
        OrtfuseError: There is no model, or the file of models cannot be used.
    """
    import pytest

    folder = Path(sys._getframe(1).f_globals.get("__file__", "")).parent
    cases = _cases(folder / models, folder / expected)

    def test(case: Case, request: Any) -> None:
        wrong = ""
        try:
            if request.config.getoption(REFRESH, False):
                # Not by `record_property`, which warns where JUnit XML is written.
                request.node.user_properties += [(CHANGED, f"{case.name}: {line}") for line in refreshed(case, options)]
            else:
                check(case, options)
        except AssertionError as error:
            wrong = str(error)
        if wrong:
            pytest.fail(wrong, pytrace=False)

    made: Callable[..., None] = pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])(test)
    return made


def check(case: Case, options: Options | None = None) -> None:
    """Hold a model to its expectation.

    Raises:
        AssertionError: It is not as expected.
        pytest.xfail.Exception: It fails as the file of models says.
    """
    import pytest

    settings, found = _found(case, options)
    if settings.expect != "ok":
        _check_failure(found, settings)
        pytest.xfail(settings.why or found.reason)
    if found.failed:
        raise AssertionError(f"{case.name} is {found.verdict}: {found.reason}")
    before = _stored(case)
    if before is None:
        raise AssertionError(f"{case.name}: there is no expectation on file; pytest {REFRESH} stores it")
    lines = list(found.differences(before))
    if lines:
        lines += found.other_versions(before)
        raise AssertionError(
            "\n".join([f"{case.name} is not as expected:", *lines, f"pytest {REFRESH} makes this the expectation"])
        )


def refreshed(case: Case, options: Options | None = None) -> list[str]:
    """Make what a model comes to now its expectation; what that changes is returned, a line each.

    Raises:
        AssertionError: It fails, and not as the file of models says: that can be no expectation.
    """
    settings, found = _found(case, options)
    if settings.expect != "ok":
        _check_failure(found, settings)
        return []
    if found.failed:
        raise AssertionError(f"{case.name} is {found.verdict}, which is not stored: {found.reason}")
    try:
        before = _stored(case)
        lines = ["stored"] if before is None else list(found.differences(before))
    except AssertionError:
        before, lines = None, ["stored in the place of a damaged file"]
    if lines or (before is not None and before.versions != found.versions):
        found.write(case.expected)
    return lines


def _cases(models: Path, expected: Path) -> list[Case]:
    from ortfuse.api.models_file import ENDING, ModelsFile
    from ortfuse.sweeping.find_models import TABLE, find_models

    table = ModelsFile.load(models) if models.suffix == TABLE else None
    found = find_models([models]) if table is None else table.models()
    root = os.path.realpath(models if models.is_dir() else models.parent)
    names = [_name(Path(os.path.relpath(os.path.realpath(path), root)), ENDING) for path in found]
    return [Case(name, path, expected / f"{name}.json", table) for name, path in zip(names, found, strict=True)]


def _name(path: Path, ending: str) -> str:
    """The name of a model by its path; the folder above is `up`, so that its expectation is among the others."""
    return "/".join("up" if part == ".." else part for part in path.parts).removesuffix(ending)


def _found(case: Case, options: Options | None) -> tuple[Settings, Expectation]:
    """The expectation of a model, and its result."""
    from ortfuse.api.models_file import Settings
    from ortfuse.options import Options
    from ortfuse.testing.assertions import on_any_machine
    from ortfuse.testing.expectation import Expectation

    settings = Settings() if case.table is None else case.table.settings(case.model)
    asked = settings.over(Options.of(options, verify="whole"))
    return settings, Expectation.of(case.model, on_any_machine(asked))


def _stored(case: Case) -> Expectation | None:
    from ortfuse.testing.expectation import Expectation

    try:
        return Expectation.read(case.expected)
    except ValueError as error:
        raise AssertionError(str(error)) from None


def _check_failure(found: Expectation, settings: Settings) -> None:
    """Demand that a model fails as the file of models says.

    Raises:
        AssertionError: It does not fail, or fails otherwise.
    """
    said = f": {settings.why}" if settings.why else ""
    if not found.failed:
        raise AssertionError(
            f"unexpected success: the file of models expects `{settings.expect}`{said}; take `expect` out of it"
        )
    if settings.expect not in ("fails", found.verdict) or settings.says not in found.reason:
        raise AssertionError(
            f"another failure than the one that is known (`{settings.expect}`{said}): {found.verdict}, {found.reason}"
        )
