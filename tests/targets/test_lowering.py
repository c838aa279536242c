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
    original = model("""<ir_version: 11, opset_import: ["": 24]> g (float[3] x) => (float[3] y) {
        y = Swish<alpha = 1.5>(x)
    }""")
    outcome = ortfuse.optimize(original.clone(), runtime="1.17")
    assert any("imports opset 24" in note and "Swish" in note for note in outcome.report.notes)


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
