"""Class `Latencies`: latencies of several models on the same inputs."""

from __future__ import annotations

from dataclasses import dataclass

from ortfuse.runtime.bench.models_side_by_side import Latency
from ortfuse.runtime.bench.session_timing import SessionLatency
from ortfuse.serialization import Record


@dataclass(frozen=True)
class Latencies(Record):
    """The latencies of several models measured side by side.

    Attributes:
        inputs: The sizes of the inputs, as text.
        latency: One per model; the first is the baseline.
        sessions: If settings are stored for any of the models: the first in a session of the runtime's default settings, and
            each that has some in such a session and in one of its settings.
        notes: What to know of the models, such as that one is in training mode.
    """

    inputs: str
    latency: tuple[Latency, ...]
    sessions: tuple[SessionLatency, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        found = ", ".join(f"{row.name} {row.speedup:.2f}" for row in self.latency)
        return f"<{type(self).__name__}: {found} (times as fast as the first, at {self.inputs})>"
