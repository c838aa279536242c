"""Files that are written aside and then moved into place, so that a failure leaves the old ones as they were."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

from ortfuse.errors import OutputError
from ortfuse.model.data_file import DataFile


class Staging:
    """A model file, and perhaps data files, on the way to their places.

    As a context manager: `open` or `link` what is to be written, write it, `commit`. On leaving without a commit, by an
    error or an interrupt, everything written so far is deleted.

    A model file is replaced in one step. A model file and its data files cannot be, and a model with the data of another
    is worse than none. So where one of the data files stands already, an *interim* model is written too, which refers
    to the data by the names that they have until the commit. It replaces the old model first; then nothing refers to
    the old data, and the new ones take their place; then the model proper replaces the interim one. A crash at any time
    leaves a model with its own data.

    Attributes:
        model: The model file.
    """

    def __init__(self, model: Path) -> None:
        self.model = model
        self._temporaries: dict[str, Path] = {}
        self._files: list[IO[bytes]] = []
        self._data: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            # The buffer of a file on a full disk fails again when it is closed; what matters is that it goes away.
            with contextlib.suppress(OSError):
                file.close()
        for temporary in self._temporaries.values():
            temporary.unlink(missing_ok=True)

    @property
    def data(self) -> list[Path]:
        """The data files, in the order in which they were opened or linked: where they will be."""
        return [self._place(index) for index in range(len(self._data))]

    def _place(self, index: int) -> Path:
        return self.model.with_name(f"{self.model.name}.data" + (f".{index}" if index else ""))

    def open(self, what: Literal["model", "data", "interim"]) -> IO[bytes]:
        """A file to write the future model file, the next data file or the interim model into.

        Raises:
            OSError: No file can be created in the folder.
        """
        place = self._place(len(self._data)) if what == "data" else self.model
        temporary = self._name(place.name if what == "data" else what)
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        file = os.fdopen(descriptor, "w+b", buffering=1 << 20)
        self._files.append(file)
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, stat.S_IMODE(place.stat().st_mode))
        if what == "data":
            self._data.append(temporary)
        return file

    def link(self, source: DataFile) -> bool:
        """Make a file the next data file, by a hard link; whether that is possible."""
        temporary = self._name(self._place(len(self._data)).name)
        linked = source.link_to(temporary)
        if linked:
            self._data.append(temporary)
        return linked

    def _name(self, what: str) -> Path:
        return self._temporaries.setdefault(what, self.model.with_name(f".ortfuse-{secrets.token_hex(8)}.tmp"))

    def interim_data_names(self) -> list[str] | None:
        """The names by which an interim model refers to the data files, if one has to be written."""
        return [path.name for path in self._data] if any(path.exists() for path in self.data) else None

    def commit(self) -> None:
        """Move what was written into place; an error or an interrupt on the way is undone.

        Raises:
            OSError: A file cannot be written to the disk or moved, or the file system has no hard links, without which
                a model file and data files cannot be replaced together.
        """
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
            file.close()
        if "interim" in self._temporaries:
            self._replace_all()
        else:
            self._place_new()
        _sync_folder(self.model.parent)

    def _place_new(self) -> None:
        """Place a model file, and data files where none stand yet."""
        model = self._temporaries["model"]
        try:
            for temporary, place in zip(self._data, self.data, strict=True):
                temporary.replace(place)
            model.replace(self.model)
        except BaseException:
            if self._data and model.exists():
                for place in self.data:
                    place.unlink(missing_ok=True)
            raise

    def _replace_all(self) -> None:
        model, places = self._temporaries["model"], self.data
        old = {target: self._name(f"old {target.name}") for target in (*places, self.model) if target.exists()}
        try:
            for target, second_name in old.items():
                os.link(target, second_name)
            self._temporaries["interim"].replace(self.model)
            for temporary, place in zip(self._data, places, strict=True):
                placed = self._name(f"placed {place.name}")
                os.link(temporary, placed)
                placed.replace(place)
            model.replace(self.model)
        except BaseException:
            if model.exists():
                self._undo(old)
            raise

    def _undo(self, old: dict[Path, Path]) -> None:
        for target in (*self.data, self.model):
            if target not in old:
                target.unlink(missing_ok=True)
            elif old[target].exists():
                old[target].replace(target)


def _sync_folder(folder: Path) -> None:
    # Some file systems cannot sync a folder; the files themselves are on the disk by now.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def writable_target(path: str | os.PathLike[str]) -> Path:
    """The path as one that a file can be written to.

    Raises:
        OutputError: It cannot: its folder is missing or read-only, or something other than a file stands there.
    """
    target = Path(path)
    if "\0" in target.name:
        raise OutputError(f"{path!r}: cannot be written: there is a null byte in the name")
    try:
        folder = target.parent.stat()
        present = target.stat().st_mode if target.exists() else None
    except FileNotFoundError:
        raise OutputError(
            f"{path}: cannot be written: the folder {target.parent} does not exist; create it first"
        ) from None
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from None
    if not stat.S_ISDIR(folder.st_mode):
        raise OutputError(f"{path}: cannot be written: {target.parent} is not a folder")
    if present is not None and stat.S_ISDIR(present):
        raise OutputError(f"{path}: is a folder; give the name of a file in it")
    if present is not None and not stat.S_ISREG(present):
        raise OutputError(f"{path}: is a device or a pipe; give the name of a regular file")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{path}: cannot be written: the folder {target.parent} is read-only")
    if present is not None and not os.access(target, os.W_OK):
        raise OutputError(f"{path}: cannot be written: the file is read-only")
    return target
