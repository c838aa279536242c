"""Keep measurements in an SQLite file, so that a search that was stopped resumes.

A key names everything that a measurement depends on: the model and the inputs by their contents, the machine, the versions of
the runtime and of ortfuse, and the site and scheme.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir
import onnxruntime
import platformdirs

from ortfuse.io.bounded_text_files import from_json
from ortfuse.io.sqlite import opened
from ortfuse.runtime.session import separated
from ortfuse.serialization.dataclass_from_json import record
from ortfuse.targets.processor import processor_in_full
from ortfuse.version import __version__

FORMAT = 14
"""Counts the changes of what is kept, or of how it is measured; what was kept before a change is not found any more."""

T = TypeVar("T")

_TABLE = "CREATE TABLE IF NOT EXISTS measured (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"


def default_store() -> Path:
    """The file in the user's cache folder that keeps measurements."""
    return Path(platformdirs.user_cache_dir("ortfuse")) / "quantize.sqlite"


class Store:
    """Measurements by key, in a file or, if that cannot be used, in memory.

    Args:
        path: The file; `None` for none.
        context: The common beginning of all keys.

    Attributes:
        problem: Why the file is not used; empty if it is.
    """

    def __init__(self, path: Path | None, *context: object) -> None:
        self.problem = ""
        self._context = _digest(context)
        self._database = self._opened(path)

    def within(self, *context: object) -> Store:
        """The same file, with keys that belong to a context besides."""
        inner = Store.__new__(Store)
        inner.problem, inner._database = self.problem, self._database
        inner._context = _digest((self._context, *context))
        return inner

    def get(self, *key: object) -> Any:
        """Return the data kept under a key; `None` if there is nothing."""
        try:
            found = self._database.execute("SELECT value FROM measured WHERE key = ?", (self._key(key),)).fetchone()
            return None if found is None else from_json(found[0])
        except (sqlite3.Error, ValueError, TypeError) as error:
            self.problem = str(error)  # a damaged file: it is measured again
            return None

    def get_record(self, kind: type[T], *key: object, renamed: Mapping[str, str] | None = None) -> T | None:
        """Return an object of a dataclass that was kept under a key.

        Args:
            kind: The dataclass.
            key: The key.
            renamed: The names of fields that were renamed, by their former names.

        Returns:
            The object; `None` if nothing, or something else, is kept under the key.
        """
        found = self.get(*key)
        if renamed and isinstance(found, dict):
            found = {renamed.get(name, name): value for name, value in found.items()}
        try:
            return None if found is None else record(kind, found)
        except ValueError as error:
            self.problem = str(error)
            return None

    def put(self, value: Any, *key: object) -> None:
        """Keep data for JSON under a key."""
        row = (self._key(key), json.dumps(value))
        try:
            with self._database:
                self._database.execute("INSERT OR REPLACE INTO measured VALUES (?, ?)", row)
        except sqlite3.Error as error:
            self.problem = str(error)  # it is measured again next time

    def _key(self, key: Iterable[object]) -> str:
        return f"{self._context} {' '.join(map(str, key))}"

    def _opened(self, path: Path | None) -> sqlite3.Connection:
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                return _database(opened(path, timeout=30))
            except (OSError, sqlite3.Error) as error:
                self.problem = f"{path} cannot be used, so nothing is kept for another run: {error}"
        return _database(sqlite3.connect(":memory:"))


def _database(database: sqlite3.Connection) -> sqlite3.Connection:
    database.execute("PRAGMA synchronous = OFF")  # losing the last measurements with the power costs little
    database.execute(_TABLE)
    return database


def machine() -> tuple[object, ...]:
    """Return the properties of this machine that measurements depend on."""
    return (FORMAT, __version__, onnxruntime.__version__, processor_in_full(), os.cpu_count())


def model_digest(model: ir.Model) -> str:
    """A digest of a model's content: its graph and its weights, which are read one by one."""
    source, weights = separated(model)
    digest = hashlib.sha256(source)
    for name, tensor in weights.items():
        digest.update(name.encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()


def inputs_digest(inputs: Iterable[Mapping[str, Any]]) -> str:
    """A digest of sets of inputs."""
    digest = hashlib.sha256()
    for arrays in inputs:
        for name, array in sorted(arrays.items()):
            content = np.asarray(array)
            digest.update(f"{name} {content.dtype} {content.shape} ".encode())
            digest.update(repr(content.tolist()).encode() if content.dtype.kind == "O" else content.tobytes())
    return digest.hexdigest()


def _digest(content: Iterable[object]) -> str:
    return hashlib.sha256(repr(tuple(content)).encode()).hexdigest()[:24]
