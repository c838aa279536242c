"""Latency of models side by side: interleaved runs, medians, and ratios taken round by round.

Machines drift: a number measured now cannot be compared with one measured a minute ago. All models therefore run in
turn, round after round; each is compared with the first within the round, and the median of these ratios is reported.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
from rich.table import Table

from ortfuse.ir.io import save
from ortfuse.validate.inputs import Inputs
from ortfuse.validate.runtime import Session, weight_bytes


@dataclass(frozen=True)
class Latency:
    """How one model ran.

    Attributes:
        name: What it was called.
        median_ms: Median latency in milliseconds.
        low_ms: First decile of the latencies.
        high_ms: Ninth decile.
        speedup: Median over rounds of the first model's latency divided by this one's.
        session_ms: Time to create the session.
        nodes: Nodes of the model.
        executed: Nodes that the runtime executes after its own optimisations.
        weight_mb: Megabytes of weights.
    """

    name: str
    median_ms: float
    low_ms: float
    high_ms: float
    speedup: float
    session_ms: float
    nodes: int
    executed: int
    weight_mb: float

    def to_dict(self) -> dict[str, Any]:
        """The fields as data for JSON."""
        return asdict(self)


def measure(
    models: Mapping[str, ir.Model], inputs: Inputs, *, rounds: int = 20, threads: int = 0, warmup: int = 2
) -> list[Latency]:
    """Run the models in turn on `inputs`, `rounds` times each after `warmup` rounds that are not counted.

    The order within a round is reversed every other round. Raises VerificationError when the runtime refuses a model.
    """
    sessions, created, executed = {}, {}, {}
    for name, model in models.items():
        started = time.perf_counter()
        sessions[name] = Session(model, threads=threads)
        created[name] = time.perf_counter() - started
        executed[name] = sum(executed_ops(model).values())
    times: dict[str, list[float]] = {name: [] for name in models}
    names = list(models)
    for number in range(warmup + rounds):
        for name in names if number % 2 else reversed(names):
            started = time.perf_counter()
            sessions[name].run(inputs)
            if number >= warmup:
                times[name].append(time.perf_counter() - started)
    first = times[names[0]]
    return [
        Latency(
            name,
            statistics.median(times[name]) * 1e3,
            _decile(times[name], 1) * 1e3,
            _decile(times[name], 9) * 1e3,
            statistics.median(before / after for before, after in zip(first, times[name], strict=True)),
            created[name] * 1e3,
            sum(1 for _ in model.graph.all_nodes()),
            executed[name],
            weight_bytes(model) / 1e6,
        )
        for name, model in models.items()
    ]


def _decile(values: Sequence[float], which: int) -> float:
    return statistics.quantiles(values, n=10)[which - 1] if len(values) > 1 else values[0]


def executed_ops(model: ir.Model) -> Counter[str]:
    """The operators that the runtime executes after its own optimisations, with their numbers."""
    with tempfile.TemporaryDirectory(prefix="ortfuse-") as folder:
        path = Path(folder) / "executed.onnx"
        source: Any = model
        if weight_bytes(model) > 1 << 20:
            # A file lets the runtime map the weights and write what it executes without copying them.
            source = Path(folder) / "model.onnx"
            save(model, source)
        Session(source, optimised_path=path)
        return Counter(node.op_type for node in ir.load(path).graph)


def table(rows: Sequence[Latency], title: str = "Latency") -> Table:
    """The measurements as a table."""
    made = Table(title=title, title_justify="left")
    made.add_column("model")
    for heading in ("median ms", "10%..90%", "speedup", "session ms", "nodes", "executed", "weights MB"):
        made.add_column(heading, justify="right")
    for row in rows:
        made.add_row(
            row.name,
            f"{row.median_ms:.3f}",
            f"{row.low_ms:.3f}..{row.high_ms:.3f}",
            f"{row.speedup:.2f}",
            f"{row.session_ms:.0f}",
            str(row.nodes),
            str(row.executed),
            f"{row.weight_mb:.1f}",
        )
    return made
