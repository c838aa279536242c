"""Process one model of a sweep, in this process or as a program that reads and writes JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ortfuse.api.benchmark import benchmark
from ortfuse.api.optimize import optimize
from ortfuse.api.result import WrongResultError
from ortfuse.errors import CrashError, OrtfuseError
from ortfuse.options import Options
from ortfuse.runtime.bench import Latency
from ortfuse.runtime.session_subprocess import end_with
from ortfuse.sweeping.measurement_lock import allow, measuring, working
from ortfuse.sweeping.result_row import Row, Status


def run(model: str, output: str, options: Mapping[str, Any], measured: bool) -> Row:
    """Optimise and verify a model and, if asked, measure it beside its result.

    Args:
        model: The path of the model.
        output: Where the result goes.
        options: Options by name, as a file of options has them.
        measured: Whether to measure.
    """
    started = time.perf_counter()
    asked = Options(**options)

    def failed(status: Status, why: object) -> Row:
        return Row(model, status, seconds=time.perf_counter() - started, reason=str(why))

    try:
        with working():
            Path(output).parent.mkdir(parents=True, exist_ok=True)
            result = optimize(model, asked.with_(verify="whole", output=output, bench=False))
    except WrongResultError as error:
        return failed("wrong", error)
    except CrashError as error:
        return failed("crashed", error)
    except (OrtfuseError, OSError) as error:
        return failed("refused", error)
    report = result.report
    row = Row(
        model, "ok", report.before.nodes, report.after.nodes, report.families(), reason=result.unchanged, written=output,
        verdict=result.verdict.summary() if result.verdict is not None else "", improved=report.improved(),
    )  # fmt: skip
    if measured and not result.unchanged:
        try:
            with measuring():
                before, after = benchmark({"original": model, "result": output}, asked.with_(verify=None)).latency
        except OrtfuseError as error:
            return failed("refused", f"cannot be measured: {error}")
        if after.crash:
            return failed("crashed", f"the result: {after.crash}")
        row = _measured(row, before, after)
    return replace(row, seconds=time.perf_counter() - started)


def _measured(row: Row, before: Latency, after: Latency) -> Row:
    """A row with what was measured of the original and of the result."""
    if before.crash:
        return replace(row, reason=f"there is nothing to compare with; the original: {before.crash}")
    return replace(
        row,
        median_ms=(before.median_ms, after.median_ms),
        speedup=after.speedup,
        speedup_bounds=after.speedup_bounds,
        executed=(before.executed, after.executed),
    )


def main() -> None:
    """Do what standard input says, unless the process that asked is gone; who is ended by a signal tidies up first."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    asked = json.load(sys.stdin)
    # Not by TMPDIR: locks are in the folder that all processes share.
    tempfile.tempdir = asked.pop("temporary")
    allow(asked.pop("limit"))
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)  # what is printed, by libraries too, must not get mixed into the answer
        row = run(**asked)
        answer.write(json.dumps(asdict(row)))


if __name__ == "__main__":
    main()
