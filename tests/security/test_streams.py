"""Standard output that is full, closed or read by nobody: no traceback, and never the exit code of outputs that differ."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
import onnx
import pytest

from ortfuse.cli.app import main

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[n,4] x) => (float[n,4] y)
{ a = MatMul(x, w) b = Sigmoid(a) y = OP(a, b) }"""
PART = '<ir_version: 10, opset_import: ["": 21]> g (float[n,4] a) => (float[n,4] y) { b = Sigmoid(a) y = Mul(a, b) }'
RULE = """
from ortfuse.rewrite.pattern import op, var
from ortfuse.rewrite import Exactness, RuleTest, Rule
x = var("x")
RULES = [Rule(name="mine.neg", pattern=op.Neg(op.Neg(x)), replace=x, exactness=Exactness.EXACT, source="test",
              test=RuleTest(shapes={"x": "2"}))]
"""

COMMANDS = {
    "optimize m.onnx -o r.onnx --verify --explain": 0, "verify m.onnx m.onnx": 0, "verify m.onnx other.onnx": 1,
    "diff m.onnx other.onnx": 0, "bisect m.onnx": 0, "explain m.onnx": 0, "inspect m.onnx": 0, "bench m.onnx --rounds 1": 0,
    "profile m.onnx --rounds 1 --no-remedies": 0, "convert m.onnx -o h.onnx": 0, "passes": 0,
    "test-rules mine.py": 0, "substitute m.onnx -o s.onnx --find part.onnx --replace other-part.onnx": 0,
}  # fmt: skip
"""Commands, each with its exit code where all can be written."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, operator in (("m", "Mul"), ("other", "Add")):
        made = onnx.parser.parse_model(TEXT.replace("OP", operator))
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
        onnx.save(made, f"{name}.onnx")
    for name, order in (("part", "Mul(a, b)"), ("other-part", "Mul(b, a)")):
        onnx.save(onnx.parser.parse_model(PART.replace("Mul(a, b)", order)), f"{name}.onnx")
    Path("mine.py").write_text(RULE)


def full() -> TextIO:
    return Path("/dev/full").open("w", buffering=1, encoding="utf-8")


def unread() -> TextIO:
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w", buffering=1, encoding="utf-8")


@pytest.fixture
def standard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, TextIO], TextIO]]:
    """Puts a stream in the place of a standard one."""
    opened: list[TextIO] = []

    def put(name: str, stream: TextIO) -> TextIO:
        opened.append(stream)
        monkeypatch.setattr(sys, name, stream)
        return stream

    yield put
    for stream in opened:
        stream.close()


def code(command: str) -> object:
    with pytest.raises(SystemExit) as end:
        main(command.split())
    return end.value.code


@pytest.mark.parametrize("command", COMMANDS)
def test_output_that_cannot_be_written_is_no_answer(
    command: str, standard: Callable[[str, TextIO], TextIO], capsys: pytest.CaptureFixture[str]
) -> None:
    standard("stdout", full())
    assert code(command) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line == "error: standard output cannot be written: No space left on device"


@pytest.mark.parametrize("command", COMMANDS)
def test_who_reads_no_more_changes_no_answer(
    command: str, standard: Callable[[str, TextIO], TextIO], capsys: pytest.CaptureFixture[str]
) -> None:
    standard("stdout", unread())
    assert code(command) == COMMANDS[command]
    assert not capsys.readouterr().err


@pytest.mark.parametrize("made", [full, unread])
@pytest.mark.parametrize(("command", "expected"), [("inspect none.onnx", 2), ("verify m.onnx other.onnx", 1)])
def test_errors_that_nobody_can_read_change_no_answer(
    command: str, expected: int, made: Callable[[], TextIO], standard: Callable[[str, TextIO], TextIO]
) -> None:
    standard("stderr", made())
    assert code(command) == expected


@pytest.mark.parametrize(
    ("shell", "expected"),
    [
        ("--help > /dev/full", 2),
        ("nonsense >&- 2>&-", 2),
        ("verify m.onnx other.onnx 0<&- >&- 2>&-", 1),
        ("--version | true", 0),
    ],
)
def test_the_program_itself_has_the_same_exit_codes(shell: str, expected: int) -> None:
    command = f"set -o pipefail; {sys.executable} -P -m ortfuse {shell}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == expected, done.stderr
    assert len(done.stderr.strip().splitlines()) <= 1
