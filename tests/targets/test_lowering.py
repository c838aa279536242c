"""Lowering of operators that fusions make and an older release lacks, and of models that are newer than it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from rewriting import ops

import ortfuse
from ortfuse.targets import Quirk, default_spec, oldest_release, resolve_target
from ortfuse.verification import Session

ATTENTION = """<ir_version: 8, opset_import: ["": 17]>
    g (float[b, s, 24] q, float[b, t, 24] k, float[b, t, 24] v, bool[b, 1, s, t] keep) => (float[b, s, 24] y)
    <int64[4] apart = {0, 0, 3, 8}, int64[3] merged = {0, 0, 24}, float half = {0.35355338}, float zero = {0},
     float hidden = {-inf}> {
        q4 = Reshape(q, apart) k4 = Reshape(k, apart) v4 = Reshape(v, apart)
        qt = Transpose<perm = [0, 2, 1, 3]>(q4) kt = Transpose<perm = [0, 2, 3, 1]>(k4) vt = Transpose<perm = [0, 2, 1, 3]>(v4)
        qk = MatMul(qt, kt) scores = Mul(qk, half) mask = Where(keep, zero, hidden) masked = Add(scores, mask)
        p = Softmax<axis = -1>(masked) nan = IsNaN(p) weights = Where(nan, zero, p)
        o = MatMul(weights, vt) ot = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(ot, merged)
    }"""

NEWER = """<ir_version: 11, opset_import: ["": 23]>
    g (float[b, s, 24] q, float[24] gain, float[b, s, 4] cos, float[b, s, 4] sin) => (float[b, s, 24] y) {
        n = RMSNormalization<epsilon = 0.001>(q, gain)
        r = RotaryEmbedding<num_heads = 3>(n, cos, sin)
        y = Attention<q_num_heads = 3, kv_num_heads = 3>(r, r, n)
    }"""


def model(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


def inputs(original: ir.Model) -> dict[str, np.ndarray]:
    rng, sizes = np.random.default_rng(7), {"b": 2, "s": 5, "t": 5}
    made = {}
    for value in original.graph.inputs:
        shape = [dim if isinstance(dim, int) else sizes[str(dim.value)] for dim in value.shape or ()]
        drawn = rng.standard_normal(shape).astype(np.float32)
        made[value.name or ""] = drawn > 0 if value.dtype == ir.DataType.BOOL else drawn
    if "keep" in made:
        made["keep"][0, 0, 2] = False
    return made


@pytest.mark.parametrize("limit", [{"runtime": "1.20"}, {"max_opset": 17}], ids=["release", "opset"])
@pytest.mark.parametrize(
    "checked",
    [{"verify": "whole"}, {"verify": "sites"}, {"bench": True, "rounds": 1, "bench_budget": 0.0}],
    ids=["whole", "sites", "bench"],
)
def test_attention_is_lowered_in_runs_that_look_at_the_model_after_each_pass(
    checked: dict[str, object], limit: dict[str, object]
) -> None:
    found = ortfuse.optimize(model(ATTENTION), **checked, **limit)  # type: ignore[arg-type]
    assert "MultiHeadAttention" in ops(found.model)
    assert found.verdict is None or found.verdict.ok


@pytest.mark.parametrize("release", ["1.17", "1.20", "1.22", "1.27"])
def test_attention_whose_rows_may_be_hidden_is_lowered(release: str) -> None:
    original = model(ATTENTION)
    result = ortfuse.optimize(original.clone(), runtime=release).model
    assert "MultiHeadAttention" in ops(result)
    assert "Softmax" not in ops(result)
    given = inputs(original)
    before, after = (Session(one, optimise=False, threads=1).run(given)["y"] for one in (original, result))
    assert not before[0, 2].any()
    np.testing.assert_allclose(after, before, atol=1e-5)


def test_a_bias_is_repeated_for_each_batch_and_head_up_to_the_release_that_needs_it() -> None:
    old, new = (ortfuse.optimize(model(ATTENTION), runtime=release).model for release in ("1.20", "1.21"))
    assert "Expand" in ops(old)
    assert "Expand" not in ops(new)


def test_a_model_of_a_newer_opset_is_lowered_with_its_operators() -> None:
    original = model(NEWER)
    result = ortfuse.optimize(original.clone(), runtime="1.17").model
    assert result.opset_imports[""] <= 20
    assert result.ir_version <= 9
    assert {"SimplifiedLayerNormalization", "RotaryEmbedding", "MultiHeadAttention"} <= set(ops(result).split())
    given = inputs(original)
    before, after = (Session(one, optimise=False, threads=1).run(given)["y"] for one in (original, result))
    np.testing.assert_allclose(after, before, atol=1e-5)


def test_a_pipeline_without_the_pass_lowers_all_the_same() -> None:
    result = ortfuse.optimize(model(ATTENTION), runtime="1.20", passes="canonicalize, fuse.attention, dce").model
    assert "MultiHeadAttention" in ops(result)
    assert result.opset_imports[""] <= 21


def test_an_operator_that_no_rule_lowers_is_told() -> None:
    original = model("""<ir_version: 10, opset_import: ["": 22]> g (float[3] x) => (float[3] y) {
        t = Neg(x) y = Gelu(t)
    }""")
    assert ortfuse.optimize(original.clone(), runtime="1.17").model.opset_imports[""] == 20
    original = model("""<ir_version: 11, opset_import: ["": 26]> g (float[3] x, int64 axis) => (float[3] y) {
        y = CumProd(x, axis)
    }""")
    outcome = ortfuse.optimize(original.clone(), runtime="1.17")
    assert any("imports opset 26" in note and "CumProd" in note for note in outcome.report.notes)
    original = model("""<ir_version: 11, opset_import: ["": 22]> g (bfloat16[3] x) => (bfloat16[3] y) {
        y = Softsign(x)
    }""")
    outcome = ortfuse.optimize(original.clone(), runtime="1.17")
    assert any("does not take bfloat16 there" in note for note in outcome.report.notes)


LOWERED = {
    "axes of a reduction": "(float[2,3,4] x) => (float[2,1,4] y) <int64[1] a = {1}> { y = ReduceMax(x, a) }",
    "no axes": "(float[2,3] x) => (float[2,3] y) { y = ReduceMean<noop_with_empty_axes = 1>(x) }",
    "all axes": "(float[2,3] x) => (float y) { y = ReduceL2<keepdims = 0>(x) }",
    "parts of a number": "(float[2,6] x) => (float[2,3] y, float[2,3] z) { y, z = Split<axis = 1, num_outputs = 2>(x) }",
    "unequal parts of a number": """(float[2,7] x) => (float[2,3] y, float[2,3] z, float[2,1] w) {
        y, z, w = Split<axis = -1, num_outputs = 3>(x) }""",
    "defaults": """(float[1,1,2,2] x) => (float[1,1,4,4] y) <float[4] s = {1, 1, 2, 2}> {
        y = Resize<antialias = 0, mode = "nearest">(x, , s) }""",
    "Gelu": '(float[b,3] x) => (float[b,3] y, float[b,3] z) { y = Gelu(x) z = Gelu<approximate = "tanh">(x) }',
    "Swish": "(float[b,3] x) => (float[b,3] y) { y = Swish<alpha = 1.5>(x) }",
    "RMSNormalization": """(float[b,3,4] x, float[4] g) => (float[b,3,4] y) {
        y = RMSNormalization<axis = -1, epsilon = 0.01>(x, g) }""",
    "GroupNormalization": """(float[b,4,5] x, float[4] g, float[4] h) => (float[b,4,5] y) {
        y = GroupNormalization<num_groups = 2>(x, g, h) }""",
    "RotaryEmbedding": """(float[b,2,s,4] x, float[b,s,2] c, float[b,s,2] d) => (float[b,2,s,4] y) {
        y = RotaryEmbedding(x, c, d) }""",
    "Attention": """(float[b,2,s,4] q, float[b,2,t,4] k, float[b,2,t,4] v) => (float[b,2,s,4] y) {
        y = Attention<is_causal = 1, scale = 0.3>(q, k, v) }""",
    "a node in a body": """(bool c, float[2] x) => (float[2] y) {
        y = If(c) <then_branch = a () => (float[2] p) { p = Gelu(x) }, else_branch = b () => (float[2] q) { q = Neg(x) }> }""",
}


@pytest.mark.parametrize("name", LOWERED)
def test_a_node_that_the_opset_lacks_is_written_in_operators_that_it_has(name: str) -> None:
    original = model(f'<ir_version: 10, opset_import: ["": 24]> g {LOWERED[name]}')
    result = ortfuse.optimize(original.clone(), target="portable", max_opset=17, passes="")
    assert result.model.opset_imports[""] == 17
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    given = {name: np.asarray(one) for name, one in inputs(original).items()}
    before, after = (Session(one, optimise=False, threads=1).run(given) for one in (original, result.model))
    for output, expected in before.items():
        np.testing.assert_allclose(after[output], expected, atol=1e-5)


PARTS = {
    "an attribute": (
        "(float[2,5] x) => (float[2,2] y, float[2,3] z) <int64[2] s = {2, 3}> { y, z = Split<axis = 1>(x, s) }",
        [2, 3],
    ),
    "none": (
        "(float[2,n] x) => (float[2,2] y, float[2,2] z) <int64[2] s = {2, 2}> { y, z = Split<axis = 1>(x, s) }",
        None,
    ),
    "by number": (
        "(float[2,5] x) => (float[2,3] y, float[2,2] z) { y, z = Split<axis = 1, num_outputs = 2>(x) }",
        [3, 2],
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_split_have_sizes_in_an_attribute_before_opset_13(name: str) -> None:
    text, sizes = PARTS[name]
    original = model(f'<ir_version: 8, opset_import: ["": 18]> g {text}')
    result = ortfuse.optimize(original.clone(), target="portable", max_opset=11, passes="").model
    (split,) = result.graph
    assert result.opset_imports[""] == 11
    assert len(split.inputs) == 1
    assert (list(split.attributes["split"].as_ints()) if "split" in split.attributes else None) == sizes
    given = {"x": np.arange(10 if "5" in text else 8, dtype=np.float32).reshape(2, -1)}
    before, after = (Session(one, optimise=False, threads=1).run(given) for one in (original, result))
    for output, expected in before.items():
        np.testing.assert_array_equal(after[output], expected)


@pytest.mark.parametrize("columns", ["rows", "columns"])
def test_batch_axes_between_rows_and_columns_are_moved_before_them(columns: str) -> None:
    """ONNX Runtime saves such products of operands that were transposed, as in attention of [length, batch, size]."""
    is_turned = int(columns == "columns")
    original = model(f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[3,2,b,4] x, float[2,b,{3 if is_turned else 4},5] w) => (float[2,b,{4 if is_turned else 3},5] y) {{
            y = com.microsoft.FusedMatMul<transBatchA = 1, transA = {is_turned}, alpha = 0.5>(x, w) }}""")
    result = ortfuse.optimize(original.clone(), target="portable", max_opset=17).model
    assert "FusedMatMul" not in ops(result)
    before, after = (Session(one, optimise=False, threads=1).run(inputs(original)) for one in (original, result))
    np.testing.assert_allclose(after["y"], before["y"], atol=1e-5)


