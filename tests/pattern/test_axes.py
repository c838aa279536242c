"""Shapes in patterns: dimensions that are the same all over, rearrangements, parts of the last axis."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortfuse.analysis.facts import Facts
from ortfuse.errors import PatternError
from ortfuse.ir.dims import parse
from ortfuse.rewrite.emit import Emitter
from ortfuse.rewrite.pattern import (
    Match,
    Matcher,
    Miss,
    Pattern,
    attr,
    built,
    ms,
    op,
    opt,
    rearrange,
    redundant,
    rest,
    var,
)
from ortfuse.rewrite.pattern.axis_names import axes_of
from ortfuse.rewrite.pattern.redundant_guard_decorator import redundant_because


def graph(inputs: str, body: str, initializers: str = "") -> ir.Model:
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": 20]> g ({inputs}) => (float[o] out) {initializers} {{ {body} }}'
    )


def match(pattern: Pattern, inputs: str, body: str, initializers: str = "") -> Match | Miss:
    model = graph(inputs, body, initializers)
    model.graph.outputs[0].shape = None
    return Matcher(pattern).match(model.graph.outputs[0], Facts(model))


def reason(pattern: Pattern, inputs: str, body: str, initializers: str = "") -> str:
    found = match(pattern, inputs, body, initializers)
    assert isinstance(found, Miss)
    return found.refusal.reason


def product(x: str, y: str) -> Pattern:
    return op.MatMul(var("x", x), var("y", y))


PRODUCT = "out = MatMul(x, y)"


@pytest.mark.parametrize("text", ["b h s d", "...batch s d", "... 4", "b (h d)", "b? h? s|1 _", "", "b 1 s"])
def test_a_shape_is_printed_as_it_is_written(text: str) -> None:
    assert str(axes_of(text)) == text


@pytest.mark.parametrize("text", ["b ... d", "b h? d", "... h? d", "(b", "b-1", "b||1", "...b? d"])
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(PatternError):
        axes_of(text)


def test_dimensions_are_named_and_demanded_to_be_the_same() -> None:
    found = match(product("b s d", "b d 5"), "float[n,m,4] x, float[n,4,5] y", PRODUCT)
    assert isinstance(found, Match)
    assert (found.dim("b"), found.dim("s"), found.size("d"), found.size("s")) == (parse("n"), parse("m"), 4, None)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (("b s d", "b d 5"), "dimension 0 of 'y' (y) is k, not provably n, which is b by dimension 0 of 'x'"),
        (("b s d", "c d 6"), "dimension 2 of 'y' (y) is 5, not provably 6"),
        (("b h s d", "c d e"), "'x' has the shape [n, m, 4], not provably [b, h, s, d]"),
        (("b s d", "c (d 3) e"), "dimension 1 of 'y' (y) is 4, not provably 12, as (d 3) is"),
    ],
)
def test_another_dimension_is_named_with_what_it_should_be(wanted: tuple[str, str], words: str) -> None:
    assert words in reason(product(*wanted), "float[n,m,4] x, float[k,4,5] y", PRODUCT)


def test_an_unknown_rank_is_no_match() -> None:
    model = graph("float x", "out = Relu(x)")
    model.graph.inputs[0].shape = model.graph.outputs[0].shape = None
    found = Matcher(op.Relu(var("x", "b s"))).match(model.graph.outputs[0], Facts(model))
    assert isinstance(found, Miss)
    assert "the shape of 'x' is not known" in found.refusal.reason


def test_leading_axes_with_a_name_are_the_same_wherever_it_stands() -> None:
    pattern = product("...batch s d", "...batch d e")
    found = match(pattern, "float[n,2,m,4] x, float[n,2,4,5] y", PRODUCT)
    assert isinstance(found, Match)
    assert found.dim("...batch") == (parse("n"), 2)
    assert isinstance(match(pattern, "float[m,4] x, float[4,5] y", PRODUCT), Match)
    assert isinstance(match(pattern, "float[n,2,m,4] x, float[n,1,4,5] y", PRODUCT), Miss)
    assert isinstance(match(product("... s d", "... d e"), "float[n,2,m,4] x, float[4,5] y", PRODUCT), Match)


@pytest.mark.parametrize(
    ("dims", "fits"), [("n,m,4", True), ("1,m,4", True), ("m,4", True), ("k,m,4", False), ("m,1", False)]
)
def test_axes_may_be_missing_or_broadcast_where_the_pattern_says_so(dims: str, fits: bool) -> None:
    for pattern in (op.Add(var("x", "b s 4"), var("y", "b? s? 4")), op.Sub(var("y", "b? s? 4"), var("x", "b s 4"))):
        operands = "x, y" if pattern.op_type == "Add" else "y, x"
        found = match(pattern, f"float[n,m,4] x, float[{dims}] y", f"out = {pattern.op_type}({operands})")
        assert isinstance(found, Match) == fits


def test_a_product_is_divided_by_what_is_known_of_it_now_or_later() -> None:
    for pattern in (op.Sub(var("x", "b (h d)"), var("y", "b h d")), op.Sub(var("y", "b h d"), var("x", "b (h d)"))):
        operands = "x, y" if str(pattern).startswith("Sub(x") else "y, x"
        found = match(pattern, "float[n,24] x, float[n,6,4] y", f"out = Sub({operands})")
        assert isinstance(found, Match)
        assert isinstance(match(pattern, "float[n,20] x, float[n,6,4] y", f"out = Sub({operands})"), Miss)
    half = match(op.Relu(var("x", "b (2 r)")), "float[n,10] x", "out = Relu(x)")
    assert isinstance(half, Match)
    assert half.dim("r") == 5
    assert "a multiple of 2" in reason(op.Relu(var("x", "b (2 r)")), "float[n,9] x", "out = Relu(x)")


def test_dimensions_of_an_alternative_that_failed_are_forgotten() -> None:
    pattern = op.Add(op.Relu(var("x", "b s")), op.Relu(var("y", "b 5"))) | op.Add(
        op.Relu(var("x", "s b")), op.Relu(var("y", "b 5"))
    )
    found = match(pattern, "float[5,7] x, float[7,5] y", "a = Relu(x) b = Relu(y) out = Add(a, b)")
    assert isinstance(found, Match)
    assert found.dim("b") == 7


def test_intermediates_have_shapes_too() -> None:
    pattern = op.Relu(op.Reshape(var("x", "a b"), var("shape")).named("flat", "(a b)"))
    sizes = "<int64[1] all = {-1}, int64[2] two = {2, -1}>"
    assert isinstance(match(pattern, "float[3,4] x", "r = Reshape(x, all) out = Relu(r)", sizes), Match)
    assert isinstance(match(pattern, "float[3,4] x", "r = Reshape(x, two) out = Relu(r)", sizes), Miss)


SPLIT = "<int64[4] split = {0, 0, 2, 4}, int64[3] merge = {0, 0, 8}, int64[4] mixed = {0, -1, 2, 4}, int64[4] other = {0, 0, 4, 2}>"
HEADS = rearrange("b s (h d) -> b h s d", var("x", "b s c"))


@pytest.mark.parametrize(
    ("body", "fits"),
    [
        ("r = Reshape(x, split) out = Transpose<perm = [0, 2, 1, 3]>(r)", True),
        ("r = Reshape(x, split) i = Transpose<perm = [2, 0, 1, 3]>(r) out = Transpose<perm = [1, 0, 2, 3]>(i)", True),
        ("r = Reshape(x, split) out = Transpose<perm = [0, 2, 3, 1]>(r)", False),
        ("out = Reshape(x, split)", False),
        ("t = Transpose<perm = [1, 0, 2]>(x) r = Reshape(t, split) out = Transpose<perm = [2, 0, 1, 3]>(r)", False),
    ],
)
def test_a_rearrangement_is_whatever_nodes_do_it(body: str, fits: bool) -> None:
    found = match(HEADS, "float[n,m,8] x", body, SPLIT)
    assert isinstance(found, Match) == fits
    if isinstance(found, Match):
        assert (found.dim("h"), found.dim("d"), found.dim("c")) == (2, 4, 8)


def test_heads_mixed_with_positions_are_no_split_of_the_last_axis() -> None:
    body = "r = Reshape(x, mixed) out = Transpose<perm = [0, 2, 1, 3]>(r)"
    assert isinstance(match(HEADS, "float[n,6,16] x", body, SPLIT), Miss)


def test_sizes_known_elsewhere_must_be_those_of_the_rearrangement() -> None:
    pattern = op.Add(var("y", "_ h _ _"), HEADS)
    body = "r = Reshape(x, {}) t = Transpose<perm = [0, 2, 1, 3]>(r) out = Add(y, t)"
    inputs = "float[n,m,8] x, float[1,2,m,1] y"
    assert isinstance(match(pattern, inputs, body.format("split"), SPLIT), Match)
    assert isinstance(match(pattern, inputs, body.format("other"), SPLIT), Miss)


def test_nodes_of_a_rearrangement_may_be_used_elsewhere() -> None:
    model = graph(
        "float[n,m,8] x", "r = Reshape(x, split) t = Transpose<perm = [0, 2, 1, 3]>(r) z = Relu(r) out = Relu(t)", SPLIT
    )
    model.graph.outputs.append(model.graph[2].outputs[0])
    assert isinstance(Matcher(op.Relu(HEADS)).match(model.graph.outputs[0], Facts(model)), Match)


def test_axes_of_one_come_and_go() -> None:
    wider = rearrange("b s t -> b 1 s t", var("x", "b s t"))
    axis = "<int64[1] axis = {1}, int64[4] shape = {0, 1, 5, -1}>"
    assert isinstance(match(wider, "float[n,5,k] x", "out = Unsqueeze(x, axis)", axis), Match)
    assert isinstance(match(wider, "float[n,5,6] x", "out = Reshape(x, shape)", axis), Match)
    narrower = rearrange("b 1 s -> b s", var("x", "b 1 s"))
    assert isinstance(match(narrower, "float[n,1,k] x", "out = Squeeze(x, axis)", axis), Match)


def test_elements_are_repeated_along_a_new_name() -> None:
    repeated = rearrange("b h t d -> b (h g) t d", var("x", "b h t d"))
    sizes = "<int64[1] two = {2}, int64[5] times = {1, 1, 3, 1, 1}, int64[4] merged = {0, 6, 5, 4}, int64[1] one = {1}>"
    nodes = "u = Unsqueeze(x, {}) e = Expand(u, {}) out = Reshape(e, merged)"
    found = match(repeated, "float[n,2,5,4] x", nodes.format("two", "times"), sizes)
    assert isinstance(found, Match)
    assert found.dim("g") == 3
    tiled = sizes.replace("{1, 1, 3, 1, 1}", "{1, 3, 1, 1, 1}")
    assert isinstance(match(repeated, "float[n,2,5,4] x", nodes.format("one", "times"), tiled), Miss)


@pytest.mark.parametrize("spelling", ["b s -> b", "b b -> b", "b s", "...x s -> s", "b 2 -> b"])
def test_what_is_no_rearrangement_is_refused(spelling: str) -> None:
    with pytest.raises(PatternError):
        rearrange(spelling, var("x"))


X = var("x", "b d")
BOUNDS = "<int64[1] zero = {0}, int64[1] three = {3}, int64[1] far = {99}, int64[1] last = {-1}, int64[1] two = {2}, int64[2] s = {3, 5}, \
int64[1] six = {6}, int64[1] seven = {7}, int64[4] odd = {1, 3, -3, 7}, int64[5] rear = {3, 4, 5, 6, -1}, int64[5] uneven = {3, 4, 4, 6, 7}>"


@pytest.mark.parametrize(
    ("pattern", "body"),
    [
        (X[..., :3], "out = Slice(x, zero, three, last)"),
        (X[..., 3:], "out = Slice(x, three, far, last)"),
        (X[..., "p":], "out = Slice(x, three, far, last)"),
        (X[..., :"p"], "out, rest = Split<axis = 1>(x, s)"),
        (X[..., 3:], "rest, out = Split<axis = -1>(x, s)"),
        (X[..., ::2], "out = Slice(x, zero, far, last, two)"),
        (X[..., ::2], "out = Slice(x, zero, seven, last, two)"),
        (X[..., 1::2], "out = Gather<axis = -1>(x, odd)"),
        (X[..., 3:], "out = Gather<axis = 1>(x, rear)"),
        (op.Concat(X[..., "p":], X[..., :"p"], axis=1), "a, b = Split<axis = 1>(x, s) out = Concat<axis = 1>(b, a)"),
    ],
)
def test_parts_of_the_last_axis_are_slices_or_what_a_split_gives(pattern: Pattern, body: str) -> None:
    found = match(pattern, "float[n,8] x", body, BOUNDS)
    assert isinstance(found, Match), found.refusal.reason
    assert found.dims.get("p", 3) == 3


@pytest.mark.parametrize(
    ("pattern", "body"),
    [
        (X[..., :3], "out = Slice(x, zero, three, zero)"),
        (X[..., :3], "out = Slice(x, zero, three, last, two)"),
        (X[..., 3:], "out = Slice(x, two, far, last)"),
        (X[..., 1:], "out, rest = Split<axis = 1>(x, s)"),
        (X[..., ::2], "out = Slice(x, zero, three, last, two)"),
        (X[..., ::2], "out = Slice(x, zero, six, last, two)"),
        (X[..., ::2], "out = Gather<axis = -1>(x, odd)"),
        (X[..., 3:], "out = Gather<axis = 0>(x, rear)"),
        (X[..., 3:], "out = Gather<axis = 1>(x, uneven)"),
        (op.Concat(X[..., "p":], X[..., :"p"], axis=1), "b = Slice(x, three, far, last) a = Slice(x, zero, two, last) out = Concat<axis = 1>(b, a)"),
    ],
)  # fmt: skip
def test_other_parts_are_not_taken_for_them(pattern: Pattern, body: str) -> None:
    assert isinstance(match(pattern, "float[n,8] x", body, BOUNDS), Miss)


@pytest.mark.parametrize(
    ("pattern", "body"),
    [
        (X @ var("y"), "out = MatMul(x, y)"),
        (X**2, "out = Mul(x, x)"),
        (X**2, "out = Pow(x, two)"),
        (X**0.5, "out = Sqrt(x)"),
        (X**-0.5, "r = Sqrt(x) out = Reciprocal(r)"),
        (X**3, "out = Pow(x, three)"),
    ],
)
def test_products_and_powers_are_written_as_in_mathematics(pattern: Pattern, body: str) -> None:
    assert isinstance(
        match(pattern, "float[n,8] x, float[8,8] y", body, "<float two = {2.0}, float three = {3.0}>"), Match
    )


def emitted(replacement: Pattern, inputs: str, pattern: Pattern) -> tuple[list[str], list[list[int]], str | None]:
    model = graph(inputs, "out = Identity(x)")
    model.graph.outputs[0].shape = None
    found = Matcher(op.Identity(pattern)).match(model.graph.outputs[0], Facts(model))
    assert isinstance(found, Match)
    emitter = Emitter(found, 20, ir.DataType.FLOAT, "test.rule")
    emitter.build(replacement)
    made = [node.op_type for node in emitter.nodes]
    numbers = [value.const_value.numpy().tolist() for value in emitter.initializers if value.const_value is not None]
    return made, numbers, None if emitter.problem is None else emitter.problem.reason


X4, X3 = var("x", "b s h d"), var("x", "b s c")


@pytest.mark.parametrize(
    ("inputs", "pattern", "spelling", "nodes", "numbers"),
    [
        ("n,m,2,4", "b s h d", "b s h d -> b s (h d)", ["Reshape"], [[0, 0, 8]]),
        ("n,m,2,4", "b s h d", "b s h d -> b h s d", ["Transpose"], []),
        ("n,m,2,4", "b s h d", "b s h d -> b h d s", ["Transpose"], []),
        ("n,m,4", "b s d", "b s d -> b 1 s d", ["Unsqueeze"], [[1]]),
        ("n,1,m", "b 1 s", "b 1 s -> b s", ["Squeeze"], [[1]]),
        ("n,2,m,4", "b h s d", "b h s d -> b s (h d)", ["Transpose", "Reshape"], [[0, 0, 8]]),
        ("n,m,4", "b s d", "b s d -> b s d", [], []),
        ("n,m,4", "b s d", "b s d -> (b s) d", ["Reshape"], [[-1, 4]]),
        ("n,m,k", "b s d", "b s d -> (b s) d", ["Shape", "Shape", "Mul", "Shape", "Concat", "Reshape"], []),
    ],
)
def test_a_replacement_gets_as_few_nodes_as_a_rearrangement_takes(
    inputs: str, pattern: str, spelling: str, nodes: list[str], numbers: list[list[int]]
) -> None:
    x = var("x", pattern)
    assert emitted(rearrange(spelling, x), f"float[{inputs}] x", x) == (nodes, numbers, None)


def test_a_dimension_that_no_shape_of_the_model_gives_is_a_problem() -> None:
    _, _, problem = emitted(X[..., :"b"], "float[n,8] x", X)
    assert problem is not None
    assert "is n, not provably a number" in problem


def test_a_replacement_may_be_built_by_a_function() -> None:
    made = built(lambda match: op.Neg(var("x")) if match.size("d") == 8 else op.Abs(var("x")), makes=("Neg", "Abs"))
    assert emitted(made, "float[n,8] x", X)[0] == ["Neg"]
    assert emitted(made, "float[n,9] x", X)[0] == ["Abs"]


def test_a_guard_says_itself_that_it_is_redundant() -> None:
    @redundant("the kernel refuses it anyway")
    def guard(match: Match) -> str | None:
        return None

    assert redundant_because(guard) == "the kernel refuses it anyway"
    assert guard.__qualname__.endswith("guard")
    assert redundant_because(lambda match: None) is None


def test_an_optional_value_that_is_absent_says_nothing_of_dimensions() -> None:
    pattern = op.Gemm(var("x", "b d"), var("w", "d e"), opt(var("bias", "e")))
    assert isinstance(match(pattern, "float[n,4] x, float[4,5] w", "out = Gemm(x, w)"), Match)
    assert isinstance(match(pattern, "float[n,4] x, float[4,5] w, float[5] c", "out = Gemm(x, w, c)"), Match)
    assert isinstance(match(pattern, "float[n,4] x, float[4,5] w, float[1] c", "out = Gemm(x, w, c)"), Miss)


def test_nodes_that_only_move_data_do_not_make_a_miss_deeper() -> None:
    # Above the Transpose there is a Reshape, which the other alternative takes for a part of its rearrangement.
    turned = rearrange("b s h d -> b h s d", var("x", "b s h d")) | rearrange("(b s) h d -> b h s d", var("x"))
    body = "r = Reshape(x, four) t = Transpose<perm=[0, 2, 1, 3]>(r) out = Sub(t, mask)"
    inputs, four = "float[n,6,8] x, float[n,3,6,4] mask", "<int64[4] four = {0, 0, 2, 4}>"
    found = reason(op.Sub(turned, var("mask", "b? h? s? _")), inputs, body, four)
    assert found == "dimension 1 of 'mask' (mask) is 3, not provably 2, which is h by dimension 1 of 't'"


ONE_HOT = "<int64 depth = {4}, float[2] values = {0, 1}>"


@pytest.mark.parametrize(("axis", "wanted"), [(-1, 2), (-3, 0), (1, 1)])
def test_the_axis_of_one_hot_counts_in_the_rank_of_the_result(axis: int, wanted: int) -> None:
    body = f"out = OneHot<axis = {axis}>(x, depth, values)"
    found = match(op.OneHot(var("x"), var("d"), var("v"), axis=attr("axis")), "int64[n,2] x", body, ONE_HOT)
    assert isinstance(found, Match)
    assert found["axis"] == wanted
    for asked in (-3, -2, -1, 0, 1, 2):
        pattern = op.OneHot(var("x"), var("d"), var("v"), axis=asked)
        assert isinstance(match(pattern, "int64[n,2] x", body, ONE_HOT), Match) == (asked % 3 == wanted)


def test_the_axis_of_a_quantised_concat_counts_in_the_rank_of_its_parts() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 20, "com.microsoft": 1]>
        g (uint8[n,2] x) => (uint8[n,4] out) <float[1] s = {0.5}, uint8[1] z = {3}>
        { out = com.microsoft.QLinearConcat<axis = -1>(s, z, x, s, z, x, s, z) }"""
    )
    pattern = ms.QLinearConcat(var("s"), var("z"), rest("parts"), axis=attr("axis"))
    found = Matcher(pattern).match(model.graph.outputs[0], Facts(model))
    assert isinstance(found, Match)
    assert found["axis"] == 1


def test_axes_of_resize_stay_in_the_order_of_its_sizes() -> None:
    body, sizes = "out = Resize<axes = [3, 2]>(x, , , sizes)", "<int64[2] sizes = {6, 8}>"
    found = match(op.Resize(var("x"), None, None, var("sizes"), axes=attr("axes")), "float[1,2,3,4] x", body, sizes)
    assert isinstance(found, Match)
    assert found["axes"] == (3, 2)
