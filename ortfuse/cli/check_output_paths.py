"""Refuse output paths that a command also reads, or writes under another name.

All paths of a command are looked at together, before anything is done: those on the command line, those in a file of options, the
weights and settings that belong to models, and the files that come to stand beside the result. Two names are of one file if
they lead to the same place, by whatever links, or differ in case alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import unicodedata
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from ortfuse.errors import OrtfuseError
from ortfuse.options import DECLARATIONS, Options
from ortfuse.options.target_in_file_name import TARGET, has_target

RESULT = "output"
"""The argument that names the result."""

REPORTS = ("store", "study", "json_file", "report", "curve", "csv", "png", "junit", "markdown")
"""The arguments of commands that name another file to write."""

_MODELS = ("model", "original", "optimised", "first", "second", "find", "replace", "session")
"""The arguments that name models."""

_NAMING = {name: one.kind for name, one in DECLARATIONS.items() if one.kind.path_endings}
"""The options whose values can be paths."""

_AS_TEXT = tuple(name for name, kind in _NAMING.items() if "" not in kind.path_endings)
"""The arguments that may name a file, or something else."""

_FOLDERS: Mapping[str, frozenset[str]] = {
    **{name: kind.folder_endings for name, kind in _NAMING.items() if kind.folder_endings},
    "rules": _NAMING["patterns"].folder_endings,
}
"""The arguments that may name a folder, with the endings of the files in it that are read."""

_BESIDE = (".session.json", ".options.toml", ".tune.sqlite")
"""The endings of files about a model, appended to its name."""

_DATA = ".data"
"""The ending of the file of weights, appended to the name of the result; more of them have numbers."""

_OF_DATABASES = ("-journal", "-wal", "-shm")


@dataclass
class _Known:
    """Files by what tells them from each other, each with what it is in words."""

    files: dict[Hashable, str] = field(default_factory=dict)

    def add(self, path: Path, what: str) -> None:
        for mark in _marks(path):
            self.files.setdefault(mark, what)

    def what(self, path: Path) -> str:
        """The kind of a file; empty if it is none of those."""
        return next((self.files[mark] for mark in _marks(path) if mark in self.files), "")


def _marks(path: Path) -> list[Hashable]:
    """The identity of a file: its resolved path, and its inode or, if it does not exist, its name."""
    place = str(path)
    with contextlib.suppress(OSError, ValueError):
        place = os.path.realpath(path)  # Path.resolve raises for links in a circle
        status = Path(place).stat()
        return [place, (status.st_dev, status.st_ino)]
    return [place, ("", unicodedata.normalize("NFKC", place).casefold())]


def demand_own_files(command: str, values: Mapping[str, Any], declared: Mapping[str, Any], ctx: Any) -> None:
    """Refuse a file to write that is read or written besides. The result alone may replace the model that it is made of.

    Raises:
        typer.BadParameter: There is one; the message says what else it is.
    """
    values = _with_options_of_the_file(values)
    result, reports = _one(values.get(RESULT)), [(name, path) for name in REPORTS for path in _paths(values.get(name))]
    if result is None and not reports and "counterexamples" not in values:
        return

    if command != "optimize" and has_target(result):
        text = f"{result}: optimize alone makes a result for each target; write a name without {TARGET}"
        raise typer.BadParameter(text, ctx=ctx, param=declared.get(RESULT))

    def refuse(name: str, path: Path, what: str) -> None:
        raise typer.BadParameter(f"{path} is {what} too; write two names", ctx=ctx, param=declared.get(name))

    called = {name: _called(declared[name]) if name in declared else f"`{name}`" for name in values}
    read = _Known()
    for name in values:
        if name not in (RESULT, *REPORTS, "counterexamples"):
            _add_read(read, name, values[name], called[name])
    if result is not None and command == "generator":
        for file in _generated(result, values):
            if what := read.what(file):
                refuse(RESULT, file, what)
    elif result is not None and command != "sweep":
        _demand_result(read, result, values, refuse)
    written = _Known()
    if result is not None:
        _add_result(written, command, result, values, called[RESULT])
    for name, path in reports:
        what = (
            read.what(path)
            or written.what(path)
            or _in_a_folder(path, values, called)
            or _in_the_cache(command, name, path)
        )
        if what:
            refuse(name, path, what)
        written.add(path, called[name])
        if name in ("store", "study"):
            for ending in _OF_DATABASES:
                written.add(path.with_name(path.name + ending), f"a file of {called[name]}")


def _demand_result(
    read: _Known, result: Path, values: Mapping[str, Any], refuse: Callable[[str, Path, str], None]
) -> None:
    """Refuse a result that is read, or that has a file beside it that is."""
    model = _one(values.get("model"))
    in_place = model is not None and os.path.realpath(result) == os.path.realpath(model)
    replaces = model is not None and not in_place and _is_same(result, model)
    if not in_place and not replaces and (what := read.what(result)):
        refuse(RESULT, result, what)
    own = _Known()
    if model is not None:
        _add_model(own, model, "")
    for beside in _beside(result):
        what = read.what(beside)
        if what and not own.files.keys() & set(_marks(beside)):
            raise typer.BadParameter(f"{beside}, a file beside the result {result}, is {what} too; write another name")


def _is_same(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):
        return one.samefile(other)
    return False


def _add_read(read: _Known, name: str, value: Any, called: str) -> None:
    if name in _AS_TEXT:
        value = next(map(Path, _NAMING[name].paths_in(value)), None)
    elif name == "metric":
        value = _module(value)
    for path in _paths(value):
        read.add(path, called)
        if name in _MODELS:
            _add_model(read, path, called)
        elif name == "places":
            for model in _models(path):
                read.add(model, f"a model of {called}")
                _add_model(read, model, f"the model {model.name}")
        elif name in _FOLDERS and path.is_dir():
            for file in _inside(path, _FOLDERS[name]):
                read.add(file, f"a file of {called}")
        elif name == "models" and path.is_dir():
            for file in _inside(path, frozenset().union(*_FOLDERS.values())):
                read.add(file, f"a file that {called} names")


def _module(metric: Any) -> Path | None:
    """The file of the module in `module:function`, if that is found without importing anything."""
    name, colon, _ = metric.partition(":") if isinstance(metric, str) else ("", "", "")
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(name.partition(".")[0]) if colon and name else None
        return None if spec is None or spec.origin is None else Path(spec.origin)
    return None


def _add_model(read: _Known, model: Path, called: str) -> None:
    """The weights and the settings of a model."""
    from ortfuse.io.list_external_data_files import weight_files

    for file in weight_files(model):
        read.add(file, f"a file with weights of {called}")
    if model.name:  # a folder such as `.` has none; whoever opens it says so
        read.add(model.with_name(model.name + _BESIDE[0]), f"the file with the settings of {called}")


def _add_result(written: _Known, command: str, result: Path, values: Mapping[str, Any], called: str) -> None:
    """The result, what comes to stand beside it, and the weights of a model that is left as it is, which go with it."""
    if command == "sweep":
        written.add(result, called)
        written.add(result / "sweep.jsonl", f"the file of rows in {called}")
        for model, target in _targets(values, result):
            _add_written(written, target, model, f"a result in {called}")
        return
    if command == "generator":
        for file in _generated(result, values):
            written.add(file, f"a file in {called}")
        return
    _add_written(written, result, _one(values.get("model")), called)


def _add_written(written: _Known, result: Path, model: Path | None, called: str) -> None:
    written.add(result, called)
    for beside in _beside(result):
        written.add(beside, f"a file beside {called}")
    from ortfuse.io.list_external_data_files import known_locations

    folder = Path(os.path.realpath(result)).parent
    for location in () if model is None else known_locations(model):
        written.add(folder / location, f"a file with weights of {called}")


def _generated(folder: Path, values: Mapping[str, Any]) -> Iterator[Path]:
    """The files that come to stand in the folder of a generator, but for those of a tokenizer that are there."""
    from ortfuse.generation.genai_config import NAME, tokenizer_files
    from ortfuse.generation.generator import MODEL_FILE, ONCE_FILE
    from ortfuse.generation.token_embeddings import EMBEDDINGS_FILE

    yield folder / NAME
    for name in (MODEL_FILE, ONCE_FILE, EMBEDDINGS_FILE):
        yield from (folder / name, *_beside(folder / name))
    tokenizer = _one(values.get("tokenizer"))
    if tokenizer is not None and os.path.realpath(tokenizer) != os.path.realpath(folder):
        with contextlib.suppress(OrtfuseError):  # it is said later
            yield from (folder / file.name for file in tokenizer_files(tokenizer))


def _beside(result: Path) -> Iterator[Path]:
    """The files that come to stand beside a result, where the link that it may be leads to as well."""
    for place in dict.fromkeys((result, Path(os.path.realpath(result)))):
        if not place.name:  # a folder such as `.`; whoever writes says so
            continue
        for ending in _BESIDE:
            yield place.with_name(place.name + ending)
        yield from (place.with_name(place.name + _DATA + (f".{number}" if number else "")) for number in range(10))


def _in_a_folder(path: Path, values: Mapping[str, Any], called: Mapping[str, str]) -> str:
    """The kind of a file in the folder of counterexamples, whose names come from rules."""
    folder = _one(values.get("counterexamples"))
    if folder is not None and path.suffix.lower() == ".onnx":
        parent = os.path.realpath(path.parent)
        if parent == os.path.realpath(folder):
            return f"a file of {called['counterexamples']}"
    return ""


def _in_the_cache(command: str, name: str, path: Path) -> str:
    """The kind of a file in the folder of ortfuse's measurements, among them the usual store of `quantize`."""
    if (command, name) == ("quantize", "store") and path.suffix != ".json":
        return ""
    import platformdirs

    cache = os.path.realpath(platformdirs.user_cache_dir("ortfuse"))
    return "a file of the cache of ortfuse" if Path(os.path.realpath(path)).is_relative_to(cache) else ""


