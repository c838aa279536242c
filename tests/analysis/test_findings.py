"""Graphs for which something that is not true was once taken for a fact."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from soundness import judge_model, strict_transfer

from ortfuse.analysis.facts import Facts

pytestmark = pytest.mark.usefixtures(strict_transfer.__name__)

SIZED = "float[n, m] x"
COUNTED = "s = Shape(x) n = Cast <to = 6> (s)"
BODY = "Loop <body = body (int64 i, bool c, {state}) => (bool d, {after}) {{ d = Identity(c) {does} }}>"


def int_of(*numbers: int, kind: str = "int64") -> str:
    return f"Constant <value = {kind}[{len(numbers)}] {{{', '.join(map(str, numbers))}}}> ()"


FINDINGS = {
    "frames of one side of their spectrum, by default": (
        17,
        "float[1, 128, 1] x",
        f"s = {int_of(8)} n = Squeeze(s) w = {int_of(16)} m = Squeeze(w) y = STFT(x, n, , m)",
    ),
    "integers are summed as numbers that hold 53 bits": (
        13,
        "float[n] x",
        f"c = {int_of(-(2**63), 2**63 - 1, 0)} y = ReduceSum <keepdims = 0> (c)",
    ),
    "what is chosen loses the sign of zero": (
        16,
        "float[n] x",
        "b = Constant <value = bool[2] {1, 0}> () p = Constant <value = float[2] {-0.0, 1.0}> ()"
        " q = Constant <value = float[2] {2.0, 3.0}> () y = Where(b, p, q)",
    ),
    "a transposed convolution trims nothing off a kernel that reaches less far than the stride": (
        17,
        "float[1, 2, 3, 3] x, float[2, 2, 1, 1] w",
        'y = ConvTranspose <strides = [2, 2], auto_pad = "SAME_UPPER"> (x, w)',
    ),
    "the bounds of Clip are attributes before opset 11": (
        10,
        SIZED,
        "s = Shape(x) f = Cast <to = 1> (s) y = Clip <min = 2.0, max = 4.0> (f) z = Cast <to = 7> (y)",
    ),
    "sizes scaled in 32 bits wrap around": (
        17,
        SIZED,
        f"{COUNTED} k = {int_of(1000000000, kind='int32')} y = Mul(n, k) o = {int_of(0, kind='int32')} z = Less(y, o)",
    ),
    "a number added in 32 bits wraps around": (
        17,
        SIZED,
        f"{COUNTED} k = {int_of(2147483647, kind='int32')} y = Add(n, k) o = {int_of(0, kind='int32')} z = Less(y, o)",
    ),
    "the smallest integer is divided towards zero": (
        17,
        SIZED,
        f"k = Constant <value = int64[70] {{{', '.join(['-9223372036854775808'] * 70)}}}> () t = {int_of(3)} y = Div(k, t)",
    ),
    "float64 is rounded twice on the way to float16": (
        17,
        SIZED,
        "k = Constant <value = double[2] {1.00048828126, 2049.00000001}> () y = Cast <to = 10> (k)",
    ),
    "a reduction over no axes still takes absolute values": (
        18,
        SIZED,
        f"k = {int_of(-3, 2)} y = ReduceL1 <noop_with_empty_axes = 1> (k) z = ReduceSumSquare <noop_with_empty_axes = 1> (k)",
    ),
    "a target that happens to be 0 copies a size": (
        17,
        "float[2, 6] d, float[n, m] x",
        f"s = Shape(x) k = {int_of(2, 6)} t = Sub(k, s) y = Reshape(d, t) z = Shape(y)",
    ),
    "a target that happens to be -1 is the rest": (
        17,
        "float[2, 6] d, float[n, m] x",
        f"s = Shape(x) a = {int_of(0)} e = {int_of(1)} h = Slice(s, a, e) l = Sub(h, e) k = {int_of(6)}"
        " t = Concat <axis = 0> (l, k) y = Reshape(d, t) z = Shape(y)",
    ),
    "a target that is 0 beside the rest copies a size of an empty tensor": (
        13,
        "float[n, m] x",
        f"d = Constant <value = float[0, 3, 4] {{}}> () s = Shape(x) k = {int_of(-1)} t = Concat <axis = 0> (k, s)"
        " y = Reshape(d, t)",
    ),
    "an index of an Einsum is broadcast where it is 1": (
        17,
        "float[n, 2] x, float[m, 3] w",
        'y = Einsum <equation = "ij,ik->ijk"> (x, w)',
    ),
    "parts after one of unknown size begin somewhere": (
        17,
        "int64[4] x, int64[1] p",
        f"s = {int_of(10, 20, 30, 40)} k = {int_of(4)} o = {int_of(1)} r = Sub(k, p) t = Concat <axis = 0> (p, r) y, z = Split(s, t)",
    ),
    "an element inserted at -1 is the last but one": (
        17,
        SIZED,
        f"s = Shape(x) a = {int_of(7)} i = Constant <value = int64 {{-1}}> () q = SequenceConstruct(s, a) b = {int_of(5, 5, 5)}"
        " r = SequenceInsert(q, b, i) j = Constant <value = int64 {1}> () y = SequenceAt(r, j) z = Shape(y)",
    ),
    "a fill that is an attribute": (
        10,
        SIZED,
        "o = Sub(x, x) y = Pad <pads = [0, 1, 0, 0], value = 3.0> (o)",
    ),
    "a loop's state grows": (
        17,
        SIZED,
        "k = Constant <value = int64 {2}> () t = Constant <value = bool {1}> () "
        + BODY.format(state="float[n, 3] a", after="float[n, 3] e", does="e = Concat <axis = 0> (a, a)").join(
            ("y = ", " (k, t, x)")
        ),
    ),
    "a loop's state is transposed": (
        17,
        SIZED,
        "k = Constant <value = int64 {1}> () t = Constant <value = bool {1}> () "
        + BODY.format(state="float[2, 3] a", after="float[2, 3] e", does="e = Transpose(a)").join(
            ("y = ", " (k, t, x)")
        ),
    ),
    "a scan's state is transposed": (
        17,
        SIZED,
        "y, w = Scan <num_scan_inputs = 1, body = body (float[2, 3] a, float[3] r) => (float[2, 3] e, float[3] u)"
        " { e = Transpose(a) u = Identity(r) }> (x, x)",
    ),
}


@pytest.mark.parametrize("finding", FINDINGS)
def test_it_is_no_fact_any_more(finding: str) -> None:
    opset, inputs, body = FINDINGS[finding]
    outputs = "y, z" if " z = " in body or ", z =" in body else "y"
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    )
    model = ir.from_proto(proto)
    facts, runs = Facts(model), 0
    for n, m in ((1, 1), (3, 3), (1, 3), (2, 3), (0, 6), (2, 6)):
        sizes = {"n": n, "m": m}
        try:
            judge = judge_model(proto, facts, model, _given(proto, sizes), sizes)
        except Exception as error:
            assert "ONNXRuntimeError" in str(error)  # not every size is valid for every graph
            continue
        runs += 1
        assert not judge.wrong, f"{sizes}: {judge.wrong}"
    assert runs


def _given(proto: onnx.ModelProto, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    rng, given = np.random.default_rng(0), {}
    for value in proto.graph.input:
        shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in value.type.tensor_type.shape.dim]
        whole = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
        given[value.name] = np.full(shape, 1) if whole else rng.standard_normal(shape).astype(np.float32)
    return given