@pytest.mark.parametrize("newest", [9, 13])
@pytest.mark.parametrize(
    "bounds", ["start = 1", "end = 2", "start = -2, end = -1", "start = -7, end = 9", "start = 2, end = 1"]
)
def test_a_part_of_a_shape_is_cut_out_of_the_whole(bounds: str, newest: int) -> None:
    original = model(f"""<ir_version: 8, opset_import: ["": 20]> g (float[b,s,4] x) => (int64[n] y) {{
        y = Shape<{bounds}>(x) }}""")
    result = ortfuse.optimize(original.clone(), target="portable", max_opset=newest, passes="").model
    assert result.opset_imports[""] == newest
    before, after = (Session(one, optimise=False, threads=1).run(inputs(original)) for one in (original, result))
    np.testing.assert_array_equal(after["y"], before["y"])


RESHAPES = {
    "sizes": ("int64[2] t = {-1, 8}", "", True),
    "no element": ("int64[2] t = {0, 8}", "", False),
    "its own size, which may be 0": ("int64[1] w = {8}", "z = Shape<end = 1>(x) t = Concat<axis = 0>(z, w)", True),
    "a size of another place": (
        "int64[1] w = {8}",
        "z = Shape<start = 1, end = 2>(x) t = Concat<axis = 0>(z, w)",
        False,
    ),
    "the rest of the elements": (
        "int64[1] w = {4}",
        "z = Shape<end = -1>(x) r = ReduceProd<keepdims = 1>(z) t = Concat<axis = 0>(r, w)",
        True,
    ),
    "anything": ("int64[1] w = {8}", "n = ReduceSum<keepdims = 1>(c) t = Concat<axis = 0>(n, w)", False),
}


