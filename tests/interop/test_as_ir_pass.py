"""Our pipelines and passes as passes of onnx_ir."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from graphs import parsed
from onnx_ir.passes import common

from ortfuse import PassManager, as_ir_pass
from ortfuse.errors import OrtfuseError
from ortfuse.transforms import DeadCodeElimination

SWISH = """<ir_version: 8, opset_import: ["": 20]> g (float[2, 8] x) => (float[2, 8] y)
    <float half = {0.5}> { i = Identity(x)  s = Sigmoid(i)  y = Mul(s, i)  unused = Mul(i, half) }"""


def ops(model: ir.Model) -> str:
    return " ".join(node.op_type for node in model.graph)


def test_a_pipeline_composes_with_passes_of_onnx_ir():
    model = parsed(SWISH)
    both = ir.passes.Sequential(common.IdentityEliminationPass(), as_ir_pass("canonicalize, fuse.activation"))
    result = both(model)
    assert result.modified
    assert result.model is model
    assert ops(model) in ("Swish", "QuickGelu")


def test_a_manager_that_changes_nothing_says_so():
    made = as_ir_pass(PassManager("canonicalize, fuse.activation"))
    model = parsed(SWISH)
    assert made(model).modified
    assert not made(model).modified


def test_single_passes_are_passes_of_onnx_ir():
    model = parsed(SWISH)
    assert ir.passes.PassManager([as_ir_pass(DeadCodeElimination())], steps=2)(model).modified
    assert ops(model) == "Identity Sigmoid Mul"


def test_a_model_on_which_a_pipeline_fails_is_left_as_it_was():
    class Fails:
        name = "fails"

        def run(self, context) -> int:
            for node in list(context.model.graph)[-1:]:
                context.model.graph.remove(node)
            raise OrtfuseError("no luck")

    model = parsed(SWISH)
    with pytest.raises(OrtfuseError, match="no luck"):
        as_ir_pass(Fails())(model)
    assert ops(model) == "Identity Sigmoid Mul Mul"
