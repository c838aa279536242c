"""The target webgpu: results as its table allows them, and runs on a GPU or on Vulkan on the processor."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import operators
from test_webgpu_decompositions import EXPERTS, GUARDED, LACKING, TRUTHS

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.api.verify_on_targets import refused_nodes
from ortfuse.errors import TargetError
from ortfuse.pipeline import load_catalogue
from ortfuse.rewrite import Rule
from ortfuse.runtime import node_sessions
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.placement import placement
from ortfuse.runtime.session import Session
from ortfuse.targets import Target, resolve_target, spec_of
from ortfuse.targets.webgpu import runner
from ortfuse.verification.rule_tests import prove

ATTENTION = """<ir_version: 10, opset_import: ["": 23]>
g (float[2, 6, 32] q, float[2, 7, 32] k, float[2, 7, 32] v, bool[2, 1, 6, 7] mask) => (float[2, 6, 32] y) {
    y = Attention <q_num_heads = 4, kv_num_heads = 4> (q, k, v, mask)
}"""


def test_attention_becomes_the_operator_that_webgpu_has() -> None:
    result = ortfuse.optimize(ir.from_onnx_text(ATTENTION), target="webgpu", loaded=False)
    found = operators(result.model)
    assert "MultiHeadAttention" in found
    assert "Softmax" not in found


def test_many_queries_are_left_to_products_since_some_devices_compute_them_wrongly() -> None:
    for length in ("32", "n"):
        model = ir.from_onnx_text(ATTENTION.replace("2, 6, 32", f"2, {length}, 32").replace("6, 7]", f"{length}, 7]"))
        result = ortfuse.optimize(model, target="webgpu", loaded=False)
        found = operators(result.model)
        assert "Softmax" in found
        assert not {"Attention", "MultiHeadAttention"} & {*found}
        (note,) = (one for one in result.report.notes if "lower_to_multi_head_attention" in one)
        assert "the kernel takes fewer than 32 queries, as more are computed wrongly on devices with 4 threads" in note
        assert note.endswith("the target webgpu-gpu, which is for GPUs alone, takes more")
        assert not result.report.remarks
        fused = ortfuse.optimize(model, target="webgpu-gpu", loaded=False)
        assert "MultiHeadAttention" in operators(fused.model)
        assert not fused.report.notes
    few = ir.from_onnx_text(ATTENTION.replace(" 6", " 31"))
    assert "MultiHeadAttention" in operators(ortfuse.optimize(few, target="webgpu", loaded=False).model)


ANDS = """<ir_version: 8, opset_import: ["": 17]>
g (bool[1, 1, s, 1] rows, bool[b, 1, 1, s] columns, bool[1, 1, s, s] window, bool[1, 1, s, s] other) => (
    bool[b, 1, s, s] x, bool[1, 1, s, s] y, bool[1, 1, s, s] z) {
    x = And(rows, columns) y = And(window, rows) z = And(other, window)
}"""


def test_truth_values_are_added_where_an_and_broadcasts() -> None:
    for target in ("webgpu", "webgpu-gpu"):
        found = operators(ortfuse.optimize(ir.from_onnx_text(ANDS), target=target, loaded=False).model)
        assert (found.count("Greater"), found.count("Add"), found.count("And")) == (2, 2, 1)


def test_the_target_of_gpus_has_all_else_of_webgpu() -> None:
    every, gpus = (resolve_target(name, runtime="1.30") for name in ("webgpu", "webgpu-gpu"))
    assert gpus.spec.name == "webgpu-gpu"
    assert gpus.table.operators == every.table.operators
    assert gpus.spec.decompositions == every.spec.decompositions
    assert {*gpus.spec.constraints} == {*every.spec.constraints}
    model = ir.from_onnx_text(ATTENTION)
    node = ir.node(
        "GroupQueryAttention", model.graph.inputs[:3], {"num_heads": 4, "softcap": 1.0}, domain="com.microsoft"
    )
    assert gpus.limit(node, Facts(model)) is not None  # its kernel ignores that on each device


def test_models_run_for_gpus_on_no_processor() -> None:
    spec = replace(spec_of("webgpu-gpu"), runs_on=())
    needed = "no models run for the target webgpu-gpu here: it needs a GPU with a driver of its own"
    with pytest.raises(TargetError, match=needed):
        ortfuse.calibrate(target=spec, budget=0)
    with pytest.raises(TargetError, match=needed):
        ortfuse.calibrate_session("model.onnx", target=spec)
    with pytest.raises(TargetError, match=needed):
        ortfuse.tune("model.onnx", target=spec)
    result = ortfuse.optimize(ir.from_onnx_text(MODEL), target=spec, verify=True)
    assert result.ok
    assert any("what was verified or measured is so on cpu" in note for note in result.report.notes)


MANY_QUERIES = ATTENTION.replace("2, 6, 32", "2, n, 32").replace("6, 7]", "n, 7]")


def test_a_result_for_gpus_is_told_from_a_wrong_one() -> None:
    result = ortfuse.optimize(ir.from_onnx_text(MANY_QUERIES), target="webgpu-gpu", loaded=False)
    (said,) = refused_nodes(Target("webgpu"), result.model)
    assert said.startswith("MultiHeadAttention")
    assert "is not for webgpu, whose kernel takes fewer than 32 queries" in said
    assert said.endswith("the target webgpu-gpu, which is for GPUs alone, takes more")
    assert not [*refused_nodes(Target("webgpu-gpu"), result.model)]


@pytest.mark.usefixtures("webgpu")
@pytest.mark.skipif(runner.has_gpu(), reason="right on a GPU")
def test_verification_names_what_the_processor_computes_wrongly() -> None:
    original = ir.from_onnx_text(MANY_QUERIES)
    result = ortfuse.optimize(original, target="webgpu-gpu", loaded=False)
    verdict = ortfuse.verify(original, result.model, target="webgpu", sizes={"n": 40})
    assert not verdict.ok
    assert any("webgpu-gpu" in note for note in verdict.notes)


SPLIT_GELU = """<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]>
g (float[2, 3, 2560] x, float[2560] b) => (float[2, 3, 1280] y) { y = com.microsoft.BiasSplitGelu(x, b) }"""


def test_operators_without_a_kernel_on_the_processor_are_kept_where_there_is_no_gpu(tmp_path: Path) -> None:
    spec, path = replace(spec_of("webgpu-gpu"), runs_on=()), tmp_path / "result.onnx"
    result = ortfuse.optimize(ir.from_onnx_text(SPLIT_GELU), target=spec, output=path)
    assert operators(result.model) == ["BiasSplitGelu"]
    (note,) = result.report.notes
    assert note.endswith("was not loaded on cpu, which has no kernel for com.microsoft.BiasSplitGelu")
    assert path.is_file()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="devices and drivers of Linux")
def test_drivers_on_the_processor_are_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "DEVICES", tmp_path / "dev")
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(runner, "_installed_drivers", lambda: [Path("radeon_icd.json")])
    assert not runner.has_gpu()
    (tmp_path / "dev" / "dri").mkdir(parents=True)
    (tmp_path / "dev" / "dri" / "renderD128").touch()
    assert runner.has_gpu()
    monkeypatch.setattr(runner, "_installed_drivers", lambda: [Path("lvp_icd.x86_64.json")])
    assert not runner.has_gpu()
    monkeypatch.setenv("VK_ICD_FILENAMES", "/a/radeon_icd.json")
    assert runner.has_gpu()
    monkeypatch.setenv("VK_DRIVER_FILES", "/a/lvp_icd.json:/b/vk_swiftshader_icd.json")
    assert not runner.has_gpu()
    monkeypatch.setenv("VK_DRIVER_FILES", "/a/lvp_icd.json:/b/nvidia_icd.json")
    assert runner.has_gpu()


def test_drivers_are_found_where_the_loader_of_vulkan_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "data" / "vulkan" / "icd.d" / "lvp_icd.json"
    driver.parent.mkdir(parents=True)
    driver.touch()
    monkeypatch.setenv("XDG_DATA_DIRS", f"{tmp_path / 'none'}:{tmp_path / 'data'}")
    assert driver in runner._installed_drivers()


SAME_FOR_ALL_QUERIES = """<ir_version: 10, opset_import: ["": 17]>
g (float[2, 6, 32] q, float[2, 7, 32] k, float[2, 7, 32] v, bool[2, 1, 1, 7] seen) => (float[2, 6, 32] y)
<int64[4] heads = {0, 0, 4, 8}, int64[3] merged = {0, 0, 32}, float zero = {0}, float low = {-10000}> {
    q_apart = Reshape(q, heads)
    queries = Transpose <perm = [0, 2, 1, 3]> (q_apart)
    k_apart = Reshape(k, heads)
    keys = Transpose <perm = [0, 2, 3, 1]> (k_apart)
    v_apart = Reshape(v, heads)
    values = Transpose <perm = [0, 2, 1, 3]> (v_apart)
    scores = MatMul(queries, keys)
    mask = Where(seen, zero, low)
    masked = Add(scores, mask)
    weights = Softmax <axis = -1> (masked)
    mixed = MatMul(weights, values)
    apart = Transpose <perm = [0, 2, 1, 3]> (mixed)
    y = Reshape(apart, merged)
}"""


def test_a_bias_for_all_queries_is_repeated_for_each() -> None:
    original = ir.from_onnx_text(SAME_FOR_ALL_QUERIES)
    result = ortfuse.optimize(original, target="webgpu", loaded=False)
    assert "MultiHeadAttention" in operators(result.model)
    assert ortfuse.verify(original, result.model).ok  # on the processor, whose kernel has the same checks


def test_int64_arithmetic_has_no_kernels_on_webgpu() -> None:
    target = Target("webgpu")
    assert target.supports("", "Add", 14, ["float", "float"], ["float"])
    assert target.supports("", "Add", 14, ["float16", "float16"], ["float16"])
    assert not target.supports("", "Add", 14, ["int64", "int64"], ["int64"])
    assert not target.supports("", "Add", 14, ["double", "double"], ["double"])


def test_vulkan_on_the_processor_takes_the_place_of_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "driver.json"
    monkeypatch.setattr(runner, "SWIFTSHADER", driver)
    monkeypatch.setattr(runner, "DEVICES", tmp_path)
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.delenv(name, raising=False)
    assert runner.environment() == {}
    driver.touch()
    assert runner.environment() == {"VK_ICD_FILENAMES": str(driver)}
    monkeypatch.setenv("VK_ICD_FILENAMES", "other.json")
    assert runner.environment() == {}
    monkeypatch.delenv("VK_ICD_FILENAMES")
    monkeypatch.setenv("VK_DRIVER_FILES", "other.json")
    assert runner.environment() == {}
    monkeypatch.delenv("VK_DRIVER_FILES")
    (tmp_path / "nvidia0").touch()
    assert runner.environment() == {}


RULES = [rule for file in load_catalogue([], spec_of("webgpu")).files if file.source == "target" for rule in file.rules]


@pytest.mark.rule_test
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_decomposition_is_right(rule: Rule) -> None:
    report = prove(rule, pairs=8, most_nodes=5000)
    assert report.proved, "\n".join(dict.fromkeys(report.failures))


POSITIONS = """<ir_version: 10, opset_import: ["": 17]>
g (int64[b, s] ids, float[64, 8] table) => (float[b, s, 8] y) <int64 pad = {1}, int64 axis = {1}> {
    same = Equal (ids, pad)  other = Not (same)  mask = Cast <to = 6> (other)  long = Cast <to = 7> (other)
    sum = CumSum (long, axis)  short = Cast <to = 6> (sum)  product = Mul (short, mask)
    wide = Cast <to = 7> (product)  index = Add (wide, pad)  y = Gather (table, index) }"""
"""The positions of tokens that are no padding, as RoBERTa numbers them."""


def test_indices_are_computed_in_int32_where_they_read_truth_values() -> None:
    made = ortfuse.optimize(ir.from_onnx_text(POSITIONS), target="webgpu", loaded=False).model
    types = {node.op_type: node.outputs[0].dtype for node in made.graph}
    assert types["CumSum"] == types["Add"] == ir.DataType.INT32
    positions = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 17]>
        g (int64[s] i, int64[s] j, float[64, 8] table) => (float[s, 8] y) { k = Add (i, j)  y = Gather (table, k) }"""
    )
    made = ortfuse.optimize(positions, target="webgpu", loaded=False).model
    assert operators(made) == ["Add", "Gather"]  # what reads inputs alone stays on the processor, where they are


