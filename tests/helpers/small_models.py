"""Models written as text, run through a pass, and compared with what they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
from graphs import run

from ortfuse.analysis.facts import Facts
from ortfuse.io.check_model import check
from ortfuse.io.convert_model_objects import enter
from ortfuse.targets import Target
from ortfuse.transforms import Context, Pass

HEAD = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1, "local" : 1]>\n'


def proto_of(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text if text.lstrip().startswith("<") else HEAD + text)


def model_of(text: str) -> ir.Model:
    return enter(proto_of(text))[0]


def context_of(model: ir.Model) -> Context:
    return Context(model, Facts(model), Target())


def apply(text: str, *passes: Pass, inputs: dict[str, Any] | None = None) -> tuple[ir.Model, list[int], Context]:
    """Run passes over the model; the result must be valid and, given inputs, compute the same bits."""
    model = model_of(text)
    context = context_of(model)
    counts = [made.run(context) for made in passes]
    check(model, name="result")
    if inputs is not None:
        for before, after in zip(run(proto_of(text), inputs), run(model, inputs), strict=True):
            np.testing.assert_array_equal(before, after)
            assert before.dtype == after.dtype
    return model, counts, context


def floats(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