def _models(place: Path) -> Sequence[Path]:
    from ortfuse.sweeping.find_models import find_models

    with contextlib.suppress(OrtfuseError, OSError, ValueError):
        return find_models([place])
    return ()


def _targets(values: Mapping[str, Any], folder: Path) -> Sequence[tuple[Path, Path]]:
    """The models of a sweep, each with its result."""
    from ortfuse.sweeping.run_sweep import targets

    with contextlib.suppress(OrtfuseError, OSError, ValueError):
        return targets(_paths(values.get("places")), folder)
    return ()


def _inside(folder: Path, endings: frozenset[str]) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (path for path in folder.rglob("*") if path.suffix.lower() in endings)


def _with_options_of_the_file(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with those that a file of options has instead of those that are not given, and what a file of models names."""
    values = _with_named_files(values)
    file = values.get("config")
    if not isinstance(file, Path):
        return dict(values)
    known: dict[str, Any] = {}
    with contextlib.suppress(OrtfuseError, OSError):  # it is said later
        options = Options.load(file)
        for name in _NAMING:
            found = getattr(options, name)
            if name in _AS_TEXT:
                known[name] = found
            elif found:
                known[name] = [Path(one) for one in ([found] if isinstance(found, str) else found)]
    given = {name: value for name, value in values.items() if value is not None and value != []}
    return {**values, **known, **given}


def _with_named_files(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the files that a file of models names; a sweep that names no places takes its models."""
    file = values.get("models")
    if not isinstance(file, Path):
        return dict(values)
    from ortfuse.api.models_file import ModelsFile

    with contextlib.suppress(OrtfuseError, OSError, ValueError):  # it is said later
        table = ModelsFile.load(file)
        places = values.get("places") or (table.models() if "places" in values else None)
        named = {"models": [file, *table.files()]}
        return {**values, **named, **({"places": places} if places else {})}
    return dict(values)


def _paths(value: Any) -> list[Path]:
    several = value if isinstance(value, list | tuple) else [value]
    return [one for one in several if isinstance(one, Path)]


def _one(value: Any) -> Path | None:
    return next(iter(_paths(value)), None)


def _called(parameter: Any) -> str:
    """The name of an argument in the help."""
    flags = [flag for flag in parameter.opts if flag.startswith("-")]
    return max(flags, key=len) if flags else str(parameter.metavar or parameter.name)