CAUSAL = """<ir_version: 10, opset_import: ["": 17]>
g (float[n, 8] x, float[n, m] w) => (float[n, m] y) <int64 zero = {0}, int64 one = {1}, int64[1] rows = {1}, float nil = {0}> {
    s = Shape <start = 0, end = 1> (x)  n = Squeeze (s)  t = Shape <start = 1, end = 2> (w)  m = Squeeze (t)
    i = Range (zero, n, one)  j = Range (zero, m, one)  k = Unsqueeze (i, rows)  seen = LessOrEqual (j, k)
    y = Where (seen, w, nil) }"""
"""A mask of numbers that sizes determine."""


def test_numbers_between_sizes_are_compared_in_int32() -> None:
    made = ortfuse.optimize(ir.from_onnx_text(CAUSAL), target="webgpu", loaded=False).model
    types = {node.op_type: node.inputs[0].dtype for node in made.graph}
    assert types["Range"] == types["Unsqueeze"] == types["LessOrEqual"] == ir.DataType.INT32
    unknown = CAUSAL.replace("float[n, m] w)", "float[n, m] w, int64[m] j)").replace("j = Range (zero, m, one)", "")
    made = ortfuse.optimize(ir.from_onnx_text(unknown), target="webgpu", loaded=False).model
    assert {node.op_type: node.inputs[0].dtype for node in made.graph}["LessOrEqual"] == ir.DataType.INT64


