"""Tests of the target cuda, with its stored tables alone: no GPU, and no build of the runtime that has the provider."""

from __future__ import annotations

from collections import Counter
from runpy import run_path

import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.runtime.session_settings import Setting
from ortfuse.runtime.session_settings.allow_list import refusal
from ortfuse.targets import Target, resolve_target, spec_of
from ortfuse.targets.release_kernel_tables import releases_of


@pytest.fixture(scope="module")
def cuda() -> Target:
    return resolve_target("cuda")


def counted(text: str, **options: object) -> Counter[str]:
    result = ortfuse.optimize(ir.from_onnx_text(text), target="cuda", **options)
    return Counter(node.op_type for node in result.model.graph)


def test_the_newest_stored_table_serves_where_no_build_has_the_provider(cuda: Target) -> None:
    releases = releases_of(cuda.spec)
    assert releases is not None
    assert cuda.table.runtime.startswith(f"onnxruntime {releases.names[-1]}.")
    half, single = ir.DataType.FLOAT16, ir.DataType.FLOAT
    assert cuda.supports("com.microsoft", "GroupQueryAttention", 1, [half] * 5 + [ir.DataType.INT32] * 2)
    assert not cuda.supports("com.microsoft", "GroupQueryAttention", 1, [single] * 5 + [ir.DataType.INT32] * 2)


def test_a_release_is_a_target(cuda: Target) -> None:
    assert resolve_target("cuda", runtime="1.24").table.runtime == "onnxruntime 1.24.4"


ATTENTION = """<ir_version: 8, opset_import: ["": 17]>
g (float[2,4,6,8] q, float[2,4,6,8] k, float[2,4,6,8] v) => (float[2,4,6,8] y) <float half = {0.3}> {
    t = Transpose<perm=[0,1,3,2]>(k)
    a = MatMul(q, t)
    s = Mul(a, half)
    w = Softmax<axis=-1>(s)
    y = MatMul(w, v)
}"""


def test_attention_becomes_the_operator_with_fused_kernels() -> None:
    assert counted(ATTENTION)["MultiHeadAttention"] == 1


def test_no_rule_that_was_measured_on_the_cpu_is_applied() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2,8,16] x, float[2,8,16] z) => (float[2,8,16] y, float[2,8,1] m) {
        y = Softplus(x)
        m = ReduceMean<axes=[-1]>(z)
    }"""
    assert counted(text) == {"Softplus": 1, "ReduceMean": 1}


MASKED = """<ir_version: 8, opset_import: ["": 17]>
g (float[b,4,s,8] q, float[b,4,t,8] k, float[b,4,t,8] v, bool[b,1,1,t] seen) => (float[b,4,s,8] y)
<float half = {0.3}, float zero = {0.0}, float lowest = {-3.4028235e38}> {
    keys = Transpose<perm=[0,1,3,2]>(k)
    a = MatMul(q, keys)
    scaled = Mul(a, half)
    bias = Where(seen, zero, lowest)
    s2 = Add(scaled, bias)
    w = Softmax<axis=-1>(s2)
    y = MatMul(w, v)
}"""


def test_a_mask_of_keys_alone_is_repeated_for_each_query() -> None:
    assert counted(MASKED)["MultiHeadAttention"] == 1


def test_masked_attention_is_half_for_the_device() -> None:
    result = ortfuse.optimize(ir.from_onnx_text(MASKED), target="cuda")
    done = ortfuse.convert(result.model, "float16", target="cuda")
    assert not done.islands


RESIDUAL = """<ir_version: 10, opset_import: ["": 23]>
g (float[2,8,16] x, float[2,8,16] skip, float[16] scale) => (float[2,8,16] y, float[2,8,16] total) {
    total = Add(x, skip)
    y = RMSNormalization<epsilon = 1e-6>(total, scale)
}"""


def test_a_residual_sum_and_its_rms_norm_are_one_operator() -> None:
    assert counted(RESIDUAL) == {"SkipSimplifiedLayerNormalization": 1}
    on_cpu = ortfuse.optimize(ir.from_onnx_text(RESIDUAL)).model
    assert {node.op_type for node in on_cpu.graph} == {"Add", "RMSNormalization"}


def test_a_normalisation_has_a_scale_of_what_it_normalises(cuda: Target) -> None:
    from ortfuse.analysis.facts import Facts

    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2,8,16] x, float[{size}] scale) => (float[2,8,16] y) {{ y = LayerNormalization<axis = {axis}>(x, scale) }}"""
    for size, axis, taken in (
        ("16", -1, True),
        ("1", -1, False),
        ("8,16", -1, False),
        ("8,16", 1, True),
        ("16", 1, False),
    ):
        model = ir.from_onnx_text(text.format(size=size, axis=axis))
        refusal = cuda.check_node(model.graph[0], {"": 17}, Facts(model))
        assert (refusal is None) is taken


