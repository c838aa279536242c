"""Files that are written aside and then moved into place, so that a failure leaves the old ones as they were."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable
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
        """Move what was written into place; an error or an interrupt on the way is undone.

        A model file alone is replaced in one step, before or after which a crash may come. With a data file there are
        three: the old data file is moved aside, the model file is replaced, the new data file is moved in. A crash
        between these leaves a model whose data file is missing, which nobody can mistake for a good one, and the old
        data under the name `.ortfuse-*.old`.

        Raises:
            OSError: A file cannot be written to the disk or moved.
        """
        for _, file in self._written.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        if len(self._written) == 1:
            self._written[self._model_file][0].replace(self._model_file)
        else:
            self._replace_all()
        self._written.clear()
        _sync_folder(self._folder)

    def _replace_all(self) -> None:
        kept: dict[Path, Path] = {}
        try:
            for target, (temporary, _) in self._written.items():
                if target.exists():
                    kept[target] = temporary.with_suffix(".old")
                    _set_aside(target, kept[target], leave=target == self._model_file)
            self._written[self._model_file][0].replace(self._model_file)
            for target, (temporary, _) in self._written.items():
                if target != self._model_file:
                    temporary.replace(target)
        except BaseException:
            for target, (temporary, _) in self._written.items():
                if target in kept and kept[target].exists():
                    kept[target].replace(target)
                elif target not in kept and not temporary.exists():
                    target.unlink(missing_ok=True)
            _forget(kept.values())
            raise
        _forget(kept.values())


def _forget(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _set_aside(target: Path, aside: Path, *, leave: bool) -> None:
    """Give a file a second name, or with `leave` false (or where files have only one) another name."""
    if leave:
        with contextlib.suppress(OSError):
            os.link(target, aside)
            return
    target.replace(aside)


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
        raise OutputError(f"{path}: is a device or a pipe; a model is written to a regular file")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{path}: cannot be written: the folder {target.parent} is read-only")
    if present is not None and not os.access(target, os.W_OK):
        raise OutputError(f"{path}: cannot be written: the file is read-only")
    return target