BUCKETS = """<ir_version: 10, opset_import: ["": 17]>
g (float[n, 4] x, float[n, 1, 16] rows) => (float[n, 1, 4] y)
<float tiny = {3}, int64 span = {8}, int64 first = {0}, int64 last = {15}, int64[1] one = {1}> {
    far = Log (x)  steps = Mul (far, tiny)  up = Ceil (steps)  long = Cast <to = 7> (up)  apart = Unsqueeze (long, one)
    more = Add (apart, span)  index = Clip (more, first, last)  less = Sub (span, apart)  other = Clip (less, first, last)
    near = GatherElements <axis = -1> (rows, index)  away = GatherElements <axis = -1> (rows, other)  y = Sub (near, away) }"""
"""Buckets of distances, as DeBERTa numbers them: of logarithms there is no range."""


def test_logarithms_become_indices_in_int32() -> None:
    made = ortfuse.optimize(ir.from_onnx_text(BUCKETS), target="webgpu", loaded=False).model
    types = {node.op_type: node.outputs[0].dtype for node in made.graph}
    assert types["Clip"] == ir.DataType.FLOAT
    assert types["Add"] == types["Cast"] == ir.DataType.INT32
    x = np.array([[1e-30, 0.1, 1, 1.5], [2, 9, 1e3, 1e38]], np.float32)
    given = {"x": x, "rows": np.arange(32, dtype=np.float32).reshape(2, 1, 16)}
    assert np.array_equal(Session(made).run(given)["y"], Session(ir.from_onnx_text(BUCKETS)).run(given)["y"])
    far = BUCKETS.replace("last = {15}", "last = {50000000}")
    made = ortfuse.optimize(ir.from_onnx_text(far), target="webgpu", loaded=False).model
    assert "Log" in operators(made)
    assert ir.DataType.INT64 in {node.outputs[0].dtype for node in made.graph if node.op_type == "Clip"}


