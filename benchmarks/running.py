"""Run benchmarks, each in a process of its own, and remember the finished ones, so that a stopped run goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import results
from benchmarks.jobs import ROOT, Job

DONE = "done.json"
SPENT = ".seconds"
"""The file for the seconds of stopped tries, in the folder of a job."""

TIMES = "seconds.json"
"""The file for the last duration of each whole job on this machine, beside the raw results."""

_LOOK = 0.2
"""Seconds between two looks at a process."""


@dataclass(frozen=True)
class Ended:
    """The end of a job: `ok`, `no` (its answer is no), `failed`, `stopped` (its time was up), or `left out`; and the reason."""

    name: str
    status: str
    seconds: float = 0.0
    reason: str = ""


class Run:
    """A run over benchmarks, in a folder of its own.

    Args:
        folder: Keeps what is done, what commands print, and results that are not yet whole.
        quick: Whether only small parts are run, which store nothing.
    """

    def __init__(self, folder: Path, *, quick: bool = False) -> None:
        self.folder, self._quick = folder, quick
        folder.mkdir(parents=True, exist_ok=True)

    def known(self) -> dict[str, Ended]:
        """The jobs that are done."""
        path = self.folder / DONE
        content = json.loads(path.read_text()) if path.is_file() else {}
        return {name: Ended(**entry) for name, entry in content.items()}

    def forget(self) -> None:
        """Begin anew at the next run; what commands have printed is kept."""
        (self.folder / DONE).unlink(missing_ok=True)
        for place in self.folder.iterdir():
            if place.is_dir():
                shutil.rmtree(place)

    def do(self, job: Job, until: float = float("inf"), look: Callable[[str], None] = lambda line: None) -> Ended:
        """Run a job, and store its result if it is whole.

        Args:
            job: The job.
            until: When it is stopped, on the clock of `time.monotonic`.
            look: Called again and again with the last line that the command printed.
        """
        needed = "" if self._quick else job.missing()
        if needed:
            return Ended(job.name, "left out", reason=needed)
        place, log = self.folder / job.name, self.folder / f"{job.name}.log"
        goes_on = place.is_dir()
        place.mkdir(exist_ok=True)
        started = time.monotonic()
        with log.open("ab" if goes_on else "wb") as printed:
            code = _wait(self._command(job, place), printed.fileno(), until, lambda: look(_last_line(log)))
        ended = Ended(job.name, _status(job, code), time.monotonic() - started)
        spent = ended.seconds + (float((place / SPENT).read_text()) if (place / SPENT).is_file() else 0.0)
        if ended.status in ("ok", "no"):
            self._keep(job, place, ended, spent)
            return ended
        (place / SPENT).write_text(str(spent))
        return Ended(job.name, ended.status, ended.seconds, _last_line(log) if ended.status == "failed" else "")

    def _command(self, job: Job, place: Path) -> list[str]:
        names = {"{folder}": str(place), "{output}": str(place / f"{job.name}.json")}
        arguments = job.command[1:] if not self._quick else job.quick or ()
        return [sys.executable, "-m", job.module, *(names.get(text, text) for text in arguments)]

    def _keep(self, job: Job, place: Path, ended: Ended, spent: float) -> None:
        """Move the results into place, and remember that the job is done and its duration."""
        if self._quick:
            return
        results.RAW.mkdir(exist_ok=True)
        for file in place.glob(f"{job.name}.*") if "{output}" in job.command else ():
            if file.name.endswith(results.SUFFIX):
                results.keep(job.name, file)
            else:
                shutil.copyfile(file, (results.SUMMARIES if file.suffix == ".md" else results.RAW) / file.name)
        _write(results.RAW / TIMES, dict(sorted({**times(), job.name: round(spent)}.items())))
        _write(self.folder / DONE, {name: asdict(one) for name, one in {**self.known(), job.name: ended}.items()})


def times() -> dict[str, int]:
    """The seconds that each whole job took the last time, by name."""
    path = results.RAW / TIMES
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def took(job: Job) -> str:
    """Return the last duration of a whole job in words; `?` if it is not known."""
    stored = [run["result"]["seconds"] for run in results.read(job.name) if "seconds" in run["result"]]
    seconds = times().get(job.name, stored[0] if stored else None)
    return "?" if seconds is None else f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _wait(command: list[str], output: int, until: float, look: Callable[[], None]) -> int | None:
    """The exit code of a command, `None` if it had to be stopped; its children end with it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=output, stderr=output, env=environment, start_new_session=True
    )  # fmt: skip
    try:
        while process.poll() is None:
            if time.monotonic() > until:
                return None
            look()
            time.sleep(_LOOK)
        return process.returncode
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _status(job: Job, code: int | None) -> str:
    if code is None:
        return "stopped"
    if code == 0:
        return "ok"
    return "no" if code == 1 and job.answer_no else "failed"


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _write(path: Path, content: Mapping[str, object]) -> None:
    results.write(path, json.dumps(content, indent=1))
