"""Summaries and raw results of benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.results import Results, keep, read, rounded, text
from benchmarks.trust import readings


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results, "SUMMARIES", tmp_path / "summaries")
    monkeypatch.setattr(results, "RAW", tmp_path / "raw")
    return tmp_path


def test_a_summary_is_read_again_and_those_of_other_processors_stay(place: Path) -> None:
    for processor, speedup in (("x86_64", 1.5), ("arm64", 2.5), ("arm64", 3.5)):
        Results("latency", processor=processor).store("python -m x", {"models": {"a": speedup}})
    assert Results("latency", processor="x86_64").rows() == {"a": 1.5}
    assert Results("latency", processor="arm64").rows() == {"a": 3.5}
    assert Results("latency", processor="riscv64").result() == {} == Results("none").rows()
    content = json.loads((place / "summaries" / "latency.json").read_text())
    assert content["question"].startswith("how fast") and content["command"] == "python -m x"
    assert content["runs"][0].keys() == {"processor", "date", "machine", "versions", "result"}
    assert {"onnx", "onnxruntime"} <= content["runs"][0]["versions"].keys()


def test_raw_rows_add_up_and_are_not_in_the_summary(place: Path) -> None:
    found = Results("engine")
    found.store("python -m x", {"sum": 1}, raw={"a": [1], "b": [2]})
    found.add({"b": [3]})
    assert Results("engine").raw_rows() == {"a": [1], "b": [3]}
    assert read("engine")[0]["result"] == {"sum": 1} and found.raw == place / "raw" / "engine.json"


def test_a_summary_beside_a_path_of_the_users_is_put_into_place_later(place: Path) -> None:
    Results("latency", processor="x86_64").store("old", {"x": 1})
    Results("latency", place / "mine" / "latency.json", "arm64").store("new", {"x": 2}, raw={"a": 1})
    assert len(read("latency")) == 1 and not (place / "raw").exists()
    keep("latency", place / "mine" / "latency.summary.json")
    assert {run["processor"]: run["result"] for run in read("latency")} == {"x86_64": {"x": 1}, "arm64": {"x": 2}}


def test_numbers_of_a_summary_are_rounded_and_whole_numbers_are_not() -> None:
    assert rounded({"a": [1 / 3, (2e-9 / 3, 123456789)], "b": True}) == {
        "a": [0.333333, [6.66667e-10, 123456789]],
        "b": True,
    }


@pytest.mark.parametrize(
    "value",
    [
        {},
        [[]],
        {"a": {"b": list(range(100))}, "c": {f"key {n}": {"x": n, "y": [n, "a" * n]} for n in range(60)}},
        [None, True, "a, b: {c}", {"long " * 30: 1.5}, *(["x" * 50] * 5)],
    ],
)
def test_the_text_of_a_summary_is_its_content_in_few_lines_that_are_not_long(value: object) -> None:
    made = text(value)
    assert json.loads(made) == value
    assert all(len(line) <= 120 or len(line.strip()) > 150 for line in made.splitlines())
    assert len(made.splitlines()) <= max(1, len(json.dumps(value)) / 20)


def test_a_part_of_a_question_does_not_replace_its_summary(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        readings.main(["Softmax", "--write"])
    assert ended.value.code == 2 and "the summary is about all operators" in capsys.readouterr().err
    assert not list(place.iterdir())