@pytest.mark.usefixtures("webgpu")
@pytest.mark.parametrize(
    "text",
    [
        BUCKETS,
        CAUSAL,
        LACKING,
        TRUTHS,
        EXPERTS,
        GUARDED,
        """<ir_version: 10, opset_import: ["": 17]>
        g (float[n, 6] x, float[8, 3] rows) => (float[n, 2, 3] y) <int64[1] two = {2}, int64 one = {1}> {
            v, i = TopK (x, two)  high = ReduceMax <keepdims = 0> (v)  c = Greater (v, high)  t = Cast <to = 7> (c)
            j = Add (i, t)  k = Mul (j, one)  y = Gather (rows, k) }""",
        """<ir_version: 10, opset_import: ["": 17]>
        g (float[n, 4] x, float[4, 3] rows) => (float[k, 3] y) <int64[1] two = {2}, int64[1] flat = {-1}> {
            v, i = TopK (x, two)  j = Reshape (i, flat)  y = Gather (rows, j) }""",
    ],
)
def test_the_processor_has_sizes_alone(text: str) -> None:
    model = ir.from_onnx_text(text)
    result = ortfuse.optimize(model, target="webgpu", verify=True)
    assert result.verdict is not None
    assert result.verdict.ok
    with executing_for(spec_of("webgpu")):
        off = {node.op_type for node in placement(result.model).off_provider}
    assert off <= {"Shape", "Squeeze", "Cast"}


