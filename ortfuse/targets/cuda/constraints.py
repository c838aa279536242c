"""Constraints of the CUDA kernels beyond their registered types, from `benchmarks.targets.cuda.operators`."""

from __future__ import annotations

from ortfuse.ir.traits import MICROSOFT
from ortfuse.targets.kernel_constraints import Limits, bias_has_all_rows

CONSTRAINTS: Limits = {
    (MICROSOFT, "MultiHeadAttention"): bias_has_all_rows,
}
"""Checks besides those that the operators' documentation states."""
