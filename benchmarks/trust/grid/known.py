"""What the runtime does that contradicts ONNX, so that facts which follow ONNX do not hold: nothing is claimed there."""

from __future__ import annotations

import numpy as np

from benchmarks.trust.grid.cells import Cell
from benchmarks.trust.grid.trying import FACTS, FOLDED, OPTIMISED, Failure
from ortfuse.graph.traits import REDUCES


def is_known(cell: Cell, failure: Failure) -> bool:
    """Whether a failure is one of the runtime's own."""
    if failure.kind not in (FACTS, OPTIMISED, FOLDED):
        return False
    return any(applies(cell) for applies in _CONTRADICTIONS)


def _reduces_nothing(cell: Cell) -> bool:
    """Reductions over axes of size 0 keep the axis, or drop others (see `ortfuse.facts.facts`)."""
    data = cell.seed.inputs[0] if cell.seed.inputs else None
    return cell.seed.op_type in REDUCES | {"ArgMax", "ArgMin"} and isinstance(data, np.ndarray) and not data.size


def _joins_nothing(cell: Cell) -> bool:
    """Concat lets empty tensors pass whose other axes do not agree, and leaves part of the result as the memory was."""
    empty = [isinstance(value, np.ndarray) and not value.size for value in cell.seed.inputs]
    return cell.seed.op_type == "Concat" and any(empty)


def _multiplies_nothing(cell: Cell) -> bool:
    """Products of quantised matrices over an axis of size 0 leave the result as the memory was."""
    data = cell.seed.inputs[:1] if cell.seed.op_type == "QLinearMatMul" else ()
    return any(isinstance(value, np.ndarray) and not value.size for value in data)


def _compares_long_integers(cell: Cell) -> bool:
    """Of integers of 64 bits, the smaller and the larger are confused if one is between 2**31 and 2**32."""
    numbers = [
        value for value in cell.seed.inputs if isinstance(value, np.ndarray) and value.dtype in (np.int64, np.uint64)
    ]
    largest = max((float(np.abs(value.astype(np.float64)).max(initial=0)) for value in numbers), default=0)
    return cell.seed.op_type in ("Max", "Min", "Clip") and largest >= 2**31 - 8


_CONTRADICTIONS = (_reduces_nothing, _joins_nothing, _multiplies_nothing, _compares_long_integers)
