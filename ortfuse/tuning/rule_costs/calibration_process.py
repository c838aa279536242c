"""The program of a process that measures rule costs for another one.

It prints a JSON object a line: `step` before each measurement, and `found` or `error` at the end.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import Any

from ortfuse.errors import OrtfuseError
from ortfuse.tuning.rule_costs.measure_rule_costs import calibrate


def _tell(name: str, value: Any) -> None:
    sys.stdout.write(json.dumps({name: value}, default=os.fspath) + "\n")
    sys.stdout.flush()


def main(options: str) -> None:
    """Measure as a JSON object of the options of `calibrate` says, and print steps and the result."""
    try:
        found = calibrate(**json.loads(options), step=lambda *progress: _tell("step", progress))
    except OrtfuseError as error:
        _tell("error", str(error))
    else:
        _tell("found", dataclasses.asdict(found))


if __name__ == "__main__":
    main(sys.argv[1])
