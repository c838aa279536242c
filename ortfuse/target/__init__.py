"""The runtime that will execute the result: which kernels it has, and how to reach the opset they need."""

from ortfuse.target.costs import CostTable, Estimate, shipped_costs
from ortfuse.target.opset import raise_opset
from ortfuse.target.registry import CPU, Support, Target
from ortfuse.target.table import Kernel, KernelTable

__all__ = ["CPU", "CostTable", "Estimate", "Kernel", "KernelTable", "Support", "Target", "raise_opset", "shipped_costs"]
