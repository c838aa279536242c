"""`python -m benchmarks`: what is run, what is done already, what failed, what had to be stopped."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path

import pytest

from benchmarks import results, running
from benchmarks.jobs import JOBS, ROOT, STANDALONE, Job, chosen
from benchmarks.running import Run


def test_every_job_names_a_module_that_is_there() -> None:
    for job in JOBS:
        assert importlib.util.find_spec(job.module) is not None
    assert len({job.name for job in JOBS}) == len(JOBS)
    assert {job.name for job in JOBS if not job.summary} == {"exports", "exports.web", "kernels"}


def test_every_summary_in_the_tree_answers_the_question_of_a_job() -> None:
    questions = {job.name: job.question for job in JOBS if job.summary}
    for path in results.SUMMARIES.glob("*.json"):
        content = json.loads(path.read_text())
        assert content["question"] == questions[path.stem] and content["command"].startswith("python -m ")
        assert all(run["date"] and run["result"] for run in content["runs"])


def test_every_program_among_the_benchmarks_is_a_job_or_is_said_to_stand_apart() -> None:
    files = [path for path in (ROOT / "benchmarks").rglob("*.py") if 'if __name__ == "__main__"' in path.read_text()]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__") for path in files}
    inner = {"benchmarks", "benchmarks.weights.file_to_file"}
    assert modules - inner == ({job.module for job in JOBS} | STANDALONE.keys()) - {"tests.fuzz", "tests.fuzz.files"}


def test_the_time_of_a_job_is_kept_with_that_of_tries_that_were_stopped(place: Path) -> None:
    name = script(place, STORES)
    job = Job("some", "?", (name, "--output", "{output}"))
    run = Run(place / "run")
    (place / "run" / "some").mkdir(parents=True)
    (place / "run" / "some" / running.SPENT).write_text("100.0")
    run.do(job)
    assert 100 <= running.times()["some"] < 130 and running.took(job) == "2 min"
    assert running.times() == json.loads((place / "raw" / "seconds.json").read_text())


def test_a_question_is_all_of_its_parts() -> None:
    assert [job.name for job in chosen(["engine", "trust.order"])] == ["trust.order", "engine", "engine.lists"]
    assert chosen([]) == list(JOBS)
    with pytest.raises(ValueError, match=r"there is no benchmark trus; there are exports, exports\.web, coverage"):
        chosen(["trus"])


def script(folder: Path, text: str) -> str:
    (folder / "benchmark_under_test.py").write_text(f"import sys, time, pathlib\n{text}\n")
    return "benchmark_under_test"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(running, "ROOT", tmp_path)
    monkeypatch.setattr(results, "SUMMARIES", tmp_path / "summaries")
    monkeypatch.setattr(results, "RAW", tmp_path / "raw")
    return tmp_path


STORES = f"""
sys.path.append({str(ROOT)!r})
from pathlib import Path
from benchmarks.results import Results
Results("some", Path(sys.argv[2])).store("python -m some", {{"x": 1 / 3}}, raw={{"row": 1}})
"""
"""A program that stores a result."""


def test_a_result_takes_its_place_when_the_job_is_done_and_the_job_is_remembered(place: Path) -> None:
    name = script(place, f"{STORES}print('half way'); sys.exit(int(sys.argv[3]))")
    job = Job("some", "?", (name, "--output", "{output}", "0"))
    run, lines = Run(place / "run"), list[str]()
    assert run.do(job, look=lines.append).status == "ok"
    assert results.read("some")[0]["result"] == {"x": 0.333333}
    assert json.loads((place / "raw" / "some.json").read_text()) == {"": {"row": 1}}
    assert Run(place / "run").known()["some"].status == "ok"
    run.forget()
    assert run.known() == {} and not (place / "run" / "some").exists() and (place / "run" / "some.log").exists()


@pytest.mark.parametrize(
    ("code", "answer_no", "status"), [("1", True, "no"), ("1", False, "failed"), ("2", True, "failed")]
)
def test_an_answer_that_is_no_is_stored_and_a_failure_is_not(
    place: Path, code: str, answer_no: bool, status: str
) -> None:
    name = script(place, f"{STORES}print('why'); sys.exit(int(sys.argv[3]))")
    job = Job("some", "?", (name, "--output", "{output}", code), answer_no=answer_no)
    run = Run(place / "run")
    ended = run.do(job)
    assert ended.status == status and ended.reason == ("why" if status == "failed" else "")
    assert bool(results.read("some")) == (status == "no") == ("some" in run.known())


def test_a_job_whose_time_is_up_is_stopped_and_goes_on_from_what_it_wrote(place: Path) -> None:
    name = script(
        place, "p = pathlib.Path(sys.argv[2]); p.exists() and sys.exit(0); p.write_text('{}'); time.sleep(60)"
    )
    job = Job("some", "?", (name, "--output", "{output}"))
    run = Run(place / "run")
    written = place / "run" / "some" / "some.json"
    started = time.monotonic()
    assert run.do(job, look=lambda line: None, until=started + 1.0).status == "stopped"
    assert time.monotonic() - started < 30 and not run.known()
    if written.exists():  # a busy machine may not have come so far
        assert run.do(job).status == "ok"


def test_what_lacks_a_package_is_left_out(place: Path) -> None:
    ended = Run(place / "run").do(Job("some", "?", ("none",), packages=("no_such_package",)))
    assert (ended.status, ended.reason) == ("left out", "needs no_such_package")


def test_small_parts_store_nothing(place: Path) -> None:
    name = script(place, "pathlib.Path(sys.argv[1]).write_text('{}')")
    run = Run(place / "run", quick=True)
    assert run.do(Job("some", "?", (name,), ("{output}",))).status == "ok"
    assert not results.SUMMARIES.exists() and not results.RAW.exists()
    assert json.loads((place / "run" / "some" / "some.json").read_text()) == {}
