"""Latency side by side, per model and per pass."""

from ortfuse.bench.latency import Latency, executed_ops, measure, table

__all__ = ["Latency", "executed_ops", "measure", "table"]