@pytest.mark.parametrize("kind", RESHAPES)
def test_a_reshape_whose_zeros_are_sizes_is_written_without_the_attribute_if_it_has_none(kind: str) -> None:
    constant, nodes, is_lowered = RESHAPES[kind]
    original = model(f"""<ir_version: 8, opset_import: ["": 20]> g (float[b,s,4] x, int64[m] c) => (float[p,q] y) <{constant}> {{
        {nodes} y = Reshape<allowzero = 1>(x, t) }}""")
    result = ortfuse.optimize(original.clone(), target="portable", max_opset=13, passes="").model
    assert result.opset_imports[""] == (13 if is_lowered else 20)
    if is_lowered:
        for batch in (3, 0):
            given = {"x": np.ones((batch, 2, 4), np.float32), "c": np.zeros(1, np.int64)}
            before, after = (Session(one, optimise=False, threads=1).run(given) for one in (original, result))
            assert before["y"].shape == after["y"].shape


def test_parts_of_an_unknown_size_cannot_be_counted() -> None:
    original = model("""<ir_version: 8, opset_import: ["": 18]> g (float[2,n] x) => (float[2,a] y, float[2,b] z) {
        y, z = Split<axis = 1, num_outputs = 2>(x) }""")
    assert ortfuse.optimize(original, target="portable", max_opset=17, passes="").model.opset_imports[""] == 18