def test_interpolation_stays_on_the_last_axes() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2,8,8,4] x, float[4,4,1,1] w) => (float[2,16,16,4] y) <float[4] scales = {1, 1, 2, 2}> {
        c = Transpose<perm = [0,3,1,2]>(x)
        r = Resize<mode = "linear">(c, , scales)
        y = Transpose<perm = [0,2,3,1]>(r)
    }"""
    result = ortfuse.optimize(ir.from_onnx_text(text), target="cuda").model
    resized = next(node for node in result.graph if node.op_type == "Resize")
    assert resized.inputs[0].shape == [2, 4, 8, 8]


HIDDEN = """<ir_version: 10, opset_import: ["": 23]>
g (float[b,s,24] q, float[b,t,24] k, float[b,t,24] v, bool[b,1,s,t] keep) => (float[b,s,24] y) <float zero = {0}, float lowest = {-inf}> {
    m = Where(keep, zero, lowest)
    y = Attention<q_num_heads = 3, kv_num_heads = 3>(q, k, v, m)
}"""


def test_no_kernel_adds_an_infinite_number_to_scores() -> None:
    result = ortfuse.optimize(ir.from_onnx_text(HIDDEN), target="cuda", verify="whole").model
    assert "MultiHeadAttention" in [node.op_type for node in result.graph]
    used = [value.const_value.numpy() for value in result.graph.initializers.values() if value.uses()]
    assert all(abs(array).max() < float("inf") for array in used if array.size and array.dtype.kind == "f")


def test_a_session_that_a_program_opens_is_created_by_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the options for exact products, which `verify` alone asks for."""
    asked: list[object] = []

    class Base:
        def _create(self, source: object, options: object, arguments: dict[str, object]) -> str:
            asked.append(arguments["providers"])
            return "session"

    kind = run_path(spec_of("cuda").runner_file)["session_class"](Base)
    assert kind.__new__(kind)._create("m.onnx", None, {"providers": ["CUDAExecutionProvider"]}) == "session"
    assert asked == [["CUDAExecutionProvider"]]


def test_options_that_a_session_is_opened_with_are_kept_beside_those_for_exact_products() -> None:
    with_options = run_path(spec_of("cuda").runner_file)["with_options"]
    cuda, nhwc = "CUDAExecutionProvider", {"prefer_nhwc": "1"}
    assert with_options([cuda, "CPUExecutionProvider"], {"use_tf32": "0"}) == [
        (cuda, {"use_tf32": "0"}),
        "CPUExecutionProvider",
    ]
    assert with_options([(cuda, nhwc)], {"use_tf32": "0"}) == [(cuda, {"use_tf32": "0", **nhwc})]


def test_tune_searches_the_layout_of_convolutions() -> None:
    option = spec_of("cuda").tuned_options["prefer_nhwc"]
    assert option.values == ("0", "1")
    assert "Conv" in option.operators
    chosen = Setting("providers", [("CUDAExecutionProvider", {"prefer_nhwc": "1"}), "CPUExecutionProvider"])
    assert refusal(chosen.name, chosen.value) == ""  # a file of settings may hold it