def test_an_operator_without_a_kernel_is_made_of_others() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 17]> g (float[n, 8] x) => (float[n, 8] y) { y = LogSoftmax (x) }"""
    )
    found = operators(ortfuse.optimize(model, target="webgpu", loaded=False).model)
    assert found == ["ReduceMax", "Sub", "Exp", "ReduceSum", "Log", "Sub"]


STATIC = """<ir_version: 10, opset_import: ["": 21]>
g (float[n, 6] x) => (float[n, 3] y)
<float s = {0.02}, uint8 z = {117}, float t = {0.4}, int8 m = {-3}, int8[6, 3] w = {
    1, -7, 9, 30, -128, 127, 5, 6, -8, 90, 11, -12, 13, 0, 15, -16, 17, 18}, float[3] ws = {0.01, 0.02, 0.03}, int8[3] wz = {0, 0, 0},
    int64[2] turned = {-1, 6}> {
    q = QuantizeLinear (x, s, z)  flat = Reshape (q, turned)  d = DequantizeLinear (flat, s, z)
    dw = DequantizeLinear <axis = 1> (w, ws, wz)  p = MatMul (d, dw)
    pq = QuantizeLinear (p, t, m)  y = DequantizeLinear (pq, t, m) }"""

DYNAMIC = """<ir_version: 10, opset_import: ["": 21]>
g (float[n, 1500] x, int8[1500, 2] seed) => (float[n, 2] y) <float ws = {0.5}, int8 wz = {3}> {
    q, s, z = DynamicQuantizeLinear (x)  p = MatMulInteger (q, seed, z, wz)  f = Cast <to = 1> (p)
    both = Mul (s, ws)  y = Mul (f, both) }"""


def _dynamic(largest: int) -> ir.Model:
    """A dynamically quantized product of 1500 rows, with weights up to a number."""
    model = ir.from_onnx_text(DYNAMIC)
    weights = np.random.default_rng(0).integers(largest // 2, largest, (1500, 2)).astype(np.int8)
    given = model.graph.inputs.pop()
    given.const_value = ir.Tensor(weights, name="seed")
    model.graph.register_initializer(given)
    return model


def _with_extremes(columns: int) -> np.ndarray:
    """Numbers with halves between two steps, near them, zeros of both signs and numbers beyond all integers."""
    rng = np.random.default_rng(0)
    steps = np.float32(0.02) * (np.arange(-150, 150) + 0.5).astype(np.float32)
    near = [np.nextafter(steps, np.float32(side)) for side in (-9, 9)]
    own = np.concatenate([steps, *near, np.float32([0.0, -0.0, 1e-40, 7e30, -7e30, np.inf, -np.inf])])
    return rng.permutation(np.resize(own, len(own) // columns * columns + columns)).reshape(-1, columns)


def test_quantized_numbers_are_computed_in_float32() -> None:
    result = ortfuse.optimize(ir.from_onnx_text(STATIC), target="webgpu", loaded=False)
    assert "QuantizeLinear" not in operators(result.model)
    assert operators(result.model).count("DequantizeLinear") == 1  # of the weights, which stay integers
    session, given = Session(result.model, optimise=False), {"x": _with_extremes(6)}
    assert np.array_equal(session.run(given)["y"], Session(ir.from_onnx_text(STATIC), optimise=False).run(given)["y"])


OPERATORS = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
g (float[n, 2, 6, 6] x) => (float[n, 3] y)
<float s = {0.0213}, uint8 z = {117}, float t = {0.0509}, uint8 m = {99}, int8[4, 2, 1, 1] w = {1, -7, 9, 30, -128, 127, 5, 6},
    float[4] ws = {0.0117, 0.0219, 0.0307, 0.0411}, int8[4] wz = {0, 0, 0, 0}, int32[4] c = {100, -300, 5, 0},
    int8[3, 16] v = {1, -7, 9, 30, -128, 127, 5, 6, -8, 90, 11, -12, 13, 0, 15, -16, 17, 18, 1, -7, 9, 30, -128, 127, 5, 6, -8, 90,
    11, -12, 13, 0, 15, -16, 17, 18, 1, -7, 9, 30, -128, 127, 5, 6, -8, 90, 11, -12}, float vs = {0.0119}, int8 vz = {3},
    int32[3] d = {1000, -77, 0}, float[4] double = {1, 1, 2, 2}> {
    q = QuantizeLinear (x, s, z)  k = QLinearConv (q, s, z, w, ws, wz, t, m, c)
    p = MaxPool <kernel_shape = [3, 3], strides = [3, 3]> (k)  r = Resize <mode = "nearest"> (p, , double)
    h = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    a = com.microsoft.QLinearAdd (h, t, m, h, t, m, t, m)  f = Flatten (a)
    e = com.microsoft.QGemm <transB = 1> (f, t, m, v, vs, vz, d, t, m)  y = DequantizeLinear (e, t, m) }"""