def test_a_body_whose_types_the_opset_lacks_is_not_made() -> None:
    original = model("""<ir_version: 10, opset_import: ["": 18]> g (float[4,3] x, int64[2] n) => (float[p,q] y) {
        y = CenterCropPad(x, n) }""")  # it takes the Max of int64, which opset 11 has of floats alone
    outcome = ortfuse.optimize(original.clone(), target="portable", max_opset=11, passes="")
    assert outcome.model.opset_imports[""] == 18
    assert any("stays there" in note for note in outcome.report.notes)


def test_a_sum_over_axes_that_are_computed_stays() -> None:
    original = model("""<ir_version: 10, opset_import: ["": 20]> g (float[2,3] x, int64[1] a) => (float[2,3] y) {
        m = ReduceMax(x, a) y = Sub(x, m) }""")
    outcome = ortfuse.optimize(original.clone(), target="portable", max_opset=17)
    assert outcome.model.opset_imports[""] == 20
    assert any("stays there" in note for note in outcome.report.notes)


def test_the_lowest_opset_may_be_bounded_without_a_release() -> None:
    result = ortfuse.optimize(model(ATTENTION), max_opset=17).model
    assert result.opset_imports[""] == 17
    assert "MultiHeadAttention" in ops(result)


@pytest.mark.parametrize(("release", "oldest"), [(None, "1.28"), ("1.17", "1.17")])
def test_a_result_says_in_which_release_it_loads(release: str | None, oldest: str) -> None:
    result = ortfuse.optimize(model(ATTENTION), runtime=release)
    assert result.oldest_runtime == oldest
    assert result.to_dict()["oldest_runtime"] == oldest


def test_constants_that_are_nodes_load_everywhere() -> None:
    original = model("""<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float[3] y) {
        c = Constant<value = float {2}>() y = Mul(x, c)
    }""")
    assert oldest_release(original, default_spec()) == "1.17"


def test_it_is_not_known_in_which_release_a_model_of_the_newest_ir_version_loads() -> None:
    original = model(ATTENTION)
    assert oldest_release(original, default_spec()) == "1.17"
    original.ir_version = 99
    assert oldest_release(original, default_spec()) is None


def test_a_release_whose_hidden_rows_are_nan_is_not_taken_to_give_zeros() -> None:
    old, new = (resolve_target(None, runtime=release) for release in ("1.27", "1.28"))
    assert old.is_lowered("Attention")
    assert not new.is_lowered("Attention")
    assert Quirk.ZEROES_MASKED_ROWS not in old.without_lowering().quirks
    assert Quirk.ZEROES_MASKED_ROWS in new.without_lowering().quirks


