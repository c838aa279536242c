"""The target openvino by its stored table alone; what needs the plugin is in `test_openvino_bugs.py`."""

from __future__ import annotations

import importlib
import json
import runpy
from collections import Counter
from typing import Any

import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.targets import Target, spec_of


@pytest.fixture(scope="module")
def target() -> Target:
    return Target("openvino")


@pytest.fixture(scope="module")
def runner() -> dict[str, Any]:
    return runpy.run_path(spec_of("openvino").runner_file)


def counted(text: str, **options: Any) -> Counter[str]:
    """The operators of the result of a model."""
    result = ortfuse.optimize(ir.from_onnx_text(text), target="openvino", loaded=False, **options)
    return Counter(f"{node.domain}.{node.op_type}".removeprefix(".") for node in result.model.graph)


def test_a_missing_plugin_is_told_with_the_package_that_has_it(
    runner: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(RuntimeError, match=r"not installed here: `pip install onnxruntime-ep-openvino` installs it$"):
        runner["_library"]()


def test_sessions_compute_in_float32_with_the_threads_that_are_asked_for(runner: dict[str, Any]) -> None:
    (configured,) = spec_of("openvino").session_settings.values()
    assert json.loads(configured)["CPU"]["INFERENCE_PRECISION_HINT"] == "f32"
    assert runner["with_threads"](configured, 0) == configured
    assert json.loads(runner["with_threads"](configured, 2))["CPU"] == {
        **json.loads(configured)["CPU"],
        "INFERENCE_NUM_THREADS": "2",
    }
    assert runner["with_threads"](runner["with_threads"]("", 3), 2) == runner["with_threads"]("", 3)


def test_the_stored_table_has_the_operators_that_the_provider_takes(target: Target) -> None:
    kind = ir.DataType.FLOAT
    assert target.supports("", "LayerNormalization", 17, [kind] * 3)
    assert target.supports("", "Gelu", 20, [kind])
    assert target.supports("com.microsoft", "MultiHeadAttention", 1, [kind] * 3)
    for name, count in (("Attention", 3), ("RMSNormalization", 2), ("RotaryEmbedding", 3)):
        assert not target.supports("", name, 23, [kind] * count), name
    assert not target.supports("", "Less", 13, [ir.DataType.UINT64] * 2), "large numbers are compared as negative ones"
    assert not target.lowers


ATTENTION = """<ir_version: 8, opset_import: ["": 17]>
g (float[2,4,6,8] q, float[2,4,6,8] k, float[2,4,6,8] v) => (float[2,4,6,8] y) <float half = {0.3}> {
    t = Transpose<perm=[0,1,3,2]>(k)
    a = MatMul(q, t)
    s = Mul(a, half)
    w = Softmax<axis=-1>(s)
    y = MatMul(w, v)
}"""


def test_attention_is_left_to_the_provider_which_fuses_it_itself() -> None:
    assert counted(ATTENTION) == {"Transpose": 1, "MatMul": 2, "Mul": 1, "Softmax": 1}


GELU = """<ir_version: 10, opset_import: ["": %s]> g (float[2, 8] x, float[8] b) => (float[2, 8] y)
<float root = {1.4142135}, float one = {1}, float half = {0.5}> {
    g = Add(x, b)  a = Div(g, root)  c = Erf(a)  d = Add(c, one)  f = Mul(g, d)  y = Mul(f, half)
}"""


def test_operators_of_the_standard_are_fused_and_those_of_the_runtime_only_where_they_are_forced() -> None:
    assert counted(GELU % 20) == {"Add": 1, "Gelu": 1}
    assert not any(name.startswith("com.microsoft") for name in counted(GELU % 17, max_opset=17))
    forced = counted(GELU % 17, max_opset=17, force={"gelu": "com.microsoft.Gelu"})
    assert forced == {"Add": 1, "com.microsoft.Gelu": 1}


def test_transposes_stay_where_they_are_as_the_provider_orders_axes_itself() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n,3,8,8] x) => (float[n,8,8,3] y)
    <float[4] f = {1.0, 2.0, 2.0, 1.0}> {
        t = Transpose<perm=[0,2,3,1]>(x)  a = Relu(t)  u = Transpose<perm=[0,3,1,2]>(a)  y = Transpose<perm=[0,2,3,1]>(u)
    }"""
    found = ortfuse.optimize(ir.from_onnx_text(text), target="openvino")
    assert [node.op_type for node in found.model.graph] == ["Transpose", "Relu"]
    assert any("orders axes itself" in note for note in found.report.notes)
    elsewhere = ortfuse.optimize(ir.from_onnx_text(text))
    assert not any("orders axes itself" in note for note in elsewhere.report.notes)


@pytest.mark.parametrize(("target", "operator"), [("openvino", "Split"), ("cpu", "Slice"), ("portable", "Slice")])
def test_a_half_of_channels_is_taken_by_the_operator_that_copies_nothing(target: str, operator: str) -> None:
    """A detector joins both halves again, which is the whole, and computes on the second one."""
    text = """<ir_version: 8, opset_import: ["": 18]>
    g (float[n, 8, 4, 4] x, float[4, 4, 1, 1] w) => (float[n, 12, 4, 4] y)
    <int64[1] none = {0}, int64[1] half = {4}, int64[1] all = {8}, int64[1] axis = {1}> {
        m = Relu (x) a = Slice (m, none, half, axis) b = Slice (m, half, all, axis)
        c = Conv (b, w) y = Concat <axis = 1> (a, b, c)
    }"""
    made = ortfuse.optimize(ir.from_onnx_text(text), target=target, loaded=False).model
    assert Counter(node.op_type for node in made.graph) == {"Relu": 1, operator: 1, "Conv": 1, "Concat": 1}
    (joined,) = (node for node in made.graph if node.op_type == "Concat")
    assert len(joined.inputs) == (3 if operator == "Split" else 2)


@pytest.mark.parametrize("sizes", ["4", "4, 4"], ids=["rows", "channels that nothing joins"])
def test_a_half_that_nothing_joins_again_is_taken_by_a_slice(sizes: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[n, 8, {sizes}] x) => (float[n, 4, {sizes}] y)
        <int64[1] first = {{4}}, int64[1] last = {{8}}, int64[1] axis = {{1}}> {{
        a = Slice(x, first, last, axis) y = Relu(a) }}"""
    assert counted(text) == {"Slice": 1, "Relu": 1}


