"""Type aliases of option values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from ortfuse.rewrite import Rule
    from ortfuse.runtime.inputs.from_calibration_data_reader import DataReader
    from ortfuse.runtime.inputs.random_inputs import Inputs
    from ortfuse.targets import Target, TargetSpec

PathLike: TypeAlias = "str | os.PathLike[str]"

PipelineLike: TypeAlias = "str | os.PathLike[str] | Sequence[Any]"
"""A pipeline as text, the path of a TOML pass list, or a sequence of texts and passes: ours, those of onnx_ir, and rules and
sets of rules of onnxscript."""

PatternsLike: TypeAlias = "PathLike | Rule | Sequence[PathLike | Rule]"
"""Files and folders with rules, or rules."""

TargetLike: TypeAlias = "Target | TargetSpec | PathLike"
"""A target, its declaration, its short name or provider, or the path of its folder or of a kernel table."""

InputsLike: TypeAlias = "PathLike | Sequence[Inputs] | DataReader"
"""The path of a file or folder of inputs, sets of inputs, or a reader whose `get_next()` returns one set after the other."""

FixedLike: TypeAlias = "int | str | Sequence[int]"
"""The size of a dimension, or the shape of an input: `128`, `"1x128"` or `(1, 128)`."""

RangeLike: TypeAlias = "str | Sequence[int]"
"""The least and the largest size of a dimension: `"1:512"` or `(1, 512)`."""

Level = Literal["disabled", "basic", "extended", "all"]
Verification = Literal["whole", "sites"]
Purpose = Literal["execution", "quantization"]
