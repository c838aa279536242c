"""Make the index of a catalogue (`ortfuse.pipeline.rule_index`) from its loaded rules."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ortfuse.pipeline.discover_rule_files import BUILT_IN_PACKAGE, load_catalogue
from ortfuse.pipeline.rule_catalogue import RuleFile
from ortfuse.pipeline.rule_index import FILE, FORMAT, hash_of
from ortfuse.rewrite.lazily_loaded_rule import stored_properties


def refresh(folder: Path, *, write: bool = True) -> bool:
    """Bring the index of the built-in rules up to date; returns whether it was not.

    Args:
        folder: The folder of the catalogue, `patterns/` of a checkout.
        write: Whether to write it, or only to compare.

    Raises:
        RuleError: A rule is wrong.
    """
    files = [file for file in load_catalogue().files if file.source == "built-in"]
    for rule in (rule for file in files for rule in file.rules):
        rule.check()
    found, file = text_of(index_of(folder, BUILT_IN_PACKAGE, files)), folder / FILE
    if file.is_file() and file.read_text(encoding="utf-8") == found:
        return False
    if write:
        file.write_text(found, encoding="utf-8")
    return True


def index_of(folder: Path, package: str, files: Iterable[RuleFile]) -> dict[str, Any]:
    """Return the index of a catalogue, as JSON data.

    Args:
        folder: The folder of the catalogue.
        package: The name of its package.
        files: Its rule files.
    """
    imports = _Imports(folder, package)
    entries = {
        _path(folder, Path(file.origin)): {
            "imports": sorted(imports.closure(_path(folder, Path(file.origin)))),
            **_declared(Path(file.origin)),
            "rules": [stored_properties(rule) for rule in file.rules],
        }
        for file in files
    }
    named = sorted({*entries, *(path for entry in entries.values() for path in entry["imports"])})
    hashes = {path: hash_of(str(folder / f"{path}.py")) for path in named}
    return {"format": FORMAT, "hashes": hashes, "files": dict(sorted(entries.items()))}


def text_of(index: Mapping[str, Any]) -> str:
    """Return an index as text, in which each hash and each rule has a line of its own."""
    lines = ["{", f'"format": {index["format"]},', '"hashes": {']
    lines += _separated(f"{json.dumps(path)}: {json.dumps(found)}" for path, found in index["hashes"].items())
    lines += ["},", '"files": {']
    for number, (path, entry) in enumerate(index["files"].items()):
        head = ", ".join(f'"{key}": {json.dumps(entry[key])}' for key in ("imports", "pass", "targets"))
        lines += [f'{json.dumps(path)}: {{{head}, "rules": [']
        lines += _separated(json.dumps(rule) for rule in entry["rules"])
        lines += ["]}" if number + 1 == len(index["files"]) else "]},"]
    return "\n".join([*lines, "}}", ""])


def _separated(lines: Iterable[str]) -> list[str]:
    made = list(lines)
    return [f"{line}," for line in made[:-1]] + made[-1:]


def _path(folder: Path, file: Path) -> str:
    """The path of a module in the folder, without `.py`."""
    return file.relative_to(folder).with_suffix("").as_posix()


def _declared(file: Path) -> dict[str, Any]:
    """The `PASS` and `TARGETS` that a file gives itself."""
    found: dict[str, Any] = {"pass": None, "targets": None}
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            key = statement.targets[0].id.lower()
            if key in found:
                found[key] = ast.literal_eval(statement.value)
    return found


class _Imports:
    """The files of a catalogue that a file imports, read from its text."""

    def __init__(self, folder: Path, package: str) -> None:
        self._folder, self._package = folder, package
        self._direct: dict[str, list[str]] = {}

    def closure(self, path: str) -> set[str]:
        """The paths of all files that a file imports, directly or not, and that are in the folder."""
        found: set[str] = set()
        left = [path]
        while left:
            name = left.pop()
            if name not in self._direct:
                self._direct[name] = [*self._used(name)]
            for used in self._direct[name]:
                if used != path and used not in found:
                    found.add(used)
                    left.append(used)
        return found

    def _used(self, path: str) -> Iterator[str]:
        tree = ast.parse((self._folder / f"{path}.py").read_text(encoding="utf-8"))
        for statement in ast.walk(tree):
            if isinstance(statement, ast.ImportFrom):
                source = self._source(path, statement)
                if source is not None:
                    for name in ("__init__", *(alias.name for alias in statement.names)):
                        yield from self._module([*source, name])
                    yield from self._module(source)
            elif isinstance(statement, ast.Import):
                for alias in statement.names:
                    if alias.name.startswith(f"{self._package}."):
                        yield from self._module(alias.name.removeprefix(f"{self._package}.").split("."))

    def _source(self, path: str, statement: ast.ImportFrom) -> list[str] | None:
        """The parts of the path that is imported from; `None` if that is outside."""
        inside = (statement.module or "").split(".") if statement.module else []
        if statement.level:
            return [*path.split("/")[: -statement.level], *inside]
        own = self._package.split(".")
        return inside[len(own) :] if inside[: len(own)] == own else None

    def _module(self, parts: list[str]) -> Iterator[str]:
        if parts and (self._folder / "/".join(parts)).with_suffix(".py").is_file():
            yield "/".join(parts)
