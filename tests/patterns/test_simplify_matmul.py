"""MatMul with constant weights and chains of MatMul: what is folded or reassociated, what is not, and that it stays right."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from rewriting import composed, ops, parse, rewritten, same

WEIGHTS = {
    "A": (4, 6),
    "B": (6, 4),
    "W": (4, 4),
    "V": (4, 4),
    "D": (4, 1),
    "U": (1, 4),
    "U2": (1, 4),
    "C": (4, 6),
    "a": (6,),
    "b": (4,),
    "s": (4,),
    "rows": (3, 1),
}


def model(
    body: str,
    inputs: str = "float[n,3,4] x",
    numbers: str = "float two = {2.0}, float half = {0.5}, float thousand = {1000.0}",
    output: str = "i,j,k",
) -> ir.Model:
    words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: shape for name, shape in WEIGHTS.items() if name in words}
    declared = "".join(f", float[{','.join(map(str, shape))}] {name}" for name, shape in used.items())
    made = parse(
        f'<ir_version: 9, opset_import: ["": 20]> g ({inputs}{declared}) => (float[{output}] y) <{numbers}> {{ {body} }}'
    )
    random = np.random.default_rng(0)
    for value in [value for value in made.graph.inputs if value.name in used]:
        made.graph.inputs.remove(value)
        value.const_value = ir.tensor(random.standard_normal(used[value.name]).astype(np.float32), name=value.name)
        made.graph.register_initializer(value)
    return made


def numbers(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def folded(original: ir.Model) -> ir.Model:
    """A copy with scales, shifts and further weights folded into weights."""
    return composed(original)


FOUND = {
    "p = MatMul(x, A) y = MatMul(p, B)": "MatMul",
    "p = MatMul(x, A) q = Add(a, p) y = MatMul(q, B)": "MatMul Add",
    "p = MatMul(x, W) l = MatMul(x, D) u = MatMul(l, U) v = Mul(u, half) y = Add(p, v)": "MatMul",
    "l = MatMul(x, D) u = MatMul(l, U) p = MatMul(x, W) q = Add(p, b) y = Add(q, u)": "MatMul Add",
    "l = MatMul(x, D) m = Mul(two, l) u = MatMul(m, U) p = MatMul(x, W) y = Add(p, u)": "MatMul",
    "p = MatMul(x, W) l = MatMul(x, D) u = MatMul(l, U) v = Mul(half, u) y = Sub(p, v)": "MatMul",
    "p = MatMul(x, W) l = MatMul(x, D) u = MatMul(l, U) q = Add(p, b) y = Sub(q, u)": "MatMul Add",
    "p = Mul(s, x) y = MatMul(p, W)": "MatMul",
    "p = Div(x, two) y = MatMul(p, W)": "MatMul",
    "p = MatMul(x, W) y = Div(p, s)": "MatMul",
    "p = MatMul(x, W) q = Add(p, b) y = Mul(half, q)": "MatMul Add",
    "p = MatMul(x, W) q = MatMul(x, V) y = Add(p, q)": "MatMul",
    "p = MatMul(x, W) q = Add(p, b) r = MatMul(x, V) t = Mul(r, two) y = Sub(q, t)": "MatMul Add",
    "p = MatMul(x, W) q = MatMul(p, V) y = Add(p, q)": "MatMul",
    "p = Mul(s, x) q = Add(p, b) r = MatMul(q, W) y = Add(r, b)": "MatMul Add",
    "p = MatMul(x, W) q = Mul(p, s) r = Add(p, b) y = Add(q, r)": "MatMul Add",
    "p = MatMul(x, W) q = Mul(p, s) y = Add(q, p)": "MatMul",
    "p = Sub(x, two) y = MatMul(p, W)": "MatMul Add",
}


@pytest.mark.parametrize("body", FOUND)
def test_constants_are_multiplied_out(body: str) -> None:
    original = model(body)
    result = folded(original)
    assert ops(result) == FOUND[body]
    same(original, result, {"x": numbers(2, 3, 4)})


GEMMS = {
    "p = Gemm(x, A, a) y = Gemm<transB = 1>(p, C, b)": "Gemm",
    "p = MatMul(x, A) q = Add(p, a) y = Gemm(q, B)": "Gemm",
    "p = Gemm(x, A) y = MatMul(p, B)": "Gemm",
    "p = Gemm<transB = 1>(x, W, b) l = Gemm<transB = 1, alpha = 0.5>(x, U2) u = MatMul(l, U) v = Mul(u, half) y = Add(p, v)": "Gemm",
    "p = Gemm(x, W, b) l = MatMul(x, D) u = MatMul(l, U) v = Mul(u, half) y = Sub(p, v)": "Gemm",
    "p = Gemm(x, W, b) q = Gemm<beta = 2.0>(x, V, s) y = Add(p, q)": "Gemm",
    "p = Mul(s, x) y = Gemm(p, W, b)": "Gemm",
    "p = Gemm(x, W, b) y = Div(p, s)": "Gemm",
    "p = Gemm(x, W) y = Div(p, two)": "Gemm",
    "p = Mul(s, x) q = Add(p, b) y = Gemm(q, W, b)": "Gemm",
    "p = Gemm(x, W, b) y = Sub(p, s)": "Gemm",
    "p = Gemm(x, W, b) q = Mul(p, s) y = Add(p, q)": "Gemm",
    "p = Gemm<beta = 2.0>(x, W, b) q = Mul(p, two) y = Add(s, q)": "Gemm",
}


@pytest.mark.parametrize("body", GEMMS)
def test_constants_are_multiplied_out_of_gemm(body: str) -> None:
    original = model(body, "float[n,4] x", output="i,j")
    result = folded(original)
    assert ops(result) == GEMMS[body]
    same(original, result, {"x": numbers(3, 4)})


LEFT_ALONE = {
    "a bottleneck": "p = MatMul(x, D) y = MatMul(p, U)",
    "something between": "p = MatMul(x, A) q = Relu(p) y = MatMul(q, B)",
    "used again": "p = MatMul(x, W) q = MatMul(p, W) r = Relu(p) y = Add(r, q)",
    "a factor for each row": "p = Mul(x, rows) y = MatMul(p, W)",
    "a factor for each row of the result": "p = MatMul(x, W) y = Mul(p, rows)",
    "a term for each row": "p = Add(x, rows) y = MatMul(p, W)",
    "a multiple of another product": "p = MatMul(x, W) q = MatMul(p, V) r = Mul(q, s) t = Relu(q) u = Add(p, r) y = Add(u, t)",
    "a large term": "p = Add(x, thousand) y = MatMul(p, W)",
    "a term before more columns, without a bias": "p = Add(x, b) y = MatMul(p, A)",
}


@pytest.mark.parametrize("reason", LEFT_ALONE)
def test_near_miss_is_left_alone(reason: str) -> None:
    original = model(LEFT_ALONE[reason])
    assert ops(folded(original)) == ops(original)


def test_an_adapter_of_another_input_is_left_alone() -> None:
    body = "p = MatMul(x, W) l = MatMul(z, D) u = MatMul(l, U) y = Add(p, u)"
    original = model(body, "float[n,3,4] x, float[n,3,4] z")
    assert ops(folded(original)) == ops(original)


@pytest.mark.parametrize(("rows", "cheaper"), [("64", True), ("8", False), ("m", False)])
def test_the_order_of_products_is_changed_where_that_is_provably_less_work(rows: str, cheaper: bool) -> None:
    """As in attention without softmax: q (k v) instead of (q k) v."""
    original = parse(f"""<ir_version: 9, opset_import: ["": 20]>
        g (float[b,{rows},8] q, float[b,8,{rows}] k, float[b,{rows},8] v) => (float[b,{rows},8] y)
        {{ p = MatMul(q, k) y = MatMul(p, v) }}""")
    result = rewritten(original, "fuse.simplify_matmul")
    first = result.graph[0]
    assert [value.name for value in first.inputs] == (["k", "v"] if cheaper else ["q", "k"])
    size = int(rows) if rows.isdigit() else 5
    same(original, result, {"q": numbers(2, size, 8), "k": numbers(2, 8, size) / 9, "v": numbers(2, size, 8)})


@pytest.mark.parametrize(
    ("body", "inputs", "kinds"),
    [
        (
            "p = MatMul(x, z) q = MatMul(x, w) y = Add(p, q)",
            "float[b,5,3] x, float[b,3,4] z, float[b,3,4] w",
            "Add MatMul",
        ),
        (
            "p = MatMul(x, z) q = MatMul(x, w) y = Sub(p, q)",
            "float[b,5,3] x, float[b,3,4] z, float[b,3,4] w",
            "Sub MatMul",
        ),
        (
            "p = MatMul(z, x) q = MatMul(w, x) y = Add(p, q)",
            "float[b,3,5] x, float[b,4,3] z, float[b,4,3] w",
            "Add MatMul",
        ),
        ("p = MatMul(x, z) q = MatMul(x, w) y = Add(p, q)", "float[b,1,3] x, float[b,3,4] z, float[b,3,4] w", ""),
        ("p = MatMul(x, z) q = MatMul(x, w) y = Add(p, q)", "float[b,5,3] x, float[b,3,4] z, float[1,3,4] w", ""),
    ],
)
def test_products_with_a_factor_in_common_are_one(body: str, inputs: str, kinds: str) -> None:
    original = parse(f'<ir_version: 9, opset_import: ["": 20]> g ({inputs}) => (float[i,j,k] y) {{ {body} }}')
    result = rewritten(original, "fuse.simplify_matmul")
    assert ops(result) == (kinds or ops(original))
    sizes = {
        value.name: [dim if isinstance(dim, int) else 2 for dim in value.shape or ()] for value in original.graph.inputs
    }
    same(original, result, {name or "": numbers(*size) for name, size in sizes.items()})


def test_a_weight_that_would_underflow_in_half_precision_keeps_its_factor() -> None:
    original = parse("""<ir_version: 9, opset_import: ["": 20]> g (float16[n,2] x) => (float16[n,2] y)
        <float[2,2] w = {0.01, 0.02, 0.03, 0.04}, float s = {0.0001}>
        { v = Cast<to=10>(w) t = Cast<to=10>(s) p = MatMul(x, v) y = Mul(p, t) }""")
    assert ops(folded(original)).endswith("MatMul Mul")


@pytest.mark.parametrize(
    ("first", "repeats", "found"), [(1, "3, 1, 1", "MatMul"), (3, "2, 1, 1", ""), (1, "3, 2, 1", "")]
)
def test_a_tiled_matrix_is_multiplied_as_it_is(first: int, repeats: str, found: str) -> None:
    batch, rows = (3 * first if repeats[0] == "3" else 2 * first), 8 if "2, 1" in repeats[2:] else 4
    original = parse(f"""<ir_version: 9, opset_import: ["": 20]>
        g (float[{batch},3,{rows}] x, float[{first},4,5] w) => (float[{batch},3,5] y)
        <int64[3] repeats = {{{repeats}}}> {{ t = Tile(w, repeats) y = MatMul(x, t) }}""")
    result = rewritten(original, "fuse.simplify_matmul")
    assert ops(result) == (found or ops(original))
    same(original, result, {"x": numbers(batch, 3, rows), "w": numbers(first, 4, 5)})


def test_a_repeated_matrix_is_multiplied_as_it_is() -> None:
    original = parse("""<ir_version: 9, opset_import: ["": 20]> g (float[b,3,4] x, float[1,4,5] w) => (float[b,3,5] y)
        <int64[1] zero = {0}, int64[2] rest = {4, 5}>
        { s = Shape(x) n = Gather(s, zero) t = Concat<axis=0>(n, rest) e = Expand(w, t) y = MatMul(x, e) }""")
    result = rewritten(original, "fuse.simplify_matmul")
    assert ops(result) == "MatMul"
    same(original, result, {"x": numbers(2, 3, 4), "w": numbers(1, 4, 5)})


def test_a_product_is_not_transposed_back() -> None:
    original = parse("""<ir_version: 9, opset_import: ["": 20]> g (float[n,4] x, float[5,4] w) => (float[n,5] y)
        { t = Transpose<perm=[1,0]>(x) p = MatMul(w, t) y = Transpose<perm=[1,0]>(p) }""")
    result = rewritten(original, "fuse.simplify_matmul")
    assert ops(result) == "Transpose MatMul"
    same(original, result, {"x": numbers(3, 4), "w": numbers(5, 4)})


FLAT = {
    "m = MatMul(f, W) y = Reshape(m, back)": "MatMul",
    "m = MatMul(f, W) q = Add(m, b) y = Reshape(q, back)": "MatMul Add",
    "m = MatMul(f, W) y = Reshape(m, other)": "Reshape MatMul Reshape",
}


@pytest.mark.parametrize("body", FLAT)
def test_rows_are_not_merged_for_a_product(body: str) -> None:
    sizes = "int64[2] flat = {-1, 4}, int64[3] back = {-1, 3, 4}, int64[3] other = {-1, 1, 4}"
    original = model(f"f = Reshape(x, flat) {body}", numbers=sizes)
    result = rewritten(original, "fuse.linear")
    assert ops(result) == FLAT[body]
    same(original, result, {"x": numbers(2, 3, 4)})
