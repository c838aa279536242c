"""Files that are written aside and then moved into place, so that a failure leaves the old ones as they were."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from ortfuse.errors import OutputError


class Staging:
    """A model file and perhaps its data file, on the way to their places.

    As a context manager: `open` what is to be written, write it, `commit`. On leaving without a commit, by an error or
    an interrupt, everything written so far is deleted.
    """

    def __init__(self, model_file: Path) -> None:
        self._model_file = model_file
        self._folder = model_file.parent
        self._written: dict[Path, tuple[Path, IO[bytes]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for temporary, file in self._written.values():
            # The buffer of a file on a full disk fails again when it is closed; what matters is that it goes away.
            with contextlib.suppress(OSError):
                file.close()
            temporary.unlink(missing_ok=True)

    def open(self, target: Path) -> IO[bytes]:
        """A file to write the future content of `target` into.

        Raises:
            OSError: No file can be created in the folder.
        """
        temporary = self._folder / f".ortfuse-{secrets.token_hex(8)}.tmp"
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        file = os.fdopen(descriptor, "w+b", buffering=1 << 20)
        self._written[target] = (temporary, file)
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
        return file

    def commit(self) -> None:
        """Move what was written into place.

        A model file alone is replaced in one step. A model file with a data file takes three: the old data file is
        moved aside, the model file is replaced, the new data file is moved in. An error on the way is undone; a crash
        between the steps leaves a model whose data file is missing, which cannot be mistaken for a good one.

        Raises:
            OSError: A file cannot be written to the disk or moved.
        """
        for _, file in self._written.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        temporaries = {target: temporary for target, (temporary, _) in self._written.items()}
        model = temporaries.pop(self._model_file)
        if not temporaries:
            model.replace(self._model_file)
        for target, temporary in temporaries.items():
            self._replace_pair(model, temporary, target)
        self._written.clear()
        _sync_folder(self._folder)

    def _replace_pair(self, model: Path, data: Path, data_target: Path) -> None:
        old_data = data.with_suffix(".old")
        try:
            if data_target.exists():
                data_target.replace(old_data)
            model.replace(self._model_file)
        except BaseException:
            if model.exists():
                if old_data.exists():
                    old_data.replace(data_target)
                raise
            data.replace(data_target)
            raise
        data.replace(data_target)
        old_data.unlink(missing_ok=True)


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
    try:
        folder = target.parent.stat()
        present = target.stat().st_mode if target.exists() else None
    except FileNotFoundError:
        raise OutputError(
            f"{path}: cannot be written: the folder {target.parent} does not exist; create it first"
        ) from None
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot be written: {error}") from None
    if not stat.S_ISDIR(folder.st_mode):
        raise OutputError(f"{path}: cannot be written: {target.parent} is not a folder")
    if present is not None and stat.S_ISDIR(present):
        raise OutputError(f"{path}: is a folder; give the name of a file in it")
    if present is not None and not stat.S_ISREG(present):
        raise OutputError(f"{path}: is a device or a pipe; a model is written to a regular file")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{path}: cannot be written: the folder {target.parent} is read-only")
    if present is not None and not os.access(target, os.W_OK):
        raise OutputError(f"{path}: cannot be written: the file is read-only")
    return target
