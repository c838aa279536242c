"""One optimisation from file to file in a process of its own, and what it took: time, and memory of two kinds.

`measure` starts this module as a program and watches its memory from outside, where neither the program nor Python's lock
can be in the way. The kernel counts two kinds of memory in a process: anonymous memory, which nothing but the process's
end gives back, and pages of mapped files, which the kernel takes back when it needs them. The peak that it keeps itself
(VmHWM) is of their sum.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers import SINGLE

INTERVAL = 0.002
"""Seconds between two looks at the memory of the process."""

_WATCHED = ("RssAnon", "RssFile", "VmHWM")


ROOT = Path(__file__).resolve().parents[2]


def measure(tool: str, source: Path, target: Path) -> dict[str, Any]:
    """Run a tool in a fresh interpreter.

    Args:
        tool: `"ortfuse"`, by its public functions, the same with `"ortfuse, linked"` data, or a name in `peers.SINGLE`.
        source: The model file.
        target: The file to write.

    Returns:
        `process_seconds` from the start of the interpreter to its end, `cpu_seconds` of the processor, the peaks
        `RssAnon`, `RssFile` and `VmHWM` in MB, and what the tool's own process found: `import_seconds`, `seconds` for
        the work, for ortfuse also `engine_seconds` and `families`. A tool that fails has an `error` instead.
    """
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as complaint:
        peaks = dict.fromkeys(_WATCHED, 0)
        used, started = _processor_seconds(), time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "benchmarks.weights.file_to_file",
            tool,
            str(source.resolve()),
            str(target.resolve()),
        ]
        process = subprocess.Popen(command, stdout=answer, stderr=complaint, env=_environment(), cwd=ROOT)
        while process.poll() is None:
            for name, kilobytes in _memory(process.pid).items():
                peaks[name] = max(peaks[name], kilobytes)
            time.sleep(INTERVAL)
        seconds = time.perf_counter() - started
        found: dict[str, Any] = {"process_seconds": seconds, "cpu_seconds": _processor_seconds() - used}
        found |= {name: kilobytes * 1024 / 1e6 for name, kilobytes in peaks.items()}
        if process.returncode:
            complaint.seek(0)
            lines = complaint.read().decode(errors="replace").strip().splitlines() or [f"code {process.returncode}"]
            return {**found, "error": lines[-1][:300]}
        answer.seek(0)
        return {**found, **json.loads(answer.read().splitlines()[-1])}


def _processor_seconds() -> float:
    """Return the processor seconds of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _environment() -> dict[str, str]:
    """The environment, but that modules are compiled once, as they are when they are installed."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _memory(process: int) -> Mapping[str, int]:
    """The kilobytes that a process has now, and its peak; nothing if it is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":") for line in lines if line.startswith(_WATCHED))
    return {name: int(value.split()[0]) for name, value in pairs}


def _ortfuse(link: bool) -> Callable[[Path, Path], dict[str, Any]]:
    from ortfuse import optimize

    def run(source: Path, target: Path) -> dict[str, Any]:
        result = optimize(source)
        result.save(target, link=link)
        return {"engine_seconds": result.report.seconds, "families": result.report.families()}

    return run


def _peer(tool: str) -> Callable[[Path, Path], dict[str, Any]]:
    def run(source: Path, target: Path) -> dict[str, Any]:
        SINGLE[tool](source, target)
        return {}

    return run


def main(tool: str, source: str, target: str) -> None:
    """Optimise, and print what it took as a line of JSON."""
    started = time.perf_counter()
    run = _ortfuse(link=tool.endswith("linked")) if tool.startswith("ortfuse") else _peer(tool)
    imported = time.perf_counter()
    found = run(Path(source), Path(target))
    done = time.perf_counter()
    print(json.dumps({"import_seconds": imported - started, "seconds": done - imported, **found}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # how long an interpreter takes to tear down a model is nobody's concern
