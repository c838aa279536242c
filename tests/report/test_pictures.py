"""Parts of models as pictures."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.report.model_pictures import Pictures, operators

HEADER = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>'
BEFORE = (
    HEADER
    + """ g (float[2,4] x) => (float[2,4] y, float[2,4] z) <float[4] w = {1, 2, 3, 4}> {
    [one] a = Mul(x, w) [two] half = Constant <value_float = 0.5> () [three] b = Mul(a, half) [four] y = Sigmoid(b)
    [five] z = Relu(x) }"""
)
AFTER = (
    HEADER
    + """ g (float[2,4] x) => (float[2,4] y, float[2,4] z) <float[4] w = {1, 2, 3, 4}> {
    [new] y = com.microsoft.QuickGelu(x) [five] z = Relu(x) }"""
)


def pictures() -> Pictures:
    return Pictures(ir.from_onnx_text(BEFORE), ir.from_onnx_text(AFTER))


def test_a_site_shows_its_nodes_before_and_what_they_became() -> None:
    pair = pictures().site("y", ["one", "three", "four"], ["com.microsoft.QuickGelu"])
    assert pair.was == {"Mul": 2, "Sigmoid": 1}
    assert pair.became == {"com.microsoft.QuickGelu": 1}
    assert pair.before is not None
    labels = {box.kind: box.label for box in pair.before.boxes}
    assert labels["input"] == "x"
    assert labels["output"] == "y"
    assert {box.label for box in pair.before.boxes if box.kind == "constant"} == {"4", "0.5"}


def test_regions_are_the_nodes_that_only_one_of_the_models_has() -> None:
    (region,) = pictures().regions()
    assert region.was == {"Mul": 2, "Sigmoid": 1}
    assert region.became == {"com.microsoft.QuickGelu": 1}
    same = ir.from_onnx_text(BEFORE)
    assert not Pictures(same, ir.from_onnx_text(BEFORE)).regions()


def test_large_parts_are_drawn_in_part() -> None:
    steps = " ".join(f"v{number + 1} = Relu(v{number})" for number in range(60))
    many = ir.from_onnx_text(HEADER + f" g (float[2] v0) => (float[2] v60) {{ {steps} }}")
    none = ir.from_onnx_text(HEADER + " g (float[2] v0) => (float[2] v60) { v60 = Neg(v0) }")
    (region,) = Pictures(many, none).regions()
    assert region.before is not None
    assert region.before.omitted == 20
    assert operators(many) == {"Relu": 60}


def test_operators_are_named_in_the_order_of_the_model() -> None:
    pair = pictures().site("y", ["four", "three", "one"], ["com.microsoft.QuickGelu"])
    assert list(pair.was) == ["Mul", "Sigmoid"]
    convolved = HEADER + " g (float[1,1,4,4] x, float[1,1,1,1] w) => (float[1,1,4,4] y) {{ {} }}"
    before = ir.from_onnx_text(convolved.format("[a] c = Conv(x, w) [b] y = Relu(c)"))
    after = ir.from_onnx_text(convolved.format('[c] y = com.microsoft.FusedConv<activation = "Relu">(x, w)'))
    assert list(Pictures(before, after).site("y", ["b", "a"], ["com.microsoft.FusedConv"]).was) == ["Conv", "Relu"]


def test_regions_end_at_values_that_both_models_have() -> None:
    text = HEADER + " g (float[2] x) => (float[2] y) {{ {} }}"
    before = ir.from_onnx_text(text.format("a = Neg(x) b = Abs(a) c = Neg(b) y = Abs(c)"))
    after = ir.from_onnx_text(text.format("b = Abs(x) y = Abs(b)"))
    assert [(region.was, region.became) for region in Pictures(before, after).regions()] == [
        ({"Neg": 1, "Abs": 1}, {"Abs": 1})
    ] * 2
