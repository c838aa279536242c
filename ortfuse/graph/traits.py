"""What is true of an operator whatever the node: the one place where operators are told apart by name."""

from __future__ import annotations

CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Operators of ai.onnx whose attributes are graphs."""
