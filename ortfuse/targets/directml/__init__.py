"""The DirectML provider of ONNX Runtime, for Windows: legality alone, from its table of operators and types. Never run here."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.traits import MICROSOFT
from ortfuse.targets.attention_constraints import bias_has_all_rows
from ortfuse.targets.kernel_constraints import input_at, input_limit
from ortfuse.targets.target_spec import TargetSpec


def _grouped_query(node: ir.Node, facts: Facts) -> Refusal | None:
    """Refuse capped scores with a bias: whether the kernel caps them before it adds the bias is not known."""
    softcap = node.attributes.get("softcap")
    if input_at(node, 10) is None or softcap is None or not (softcap.is_ref() or softcap.value):
        return None
    return input_limit(node, 10, "attention_bias", "given", "none where scores are capped, as the order is not known")


TARGET = TargetSpec(
    name="directml",
    provider="DmlExecutionProvider",
    folder=Path(__file__).parent,
    constraints={
        (MICROSOFT, "MultiHeadAttention"): bias_has_all_rows,
        (MICROSOFT, "GroupQueryAttention"): _grouped_query,
    },
    tried="never run here: operators and types from its documentation",
    accelerator="gpu",
)
