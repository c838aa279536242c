"""Small models of ONNX text, the operators of any kind of model, and what the runtime and ortfuse make of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime

import ortfuse
from ortfuse.ir.walk import scopes

Model = ir.Model | onnx.ModelProto

_WORD = re.compile(r"\w+")


def parsed(text: str) -> ir.Model:
    """A model of the whole text, head included."""
    return ir.from_proto(onnx.parser.parse_model(text))


def proto(
    body: str,
    inputs: str = "float[b,3] x",
    outputs: str = "float[b,3] y",
    *,
    opset: int = 18,
    ir_version: int = 9,
    domains: Iterable[str] = (),
    initializers: str = "",
    functions: str = "",
    constants: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """A model from the text of its parts.

    Args:
        body: The nodes.
        inputs: The inputs with types and shapes.
        outputs: The outputs, alike.
        opset: The version of the standard operators.
        ir_version: The version of the format.
        domains: Other sets of operators, in version 1.
        initializers: Constants as text, such as `float one = {1}`, without the angle brackets.
        functions: The functions of the model, behind its graph.
        constants: Arrays by name; those that the body does not name are left out.
    """
    imports = ", ".join([f'"": {opset}', *(f'"{domain}": 1' for domain in domains)])
    texts = f"<{initializers}> " if initializers else ""
    head = f"<ir_version: {ir_version}, opset_import: [{imports}]>"
    made: onnx.ModelProto = onnx.parser.parse_model(
        f"{head} g ({inputs}) => ({outputs}) {texts}{{ {body} }} {functions}"
    )
    words = set(_WORD.findall(body))
    for name, array in (constants or {}).items():
        if name in words:
            made.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return made


def model(body: str, inputs: str = "float[b,3] x", outputs: str = "float[b,3] y", **parts: Any) -> ir.Model:
    """The same as `onnx_ir.Model`; `parts` are the other arguments of `proto`."""
    return ir.from_proto(proto(body, inputs, outputs, **parts))


def without_shapes(made: onnx.ModelProto) -> onnx.ModelProto:
    """The model, of whose outputs no ranks are declared."""
    for output in made.graph.output:
        output.type.tensor_type.ClearField("shape")
    return made


def operators(made: Model | ortfuse.Result | Path, *, nested: bool = True) -> list[str]:
    """The operators of the main graph in order; unless not `nested`, then those of the graphs in it and of functions."""
    source: Any = made.model if isinstance(made, ortfuse.Result) else made
    if isinstance(source, Path):
        source = onnx.load(source, load_external_data=False)
    read: ir.Model = ir.from_proto(source) if isinstance(source, onnx.ModelProto) else source
    graphs = [scope.graph for scope in scopes(read)] if nested else [read.graph]
    return [node.op_type for graph in graphs for node in graph]


def run(made: Model | Path, inputs: Mapping[str, Any], *, optimised: bool = False) -> list[Any]:
    """The outputs, computed in one thread, without the runtime's own optimisations unless they are asked for."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source: Any = made
    if not isinstance(made, Path):
        source = (ir.to_proto(made) if isinstance(made, ir.Model) else made).SerializeToString()
    return list(
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"]).run(None, dict(inputs))
    )


def optimised(made: Model, **options: Any) -> ortfuse.Result:
    """The result for a copy of the model; it was compared with the original, on inputs that were drawn."""
    copy = onnx.ModelProto() if isinstance(made, onnx.ModelProto) else made.clone()
    if isinstance(copy, onnx.ModelProto):
        copy.CopyFrom(made)
    result = ortfuse.optimize(copy, **options)
    verdict = ortfuse.verify(made, result.model)
    assert verdict.ok, verdict.summary()
    return result


def optimised_operators(made: Model, **options: Any) -> list[str]:
    """The operators of the result, which computes the same."""
    return operators(optimised(made, **options))


def operator_counts(made: Model, **options: Any) -> Counter[str]:
    """How often the result for these options has each operator."""
    return Counter(operators(ortfuse.optimize(made, **options)))
