"""Our pipelines and passes as passes of onnx_ir, to be composed with those of others."""

from __future__ import annotations

from typing import Unpack

import onnx_ir as ir

from ortfuse.api import optimize
from ortfuse.graph.contents import changes, contents
from ortfuse.options import AllOptions, Options, PipelineLike
from ortfuse.passes import Pass
from ortfuse.passes.foreign import take_over
from ortfuse.pipeline import PassManager


class OrtfusePass(ir.passes.InPlacePass):
    """Optimises a model in place. A model on which that fails is left as it was.

    Raises:
        OrtfuseError: The pipeline of the options is wrong.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._name = f"ortfuse({PassManager(options)})"

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
        return self._name


def as_ir_pass(passes: PassManager | Pass | PipelineLike, /, **options: Unpack[AllOptions]) -> OrtfusePass:
    """A pass manager, a pass or a pipeline as a pass of onnx_ir.

        onnx_ir.passes.Sequential(common_passes.InlinePass(), as_ir_pass("transformer", verify="sites"))

    Args:
        passes: A pass manager, a pass, or a pipeline in any of its forms.
        **options: Those of `ortfuse.optimize`, in the place of those of the pass manager.

    Raises:
        OrtfuseError: The pipeline or an option is wrong.
    """
    if isinstance(passes, PassManager):
        return OrtfusePass(passes.options.with_(**options))
    return OrtfusePass(Options(passes=[passes] if isinstance(passes, Pass) else passes).with_(**options))
