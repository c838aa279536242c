"""What rules bought when they were measured: fused is not always faster, and what is faster depends on the size.

A cost table holds, for each rule that was measured and for several sizes of what it takes, how many times faster the
replacement ran than what it replaces, both with the runtime's own optimisations on top. `benchmarks.kernels.costs` makes the
table that is shipped.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ortfuse.errors import TargetError

WORTH_IT = 0.97
"""A replacement that runs at this fraction of the speed or faster is not refused: less is within the noise."""

SHOWN = 2
"""Sizes that are listed where several measurements are equally near."""

ShapeOf = Callable[[str], Sequence[Any] | None]
"""The shape of a captured value by its name, `None` if it is not known; of its dimensions only integers count."""


@dataclass(frozen=True)
class Estimate:
    """How many times faster a replacement is than what it replaces, at which sizes, and who says so."""

    speedup: float
    sizes: str
    source: str

    @property
    def worth_it(self) -> bool:
        """Whether it is not slower, beyond noise."""
        return self.speedup >= WORTH_IT

    def __str__(self) -> str:
        return f"{self.speedup:.2f} at {self.sizes}; {self.source}"


@dataclass(frozen=True)
class Measured:
    """A speedup, and the shapes of the captured values at which it was measured, by their names."""

    shapes: Mapping[str, tuple[int, ...]]
    speedup: float

    @classmethod
    def parse(cls, text: str, speedup: float) -> Measured:
        """From `"query 1x128x768, key 1x16x768"`. Raises ValueError if it is not of this form."""
        parts = [part.split(" ") for part in text.split(", ")]
        return cls({name: tuple(int(dim) for dim in shape.split("x")) for name, shape in parts}, float(speedup))

    def distance(self, shape_of: ShapeOf) -> float:
        """How far other shapes are: the logarithms of the ratios of dimensions, those that are not known left out."""
        total = 0.0
        for name, measured in self.shapes.items():
            shape = shape_of(name)
            if shape is None:
                continue
            if len(shape) == len(measured):
                total += sum(_apart(dim, known) for dim, known in zip(shape, measured, strict=True))
            elif all(isinstance(dim, int) for dim in shape):
                total += _apart(math.prod(shape), math.prod(measured))
        return total


def _apart(dim: Any, measured: int) -> float:
    return abs(math.log(max(dim, 1) / measured)) if isinstance(dim, int) else 0.0


def sizes_text(shapes: Mapping[str, Sequence[int]]) -> str:
    """`{"x": (1, 128, 768)}` as `"x 1x128x768"`."""
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items())


@dataclass(frozen=True)
class CostTable:
    """Measured speedups by rule, and where they come from."""

    speedups: Mapping[str, Sequence[Measured]]
    source: str = ""

    def estimate(self, rule: str, shape_of: ShapeOf) -> Estimate | None:
        """What was measured nearest to the given shapes, `None` if the rule was not measured.

        What is not known of the shapes makes no difference: of all measurements that are equally near, the geometric mean.
        """
        rows = self.speedups.get(rule)
        if not rows:
            return None
        distances = [row.distance(shape_of) for row in rows]
        nearest = min(distances)
        found = [row for row, distance in zip(rows, distances, strict=True) if distance - nearest < 1e-9]
        speedup = statistics.geometric_mean(row.speedup for row in found)
        sizes = " and ".join(sizes_text(row.shapes) for row in found)
        if len(found) > SHOWN:
            sizes = f"{len(found)} sizes alike near, as the lengths are not known: their mean"
        return Estimate(speedup, sizes, self.source)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> CostTable:
        """A table from the content of its file. Raises ValueError, KeyError or TypeError if it is none."""
        speedups = {
            rule: tuple(Measured.parse(sizes, value) for sizes, value in row.items())
            for rule, row in content["speedups"].items()
        }
        return cls(speedups, content["source"])

    @classmethod
    def read(cls, path: str | Path) -> CostTable:
        """A table from a JSON file. Raises TargetError if it is none."""
        try:
            return cls.from_json(json.loads(Path(path).read_text()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TargetError(f"{path} is no cost table: {error}; make one with benchmarks.kernels.costs") from error


@functools.cache
def shipped_costs(provider: str) -> CostTable:
    """The table measured for `provider`; empty for one that was not measured."""
    path = resources.files("ortfuse.targets") / f"costs_{provider}.json"
    return CostTable.read(Path(str(path))) if path.is_file() else CostTable({})
