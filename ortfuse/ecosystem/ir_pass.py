"""Our pipelines and passes as passes of onnx_ir, to be composed with those of others."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ortfuse.graph.contents import changes, contents
from ortfuse.passes import Pass
from ortfuse.passes.foreign import take_over
from ortfuse.pipeline import PassManager
from ortfuse.pipeline.manager import PipelineLike


class OrtfusePass(ir.passes.InPlacePass):
    """Runs a pipeline of ortfuse on a model, in place. A model on which it fails is left as it was."""

    def __init__(self, manager: PassManager) -> None:
        self.manager = manager

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pipeline.

        Raises:
            OrtfuseError: The model cannot be used, or a pass fails.
        """
        before = contents(model)
        result = self.manager.run(model).model
        modified = changes(before, contents(result)) > 0
        if modified:
            take_over(model, result)
        return ir.passes.PassResult(model, modified)

    def __str__(self) -> str:
        return f"ortfuse({self.manager})"


def as_ir_pass(passes: PassManager | Pass | PipelineLike, **options: Any) -> OrtfusePass:
    """A pass manager, a pass or a pipeline as a pass of onnx_ir.

        onnx_ir.passes.Sequential(common_passes.InlinePass(), as_ir_pass("transformer"))

    Args:
        passes: A pass manager, a pass, or what `PassManager` takes as its pipeline.
        **options: Those of `PassManager`, unless one is given.

    Raises:
        OrtfuseError: The pipeline is wrong.
    """
    if isinstance(passes, PassManager):
        return OrtfusePass(passes)
    pipeline: PipelineLike = [passes] if isinstance(passes, Pass) else passes
    return OrtfusePass(PassManager(pipeline, **options))
