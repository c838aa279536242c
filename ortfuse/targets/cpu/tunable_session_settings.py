"""Session settings that `ortfuse tune` searches for the CPU provider."""

from __future__ import annotations

from collections.abc import Mapping

TUNED_SETTINGS: Mapping[str, tuple[bool | int | str, ...]] = {
    "enable_cpu_mem_arena": (True, False),
    "enable_mem_reuse": (True, False),
    "session.intra_op.allow_spinning": ("1", "0"),
    "graph_optimization_level": ("all", "extended", "basic"),
    "session.disable_prepacking": ("0", "1"),
    "enable_mem_pattern": (True, False),
    "disabled": ("", "NchwcTransformer", "ConstantFolding", "TransposeOptimizer", "MatMulAddFusion"),
    "execution_mode": ("sequential", "parallel"),
}
"""The settings that every model can have, the runtime's default first, and those first that make most of a difference.
`disabled` is one of the runtime's own optimisers."""
