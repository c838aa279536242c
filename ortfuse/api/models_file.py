"""Read a TOML file that names models, each with inputs, sizes, passes, tolerance and known failures, for all commands.

rounds = 40                                  # options of all models, by the names of `ortfuse.Options`

[models."bert/*.onnx"]                       # a path, a folder or a glob, from the folder of the file
sizes = {sequence = 64}
passes = "bert"

[models."bert/large.onnx"]                   # what comes later goes before
inputs = "samples/large"
tolerance = 1e-3
expect = "wrong"
why = "its scores overflow in float16"

table = ModelsFile.load("models.toml")
table.models()                               # the files that the entries name
table.settings("bert/large.onnx").options    # {"rounds": 40, "passes": "bert", "inputs": ..., "tolerance": 1e-3}
"""

from __future__ import annotations

import difflib
import functools
import glob
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ortfuse.api.assess_optimization import idle
from ortfuse.errors import ModelFileError, OptionError
from ortfuse.errors.escape_control_characters import brief
from ortfuse.io.bounded_text_files import from_toml, read_text
from ortfuse.options import DECLARATIONS, FORMER, LARGEST_FLOAT, Options, PathLike, from_folder, named_paths

ENDING = ".onnx"
"""The file name extension of models."""

Expected = Literal["ok", "fails", "wrong", "refused", "crashed", "hung"]
"""How a model is expected to end; `fails` stands for each of the four others."""

_OF_COMMANDS = tuple(name for name, one in DECLARATIONS.items() if one.in_files and not one.of_model)
"""Options that say what a command does, and not what a model needs."""

_OPTIONS = tuple(name for name, one in DECLARATIONS.items() if one.in_files and one.of_model)

_BOUNDS = ("max_error",)
"""The settings that `quantize` and `convert` take besides options."""

_KNOWN = ("expect", "why", "says")
"""The known failure of an entry."""

_ALTERNATIVES = tuple(
    (name, *(other for other, one in DECLARATIONS.items() if one.instead_of == name))
    for name in dict.fromkeys(one.instead_of for one in DECLARATIONS.values() if one.instead_of)
)
"""Options that exclude each other: one that is given later takes the place of the others."""

_TABLES = tuple(name for name, one in DECLARATIONS.items() if one.kind.collect is not None)
"""Options that are tables, of which later ones add to those before."""


@dataclass(frozen=True)
class Settings:
    """The entry of one model.

    Attributes:
        options: Options by name, as a file of options has them; paths in them are resolved.
        expect: How the model is expected to end.
        why: Why it fails, in the user's words.
        says: A part of the reason that a known failure gives; another reason is another failure.
        max_error: The bound for `quantize` and `convert`.
        named: Whether an entry names the model.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    expect: Expected = "ok"
    why: str = ""
    says: str = ""
    max_error: float | None = None
    named: bool = False

    def over(self, base: Options, **given: Any) -> Options:
        """Options with those of the file and then those `given`; sizes that nothing measures or verifies at are left out.

        Raises:
            OptionError: An option has an invalid value, or two contradict each other.
        """
        changes = combined([self.options, given])
        for name in _TABLES:
            if name in changes:
                changes[name] = {**getattr(base, name), **changes[name]}
        final = {"bench": base.bench, "measure": base.measure, "verify": base.verify, **changes}
        if "sizes" not in given and not (final["bench"] or final["measure"] or final["verify"] == "whole"):
            changes.pop("sizes", None)
        return base.with_(**changes)

    def remark(self, equal: bool) -> str:
        """The remark on a comparison that found outputs equal, or not; empty without an entry."""
        if self.expect not in ("fails", "wrong"):
            return ""
        said = f": {self.why}" if self.why else ""
        if equal:
            return f"unexpected success: the file of models expects that outputs differ{said}; take `expect` out of it"
        return f"known failure{said}"

    def without_idle(self, options: Options) -> Options:
        """Options without those of the file that `optimize` has no use for, such as a tolerance without `verify`."""
        names = idle(options).keys() & self.options.keys()
        return options.with_(**{name: getattr(Options(), name) for name in names})


@dataclass(frozen=True)
class Entry:
    """One entry of the file.

    Attributes:
        name: The path, folder or glob as it is written.
        table: What stands in it, with resolved paths.
    """

    name: str
    table: Mapping[str, Any]


@dataclass(frozen=True)
class ModelsFile:
    """The entries of a file that names models, and the options of all of them.

    Attributes:
        path: The file.
        shared: Options of all models.
        entries: In the order of the file.
    """

    path: Path
    shared: Mapping[str, Any]
    entries: tuple[Entry, ...]

    @classmethod
    def load(cls, path: PathLike) -> ModelsFile:
        """Read and check a file.

        Raises:
            OptionError: The file cannot be read, has an unknown key or an invalid value.
        """
        place = Path(path)
        try:
            data = from_toml(read_text(place))
        except OSError as error:
            raise OptionError("models", f"{place} cannot be read: {error.strerror or error}") from error
        except ValueError as error:  # not UTF-8, or not TOML
            raise OptionError("models", f"{place} is not TOML: {error}") from error
        tables = data.pop("models", None)
        if not isinstance(tables, dict) or not tables:
            text = f'{place} names no model; write a table for each, such as [models."bert/*.onnx"]'
            raise OptionError("models", text)
        for name, table in tables.items():
            if not isinstance(table, dict):
                hint = f'write a table, such as [models."{name}"], not {brief(table)}'
                raise OptionError("models", f"{place}: {hint}; a name with dots stands in quotes")
        shared = _checked(data, place, "", (*_OPTIONS, *_BOUNDS))
        entries = [
            Entry(name, _checked(table, place, name, (*_OPTIONS, *_BOUNDS, *_KNOWN))) for name, table in tables.items()
        ]
        return cls(place, shared, tuple(entries))

    def models(self) -> list[Path]:
        """The model files that the entries name, in the order of the entries.

        Raises:
            ModelFileError: An entry names none.
        """
        found: dict[str, Path] = {}
        for entry in self.entries:
            files = self._files[entry.name]
            if not files:
                raise ModelFileError(f"{self.path}: there is no model at {entry.name}; check the path, or leave it out")
            for file in files:
                found.setdefault(os.path.realpath(file), file)
        return list(found.values())

    def settings(self, model: PathLike) -> Settings:
        """The settings of a model: of all entries that name it, later ones take precedence."""
        place = os.path.realpath(model)
        tables = [entry.table for entry in self.entries if place in self._places[entry.name]]
        whole = combined([self.shared, *tables])
        extra = {name: whole.pop(name) for name in (*_BOUNDS, *_KNOWN) if name in whole}
        return Settings(whole, named=bool(tables), **extra)

    def demand(self, model: PathLike) -> Settings:
        """The same for a model that has to be named.

        Raises:
            OptionError: No entry names it.
        """
        found = self.settings(model)
        if not found.named:
            names = ", ".join(entry.name for entry in self.entries)
            raise OptionError("models", f"{self.path} has no entry for {os.fspath(model)}; there are {names}")
        return found

    def files(self) -> Iterable[Path]:
        """The files and folders that options in it name, which a command that uses it reads."""
        for table in (self.shared, *(entry.table for entry in self.entries)):
            yield from map(Path, named_paths(table))

    @functools.cached_property
    def _files(self) -> Mapping[str, list[Path]]:
        return {entry.name: _found(self.path.parent, entry.name) for entry in self.entries}

    @functools.cached_property
    def _places(self) -> Mapping[str, frozenset[str]]:
        return {name: frozenset(map(os.path.realpath, files)) for name, files in self._files.items()}


def combined(tables: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Tables of options as one: later ones go before, take the place of what they exclude, and add to other tables."""
    found: dict[str, Any] = {}
    for table in tables:
        for names in _ALTERNATIVES:
            if any(name in table for name in names):
                found = {name: value for name, value in found.items() if name not in names or name in table}
        merged = {name: {**found.get(name, {}), **table[name]} for name in _TABLES if name in table}
        found |= {**table, **merged}
    return found


