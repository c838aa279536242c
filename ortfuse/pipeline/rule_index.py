"""Index of the built-in rules: stored properties that the rewriter reads, so that rule files load on demand.

`patterns/rule_index.json` has for each rule file the properties that a `DeferredRule` has. `python docs/rule_index.py` writes it.
An entry holds as long as its file, and each file of the catalogue that this imports, has the content that it had then. Without
a valid entry a file is loaded at once, as those of users are: a missing index, or one older than a rule file, makes the start
slower and changes no result. A change of the pattern language or of the traits of operators can change what is stored, too:
`.ci/run` and a test refuse an index that is not what the rules say today.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ortfuse.errors import RuleError
from ortfuse.rewrite import DeferredRule, Rule
from ortfuse.rewrite.lazily_loaded_rule import deferred
from ortfuse.rewrite.rule import checked_before

FILE = "rule_index.json"
"""The name of an index, in the folder of its catalogue."""

FORMAT = 1
"""The form of an index; one in another form is not used."""

_DIGITS = 16


class RuleIndex:
    """The index in the folder of a catalogue.

    Args:
        folder: The folder.
        stored: The content of the index.
    """

    def __init__(self, folder: Path, stored: Mapping[str, Any]) -> None:
        self._folder = str(folder)
        self._hashes: Mapping[str, str] = stored["hashes"]
        self._files: Mapping[str, Any] = stored["files"]
        self._is_as_it_was = functools.cache(self._compare)

    @classmethod
    def of(cls, folder: Path) -> RuleIndex | None:
        """The index of a folder; `None` if there is none, or none in the form of today."""
        try:
            stored = json.loads((folder / FILE).read_bytes())
            return cls(folder, stored) if stored["format"] == FORMAT else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def declared(self, path: str, load: Callable[[], ModuleType]) -> Declared | None:
        """Return the declarations of a file, by its path (`attention/masks`); `None` if it is not indexed, or has changed.

        Args:
            path: The path, without `.py`.
            load: Loads the file.
        """
        entry = self._files.get(path)
        if entry is None or not all(map(self._is_as_it_was, (path, *entry["imports"]))):
            return None
        rules = _Rules(path, load)
        try:
            return Declared(
                file=self._file(path),
                pass_name=entry["pass"],
                targets=None if entry["targets"] is None else tuple(entry["targets"]),
                rules=tuple(deferred(stored, rules.named) for stored in entry["rules"]),
            )
        except (KeyError, ValueError):
            return None

    def _file(self, path: str) -> str:
        return os.path.join(self._folder, f"{path}.py")  # noqa: PTH118 - asked for every file at every start

    def _compare(self, path: str) -> bool:
        return self._hashes.get(path) == hash_of(self._file(path))


@dataclass(frozen=True)
class Declared:
    """The declarations of a rule file, read from an index.

    Attributes:
        file: The file.
        pass_name: Its `PASS`, if it has one.
        targets: Its `TARGETS`, if it has any.
        rules: Its rules. The file is loaded when one of them is tried.
    """

    file: str
    pass_name: str | None
    targets: tuple[str, ...] | None
    rules: tuple[DeferredRule, ...]


class _Rules:
    """The rules of a file, which is loaded when one is asked for."""

    def __init__(self, path: str, load: Callable[[], ModuleType]) -> None:
        self._path, self._load = path, load

    @functools.cached_property
    def _by_name(self) -> Mapping[str, Rule]:
        with checked_before():
            return {rule.name: rule for rule in self._load().RULES}

    def named(self, name: str) -> Rule:
        """A rule by its name.

        Raises:
            RuleError: The file cannot be loaded, or has no such rule.
        """
        found = self._by_name.get(name)
        if found is None:
            raise RuleError(f"{self._path}.py declares no rule {name!r}, which {FILE} says; write that again")
        return found


def hash_of(file: str) -> str | None:
    """A hash of the content of a file; `None` if it cannot be read."""
    try:
        with open(file, "rb") as content:  # noqa: PTH123 - asked of every file at every start
            return hashlib.sha256(content.read()).hexdigest()[:_DIGITS]
    except OSError:
        return None
