"""Measurements of several models on the same inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ortfuse.bench.latency import Latency


@dataclass(frozen=True)
class Latencies:
    """The latencies of several models measured side by side.

    Attributes:
        sizes: The sizes of the inputs, as text.
        rows: One per model; the first is the baseline.
    """

    sizes: str
    rows: tuple[Latency, ...]

    def to_dict(self) -> dict[str, Any]:
        """The measurements as JSON data."""
        return {"inputs": self.sizes, "latency": [row.to_dict() for row in self.rows]}
