"""Measure the latency of models side by side, as a whole and pass by pass."""

from ortfuse.runtime.bench.executed_operators import executed_ops
from ortfuse.runtime.bench.latency_comparison import Latencies
from ortfuse.runtime.bench.models_side_by_side import Latency, measure, numbered, stages_of
from ortfuse.runtime.bench.rewrite_timing import SiteMeter
from ortfuse.runtime.bench.session_timing import (
    Candidate,
    SessionLatency,
    SessionMeter,
    measure_sessions,
)
from ortfuse.runtime.bench.speedup_words import doubts
from ortfuse.runtime.bench.stopping_rule import budget_of
from ortfuse.runtime.bench.typical_benchmark_inputs import typical_inputs

__all__ = [
    "Candidate",
    "Latencies",
    "Latency",
    "SessionLatency",
    "SessionMeter",
    "SiteMeter",
    "budget_of",
    "doubts",
    "executed_ops",
    "measure",
    "measure_sessions",
    "numbered",
    "stages_of",
    "typical_inputs",
]
