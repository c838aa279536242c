"""Read small, untrusted text files safely: regular files only, bounded size and nesting depth.

Such a file may be a pipe that never says anything, a device without an end, or text with a hundred thousand levels of
nesting. Each of these ends in an `OSError` or a `ValueError`, as a missing or damaged file does.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tomllib
from io import BufferedReader
from pathlib import Path
from typing import Any

LARGEST = 1 << 28
"""Bytes of the largest file that is read whole."""

DEEPEST = 100
"""The most levels of lists and tables within each other."""

LONGEST_NUMBER = 10_000
"""The most bits of a whole number: Python writes none of more than 4300 digits, which TOML can have as hexadecimal ones."""


def regular_file(path: str | os.PathLike[str]) -> BufferedReader:
    """A regular file, opened to be read.

    Raises:
        OSError: It cannot be opened, or is a folder, a pipe or a device.
    """
    # Opening a pipe to read waits for somebody who writes, unless it is told not to.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is a device or a pipe, not a regular file", os.fspath(path))
    return file


def read_bytes(path: str | os.PathLike[str], largest: int = LARGEST) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: It cannot be read, is a pipe or a device, or has more than `largest` bytes.
    """
    with regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1) if size <= largest else b""  # no room is made for more
    if max(size, len(content)) > largest:
        raise OSError(errno.EFBIG, f"it has more than {largest:,} bytes", os.fspath(path))
    return content


def read_text(path: str | os.PathLike[str], largest: int = LARGEST) -> str:
    """The content of a regular file of text in UTF-8.

    Raises:
        OSError: As for `read_bytes`.
        UnicodeDecodeError: It is not UTF-8.
    """
    return read_bytes(path, largest).decode("utf-8")


def from_json(text: str | bytes) -> Any:
    """Data from JSON.

    Raises:
        ValueError: It is not JSON, or nests too deeply.
    """
    try:
        return _shallow(json.loads(text))
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def from_toml(text: str) -> dict[str, Any]:
    """Data from TOML.

    Raises:
        ValueError: It is not TOML, nests too deeply, or has a number of thousands of digits.
    """
    try:
        data: dict[str, Any] = _shallow(tomllib.loads(text))
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    return data


def _shallow(data: Any) -> Any:
    """The data, if what is made of them by recursion later, such as a message, has an end."""
    level = [data] if isinstance(data, dict | list) else []
    for _ in range(DEEPEST):
        inside = [one for several in level for one in (several.values() if isinstance(several, dict) else several)]
        if any(isinstance(one, int) and one.bit_length() > LONGEST_NUMBER for one in inside):
            raise ValueError("a number in it has thousands of digits")
        level = [one for one in inside if isinstance(one, dict | list)]
        if not level:
            return data
    raise ValueError("it nests too deeply")


def json_in(path: str | os.PathLike[str], largest: int = LARGEST) -> Any:
    """Data from a file of JSON.

    Raises:
        OSError: As for `read_bytes`.
        ValueError: It is not JSON in UTF-8, or nests too deeply.
    """
    return from_json(read_text(Path(path), largest))
