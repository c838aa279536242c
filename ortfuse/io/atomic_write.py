"""Write files to temporary names and then move them into place, so that a failure leaves the old files unchanged."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import stat
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

from ortfuse.errors import OutputError
from ortfuse.io.data_file import DataFile


class Staging:
    """A model file, with its data files if any, while being written.

    Use as a context manager: `open` or `link` each file, write it, then `commit`, if need be after a look at what is `written`
    and meanwhile a `sync`. Leaving without a commit, through an error or
    an interrupt, deletes everything written so far.

    A model file can be replaced in one step. A model file and its data files cannot, and a model with the data of another one
    is worse than none. So if one of the data files already exists, an *interim* model is written as well, which refers to
    the data by their temporary names. First it replaces the old model; then nothing refers to the old data, and the new
    data files take their place; then the final model replaces the interim one. A crash at any time leaves a model with
    its own data.

    Args:
        model: The model file.
        avoided: Files that may not be replaced, since another model has its data in them.

    Attributes:
        model: The model file.
    """

    def __init__(self, model: Path, avoided: Collection[Path] = ()) -> None:
        self.model, self._avoided = model, avoided
        self._temporaries: dict[str, Path] = {}
        self._files: list[IO[bytes]] = []
        self._data: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            # Closing the buffered file fails again if the disk is full; all that matters is that it goes away.
            with contextlib.suppress(OSError):
                file.close()
        for temporary in self._temporaries.values():
            temporary.unlink(missing_ok=True)

    @property
    def data(self) -> list[Path]:
        """The final paths of the data files, in the order in which they were opened or linked."""
        return [self._place(index) for index in range(len(self._data))]

    def _place(self, index: int) -> Path:
        places = (self.model.with_name(f"{self.model.name}.data" + (f".{n}" if n else "")) for n in itertools.count())
        free = (place for place in places if not self._avoided or real(place) not in self._avoided)
        return next(itertools.islice(free, index, None))

    def open(self, what: Literal["model", "data", "interim"]) -> IO[bytes]:
        """Open the future model file, the next data file or the interim model for writing.

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
        """Make a file the next data file by a hard link; returns whether that was possible."""
        temporary = self._name(self._place(len(self._data)).name)
        linked = source.link_to(temporary)
        if linked:
            self._data.append(temporary)
        return linked

    def _name(self, what: str) -> Path:
        return self._temporaries.setdefault(what, self.model.with_name(f".ortfuse-{secrets.token_hex(8)}.tmp"))

    def interim_data_names(self) -> list[str] | None:
        """The names by which an interim model refers to the data files; `None` if no interim model is needed."""
        return [path.name for path in self._data] if any(path.exists() for path in self.data) else None

    def written(self) -> tuple[Path, dict[str, Path]]:
        """The model file as it can be read now, and its data files by the names that it has for them."""
        for file in self._files:
            file.flush()
        names = (path.name for path in self.data)
        return self._temporaries["model"], dict(zip(names, self._data, strict=True))

    def sync(self) -> None:
        """Write the files to the disk.

        Raises:
            OSError: One of them cannot be written.
        """
        for file in self._files:
            if not file.closed:
                file.flush()
                os.fsync(file.fileno())
                file.close()

    def commit(self) -> None:
        """Move the files into place; an error or an interrupt on the way undoes everything.

        Raises:
            OSError: A file cannot be written to the disk or moved, or the file system has no hard links, without which
                a model file and data files cannot be replaced together.
        """
        self.sync()
        if "interim" in self._temporaries:
            self._replace_all()
        else:
            self._place_new()
        _sync_folder(self.model.parent)

    def _place_new(self) -> None:
        """Move a model file into place, and data files where none exist yet."""
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
    # Some file systems cannot sync a folder; the files themselves have already been synced.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def real(path: str | os.PathLike[str]) -> Path:
    """Follow a path through all symbolic links; links in a circle, for which `Path.resolve` raises, stay."""
    return Path(os.path.realpath(path))


def followed(path: Path) -> Path:
    """The file that writing to a path changes: the one that a symbolic link leads to, as with `cp` and `open`.

    It, and not the link, is what a temporary file can take the place of, and has to be in the folder of.
    """
    return real(path) if path.is_symlink() else path


def writable_target(path: str | os.PathLike[str]) -> Path:
    """The file that writing to `path` changes (see `followed`), checked to be writable.

    Raises:
        OutputError: The folder is missing or read-only, or the path exists and is not a file.
    """
    if "\0" in Path(path).name:
        raise OutputError(f"{path!r}: cannot be written: there is a null byte in the name")
    try:
        target = followed(Path(path))
        folder = target.parent.stat()
        present = _mode(target)
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


def _mode(path: Path) -> int | None:
    """The kind and permissions of the file at a path; `None` if there is none. A circle of links is an error."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def write_text(path: Path, text: str, *, follow: bool = True) -> None:
    """Write a small file of text (see `write_bytes`); what is no text, such as the name of a file in no encoding, as escapes."""
    write_bytes(path, text.encode(errors="backslashreplace"), follow=follow)


def write_bytes(path: Path, content: bytes, *, follow: bool = True) -> None:
    """Write a small file to a temporary one in the same folder and move it into place.

    Args:
        path: The file.
        content: What is written.
        follow: Whether the file that a symbolic link leads to is written. Where the user did not name the file, the link is
            replaced: it may have come with a model, and lead anywhere.

    Raises:
        OutputError: It cannot be written, or something else than a file is there; what was there is unchanged.
    """
    aside: Path | None = None
    try:
        place = followed(path) if follow else path
        present = None if place.is_symlink() else _mode(place)
        if present is not None and not stat.S_ISREG(present):
            raise OutputError(f"{path}: is a folder, a device or a pipe; give the name of a regular file")
        aside = place.with_name(f".ortfuse-{secrets.token_hex(8)}.tmp")
        with aside.open("xb") as file:
            file.write(content)
        aside.replace(place)
    except OSError as error:
        if aside is not None:
            aside.unlink(missing_ok=True)
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error


def demand_no_link(path: Path, advice: str) -> None:
    """Check that a file that the user did not name is no symbolic link: it may have come with a model, and lead anywhere.

    Args:
        path: The file.
        advice: What to do if it is.

    Raises:
        OutputError: It is.
    """
    if path.is_symlink():
        raise OutputError(f"{path}: is a symbolic link, which is not followed where a file is not named; {advice}")


def check_folder(path: Path) -> None:
    """Check that a folder exists and is writable, or can be created.

    Raises:
        OutputError: It is neither.
    """
    present = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not present.is_dir():
        raise OutputError(f"{path}: cannot be made: {present} is a file; give another folder")
    if not os.access(present, os.W_OK | os.X_OK):
        raise OutputError(f"{path}: cannot be written to: the folder {present} is read-only")
