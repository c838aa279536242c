"""Measures the latency of models side by side, as a whole and pass by pass."""

from ortfuse.bench.executed import executed_ops
from ortfuse.bench.inputs import typical_inputs
from ortfuse.bench.latencies import Latencies
from ortfuse.bench.latency import Latency, doubts, measure, numbered, stages_of, table
from ortfuse.bench.meter import SiteMeter

__all__ = [
    "Latencies",
    "Latency",
    "SiteMeter",
    "doubts",
    "executed_ops",
    "measure",
    "numbered",
    "stages_of",
    "table",
    "typical_inputs",
]