def _found(folder: Path, name: str) -> list[Path]:
    """The model files that a path, folder or glob names."""
    place = folder / name
    if place.is_file():
        return [place]
    if place.is_dir():
        return sorted(path for path in place.rglob(f"*{ENDING}") if path.is_file())
    matching = glob.glob(os.path.join(glob.escape(str(folder)), name), recursive=True)  # noqa: PTH118, PTH207
    return sorted(path for path in map(Path, matching) if path.is_file() and path.suffix == ENDING)


def _checked(table: Mapping[str, Any], path: Path, entry: str, known: tuple[str, ...]) -> dict[str, Any]:
    """A table with resolved paths.

    Raises:
        OptionError: It has an unknown key or an invalid value.
    """
    where = f'{path}, [models."{entry}"]' if entry else str(path)
    for key in (FORMER.get(key, key) for key in table):
        if key in _OF_COMMANDS:
            raise OptionError("models", f"{where}: {key} is not of a model; give it to the command")
        if key not in known:
            close = difflib.get_close_matches(key.replace("-", "_"), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise OptionError("models", f"{where}: there is no key {key!r}; {hint}")
    found = from_folder(table, path.parent)
    options = {name: value for name, value in found.items() if name in _OPTIONS}
    try:
        Options(**options, bench=True)
        _check_others(found)
    except OptionError as error:
        raise OptionError(error.option, f"{error.text} (in {where})") from None
    return found


def _check_others(table: Mapping[str, Any]) -> None:
    """Check what an entry has besides options.

    Raises:
        OptionError: A value is invalid, or a remark on a failure stands without it.
    """
    error, expected = table.get("max_error"), table.get("expect", "fails")
    if error is not None and (
        isinstance(error, bool) or not isinstance(error, int | float) or not 0 <= error <= LARGEST_FLOAT
    ):
        raise OptionError("max_error", f"write a number that is 0 or more, such as 0.01, not {brief(error)}")
    if expected not in get_args(Expected):
        raise OptionError("expect", f"write {' or '.join(map(repr, get_args(Expected)))}, not {brief(expected)}")
    for name in ("why", "says"):
        if not isinstance(table.get(name, ""), str):
            raise OptionError(name, f"write a text, not {brief(table[name])}")
    for name in ("why", "says"):
        if name in table and table.get("expect", "ok") == "ok":
            raise OptionError(name, 'is about a known failure; add `expect`, such as expect = "wrong"')
