"""Locks of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from ortfuse.runtime import machine_lock
from ortfuse.runtime.machine_lock import alone, lock_file

pytest.importorskip("fcntl")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine_lock, "FOLDER", tmp_path)
    return tmp_path


def test_one_alone_holds_a_lock_until_it_ends(folder: Path) -> None:
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from typing import IO
from ortfuse.runtime import machine_lock
machine_lock.FOLDER = Path({str(folder)!r})
with machine_lock.alone("a") as got, machine_lock.alone("b") as other:
    print(got, other, flush=True)
    sys.stdin.read()
"""
    with alone("b") as got:
        assert got
        other = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert other.stdout is not None
        assert other.stdout.readline() == "True False\n"
    with alone("a") as got, alone("b") as free:
        assert (got, free) == (False, True)
    other.kill()
    other.communicate()
    with alone("a") as got:
        assert got


def test_the_file_of_a_lock_is_never_opened_to_be_written_where_it_is_there(folder: Path) -> None:
    (folder / "a").touch()
    with lock_file("a") as file:
        assert not file.writable()
    with lock_file("b"):
        assert (folder / "b").stat().st_mode & 0o777 == 0o666


def test_nothing_is_left_of_a_lock_that_was_held(folder: Path) -> None:
    with alone("a") as got:
        assert got
        with alone("a") as other:
            assert not other
        assert (folder / "a").exists(), "only the one that holds it removes it"
    assert not any(folder.iterdir())


def test_the_lock_of_a_file_that_was_removed_meanwhile_is_not_held(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[str]()

    def slow(name: str) -> IO[bytes]:
        opened.append(name)
        file = lock_file(name)
        if len(opened) == 1:
            (folder / name).unlink()
        return file

    monkeypatch.setattr(machine_lock, "lock_file", slow)
    with alone("a") as got, lock_file("a") as file:
        assert got
        assert len(opened) == 2
        assert os.path.samestat(os.fstat(file.fileno()), (folder / "a").stat())
        with alone("a") as other:
            assert not other
