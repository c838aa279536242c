"""Small models for the tests of this folder."""

from __future__ import annotations

import onnx_ir as ir

HEADER = '<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]>'


def model(body: str, inputs: str = "float[b,3] x", outputs: str = "float[b,3] y", initializers: str = "") -> ir.Model:
    """A model from the text of its parts."""
    return ir.from_onnx_text(f"{HEADER} g ({inputs}) => ({outputs}) {initializers} {{ {body} }}")


def ones(kind: str, *shape: int) -> str:
    """The text of an initializer filled with ones: `ones("float[4,3] table", 4, 3)`."""
    count = 1
    for size in shape:
        count *= size
    return f"{kind} = {{{', '.join(['1'] * count)}}}"
