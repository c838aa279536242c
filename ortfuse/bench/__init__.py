"""Measures the latency of models side by side, as a whole and pass by pass."""

from ortfuse.bench.executed import executed_ops
from ortfuse.bench.inputs import typical_inputs
from ortfuse.bench.latencies import Latencies
from ortfuse.bench.latency import Latency, measure, numbered, stages_of
from ortfuse.bench.latency_table import doubts, table
from ortfuse.bench.meter import SiteMeter
from ortfuse.bench.patience import budget_of
from ortfuse.bench.sessions import Candidate, SessionLatency, SessionMeter, measure_sessions, sessions_table

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
    "sessions_table",
    "stages_of",
    "table",
    "typical_inputs",
]
