"""Old forms of operators, raised: the same outputs, or a refusal where ONNX's converter is known to be wrong."""

from __future__ import annotations

import onnx
import onnx.version_converter
import onnx_ir as ir
import pytest
from raising import model_text, raised_is_the_same, read

from ortfuse.errors import TargetError
from ortfuse.targets import raise_opset

IMAGE = "float[1,4,6,6] x"
PER_CHANNEL = ", ".join(f"float[4] {name} = {{1.0,2.0,3.0,0.5}}" for name in "smvt")

FORMS = {
    "Squeeze": (12, "{ y = Squeeze<axes=[0]>(x) }", "float[1,3,4] x"),
    "Unsqueeze": (12, "{ y = Unsqueeze<axes=[0,2]>(x) }", "float[2,3,4] x"),
    "ReduceSum": (12, "{ y = ReduceSum<axes=[1],keepdims=0>(x) }", "float[2,3,4] x"),
    "ReduceSum, all axes": (12, "{ y = ReduceSum<keepdims=0>(x) }", "float[2,3,4] x"),
    "ReduceMean": (17, "{ y = ReduceMean<axes=[-1]>(x) }", "float[a,b,c] x"),
    "ReduceMean, all axes": (17, "{ y = ReduceMean(x) }", "float[2,3,4] x"),
    "ReduceL2": (17, "{ y = ReduceL2<axes=[1,2]>(x) }", "float[2,3,4] x"),
    "Softmax, flattening": (12, "{ y = Softmax<axis=1>(x) }", "float[2,3,4] x"),
    "Softmax, unknown shape": (12, "{ z = Relu(x) y = Softmax<axis=1>(z) }", "float[a,b,c] x"),
    "Softmax, in the middle": (12, "{ z = Softmax(x) y = Relu(z) }", "float[2,3,4] x"),
    "Softmax, last axis": (12, "{ y = Softmax<axis=-1>(x) }", "float[2,3,4] x"),
    "LogSoftmax": (12, "{ y = LogSoftmax<axis=1>(x) }", "float[2,3,4] x"),
    "Dropout": (11, "{ y = Dropout<ratio=0.3>(x) }", "float[2,3,4] x"),
    "Dropout, unused mask": (7, "{ y, m = Dropout(x) }", "float[2,3,4] x"),
    "Clip": (9, "{ y = Clip<min=-0.5,max=0.5>(x) }", "float[2,3,4] x"),
    "Clip, one bound": (9, "{ z = Abs(x) y = Clip<max=0.5>(z) }", "float[2,3,4] x"),
    "Pad": (10, "{ y = Pad<pads=[0,1,0,0,0,2],value=1.5>(x) }", "float[2,3,4] x"),
    "Slice": (9, "{ y = Slice<starts=[1],ends=[3],axes=[1]>(x) }", "float[2,3,4] x"),
    "TopK": (9, "{ y, i = TopK<k=2,axis=1>(x) }", "float[2,3,4] x"),
    "Split": (12, "{ y, z = Split<axis=1,split=[1,2]>(x) }", "float[2,3,4] x"),
    "Split, equal parts": (17, "{ y, z = Split<axis=2>(x) }", "float[2,3,4] x"),
    "Scatter": (9, "<int64[1,2] i = {1,3}, float[1,2] u = {1.1,2.2}> { y = Scatter<axis=1>(x, i, u) }", "float[1,5] x"),
    "Resize": (11, "<float[4] s = {1.0,1.0,2.0,1.5}, float[8] r = {0.0,0.0,0.0,0.0,1.0,1.0,1.0,1.0}>"
                   ' { y = Resize<mode="linear">(x, r, s) }', IMAGE),
    "BatchNormalization": (9, f"<{PER_CHANNEL}> {{ y = BatchNormalization(x, s, m, v, t) }}", IMAGE),
    "GridSample": (16, '{ y = GridSample<mode="bilinear">(x, g) }', "float[1,2,4,4] x, float[1,3,3,2] g"),
    "DFT": (17, "{ y = DFT<axis=1>(x) }", "float[1,8,1] x"),
    "AveragePool": (10, "{ y = AveragePool<kernel_shape=[3,3],strides=[2,2],ceil_mode=1,pads=[1,1,1,1]>(x) }", IMAGE),
    "Cast": (9, "{ z = Cast<to=6>(x) y = Cast<to=1>(z) }", "float[2,3,4] x"),
}  # fmt: skip


@pytest.mark.parametrize("opset", [18, 23, 26])
@pytest.mark.parametrize("form", FORMS)
def test_an_old_form_means_the_same_after_raising(form: str, opset: int) -> None:
    old, body, inputs = FORMS[form]
    raised_is_the_same(model_text(old, body, inputs), opset)


