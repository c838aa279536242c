"""Operators of diffusion models that were optimised for CUDA become operators of the standard, which a CPU computes, too."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.pipeline import load_catalogue
from ortfuse.verification import Session
from ortfuse.verification.rule_tests.defined_operators import with_definitions

MODELS = {
    "a block": """(FLOAT[n,6,5,4] x, FLOAT[t,1,1,8] time, FLOAT[8,3,3,4] w, FLOAT[8,3,3,8] v, FLOAT[8,8,1,1] i, FLOAT[8] c)
        => (FLOAT[n,6,5,8] y)
        <float[8] g = {1, 2, 3, 4, 5, 6, 7, 8}, float[8] h = {1, 0, 1, 0, 1, 0, 1, 0}> {
        a = com.microsoft.NhwcConv<pads = [1, 1, 1, 1]>(x, w)
        b = com.microsoft.GroupNorm<groups = 2, activation = 1>(a, g, h)
        d = com.microsoft.NhwcConv<pads = [1, 1, 1, 1]>(b, v, c)
        e, s = com.microsoft.SkipGroupNorm<groups = 4, activation = 1>(d, g, h, time, c)
        y = com.microsoft.NhwcFusedConv<activation = "Relu">(s, i, , e) }""",
    "a transformer's feed-forward": """(FLOAT[n,t,8] x, FLOAT[n,t,4] skip, FLOAT[8] b, FLOAT[4] c) => (FLOAT[n,t,4] y) {
        h = com.microsoft.BiasSplitGelu(x, b) y = com.microsoft.BiasAdd(h, c, skip) }""",
}
DEFINITIONS = {
    name: made
    for rules in load_catalogue([]).passes().values()
    for rule in rules
    for name, made in rule.test.definitions.items()
}


def parsed(text: str, dtype: str = "float") -> ir.Model:
    head = '<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]> g '
    return ir.from_proto(onnx.parser.parse_model(head + text.replace("FLOAT", dtype)))


def inputs(model: ir.Model) -> dict[str, np.ndarray]:
    rng, made = np.random.default_rng(3), {}
    for value in model.graph.inputs:
        assert value.dtype is not None
        shape = [dim if isinstance(dim, int) else 2 for dim in value.shape or ()]
        made[value.name or ""] = rng.standard_normal(shape).astype(value.dtype.numpy())
    return made


@pytest.mark.parametrize("target", ["portable", "openvino", "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_a_result_computes_what_the_operators_mean(name: str, target: str) -> None:
    model = parsed(MODELS[name])
    given = inputs(model)
    expected = Session(with_definitions(model, DEFINITIONS), optimise=False).run(given)["y"]
    made = ortfuse.optimize(model.clone(), target=target, loaded=False).model
    gone = {"NhwcConv", "NhwcFusedConv", "GroupNorm", "SkipGroupNorm", "BiasSplitGelu", "BiasAdd"}
    assert not gone & {node.op_type for node in made.graph}
    if target == "portable":
        assert {node.domain for node in made.graph} == {""}
    if target != "openvino":
        np.testing.assert_allclose(Session(made, optimise=False).run(given)["y"], expected, rtol=1e-4, atol=1e-4)


def test_half_precision_is_normalised_in_float32() -> None:
    model = parsed(MODELS["a block"], "float16")
    given = inputs(model)
    expected = Session(with_definitions(model, DEFINITIONS), optimise=False).run(given)["y"]
    made = ortfuse.optimize(model.clone(), target="portable", loaded=False).model
    assert {node.domain for node in made.graph} == {""}
    norms = [node for node in made.graph if node.op_type == "InstanceNormalization"]
    assert norms and {node.inputs[0].dtype for node in norms if node.inputs[0] is not None} == {ir.DataType.FLOAT}
    np.testing.assert_allclose(Session(made, optimise=False).run(given)["y"], expected, rtol=2e-2, atol=2e-2)


def test_transposes_between_operators_cancel() -> None:
    counts = Counter(
        node.op_type for node in ortfuse.optimize(parsed(MODELS["a block"]), target="portable").model.graph
    )
    assert counts["Transpose"] == 4, "that of the image, of two weights and of the result"


def test_an_activation_that_is_not_known_stays() -> None:
    text = """(float[n,5,4,8] x, float[8] g, float[8] h) => (float[n,5,4,8] y) {
        y = com.microsoft.GroupNorm<groups = 2, activation = 2>(x, g, h) }"""
    result = ortfuse.optimize(parsed(text), target="portable")
    assert [node.op_type for node in result.model.graph] == ["GroupNorm"]
    assert any("GroupNorm" in note for note in result.report.notes)


@pytest.mark.parametrize(
    ("bias", "inner", "lowered"),
    [("[2,1,1,5]", 1, True), ("[4,5]", 0, True), ("[2,1,1,5]", 0, False), ("[4,5]", 1, False), ("[1,3,1,5]", 0, False)],
)
def test_biases_of_scores_are_repeated_as_the_attribute_says(bias: str, inner: int, lowered: bool) -> None:
    model = parsed(f"""(float[2,3,4,5] x, float{bias} b) => (float[2,3,4,5] y) {{
        y = com.microsoft.BiasSoftmax<axis = 3, is_inner_broadcast = {inner}>(x, b) }}""")
    made = ortfuse.optimize(model.clone(), target="portable", loaded=False).model
    assert ("BiasSoftmax" not in [node.op_type for node in made.graph]) is lowered
    if lowered:
        given = inputs(model)
        expected = Session(with_definitions(model, DEFINITIONS), optimise=False).run(given)["y"]
        np.testing.assert_allclose(Session(made).run(given)["y"], expected, rtol=1e-5, atol=1e-6)
