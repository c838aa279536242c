"""Find the operators of ai.onnx that fusions may make for a target that lacks them, because rules lower them in the end."""

from __future__ import annotations

from ortfuse.targets.kernel_table import KernelTable, Operator
from ortfuse.targets.registry import default_spec
from ortfuse.targets.release_kernel_tables import newest_table
from ortfuse.targets.target_spec import TargetSpec, release_number

_LOWER_FORMS = {
    "Attention": ("com.microsoft", "MultiHeadAttention"),
    "RotaryEmbedding": ("com.microsoft", "RotaryEmbedding"),
    "RMSNormalization": ("", "SimplifiedLayerNormalization"),
}
"""Operators of ai.onnx that rules lower for builds without a kernel of theirs, and what they become."""


def lowered_operators(table: KernelTable, spec: TargetSpec, max_opset: int) -> dict[str, Operator]:
    """Return the operators that a build cannot execute at the opsets that results may have, but what they are lowered to."""
    found: dict[str, Operator] = {}
    if spec.fuses_itself:
        return found
    for name, lower in _LOWER_FORMS.items():
        own, other = table.operators.get(("", name)), table.operators.get(lower)
        is_right = table.release >= release_number(spec.lowered_before.get(name, "0"))
        served = (
            own is not None
            and is_right
            and any(
                schema.since <= max_opset and any(kernel.serves(schema.since) for kernel in own.kernels)
                for schema in own.schemas
            )
        )
        if served or other is None or not other.kernels:
            continue
        if own is not None and own.kernels and is_right and not lower[0]:
            continue  # a bound of the opset alone: checkers refuse operators that only the runtime has in ONNX's domain
        newest = None if own is not None and own.kernels else newest_table(default_spec())
        known = own if newest is None else newest.operators.get(("", name))
        if known is not None:
            found[name] = known
    return found
