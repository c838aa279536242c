"""The DirectML provider of ONNX Runtime, for Windows: legality alone, from its table of operators and types. Never run here."""

from __future__ import annotations

from pathlib import Path

from ortfuse.ir.traits import MICROSOFT
from ortfuse.targets.attention_constraints import bias_has_all_rows
from ortfuse.targets.target_spec import TargetSpec

TARGET = TargetSpec(
    name="directml",
    provider="DmlExecutionProvider",
    folder=Path(__file__).parent,
    constraints={(MICROSOFT, "MultiHeadAttention"): bias_has_all_rows},
    tried="never run here: operators and types from its documentation",
    accelerator="gpu",
)
