"""Numbers of threads that never get to run, and numbers of thousands of digits: an error in one line, at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ortfuse
from ortfuse.api.models_file import ModelsFile
from ortfuse.cli.app import main
from ortfuse.errors import OptionError, OrtfuseError
from ortfuse.io.load_and_save import load
from ortfuse.runtime.memory_footprint import footprint
from ortfuse.runtime.session import Session
from ortfuse.runtime.session_settings import SessionConfig, Setting
from ortfuse.targets.processor import MOST_THREADS, demand_threads

TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[n,4] x) => (float[n,4] y) { y = Relu(x) }'
TOO_MANY = [MOST_THREADS + 1, 100_000, 10**5000]
AT_MOST = f"{MOST_THREADS} at most"

WITH_THREADS = [
    "optimize m.onnx --bench", "substitute m.onnx --find m.onnx --replace m.onnx --bench", "quantize m.onnx --max-error 0.1",
    "tune m.onnx --budget 1s", "sweep m.onnx", "bench m.onnx", "profile m.onnx", "inspect m.onnx", "calibrate --budget 1s",
    "calibrate --session m.onnx",
]  # fmt: skip
"""The commands that have `--threads`."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(TEXT), "m.onnx")


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line in which a command says why it cannot be."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    text = capsys.readouterr().err
    assert end.value.code == 2, text
    (line,) = text.strip().splitlines()
    assert len(line) < 1000
    return line


@pytest.mark.parametrize("threads", ["100000", str(MOST_THREADS + 1), "9" * 4000])
@pytest.mark.parametrize("command", WITH_THREADS)
def test_no_command_asks_for_more_threads_than_ever_run(
    command: str, threads: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert AT_MOST in said([*command.split(), "--threads", threads], capsys)


def test_the_commands_above_are_all_that_have_threads(capsys: pytest.CaptureFixture[str]) -> None:
    import typer

    from ortfuse.cli.app import app

    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    having = {name for name, one in known.items() if any(option.name == "threads" for option in one.params)}
    assert having == {command.split()[0] for command in WITH_THREADS}


def test_no_file_asks_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    Path("o.toml").write_text("threads = 100000\n")
    assert AT_MOST in said(["optimize", "m.onnx", "--config", "o.toml"], capsys)
    Path("models.toml").write_text('[models."m.onnx"]\nthreads = 100000\n')
    for command in ("optimize m.onnx --bench", "bench m.onnx", "profile m.onnx", "sweep m.onnx"):
        assert AT_MOST in said([*command.split(), "--models", "models.toml"], capsys)


@pytest.mark.parametrize("threads", TOO_MANY, ids=["one more", "many", "digits"])
def test_no_function_asks_for_them(threads: int) -> None:
    loaded = load("m.onnx")
    for action in (
        lambda: ortfuse.optimize("m.onnx", threads=threads, bench=True),
        lambda: ortfuse.benchmark({"m": "m.onnx"}, threads=threads),
        lambda: ortfuse.inspect("m.onnx", threads=threads),
        lambda: ortfuse.profile("m.onnx", threads=threads),
        lambda: ortfuse.quantize("m.onnx", max_error=0.1, threads=threads),
        lambda: ortfuse.tune("m.onnx", budget=1, threads=threads),
        lambda: ortfuse.calibrate(threads=threads),
        lambda: ortfuse.calibrate_session("m.onnx", threads=threads),
        lambda: ortfuse.session("m.onnx", {"intra_op_num_threads": threads}),
        lambda: ortfuse.session("m.onnx", {"inter_op_num_threads": threads}),
        lambda: Setting("providers", [["XnnpackExecutionProvider", {"intra_op_num_threads": min(threads, 10**9)}]]),
        lambda: Session(loaded, threads=threads),
        lambda: footprint(loaded, {"x": np.ones((1, 4), np.float32)}, threads),
    ):
        with pytest.raises(OptionError, match=AT_MOST):
            action()


def test_options_of_the_runtime_ask_for_no_more_either() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 100_000
    with pytest.raises(OptionError, match=AT_MOST):
        ortfuse.session("m.onnx", options=options)


@pytest.mark.parametrize("wrong", [-1, 1.5, "2", None, True])
def test_threads_are_a_whole_number(wrong: Any) -> None:
    with pytest.raises(OptionError, match="whole number, 0 or more"):
        demand_threads(wrong)


NUMBERS = {
    "tolerance": [10**400, float("inf"), float("nan")],
    "verify_budget": [-(10**400), float("nan")],
    "bench_budget": [10**400],
    "seed": [10**5000, -(10**5000)],
    "rounds": [10**5000],
    "max_opset": [10**5000],
    "sizes": [{"n": 10**5000}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, several in NUMBERS.items() for value in several],
                         ids=lambda one: one if isinstance(one, str) else "number")  # fmt: skip
def test_a_number_of_any_length_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=name) as error:
        ortfuse.Options(**{name: value}, bench=True)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("option", ["--size n=", "--size-range n=1:", "--fix n=", "--seed ", "--rounds ", "--threads "])
def test_an_option_of_thousands_of_digits_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["optimize", "m.onnx", *f"{option}{'9' * 5000}".split()])
    assert end.value.code == 2
    assert "report it" not in capsys.readouterr().err


def test_a_budget_has_no_bound() -> None:
    assert ortfuse.Options(verify_budget=10**400).verify_budget == float("inf")


@pytest.mark.parametrize("name", [*NUMBERS, "threads", "passes", "verify"])
def test_hexadecimal_numbers_in_a_file_have_as_many_digits_as_decimal_ones(name: str) -> None:
    number = "0x" + "f" * 5000
    Path("o.toml").write_text(f"{name} = {f'{{n = {number}}}' if name == 'sizes' else number}\n")
    with pytest.raises(OrtfuseError) as error:
        ortfuse.Options.load("o.toml")
    assert len(str(error.value)) < 300
    Path("models.toml").write_text(f'[models."m.onnx"]\nmax_error = {number}\n')
    with pytest.raises(OrtfuseError):
        ModelsFile.load("models.toml")


def test_settings_of_a_file_are_left_out_with_a_warning() -> None:
    rows = [{"name": "intra_op_num_threads", "value": 10**400, "reason": ""}]
    with pytest.warns(ortfuse.errors.OrtfuseWarning, match="left out"):
        assert not len(SessionConfig.from_json(json.dumps({"schema": 1, "settings": rows}), "x"))
