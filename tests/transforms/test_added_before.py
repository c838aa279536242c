"""Numbers that are added to parts of a sum are added to its constant: where, and that results are what they were."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import operators, run
from small_models import apply, floats, model_of, proto_of

import ortfuse
from ortfuse.transforms import SlicesToSplit

HEAD = '<ir_version: 8, opset_import: ["" : 20]>\n'
NUMBERS = """float[4, 6] w = {1, 2, 3, 4, 5, 6, 7, 8, -1, -2, -3, -4, 1, 0, 2, 0, 3, 0, -1, 1, -1, 1, -1, 1}, float[6] c = {1, -2, 3, -4, 5, -6},
    float[1, 3, 2] table = {1, 2, 3, 4, 5, 6}, float[1, 1, 2] row = {0.5, -0.5}, float one = {1}, float[1] two = {2},
    float[1, 1, 1] deep = {1}, float[2] both = {1, 2}, int64[1] middle = {1}, int64[2] sizes = {2, 4}, int64[3] to = {0, 1, 2},
    float[6] most = {3e38, 0, 0, 0, 0, 0}, float[1] huge = {3e38}"""
PARTS = "a, b, d = Split<axis = 1, num_outputs = 3>(s)"
ENDS = "p = Unsqueeze(a, middle) h = Add(b, one) q = Unsqueeze(h, middle) k = Add(d, two) r = Unsqueeze(k, middle)"


def text(body: str, shape: str = "n, 4") -> str:
    axes = ", ".join(f"p{axis}" for axis in range(3))
    outputs = ", ".join(f"float[{axes.replace('p', name)}] {name}" for name in "pqr")
    return HEAD + f"g (float[{shape}] x) => ({outputs}) <{NUMBERS}> {{ {body} }}"


TAKEN = {
    "a product with bias": (f"s = Gemm(x, w, c) {PARTS} {ENDS}", "n, 4", ["Gemm", "Unsqueeze", "Split"]),
    "a product without bias": (f"s = Gemm<beta = 0.5>(x, w) {PARTS} {ENDS}", "n, 4", ["Gemm", "Unsqueeze", "Split"]),
    "a product with one number": (f"s = Gemm(x, w, two) {PARTS} {ENDS}", "n, 4", ["Gemm", "Unsqueeze", "Split"]),
    "unsqueezed before": (
        """t = Gemm(x, w, c) s = Unsqueeze(t, middle) a, b, d = Split<axis = 2, num_outputs = 3>(s) p = Neg(a) q = Add(b, one)
        r = Add(deep, d)""", "n, 4", ["Gemm", "Unsqueeze", "Split", "Neg", "Identity", "Identity"],
    ),
    "a table": (f"s = Add(table, x) {PARTS} p = Add(a, one) q = Add(b, deep) r = Neg(d)", "n, 3, 2",
                ["Add", "Split", "Neg", "Identity", "Identity"]),
    "a row for all parts": (f"s = Add(x, row) {PARTS} p = Add(a, one) q = Neg(b) r = Neg(d)", "n, 3, 2",
                            ["Add", "Split", "Neg", "Neg", "Identity"]),
    "moved behind": (f"s = Gemm(x, w, c) {PARTS} p = Unsqueeze(a, middle) v = Reshape(b, to) q = Add(v, one) r = Unsqueeze(d, middle)",
                     "n, 4", ["Gemm", "Split", "Unsqueeze", "Reshape", "Unsqueeze", "Identity"]),
}  # fmt: skip


@pytest.mark.parametrize("case", TAKEN)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_numbers_are_added_before(case: str, rows: int) -> None:
    body, shape, kinds = TAKEN[case]
    written = text(body, shape)
    model, _, _ = apply(written, SlicesToSplit())
    assert "Add" not in [kind for kind in operators(model) if case != "a table" and case != "a row for all parts"]
    assert sorted(set(operators(model)) - {"Identity", "Constant"}) == sorted(set(kinds) - {"Identity"})
    x = {"x": floats(rows, *map(int, shape.split(", ")[1:]))}
    for before, after in zip(run(proto_of(written), x), run(model, x), strict=True):
        assert before.shape == after.shape
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


OTHERS = {
    "the sum is read": f"s = Gemm(x, w, c) {PARTS} p = Unsqueeze(s, middle) q = Add(b, one) r = Neg(d)",
    "the part is read": f"s = Gemm(x, w, c) {PARTS} q = Add(b, one) r = Neg(b) p = Add(a, d)",
    "a bias that is scaled": f"s = Gemm<beta = 0.5>(x, w, c) {PARTS} q = Add(b, one) r = Neg(d) p = Neg(a)",
    "several numbers": f"s = Gemm(x, w, c) {PARTS} q = Add(b, both) r = Neg(d) p = Neg(a)",
    "a number that adds an axis": f"s = Gemm(x, w, c) {PARTS} q = Add(b, deep) r = Neg(d) p = Neg(a)",
    "the product is multiplied": f"m = Gemm(x, w, c) s = Relu(m) {PARTS} q = Add(b, one) r = Neg(d) p = Neg(a)",
    "not finite": f"s = Gemm(x, w, most) {PARTS} q = Add(b, one) r = Neg(d) p = Add(a, huge)",
    "a computed number": f"z = ReduceMax<keepdims = 0>(x) s = Gemm(x, w, c) {PARTS} q = Add(b, z) r = Neg(d) p = Neg(a)",
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_left_alone(case: str) -> None:
    written = HEAD + f"g (float[n, 4] x) => (p, q, r) <{NUMBERS}> {{ {OTHERS[case]} }}"
    assert apply(written, SlicesToSplit())[1] == [0]


def test_a_block_of_a_diffusion_transformer_checked_site_by_site() -> None:
    body = f"""s = Gemm(x, w, c) {PARTS} h = Add(b, one) u = Unsqueeze(h, middle) t = Unsqueeze(a, middle)
        g = Unsqueeze(d, middle) m = Mul(y, u) p = Add(m, t) q = Mul(y, g) r = Neg(p)"""
    written = text(body).replace("float[n, 4] x", "float[n, 4] x, float[n, l, 2] y")
    result = ortfuse.optimize(model_of(written), verify="sites")
    assert [check.state for check in result.sites or ()].count("undone") == 0
    kinds = [node.op_type for node in result.model.graph]
    assert (kinds.count("Unsqueeze"), kinds.count("Add"), kinds.count("Split")) == (1, 1, 1)