def test_a_layer_normalization_gets_a_bias_for_releases_that_read_an_absent_one() -> None:
    original = model("""<ir_version: 8, opset_import: ["": 17]> g (float[b, 8] x, float[8] scale) => (float[b, 8] y) {
        y = LayerNormalization(x, scale) }""")
    for release, inputs_of_node in (("1.17", 3), ("1.18", 3), ("1.19", 2)):
        (node,) = ortfuse.optimize(original.clone(), runtime=release).model.graph
        assert len(node.inputs) == inputs_of_node


MASKED = """<ir_version: 10, opset_import: ["": 23]>
    g (float[b, 2, s, 4] q, float[b, 2, t, 4] k, float[b, 2, t, 4] v, %s[b, %d, s, t] keep) => (float[b, 2, s, 4] y) {
        y = Attention<is_causal = %d>(q, k, v, keep) }"""


@pytest.mark.parametrize("limit", [{"runtime": "1.24"}, {"runtime": "1.20"}, {"max_opset": 17}, {"target": "cuda"}])
@pytest.mark.parametrize(("heads", "causal"), [(1, 0), (2, 0), (1, 1)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_rows_that_a_mask_hides_whole_give_zeros(kind: str, heads: int, causal: int, limit: dict[str, object]) -> None:
    """Boolean and numbers, for all heads or each; with is_causal the mask and the triangle hide rows together."""
    original = model(MASKED % (kind, heads, causal))
    rng = np.random.default_rng(1)
    given = {name: rng.standard_normal((2, 2, 5, 4)).astype(np.float32) for name in "qkv"}
    keep = rng.random((2, heads, 5, 5)) < 0.7
    keep[0, :, 2] = False
    keep[1, :, :, :2] = False
    given["keep"] = keep if kind == "bool" else np.where(keep, 0, -np.inf).astype(np.float32)
    before = Session(original, optimise=False, threads=1).run(given)["y"]
    assert not before[0, :, 2].any()
    result = ortfuse.optimize(original.clone(), loaded=False, **limit).model  # type: ignore[arg-type]
    after = Session(result, optimise=False, threads=1).run(given)["y"]
    np.testing.assert_allclose(after, before, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("<int64[1] back = {-2}> { y = Unsqueeze(x, back) }", [2]),
        ("<int64[1] back = {-1}> { y = Squeeze(x, back) }", [2]),
        ("{ y = Flatten<axis = -2>(x) }", None),
    ],
)
def test_axes_that_count_back_are_numbered_before_opset_11(text: str, axes: list[int] | None) -> None:
    original = model(f"""<ir_version: 8, opset_import: ["": 13]> g (float[2, 3, 1] x) => (float[] y) {text}""")
    result = ortfuse.optimize(original.clone(), target="portable", max_opset=9, passes="", loaded=False).model
    (node,) = result.graph
    assert result.opset_imports[""] == (13 if axes is None else 9)
    assert axes is None or list(node.attributes["axes"].value) == axes


def test_nodes_that_a_release_has_no_kernel_for_are_told() -> None:
    original = model("""<ir_version: 8, opset_import: ["": 17]> g (double[3] x) => (double[3] y, double[3] z) {
        y = Cos(x) z = Cos(y)
    }""")
    for release in ("1.17", "1.17,1.30"):
        notes = ortfuse.optimize(original, runtime=release, loaded=False).report.notes
        (note,) = (one for one in notes if "does not load" in one)
        assert note.startswith(
            "the result does not load in onnxruntime 1.17.3: CPUExecutionProvider has no kernel for Cos"
        )
        assert note.endswith("(at 'y' and at 1 more)")
    half = model('<ir_version: 8, opset_import: ["": 17]> g (float16[3] x) => (float16[3] y) { y = Cos(x) }')
    assert not ortfuse.optimize(half, runtime="1.17", loaded=False).report.notes  # it runs between Casts


GROUPS = """<ir_version: 10, opset_import: ["": 22]>
g (float[b,4,h,w] x, float[4,4,3,3] k) => (float[b,4,p,q] y) <float[4] scale = {1, 2, 3, 4}, float[4] shift = {0, 1, 2, 3}> {
    made = Conv(x, k)
    y = GroupNormalization <num_groups = 2> (made, scale, shift)
}"""


def test_groups_of_channels_become_an_instance_normalization_where_the_opset_lacks_their_form() -> None:
    original = model(GROUPS)
    result = ortfuse.optimize(original, runtime="1.17", verify=True)
    assert result.verdict is not None
    assert result.verdict.ok
    assert "InstanceNormalization" in ops(result.model)
    assert "ReduceMean" not in ops(result.model)


def test_groups_of_channels_keep_their_digits_in_the_nodes_of_an_older_opset() -> None:
    original = model(GROUPS.replace("made = Conv(x, k)", "made = Identity(x)").replace(", float[4,4,3,3] k", ""))
    for opset in (13, 18):
        result = ortfuse.optimize(original, target="portable", max_opset=opset, passes="").model
        x = np.random.default_rng(0).normal(4000.0, 1.0, (2, 4, 5, 6)).astype(np.float32)
        grouped = x.astype(np.float64).reshape(2, 2, -1)
        normal = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
        expected = normal.reshape(x.shape) * np.arange(1, 5)[:, None, None] + np.arange(4)[:, None, None]
        found = Session(result, optimise=False, threads=1).run({"x": x})["y"]
        np.testing.assert_allclose(found, expected, atol=0.02)


CONTRIB = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[2, 3, 16] q, float[2, 5, 16] k, float[2, 5, 16] v) => (float[2, 3, 16] y) {
        y = com.microsoft.MultiHeadAttention<num_heads = 4>(q, k, v)
    }"""


@pytest.mark.parametrize("target", ["portable", "tensorrt", "qnn"])
def test_each_target_without_a_kernel_for_an_operator_of_a_model_gets_it_lowered(target: str) -> None:
    made = ortfuse.optimize(ir.from_onnx_text(CONTRIB), target=target, max_opset=17, loaded=False).model
    assert {node.domain for node in made.graph} == {""}
    assert "Softmax" in ops(made)


@pytest.mark.parametrize("target", ["cpu", "cuda", "wasm", "webgpu"])
def test_an_operator_stays_where_there_is_a_kernel(target: str) -> None:
    made = ortfuse.optimize(ir.from_onnx_text(CONTRIB), target=target, loaded=False).model
    assert ops(made) == "MultiHeadAttention"


def test_a_kernel_that_refuses_some_sizes_is_one() -> None:
    """GroupQueryAttention takes several tokens after others for one sequence: an open batch may never have them."""
    model = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[b, s, 32] q, float[b, s, 16] k, float[b, s, 16] v, float[b, 2, 40, 8] past_k, float[b, 2, 40, 8] past_v,
           int32[b] lengths, int32 total) => (float[b, s, 32] y, float[b, 2, 40, 8] new_k, float[b, 2, 40, 8] new_v) {
            y, new_k, new_v = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>(
                q, k, v, past_k, past_v, lengths, total)
        }"""
    )
    assert ops(ortfuse.optimize(model, loaded=False).model) == "GroupQueryAttention"


