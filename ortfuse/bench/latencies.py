"""Measurements of several models on the same inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ortfuse.bench.latency import Latency


@dataclass(frozen=True)
class Latencies:
    """How models ran side by side.

    Attributes:
        sizes: The sizes of the inputs, in words.
        rows: One for each model; the first is the yardstick.
    """

    sizes: str
    rows: tuple[Latency, ...]

    def to_dict(self) -> dict[str, Any]:
        """The measurements as data for JSON."""
        return {"inputs": self.sizes, "latency": [row.to_dict() for row in self.rows]}