"""Operators on integers, as the format QOperator has them."""


def test_operators_on_integers_are_computed_in_float32() -> None:
    result = ortfuse.optimize(ir.from_onnx_text(OPERATORS), target="webgpu", loaded=False)
    found = operators(result.model)
    assert not {"QuantizeLinear", "QLinearConv", "QLinearAdd", "QGemm", "MatMulInteger"} & {*found}
    assert found.count("DequantizeLinear") == 2  # of the weights, which stay integers
    given = {"x": np.random.default_rng(0).normal(size=(50, 2, 6, 6)).astype(np.float32)}
    made, expected = (
        Session(model, optimise=False).run(given)["y"] for model in (result.model, ir.from_onnx_text(OPERATORS))
    )
    assert np.mean(made != expected) < 0.01  # of near ties, which float32 rounds in another way
    assert np.abs(made - expected).max() <= 0.0511


def test_operators_without_a_pair_stay_quantized() -> None:
    """No decomposition takes away what goes elsewhere than to DequantizeLinear: the processor quantizes that."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g (uint8[n, 4] a) => (uint8[n, 4] y)
        <float s = {0.02}, uint8 z = {3}> { y = com.microsoft.QLinearAdd (a, s, z, a, s, z, s, z) }"""
    )
    result = ortfuse.optimize(model, target="webgpu", loaded=False)
    assert operators(result.model)[-1] == "QuantizeLinear"
    assert not result.report.notes


@pytest.mark.parametrize(("largest", "parts"), [(40, 1), (80, 2), (127, 3)])
def test_sums_of_dynamically_quantized_products_are_exact(largest: int, parts: int) -> None:
    result = ortfuse.optimize(_dynamic(largest), target="webgpu", loaded=False)
    found = operators(result.model)
    assert not {"DynamicQuantizeLinear", "MatMulInteger"} & {*found}
    assert found.count("MatMul") == parts
    assert found.count("Cast") == (parts + 1 if parts > 1 else 0)
    rng = np.random.default_rng(0)
    for numbers in (rng.normal(size=(5, 1500)), rng.random((3, 1500)) + 9, np.zeros((2, 1500)), -np.ones((1, 1500))):
        given = {"x": numbers.astype(np.float32)}
        assert np.array_equal(
            Session(result.model).run(given)["y"], Session(_dynamic(largest), optimise=False).run(given)["y"]
        )


def test_scales_that_are_computed_stay_with_their_operators() -> None:
    """Nothing is known of them: they may be 0."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 21]> g (float[n, 4] x, float s) => (float[n, 4] y) <uint8 z = {3}> {
        q = QuantizeLinear (x, s, z)  y = DequantizeLinear (q, s, z) }"""
    )
    found = operators(ortfuse.optimize(model, target="webgpu", loaded=False).model)
    assert found == ["QuantizeLinear", "DequantizeLinear"]


MODEL = """<ir_version: 10, opset_import: ["": 20]> g (float[n, 3] x, int64[n] i) => (float[n, 3] y, int64[n] j) {
    y = Mul(x, x)  j = Mul(i, i) }"""


def _missing() -> str:
    try:
        node_sessions.find_node()
        node_sessions.find_package("onnxruntime-node")
    except node_sessions.NodeError as error:
        return str(error)
    with executing_for(spec_of("webgpu")):
        try:
            Session(ir.from_onnx_text(MODEL))
        except ortfuse.OrtfuseError as error:
            return str(error)
    return ""


@pytest.fixture(scope="module")
def webgpu() -> None:
    """A GPU or Vulkan on the processor, and the package."""
    if missing := _missing():
        pytest.skip(missing)


