"""Tensors are unbound before their axes are moved or split."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs import operators, run
from onnx import parser
from small_models import apply, floats, model_of, proto_of

import ortfuse
from ortfuse.transforms import SinkTransposeBelowSplit

HEAD = '<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>\n'
CONSTANTS = """<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64 first = {0},
    int64 second = {1}, int64 last = {-1}, int64[3] ones = {1, 1, 1}, int64[5] target = {0, 0, 3, 2, 4},
    int64[5] inferred = {0, -1, 3, 2, 4}>"""
SPLIT = "a, b, c = Split<axis = 0>(t, ones)"
SQUEEZES = "q = Squeeze(a, zero) k = Squeeze(b, zero) v = Squeeze(c, zero)"
SLICES = "a = Slice(t, zero, one, zero) b = Slice(t, one, two, zero) c = Slice(t, two, three, zero)"
GATHERS = "q = Gather(t, first) k = Gather(t, second) v = Gather(t, last)"
PACKED = "r = Reshape(x, target) t = Transpose<perm = [2, 0, 3, 1, 4]>(r)"


def text(body: str, outputs: str = "q, k, v", opset: int = 20, shape: str = "b, s, 24") -> str:
    declared = ", ".join(f"float[d{name}0, d{name}1, d{name}2, d{name}3] {name}" for name in outputs.split(", "))
    return HEAD.format(opset=opset) + f"agraph (float[{shape}] x) => ({declared})\n{CONSTANTS} {{ {body} }}"


X = {"x": floats(2, 5, 24)}


@pytest.mark.parametrize("taken", [f"{SPLIT} {SQUEEZES}", f"{SLICES} {SQUEEZES}", GATHERS])
@pytest.mark.parametrize("mover", [PACKED, PACKED.replace("target", "inferred")])
def test_packed_tensors_are_unbound_first(taken: str, mover: str) -> None:
    model, _, _ = apply(
        text(f"{mover} {taken}"),
        SinkTransposeBelowSplit(),
        SinkTransposeBelowSplit(),
        SinkTransposeBelowSplit(),
        inputs=X,
    )
    taking = [node for node in model.graph if node.op_type in ("Split", "Slice", "Gather")]
    assert taking
    assert all(node.inputs[0] is model.graph.inputs[0] for node in taking), "nothing is moved before"
    assert "Squeeze" not in operators(model)
    ranks = {len(node.attributes["perm"].as_ints()) for node in model.graph if node.op_type == "Transpose"}
    assert ranks == {4}


def test_channels_may_come_first() -> None:
    body = f"r = Reshape(x, heads) t = Transpose<perm = [1, 0, 2, 4, 3]>(r) {SPLIT} {SQUEEZES}"
    head = text(body, shape="b, 24, 3, 2").replace(
        "<int64[1] zero", "<int64[5] heads = {0, 3, 2, 4, -1}, int64[1] zero"
    )
    model, _, _ = apply(
        head,
        SinkTransposeBelowSplit(),
        SinkTransposeBelowSplit(),
        SinkTransposeBelowSplit(),
        inputs={"x": floats(2, 24, 3, 2)},
    )
    assert operators(model) == ["Split", *["Reshape", "Transpose"] * 3]


def test_queries_keys_and_values_of_one_tensor_are_what_attention_takes() -> None:
    body = f"""{PACKED} {GATHERS} kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) p = Softmax<axis = -1>(s)
        o = MatMul(p, v) y = Transpose<perm = [0, 2, 1, 3]>(o)"""
    result = ortfuse.optimize(model_of(text(body, "y")), verify="sites")
    assert [check.state for check in result.sites or ()].count("undone") == 0
    (attention,) = [node for node in result.model.graph if node.op_type == "Attention"]
    assert attention.attributes["q_num_heads"].as_int() == 2
    assert "Transpose" not in [node.op_type for node in result.model.graph]


@pytest.mark.parametrize("opset", [11, 20])
@pytest.mark.parametrize("mover", ["Transpose<perm = [0]>(x)", "Reshape(x, minus)", "Neg(x)"])
def test_a_squeeze_with_an_empty_list_of_axes_takes_out_all_that_are_1(mover: str, opset: int) -> None:
    """So it is to the runtime; ONNX says that it takes out none."""
    squeeze = "Squeeze(t, nothing)" if opset > 11 else "Squeeze(t)"
    model = parser.parse_model(
        HEAD.format(opset=opset)
        + f"""agraph (float[1] x) => (float[] y) <int64[1] minus = {{-1}}, int64[0] nothing = {{}}>
        {{ t = {mover} y = {squeeze} }}"""
    )
    if opset == 11:
        model.graph.node[-1].attribute.add(name="axes", type=onnx.AttributeProto.INTS)
    result = ortfuse.optimize(model).model
    assert [array.shape for array in run(model, {"x": floats(1)})] == [()]
    assert [array.shape for array in run(result, {"x": floats(1)})] == [()]


LEFT = {
    "an output": (f"{PACKED} {GATHERS}", "q, k, v"),
    "another use": (f"{PACKED} {GATHERS} y = Abs(t)", "q, k, v"),
    "an element twice": (f"{PACKED} q = Gather(t, first) k = Gather(t, first)", "q, k"),
    "elements that are not known": (f"{PACKED} n = Size(x) q = Gather(t, n)", "q"),
    "a slice of several": (f"{PACKED} q = Slice(t, zero, two, zero)", "q"),
    "a computed target": ("n = Shape(x) o = Concat<axis = 0>(n, one) r = Reshape(x, o) q = Squeeze(r, three)", "q"),
    "an axis that no axis of the input begins with": (
        "r = Reshape(x, target) a, b = Split<axis = 3>(r, pair) q = Squeeze(a, three) k = Squeeze(b, three)", "q, k",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_what_is_left_alone(case: str) -> None:
    body, outputs = LEFT[case]
    written = text(body, outputs).replace("int64[3] ones", "int64[2] pair = {1, 1}, int64[3] ones")
    if case == "an output":
        written = written.replace("float[dv0", "float[t0, t1, t2, t3, t4] t, float[dv0")
    assert apply(written, SinkTransposeBelowSplit())[1] == [0]


@pytest.mark.parametrize(
    ("opset", "taken"),
    [
        (9, "a = Slice<starts = [0], ends = [1], axes = [0]>(t) b = Slice<starts = [1], ends = [2], axes = [0]>(t) "
            "c = Slice<starts = [-1], ends = [3], axes = [0]>(t)"),
        (9, "a, b, c = Split<axis = 0>(t)"),
        (11, SLICES),
        (12, "a, b, c = Split<axis = 0, split = [1, 1, 1]>(t)"),
        (12, "a, b, c = Split<axis = -5>(t)"),
    ],
)  # fmt: skip
def test_opsets_in_which_axes_and_sizes_are_attributes(opset: int, taken: str) -> None:
    squeezes = " ".join(f"{one} = Squeeze<axes = [0]>({part})" for one, part in zip("qkv", "abc", strict=True))
    model, _, _ = apply(
        text(f"{PACKED} {taken} {squeezes}", opset=opset),
        SinkTransposeBelowSplit(),
        SinkTransposeBelowSplit(),
        SinkTransposeBelowSplit(),
        inputs=X,
    )
    assert "Squeeze" not in operators(model)
    assert {len(node.attributes["perm"].as_ints()) for node in model.graph if node.op_type == "Transpose"} == {4}


def test_many_parts_stay_one_transposition() -> None:
    """One node for each step of an unrolled loop would cost more than the one Transpose."""
    head = text("t = Transpose<perm = [1, 0, 2]>(x) " + " ".join(f"g{i} = Gather(t, i{i})" for i in range(5)), "q")
    head = head.replace("float[dq0, dq1, dq2, dq3] q", ", ".join(f"float[a{i}, c{i}] g{i}" for i in range(5)))
    head = head.replace(
        "<int64[1] zero", "<" + ", ".join(f"int64 i{i} = {{{i}}}" for i in range(5)) + ", int64[1] zero"
    )
    assert apply(head.replace("b, s, 24", "b, 5, 24"), SinkTransposeBelowSplit())[1] == [0]


def test_parts_are_moved_in_functions() -> None:
    written = (
        HEAD.format(opset=20).replace("]>", ', "local" : 1]>')
        + """agraph (float[2,5,24] x, bool c) => (float[a,d,e,f] y)
        { y = If (c) <then_branch = t () => (float[a,d,e,f] q) { q = local.f(x) },
                      else_branch = e () => (float[a,d,e,f] q) { q = local.f(x) }> }
        <domain: "local", opset_import: ["" : 20]> f (x) => (q) {
            target = Constant<value = int64[5] {0, 0, 3, 2, 4}>() first = Constant<value = int64 {0}>()
            r = Reshape(x, target) t = Transpose<perm = [2, 0, 3, 1, 4]>(r) q = Gather(t, first) }"""
    )
    for choice in (True, False):
        _, counts, _ = apply(written, SinkTransposeBelowSplit(), inputs={"x": floats(2, 5, 24), "c": np.array(choice)})
        assert counts == [2]


def numbers(*shape: int) -> str:
    return "{" + ", ".join(f"{number:.6f}" for number in floats(*shape).reshape(-1)) + "}"


WEIGHTS = f"""<int64[5] apart = {{0, 0, 2, 3, 4}}, int64[4] together = {{0, 0, 2, 12}}, int64[3] fours = {{4, 4, 4}},
    int64[3] ones = {{1, 1, 1}}, int64 first = {{0}}, int64 second = {{1}}, int64 last = {{-1}}, int64[1] three = {{3}},
    int64[2] uneven = {{8, 4}}, int64[1] zero = {{0}}, int64[1] four = {{4}}, int64[1] eight = {{8}}, int64[1] end = {{99}},
    float[6, 24] w = {numbers(6, 24)}, float[24] bias = {numbers(24)}, float[1] one = {{0.5}}>"""
GATHERED = "r = Reshape(a, apart) q = Gather<axis = 3>(r, first) k = Gather<axis = -2>(r, second) v = Gather<axis = 3>(r, last)"
HEADWISE = {
    "elements": GATHERED,
    "some elements": "r = Reshape(a, apart) q = Gather<axis = 3>(r, first) k = Gather<axis = 3>(r, last) v = Neg(k)",
    "a split that keeps its axis": "r = Reshape(a, apart) q, k, v = Split<axis = 3>(r, ones)",
    "parts of heads": "r = Reshape(a, together) q, k, v = Split<axis = -1>(r, fours)",
    "slices": "r = Reshape(a, together) q = Slice(r, zero, four, three) k = Slice(r, four, eight, three)"
    " v = Slice(r, eight, end, three)",
    "heads before positions": "r = Reshape(a, together) t = Transpose<perm = [0, 2, 1, 3]>(r)"
    " q, k, v = Split<axis = 3>(t, fours)",
}


def weighted(body: str, outputs: str = "q, k, v", added: str = "Add(bias, p)") -> str:
    ranks = dict.fromkeys("qkvrt", 5 if "ones" in body else 4) | {"p": 3, "y": 2}
    axes = {name: ", ".join(f"d{name}{axis}" for axis in range(ranks[name])) for name in outputs.split(", ")}
    declared = ", ".join(f"float[{dims}] {name}" for name, dims in axes.items())
    head = HEAD.format(opset=20) + f"agraph (float[b, s, 6] x) => ({declared}) {WEIGHTS}"
    return f"{head} {{ p = MatMul(x, w) a = {added} {body} }}"


@pytest.mark.parametrize("added", ["Add(bias, p)", "Add(p, bias)"])
@pytest.mark.parametrize("case", HEADWISE)
def test_columns_are_put_in_the_order_of_the_parts(case: str, added: str) -> None:
    written = weighted(HEADWISE[case], added=added)
    model, _, _ = apply(written, SinkTransposeBelowSplit())
    (split,) = [node for node in model.graph if node.op_type == "Split"]
    assert split.attributes["axis"].as_int() == 2
    assert split.inputs[0].producer().op_type == "Add"
    assert "Gather" not in operators(model)
    assert "Slice" not in operators(model)
    x = floats(2, 5, 6)
    for before, after in zip(run(proto_of(written), {"x": x}), run(model, {"x": x}), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", ["elements", "parts of heads", "heads before positions"])
def test_attention_takes_its_parts_from_ordered_columns(case: str) -> None:
    moved = "qt = Transpose<perm = [0, 2, 1, 3]>(q) vt = Transpose<perm = [0, 2, 1, 3]>(v) kt = Transpose<perm = [0, 2, 3, 1]>(k)"
    if case == "heads before positions":
        moved = "qt = Identity(q) vt = Identity(v) kt = Transpose<perm = [0, 1, 3, 2]>(k)"
    body = f"{HEADWISE[case]} {moved} s = MatMul(qt, kt) e = Softmax<axis = -1>(s) o = MatMul(e, vt)"
    merged = "m = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(m, flat)"
    written = weighted(f"{body} {merged}", "y").replace("float[dy0, dy1] y", "float[b, s, 8] y")
    written = written.replace("float[1] one", "int64[3] flat = {0, 0, 8}, float[1] one")
    result = ortfuse.optimize(model_of(written), verify="sites")
    assert [check.state for check in result.sites or ()].count("undone") == 0
    assert operators(result.model) == ["MatMul", "Add", "Split", "Attention"]


@pytest.mark.parametrize(
    ("body", "outputs", "added"),
    [
        (GATHERED, "q, k, v, p", "Add(bias, p)"),
        (GATHERED, "q, k, v, r", "Add(bias, p)"),
        (GATHERED, "q, k, v", "Mul(bias, p)"),
        (GATHERED, "q, k, v", "Add(one, p)"),
        (GATHERED + " y = MatMul(w, bias2)", "q, k, v", "Add(bias, p)"),
        ("r = Reshape(a, together) q, k = Split<axis = 3>(r, uneven)", "q, k", "Add(bias, p)"),
        ("r = Reshape(a, apart) q = Gather<axis = 3>(r, first) k = Gather<axis = 3>(r, first)", "q, k", "Add(bias, p)"),
        ("r = Reshape(a, apart) q = Gather<axis = 3>(r, first) k = Neg(r)", "q, k", "Add(bias, p)"),
    ],
)
def test_columns_that_stay_in_their_order(body: str, outputs: str, added: str) -> None:
    written = weighted(body, outputs, added).replace(
        "float[1] one", "float[24, 1] bias2 = " + numbers(24) + ", float[1] one"
    )
    _, counts, _ = apply(written, SinkTransposeBelowSplit())
    assert counts == [0]


def test_a_product_may_become_a_vector() -> None:
    """A Reshape of the columns of a product need not split them."""
    body = "m = MatMul(x, w) a = Add(m, v) y = Reshape(a, flat)"
    head = f"""{HEAD.format(opset=20)}agraph (float[2, 3, 4] x) => (float[n] y)
        <float[4, 1] w = {{1, 2, 3, 4}}, float[1] v = {{5}}, int64[1] flat = {{-1}}> {{ {body} }}"""
    model, counts, _ = apply(head, SinkTransposeBelowSplit(), inputs={"x": floats(2, 3, 4)})
    assert (operators(model), counts) == (["MatMul", "Add", "Reshape"], [0])