def test_a_node_that_a_kernel_refuses_is_told_of_if_nothing_lowers_it() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[b, 1, 32] q, float[b, 1, 16] k, float[b, 1, 16] v, float[b, 2, 39, 8] past_k, float[b, 2, 39, 8] past_v,
           int32[b] lengths, int32 total) => (float[b, 1, 32] y, float[b, 2, n, 8] new_k, float[b, 2, n, 8] new_v) {
            y, new_k, new_v = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, ATTRIBUTE>(
                q, k, v, past_k, past_v, lengths, total)
        }"""
    for attribute, told in (("scale = 0.5", False), ("softcap = 2.0", True)):
        model = ir.from_onnx_text(text.replace("ATTRIBUTE", attribute))
        notes = ortfuse.optimize(model, target="webgpu", loaded=False).report.notes
        assert any("softcap of GroupQueryAttention" in note and "nothing lowers it" in note for note in notes) == told


def test_a_sink_is_lowered_where_no_attribute_speaks_of_smooth_softmax() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[2, 1, 64] q, float[2, 1, 32] k, float[2, 1, 32] v, float[2, 2, 9, 16] past_k, float[2, 2, 9, 16] past_v,
           int32[2] lengths, int32 total, float[4] sink)
        => (float[2, 1, 64] y, float[2, 2, n, 16] new_k, float[2, 2, n, 16] new_v) {
            y, new_k, new_v = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>(
                q, k, v, past_k, past_v, lengths, total, , , , , sink)
        }"""
    )
    assert "GroupQueryAttention" not in ops(ortfuse.optimize(model, target="portable", loaded=False).model)