WRONG = {
    "Hardmax, flattening": (12, 18, "{ y = Hardmax<axis=1>(x) }", "float[2,3,4] x"),
    "Resize 10": (10, 18, '<float[4] s = {1.0,1.0,2.0,1.5}> { y = Resize<mode="linear">(x, s) }', IMAGE),
    "Upsample": (9, 18, '<float[4] s = {1.0,1.0,2.0,2.0}> { y = Upsample<mode="linear">(x, s) }', IMAGE),
    "GroupNormalization 18": (18, 23, "<float[2] s = {1.0,2.0}, float[2] b = {0.0,1.0}>"
                              " { y = GroupNormalization<num_groups=2>(x, s, b) }", IMAGE),
    "Clip of float16": (9, 18, "{ y = Clip<min=-0.5,max=0.5>(x) }", "float16[2,3] x"),
    "Pad of double": (10, 18, "{ y = Pad<pads=[0,1,0,0],value=1.5>(x) }", "double[2,3] x"),
    "Dropout 7, mask": (7, 10, "{ z, m = Dropout(x) y = Identity(m) }", "float[2,3] x"),
    "Dropout 10, mask": (10, 13, "{ z, m = Dropout(x) y = Identity(m) }", "float[2,3] x"),
    "Dropout, ratio": (10, 13, "{ y = Dropout<ratio=1.0>(x) }", "float[2,3] x"),
    "Scan 8": (8, 18, "{ y = Scan<num_scan_inputs=1, body = b (float s) => (float t) { t = Neg(s) }>(, x) }",
               "float[1,3] x"),
}  # fmt: skip


@pytest.mark.parametrize("form", WRONG)
def test_what_the_converter_gets_wrong_is_refused_and_the_model_unchanged(form: str) -> None:
    old, opset, body, inputs = WRONG[form]
    model = read(model_text(old, body, inputs))
    before = ir.to_proto(model).SerializeToString()
    with pytest.raises(TargetError, match=f"{form.split(',')[0].split(' ')[0]} .*--max-opset {old}"):
        raise_opset(model, opset)
    assert ir.to_proto(model).SerializeToString() == before


@pytest.mark.parametrize(
    ("old", "opset", "body", "inputs"),
    [
        (21, 22, "{ y = RandomNormalLike(x) }", "float[2] x"),
        (21, 23, '{ y = RoiAlign(x, r, i) }', "float[1,1,4,4] x, float[1,4] r, int64[1] i"),
        (24, 26, "{ y = Swish(x) }", "float[2] x"),
        (16, 26, "{ s = Cast <to = 7> (x) y = PRelu(s, s) }", "float[2] x"),
        (23, 26, "{ k = Cast <to = 5> (m) y = Attention(x, x, x, k) }", "float[1, 1, 2, 2] x, float[2, 2] m"),
    ],
)  # fmt: skip
def test_an_opset_at_which_the_runtime_has_no_kernel_any_more_is_refused(
    old: int, opset: int, body: str, inputs: str
) -> None:
    model = read(model_text(old, body, inputs))
    with pytest.raises(TargetError, match=f"no kernel for .* at (opset|version) {opset}"):
        raise_opset(model, opset)
    assert model.graph.opset_imports[""] == old


def test_an_operator_that_the_runtime_inlines_may_be_raised() -> None:
    raised_is_the_same(model_text(22, "{ y = Mish(x) }"), 26)


def test_a_failure_of_the_converter_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
        raise RuntimeError("somewhere.h:73: No Adapter From Version $17 for ReduceMean")

    monkeypatch.setattr(onnx.version_converter, "convert_version", fail)
    model = read(model_text(17, "{ y = ReduceMean(x) }"))
    with pytest.raises(TargetError, match=r"graph 'g' from opset 17 to 18: .*No Adapter.*--max-opset 17"):
        raise_opset(model, 18)
    assert model.graph.opset_imports[""] == 17


def test_an_output_that_the_converter_loses_is_an_error_and_the_model_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
        result = onnx.ModelProto.FromString(proto.SerializeToString())
        del result.graph.node[:]
        return result

    monkeypatch.setattr(onnx.version_converter, "convert_version", lose)
    model = read(model_text(17, "{ z = ReduceMean(x) y = Neg(z) }"))
    with pytest.raises(TargetError, match="lost an output of ReduceMean"):
        raise_opset(model, 18)
    assert [node.op_type for node in model.graph] == ["ReduceMean", "Neg"]


def test_a_function_of_a_newer_opset_stays_as_it_is() -> None:
    text = model_text(17, "{ m = ReduceMean<axes=[1]>(x) y = mine.f(m) }", head=', "mine" : 1')
    body = """<domain: "mine", opset_import: ["" : 21]> f (a) => (b) { b = Softmax<axis=1>(a) }"""
    model = raised_is_the_same(f"{text} {body}", 18)
    (function,) = model.functions.values()
    assert function.opset_imports[""] == 21