@pytest.mark.usefixtures("webgpu")
def test_webgpu_runs_models_and_tells_the_nodes_that_the_processor_executes() -> None:
    with executing_for(spec_of("webgpu")):
        model = ir.from_onnx_text(MODEL)
        found = Session(model).run({"x": np.full((2, 3), 2, np.float32), "i": np.array([3, 4])})
        assert {name: array.tolist() for name, array in found.items()} == {"y": [[4] * 3] * 2, "j": [9, 16]}
        placed = placement(model)
        assert placed.own_partitions == 1
        assert [node.op_type for node in placed.off_provider] == ["Mul"]


@pytest.mark.usefixtures("webgpu")
def test_the_processor_computes_nothing_of_what_the_gpu_made() -> None:
    model = ir.from_onnx_text(POSITIONS)
    result = ortfuse.optimize(model, target="webgpu", verify=True)
    assert result.verdict is not None
    assert result.verdict.ok
    with executing_for(spec_of("webgpu")):
        before, after = (placement(one).off_provider for one in (model, result.model))
    assert "CumSum" in {node.op_type for node in before}
    assert [node.op_type for node in after] == ["Equal"]


@pytest.mark.usefixtures("webgpu")
@pytest.mark.parametrize("model", [ir.from_onnx_text(STATIC), _dynamic(127)], ids=["static", "dynamic"])
def test_quantized_models_have_the_same_bits_on_the_gpu(model: ir.Model) -> None:
    made = ortfuse.optimize(model.clone(), target="webgpu", loaded=False).model
    columns = {6: _with_extremes(6), 1500: np.random.default_rng(0).normal(size=(5, 1500)).astype(np.float32)}
    given = {"x": columns[model.graph.inputs[0].shape[1]]}
    with executing_for(spec_of("webgpu")):
        assert not placement(made).off_provider
        assert np.array_equal(Session(made).run(given)["y"], Session(model).run(given)["y"])


@pytest.mark.usefixtures("webgpu")
def test_no_operator_on_integers_is_left_to_the_processor() -> None:
    result = ortfuse.optimize(ir.from_onnx_text(OPERATORS), target="webgpu", verify=True)
    assert result.ok
    with executing_for(spec_of("webgpu")):
        assert not placement(result.model).off_provider


@pytest.mark.usefixtures("webgpu")
def test_attention_for_webgpu_is_equal_there() -> None:
    original = ir.from_onnx_text(ATTENTION)
    result = ortfuse.optimize(ir.from_onnx_text(ATTENTION), target="webgpu", loaded=False)
    rng = np.random.default_rng(0)
    given = {
        name: rng.normal(size=(2, size, 32)).astype(np.float32) for name, size in zip("qkv", (6, 7, 7), strict=True)
    }
    given["mask"] = rng.random((2, 1, 6, 7)) < 0.6
    given["mask"][..., 0] = True
    expected = Session(original).run(given)["y"]
    with executing_for(spec_of("webgpu")):
        found = Session(result.model).run(given)["y"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_results_have_the_opset_at_which_webgpu_has_the_most_kernels() -> None:
    """Cos has no kernel at opset 22, and RMSNormalization none before 23: another operator of the runtime takes its place."""
    target = Target("webgpu")
    assert target.max_opset == 21
    assert target.supports("", "Cos", 21, ["float"], ["float"])
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 20]> g (float[2, 8] x) => (float[2, 8] y)
        <float two = {2}, float e = {1e-5}, float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}, int64[1] axes = {-1}> {
        c = Cos(x)  s = Pow(c, two)  m = ReduceMean(s, axes)  a = Add(m, e)  r = Sqrt(a)  i = Reciprocal(r)
        k = Mul(c, i)  y = Mul(k, w) }"""
    )
    found = ortfuse.optimize(model, target="webgpu", loaded=False).model
    assert operators(found) == ["Cos", "SimplifiedLayerNormalization"]


def test_arithmetic_of_sizes_in_int64_may_be_made_for_webgpu() -> None:
    """The runtime executes it on the processor, as that of the original."""
    facts_of = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 20]> g (int64[2] a, float[2] x) => (int64[4] c, double[2] d, float[2] y) {
        c = Concat <axis = 0> (a, a)  d = Cast <to = 11> (x)  y = Cast <to = 1> (a) }"""
    )
    sizes, double, numbers = facts_of.graph
    target, facts = Target("webgpu"), Facts(facts_of)
    assert target.check_node(sizes, {"": 20}, facts) is None
    assert target.check_node(double, {"": 20}, facts) is not None
    assert target.check_node(numbers, {"": 20}, facts) is not None