def test_heads_are_not_repeated_by_resize_which_is_slower_than_expand(target: Target) -> None:
    sizes = {"x": (1, 2, 16, 64)}
    found = target.costs.estimate("resize.nearest_from_repeat", sizes.get)
    assert found is not None and not found.worth_it


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("(float[1,4,8] x, int64[1] p, float[9,2] c) => (y) { y = com.microsoft.RotaryEmbedding<interleaved=0>(x, p, c, c) }", True),
        ("(float[1,4,8] x, int64[1,4] p, float[9,2] c) => (y) { y = com.microsoft.RotaryEmbedding<interleaved=0>(x, p, c, c) }", False),
        ("(float[1,4,8] x, int64[1,4] p, float[9,2] c) => (y) { y = com.microsoft.RotaryEmbedding(x, p, c, c) }", True),
        ("(float[2,3,4] x) => (y) { y = Softmax<axis=1>(x) }", True),
        ("(float[2,3,4] x) => (y) { y = Softmax<axis=2>(x) }", False),
        ("(float[2,3,4] x, float[4] s) => (y) { y = PRelu(x, s) }", True),
        ("(float[2,3,4] x, float[1] s) => (y) { y = PRelu(x, s) }", False),
        ("(float[n,2,4] x, float[1,12,4] w, float[1,12,3] r, int32[2] l) => (y) { y = LSTM<hidden_size=3>(x, w, r, , l) }", True),
        ("(float[5,2,4] x, float[1,12,4] w, float[1,12,3] r, int32[2] l) => (y) { y = LSTM<hidden_size=3>(x, w, r, , l) }", False),
    ],
)  # fmt: skip
def test_nodes_that_the_provider_computes_wrongly_are_refused(text: str, refused: bool, target: Target) -> None:
    model = ir.from_onnx_text(f'<ir_version: 8, opset_import: ["": 11, "com.microsoft": 1]> g {text}')
    assert (target.limit(model.graph[0], Facts(model)) is not None) == refused
