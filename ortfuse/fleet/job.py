"""One model of a sweep, in this process; as a program, in one of its own: it reads what to do and writes a row, both as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortfuse.api import benchmark, optimize
from ortfuse.errors import OrtfuseError
from ortfuse.fleet.row import Row
from ortfuse.fleet.turn import measuring, working
from ortfuse.options import Options
from ortfuse.result import WrongResultError


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
    try:
        with working():
            Path(output).parent.mkdir(parents=True, exist_ok=True)
            result = optimize(model, asked.with_(verify="whole", output=output, bench=False, sizes={}))
    except WrongResultError as error:
        return Row(model, "wrong", seconds=time.perf_counter() - started, reason=str(error))
    except (OrtfuseError, OSError) as error:
        return Row(model, "refused", seconds=time.perf_counter() - started, reason=str(error))
    times, speedup, bounds, executed = (0.0, 0.0), 0.0, None, (0, 0)
    if measured and not result.left_alone:
        try:
            with measuring():
                found = benchmark({"original": model, "result": output}, asked.with_(verify=None)).rows
            times, speedup, bounds = (found[0].median_ms, found[1].median_ms), found[1].speedup, found[1].speedup_bounds
            executed = found[0].executed, found[1].executed
        except OrtfuseError as error:
            return Row(model, "refused", seconds=time.perf_counter() - started, reason=f"cannot be measured: {error}")
    report = result.report
    return Row(
        model, "ok", report.before.nodes, report.after.nodes, report.families(), time.perf_counter() - started,
        result.verdict.summary() if result.verdict is not None else "", times, speedup, bounds, result.left_alone, output,
        executed,
    )  # fmt: skip


def main() -> None:
    """Do what standard input says."""
    asked = json.load(sys.stdin)
    answer = sys.stdout
    sys.stdout = sys.stderr  # printed output must not get mixed into the answer
    row = run(**asked)
    answer.write(json.dumps(row.to_dict()))
    answer.flush()


if __name__ == "__main__":
    main()
