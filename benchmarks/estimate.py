"""The price of a model, the same in every run: the operators executed, and a time estimated from these and their work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from ortfuse.profiling.profiler_trace import trace
from ortfuse.profiling.roofline import works
from ortfuse.runtime.bench.machine_peaks import Peaks
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.node_naming import name_all_nodes

PRICES = ("executed", "microseconds")
SAME = 1e-3
"""Estimates whose ratio is nearer to 1 than this are the same."""

NOMINAL = Peaks(flops=2e11, bandwidth=2e10, processor="nominal", threads=2)
DISPATCH = 3e-6
"""Seconds for handing over from one operator to the next."""

ESTIMATE: Mapping[str, Any] = {"microseconds for each operator": 1e6 * DISPATCH, **NOMINAL.to_dict()}
"""The constants of the estimate, as summaries record them."""


def weigh(model: ir.Model, inputs: Inputs) -> dict[str, float]:
    """Return the operators executed in a run, and the microseconds that a run is estimated to take.

    Operators are those that the runtime executes after its own optimisations. Each takes `DISPATCH`, and the least time for its
    work on a machine with the peaks `NOMINAL`.

    Raises:
        OrtfuseError: The runtime does not run the model on these inputs.
    """
    name_all_nodes(model)
    seen = trace(model, inputs, runs=1, threads=1)
    known = works(seen.nodes, seen.graph)
    seconds = sum(work.seconds(NOMINAL) for work in known.values())
    executed = sum(node.calls for node in seen.nodes)
    return {"executed": executed, "microseconds": round(1e6 * (seconds + DISPATCH * executed), 2)}


def gain(left: Mapping[str, Any], whole: Mapping[str, Any]) -> float:
    """Return the share by which leaving something out makes the result dearer: the larger of both prices, below 0 if cheaper."""
    if "error" in left:
        return 1.0
    gains = [left[price] / whole[price] - 1 for price in PRICES]
    return max(gains, key=abs) if all(one <= 0 for one in gains) else max(gains)
