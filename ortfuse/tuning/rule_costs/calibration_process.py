"""The program of a process that measures rule costs for another one.

It prints a JSON object a line: `step` before each measurement, and `found` or `error` at the end. Others may print lines too.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

from ortfuse.errors import OrtfuseError, TargetError
from ortfuse.tuning.rule_costs.measure_in_environment import RUNTIME
from ortfuse.tuning.rule_costs.measure_rule_costs import calibrate


def _tell(name: str, value: Any) -> None:
    # A line that somebody else began ends before it.
    sys.stdout.write("\n" + json.dumps({name: value}, default=os.fspath) + "\n")
    sys.stdout.flush()


def _demand_runtime_in(packages: Path) -> None:
    """Refuse to measure another runtime than that of a folder of packages, as which it would be stored.

    Raises:
        TargetError: Python loads another one.
    """
    found, wanted = importlib.util.find_spec(RUNTIME), packages / RUNTIME
    origin = None if found is None else found.origin
    if origin is None or not Path(origin).resolve().is_relative_to(wanted.resolve()):
        raise TargetError(
            f"Python loads {RUNTIME} from {origin or 'nowhere'} instead of {wanted}, so that it cannot be measured; "
            "install the release there again"
        )


def main(options: str, packages: str) -> None:
    """Measure as a JSON object of the options of `calibrate` says, and print steps and the result.

    Args:
        options: The object.
        packages: The folder of packages whose runtime is to be measured.
    """
    try:
        _demand_runtime_in(Path(packages))
        found = calibrate(**json.loads(options), step=lambda *progress: _tell("step", progress))
    except OrtfuseError as error:
        _tell("error", str(error))
    else:
        _tell("found", dataclasses.asdict(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