@pytest.mark.usefixtures("webgpu")
@pytest.mark.parametrize("rows", [1, 32, 40])
@pytest.mark.parametrize("level", [0, 4])
def test_products_with_weights_of_four_bits_are_right(rows: int, level: int) -> None:
    rng = np.random.default_rng(0)
    packed, scales = rng.integers(0, 256, (24, 2, 16)).astype(np.uint8), rng.random((24, 2)).astype(np.float32)
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[1, {rows}, 64] x, uint8[24, 2, 16] q, float[24, 2] s) => (float[1, {rows}, 24] y) {{
            y = com.microsoft.MatMulNBits <K = 64, N = 24, bits = 4, block_size = 32, accuracy_level = {level}> (x, q, s) }}"""
    )
    given = {"x": rng.normal(size=(1, rows, 64)).astype(np.float32), "q": packed, "s": scales}
    numbers = np.stack([packed & 15, packed >> 4], -1).reshape(24, 2, 32).astype(np.float64) - 8
    expected = given["x"] @ (numbers * scales[..., None]).reshape(24, 64).T
    with executing_for(spec_of("webgpu")):
        np.testing.assert_allclose(Session(model).run(given)["y"], expected, atol=1e-4)


@pytest.mark.usefixtures("webgpu")
def test_a_gate_of_gelu_is_right() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[1, 4, 2560] x, float[2560] b) => (float[1, 4, 1280] y) { y = com.microsoft.BiasSplitGelu (x, b) }"""
    )
    rng = np.random.default_rng(0)
    given = {"x": rng.normal(size=(1, 4, 2560)).astype(np.float32), "b": rng.normal(size=2560).astype(np.float32)}
    left, right = np.split((given["x"] + given["b"]).astype(np.float64), 2, -1)
    expected = left * right * 0.5 * (1 + np.vectorize(math.erf)(right / math.sqrt(2)))
    with executing_for(spec_of("webgpu")):
        np.testing.assert_allclose(Session(model).run(given)["y"], expected, atol=1e-4)


@pytest.mark.usefixtures("webgpu")
def test_broadcasting_ands_share_a_program_in_the_runtime_but_not_in_results() -> None:
    model, draw = ir.from_onnx_text(ANDS), np.random.default_rng(0)
    result = ortfuse.optimize(model, target="webgpu", loaded=False).model
    shapes = {"rows": (1, 1, 8, 1), "columns": (2, 1, 1, 8), "window": (1, 1, 8, 8), "other": (1, 1, 8, 8)}
    given = {name: draw.random(shape) < 0.5 for name, shape in shapes.items()}
    wanted = {
        "x": given["rows"] & given["columns"],
        "y": given["window"] & given["rows"],
        "z": given["other"] & given["window"],
    }
    with executing_for(spec_of("webgpu")):
        found, before = Session(result).run(given), Session(model, optimise=False).run(given)
    assert all((found[name] == wanted[name]).all() for name in wanted)
    assert any((before[name] != wanted[name]).any() for name in wanted), (
        "the bug is gone: drop WebGPUBug.SHARES_PROGRAMS_OF_AND"
    )


@pytest.mark.usefixtures("webgpu")
def test_a_result_that_avoids_a_bug_of_the_runtime_agrees_with_the_original_on_the_cpu() -> None:
    model, draw = ir.from_onnx_text(ANDS), np.random.default_rng(0)
    shapes = {"rows": (1, 1, 8, 1), "columns": (2, 1, 1, 8), "window": (1, 1, 8, 8), "other": (1, 1, 8, 8)}
    given = {name: draw.random(shape) < 0.5 for name, shape in shapes.items()}
    result = ortfuse.optimize(model.clone(), target="webgpu", loaded=False).model
    verdict = ortfuse.verify(model, result, target="webgpu", inputs=[given])
    assert verdict.ok
    assert any("of webgpu computes the original otherwise" in note for note in verdict.notes)
    (wrong,) = (node for node in result.graph if node.op_type == "And")
    wrong.op_type = "Or"
    assert not ortfuse.verify(model, result, target="webgpu", inputs=[given]).ok
