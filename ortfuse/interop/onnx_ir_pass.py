"""Wrap pipelines and passes of ortfuse as passes of onnx_ir, to be combined with other onnx_ir passes."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ortfuse.api.optimize import optimize
from ortfuse.ir.detect_unlogged_edits import changes, contents
from ortfuse.options import Options, PipelineLike
from ortfuse.pipeline import PassManager
from ortfuse.transforms import Pass
from ortfuse.transforms.onnx_ir_adapter import take_over


class OrtfusePass(ir.passes.InPlacePass):
    """Optimise a model in place. If that fails, the model is left unchanged."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pipeline.

        Raises:
            OrtfuseError: The model cannot be used, or a pass fails.
        """
        before = contents(model)
        result = optimize(model, self.options).model
        modified = changes(before, contents(result)) > 0
        if modified:
            take_over(model, result)
        return ir.passes.PassResult(model, modified)

    def __str__(self) -> str:
        return f"ortfuse({self.options.pipeline})"


def as_ir_pass(passes: PassManager | Pass | PipelineLike = "auto", **options: Any) -> OrtfusePass:
    """A pass manager, a pass or a pipeline as a pass of onnx_ir.

        onnx_ir.passes.Sequential(common_passes.InlinePass(), as_ir_pass("transformer", verify="sites"))

    Args:
        passes: A pass manager, a pass, or a pipeline in any form that `Options` takes as `passes`.
        **options: Options as in `Options`, except `passes`.

    Raises:
        OrtfuseError: The pipeline is wrong.
    """
    given = (
        passes.options
        if isinstance(passes, PassManager)
        else Options(passes=[passes] if isinstance(passes, Pass) else passes)
    )
    made = Options.of(given, **options)
    PassManager(made)  # raises errors in the pipeline now
    return OrtfusePass(made)
