"""Departures of the runtime from ONNX, on which facts that follow ONNX do not hold: nothing is claimed there."""

from __future__ import annotations

import numpy as np

from benchmarks.trust.grid.building import Cell
from benchmarks.trust.grid.seeds import Seed
from benchmarks.trust.grid.trying import FACTS, FOLDED, OPTIMISED, Failure
from ortfuse.ir.traits import REDUCES


def is_known(cell: Cell, failure: Failure) -> bool:
    """Whether a failure is one of the runtime's own."""
    if failure.kind not in (FACTS, OPTIMISED, FOLDED):
        return False
    return any(applies(seed) for applies in _CONTRADICTIONS for seed in (cell.seed, *cell.before))


def _reduces_nothing(seed: Seed) -> bool:
    """Reductions over axes of size 0 keep the axis, or drop others (see `ortfuse.analysis.facts`)."""
    data = seed.inputs[0] if seed.inputs else None
    return seed.op_type in REDUCES | {"ArgMax", "ArgMin"} and isinstance(data, np.ndarray) and not data.size


def _joins_nothing(seed: Seed) -> bool:
    """Concat lets empty tensors pass whose other axes do not agree, and leaves part of the result as the memory was."""
    empty = [isinstance(value, np.ndarray) and not value.size for value in seed.inputs]
    return seed.op_type in _JOINS and any(empty)


_JOINS = frozenset({"Concat", "QLinearConcat"})


def _multiplies_nothing(seed: Seed) -> bool:
    """These products over an axis of size 0 leave the result as the memory was."""
    return seed.op_type in _PRODUCTS and any(isinstance(one, np.ndarray) and not one.size for one in seed.inputs)


_PRODUCTS = frozenset(
    {
        "ConvInteger",
        "MatMulInteger",
        "QGemm",
        "QLinearMatMul",
        "FusedMatMul",
        "TransposeMatMul",
        "DynamicQuantizeMatMul",
        "MatMulIntegerToFloat",
    }
)


def _compares_long_integers(seed: Seed) -> bool:
    """The smaller and the larger of two integers of 64 bits are confused if one is between 2**31 and 2**32."""
    numbers = [value for value in seed.inputs if isinstance(value, np.ndarray) and value.dtype in (np.int64, np.uint64)]
    largest = max((float(np.abs(value.astype(np.float64)).max(initial=0)) for value in numbers), default=0)
    return seed.op_type in ("Max", "Min", "Clip") and largest >= 2**31 - 8


DEPARTING = REDUCES | _PRODUCTS | _JOINS | {"ArgMax", "ArgMin"}
"""Operators that depart from ONNX where an operand is empty."""

UNCHECKED = frozenset({"Inverse"})
"""Operators that read what is not theirs where the sizes of an operand are not as they must be."""

_CONTRADICTIONS = (_reduces_nothing, _joins_nothing, _multiplies_nothing, _compares_long_integers)
