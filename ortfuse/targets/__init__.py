"""The runtime that will execute the result: which kernels it has, and how to reach the opset that they need."""

from ortfuse.targets.blocked_layout import unless_blocked
from ortfuse.targets.costs import CostTable, Estimate, shipped_costs, shipped_tables
from ortfuse.targets.custom_operators import (
    libraries,
    missing_functions,
    register_operators,
    use_library,
    with_functions,
)
from ortfuse.targets.kernel_table import Kernel, KernelTable
from ortfuse.targets.known_bugs import DEFECTS, Quirk
from ortfuse.targets.opset import opset_needed, raise_opset, raise_to_newest
from ortfuse.targets.target import CPU, Target, installed

__all__ = [
    "CPU",
    "DEFECTS",
    "CostTable",
    "Estimate",
    "Kernel",
    "KernelTable",
    "Quirk",
    "Target",
    "installed",
    "libraries",
    "missing_functions",
    "opset_needed",
    "raise_opset",
    "raise_to_newest",
    "register_operators",
    "shipped_costs",
    "shipped_tables",
    "unless_blocked",
    "use_library",
    "with_functions",
]
