"""What rules bought when they were measured: fused is not always faster.

A cost table holds, for each rule that was measured and each size, how many times faster the replacement ran than what it
replaces, both with the runtime's own optimisations on top. `benchmarks/costs.py` makes the table that is shipped.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ortfuse.errors import TargetError

WORTH_IT = 0.97
"""A replacement that runs at this fraction of the speed or faster is not refused: less is within the noise."""


@dataclass(frozen=True)
class CostTable:
    """Measured speedups by rule and size, and where they come from."""

    speedups: Mapping[str, Mapping[str, float]]
    source: str = ""

    def objection(self, rule: str) -> str | None:
        """Why `rule` should not be applied on this runtime, `None` if nothing speaks against it."""
        measured = self.speedups.get(rule)
        if not measured:
            return None
        typical = statistics.geometric_mean(measured.values())
        if typical >= WORTH_IT:
            return None
        sizes = ", ".join(f"{speedup:.2f} at {size}" for size, speedup in measured.items())
        return f"slower than what it replaces on this runtime (speedup {sizes}; {self.source})"

    @classmethod
    def read(cls, path: str | Path) -> CostTable:
        """A table from a JSON file. Raises TargetError if it is none."""
        try:
            content = json.loads(Path(path).read_text())
            speedups = {
                rule: {size: float(value) for size, value in row.items()} for rule, row in content["speedups"].items()
            }
            return cls(speedups, content["source"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TargetError(f"{path} is no cost table: {error}; make one with benchmarks/costs.py") from error


@functools.cache
def shipped_costs(provider: str) -> CostTable:
    """The table measured for `provider`; empty for one that was not measured."""
    path = resources.files("ortfuse.target") / f"costs_{provider}.json"
    return CostTable.read(Path(str(path))) if path.is_file() else CostTable({})
