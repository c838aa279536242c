"""Targets: kernels, constraints, known bugs and costs of a runtime and its providers, and the raising of opsets."""

from ortfuse.targets.custom_operators import (
    libraries,
    missing_functions,
    register_operators,
    use_library,
    with_functions,
)
from ortfuse.targets.downgrade_opset import lower_opset
from ortfuse.targets.find_oldest_release import oldest_release
from ortfuse.targets.kernel_table import Kernel, KernelTable
from ortfuse.targets.known_bugs import DEFECTS, KnownBug, Quirk
from ortfuse.targets.registry import default_spec, known_targets, load_target, spec_of
from ortfuse.targets.resolve import resolve_target
from ortfuse.targets.rule_speedups import CostTable, Estimate, shipped_costs, shipped_tables
from ortfuse.targets.target import Target, installed
from ortfuse.targets.target_spec import ProviderOption, TargetSpec
from ortfuse.targets.upgrade_opset import opset_needed, raise_opset, raise_to_newest

__all__ = [
    "DEFECTS",
    "CostTable",
    "Estimate",
    "Kernel",
    "KernelTable",
    "KnownBug",
    "ProviderOption",
    "Quirk",
    "Target",
    "TargetSpec",
    "default_spec",
    "installed",
    "known_targets",
    "libraries",
    "load_target",
    "lower_opset",
    "missing_functions",
    "oldest_release",
    "opset_needed",
    "raise_opset",
    "raise_to_newest",
    "register_operators",
    "resolve_target",
    "shipped_costs",
    "shipped_tables",
    "spec_of",
    "use_library",
    "with_functions",
]
