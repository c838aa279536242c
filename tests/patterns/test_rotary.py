"""Rotary position embedding spelled by the two parts of x: what becomes the operator, and what only looks like it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from rewriting import ops, parse, rewritten, same

import ortfuse

CONSTANTS = """int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] five = {5},
int64[1] six = {6}, int64[1] last = {-1}, int64[1] end = {9223372036854775807}, int64[2] ones = {1, 1},
int64[2] equal = {3, 3}, int64[3] thirds = {2, 2, 2}, int64 index0 = {0}, int64 index1 = {1},
int64[5] apart = {0, 0, 0, 3, 2}, int64[5] in_halves = {0, 0, 0, 2, 3}, int64[4] whole = {0, 0, 0, 6},
int64[4] mixed = {0, -1, 2, 6}"""

SLICES = "a = Slice(x, zero, three, last) b = Slice(x, three, end, last)"
SPLIT = "a, b = Split<axis = -1>(x, equal)"
EVEN_AND_ODD = "a = Slice(x, zero, end, last, two) b = Slice(x, one, end, last, two)"
GATHERS = "p = Reshape(x, apart) a = Gather<axis = -1>(p, index0) b = Gather<axis = -1>(p, index1)"
SQUEEZED = "p = Reshape(x, apart) a1, b1 = Split<axis = -1>(p, ones) a = Squeeze(a1, last) b = Squeeze(b1, last)"
COLUMNS = "p = Reshape(x, apart) a = Slice(p, zero, one, last) b = Slice(p, one, two, last)"

TURN = "ac = Mul(a, c) bs = Mul(b, s) r = Sub(ac, bs) bc = Mul(b, c) as_ = Mul(s, a) i = Add(as_, bc)"
JOIN = "y = Concat<axis = -1>(r, i)"
STACK = "r1 = Unsqueeze(r, last) i1 = Unsqueeze(i, last) st = Concat<axis = -1>(r1, i1) y = Reshape(st, whole)"
VIEW = "st = Concat<axis = -1>(r, i) y = Reshape(st, whole)"

HEADS_FIRST, LENGTH_FIRST = "b,2,n,6", "b,n,2,6"


def model(*parts: str, x: str = HEADS_FIRST, angles: str = "n,3", opset: int = 17) -> ir.Model:
    """x of 2 heads of size 6, unless said otherwise, turned by given cosines and sines."""
    return parse(
        f'<ir_version: 9, opset_import: ["": {opset}]> g (float[{x}] x, float[{angles}] c, float[{angles}] s) => (float[{x}] y)'
        f"<{CONSTANTS}> {{ {' '.join(parts)} }}"
    )


def numbers(m: ir.Model) -> dict[str, np.ndarray]:
    """Inputs for a batch of 3 and a length of 5."""
    rng = np.random.default_rng(0)
    sizes = {"b": 3, "n": 5}
    dims = {value.name: [sizes.get(str(dim), dim) for dim in value.shape or ()] for value in m.graph.inputs}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in dims.items()}


SPELLINGS = {
    "slices": ((SLICES, TURN, JOIN), 0, ""),
    "split": ((SPLIT, TURN, JOIN), 0, ""),
    "even and odd slices": ((EVEN_AND_ODD, TURN, STACK), 1, ""),
    "pairs joined half by half": ((EVEN_AND_ODD, TURN, JOIN), 0, ""),
    "gathered elements of pairs": ((GATHERS, TURN, STACK), 1, ""),
    "squeezed elements of pairs": ((SQUEEZED, TURN, STACK), 1, ""),
    "complex numbers": ((COLUMNS, TURN, VIEW), 1, ",1"),
}


@pytest.mark.parametrize(("x", "angles"), [(HEADS_FIRST, "n,3"), (HEADS_FIRST, "b,1,n,3"), (LENGTH_FIRST, "1,n,1,3")])
@pytest.mark.parametrize(("parts", "interleaved", "axis"), SPELLINGS.values(), ids=SPELLINGS)
def test_parts_turned_by_angles_are_a_rotary_embedding(
    parts: tuple[str, ...], interleaved: int, axis: str, x: str, angles: str
) -> None:
    m = model(*parts, x=x, angles=angles + axis)
    result = rewritten(m, "fuse.rotary")
    made = [node for node in result.graph if node.op_type == "RotaryEmbedding"]
    assert [node.attributes["interleaved"].value for node in made] == [interleaved]
    assert not {"Mul", "Add", "Sub"} & set(ops(result).split())
    same(m, result, numbers(m))


@pytest.mark.parametrize("parts", [GATHERS, SQUEEZED])
@pytest.mark.parametrize(
    ("into", "found"), [("0, 0, 2, 3, 2", True), ("0, 0, 3, 2, 2", False), ("0, 0, 2, 2, 3", False)]
)
def test_rows_that_are_split_into_heads_and_pairs_at_once(parts: str, into: str, found: bool) -> None:
    """As the first Llama rotates: the view as heads and that as pairs are merged. Angles are for three pairs of a head."""
    spelled = parts.replace("Reshape(x, apart)", "Reshape(x, rows)")
    text = f"""<ir_version: 9, opset_import: ["": 17]> g (float[b,n,12] x, float[n,1,3] c, float[n,1,3] s) => (float[b,n,2,6] y)
        <{CONSTANTS}, int64[5] rows = {{{into}}}> {{ {spelled} {TURN} {STACK} }}"""
    before = parse(text if found else text.replace("n,1,3", "n,1,1"))
    after = rewritten(before, "fuse.rotary")
    assert ("RotaryEmbedding" in ops(after)) == found
    if found:
        same(before, after, numbers(before))


def test_equal_parts_without_sizes_are_halves() -> None:
    m = model("a, b = Split<axis = -1, num_outputs = 2>(x)", TURN, JOIN, opset=23)
    result = rewritten(m, "fuse.rotary")
    assert "RotaryEmbedding" in ops(result)
    same(m, result, numbers(m))


NEAR_MISSES = {
    "turned backwards": (SLICES, TURN.replace("Sub(ac, bs)", "Add(ac, bs)").replace("Add(as_, bc)", "Sub(bc, as_)"), JOIN),
    "added twice": (SLICES, TURN.replace("Sub", "Add"), JOIN),
    "subtracted twice": (SLICES, TURN.replace("Add(as_, bc)", "Sub(bc, as_)"), JOIN),
    "exchanged difference": (SLICES, TURN.replace("Sub(ac, bs)", "Sub(bs, ac)"), JOIN),
    "other sines in the second part": (SLICES, TURN.replace("Mul(s, a)", "Mul(c, a)"), JOIN),
    "exchanged results": (SLICES, TURN, JOIN.replace("r, i", "i, r")),
    "exchanged halves": ("b = Slice(x, zero, three, last) a = Slice(x, three, end, last)", TURN, JOIN),
    "exchanged halves of a split": ("b, a = Split<axis = -1>(x, equal)", TURN, JOIN),
    "a second part that begins too early": ("a = Slice(x, zero, three, last) b = Slice(x, two, five, last)", TURN, JOIN),
    "the first part twice": ("a = Slice(x, zero, three, last) b = Slice(x, zero, three, last)", TURN, JOIN),
    "every other element as first half": ("a = Slice(x, zero, end, last, two) b = Slice(x, three, end, last)", TURN, JOIN),
    "the second part backwards": ("a = Slice(x, zero, three, last) b = Slice(x, three, zero, last, last)", TURN, JOIN),
    "halves joined pair by pair": (SLICES, TURN, STACK),
    "exchanged elements": (GATHERS.replace(" a =", " z =").replace(" b =", " a =").replace(" z =", " b ="), TURN, STACK),
    "one element twice": (GATHERS.replace("index1", "index0"), TURN, STACK),
    "pairs of halves": (
        "p = Reshape(x, in_halves) a = Gather<axis = -2>(p, index0) b = Gather<axis = -2>(p, index1)", TURN, STACK,
    ),
    "exchanged columns": (COLUMNS, TURN, VIEW.replace("r, i", "i, r")),
}  # fmt: skip


@pytest.mark.parametrize("parts", NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_what_only_looks_like_a_rotation_stays(parts: tuple[str, ...]) -> None:
    m = model(*parts, angles="n,3,1" if parts[0] == COLUMNS else "n,3")
    assert "RotaryEmbedding" not in ops(rewritten(m, "fuse.rotary"))


def test_pairs_joined_into_another_shape_are_rotated_before() -> None:
    m = model(EVEN_AND_ODD, TURN, STACK.replace("whole", "mixed"))
    m.graph.outputs[0].shape = ir.Shape(["b", "n", 2, 6])
    result = rewritten(m, "fuse.rotary")
    assert "RotaryEmbedding" in ops(result)
    same(m, result, numbers(m))


@pytest.mark.parametrize("angles", ["n,1", "1,3", "2,1,3", "1,2,n,3", "2,n,3", "3"])
def test_angles_that_are_not_one_for_each_position_and_pair(angles: str) -> None:
    m = model(SLICES, TURN, JOIN, angles=angles)
    result = rewritten(m, "fuse.rotary")
    assert ("RotaryEmbedding" in ops(result)) == (angles == "1,3")
    same(m, result, numbers(m))


def test_unequal_parts_of_x_are_no_halves() -> None:
    m = model("a, b, rest = Split<axis = -1>(x, thirds)", TURN, JOIN, x="b,2,n,6", angles="n,2")
    m.graph.outputs[0].shape = ir.Shape(["b", 2, "n", 4])
    assert "RotaryEmbedding" not in ops(rewritten(m, "fuse.rotary"))


@pytest.mark.parametrize("length", [1, 5, 8])
def test_angles_cut_from_a_table_reach_as_far_as_x(length: int) -> None:
    m = parse(
        '<ir_version: 9, opset_import: ["": 17]> g (float[b,2,n,6] x, float[8,3] cs, float[8,3] ss) => (float[b,2,n,6] y)'
        f"<{CONSTANTS}> {{ n = Shape<start = 2, end = 3>(x) c = Slice(cs, zero, n, zero) s = Slice(ss, zero, n, zero)"
        f" {SLICES} {TURN} {JOIN} }}"
    )
    result = rewritten(m, "fuse.rotary")
    assert "RotaryEmbedding" in ops(result)
    rng = np.random.default_rng(0)
    shapes = {"x": (3, 2, length, 6), "cs": (8, 3), "ss": (8, 3)}
    same(m, result, {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("repeated", [True, False])
def test_constant_tables_are_compared_with_themselves(repeated: bool, interleaved: bool) -> None:
    once = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
    tables = np.repeat(once, 2, axis=-1) if interleaved == repeated else np.tile(once, 2)
    turned = (
        f"{EVEN_AND_ODD} m = Neg(b) m1 = Unsqueeze(m, last) a1 = Unsqueeze(a, last) st = Concat<axis = -1>(m1, a1)"
        " turned = Reshape(st, whole)"
        if interleaved
        else f"{SLICES} m = Neg(b) turned = Concat<axis = -1>(m, a)"
    )
    c, s = ("{" + ", ".join(map(str, table.ravel())) + "}" for table in tables)
    m = parse(
        '<ir_version: 9, opset_import: ["": 17]> g (float[b,2,5,6] x) => (float[b,2,5,6] y)'
        f"<{CONSTANTS}, float[5,6] c = {c}, float[5,6] s = {s}> {{ {turned} xc = Mul(x, c) ts = Mul(turned, s) y = Add(xc, ts) }}"
    )
    result = rewritten(m, "fuse.rotary")
    assert ("RotaryEmbedding" in ops(result)) == repeated
    same(m, result, numbers(m))


@pytest.mark.parametrize("join", ["before, r, i", "r, i, before"])
@pytest.mark.parametrize("parts", [SLICES, EVEN_AND_ODD])
def test_parts_joined_with_the_rest_of_a_head_at_once(parts: str, join: str) -> None:
    m = parse(
        '<ir_version: 9, opset_import: ["": 17]> g (float[b,2,n,6] x, float[b,2,n,4] before, float[n,3] c, float[n,3] s)'
        f" => (float[b,2,n,10] y) <{CONSTANTS}> {{ {parts} {TURN} y = Concat<axis = -1>({join}) }}"
    )
    result = rewritten(m, "fuse.rotary")
    assert "RotaryEmbedding" in ops(result)
    same(m, result, numbers(m))


BACKWARDS = (
    f"{SLICES} m = Neg(a) turned = Concat<axis = -1>(b, m) cc = Concat<axis = -1>(c, c) ss = Concat<axis = -1>(s, s)"
)


@pytest.mark.parametrize("x", [HEADS_FIRST, LENGTH_FIRST])
def test_a_rotation_by_the_negative_angle_is_a_rotary_embedding(x: str) -> None:
    m = model(
        BACKWARDS,
        "xc = Mul(x, cc) ts = Mul(turned, ss) y = Add(xc, ts)",
        x=x,
        angles="1,n,1,3" if x == LENGTH_FIRST else "n,3",
    )
    result = rewritten(m, "fuse.rotary")
    assert "RotaryEmbedding" in ops(result)
    same(m, result, numbers(m))


def test_an_odd_size_has_no_halves() -> None:
    m = parse(
        '<ir_version: 9, opset_import: ["": 17]> g (float[b,2,n,7] x, float[n,3] c, float[n,3] s) => (float[b,2,n,6] y)'
        f"<{CONSTANTS}> {{ a = Slice(x, zero, three, last) b = Slice(x, three, six, last) {TURN} {JOIN} }}"
    )
    assert "RotaryEmbedding" not in ops(rewritten(m, "fuse.rotary"))


def test_products_that_something_else_needs_stay() -> None:
    m = model(SLICES, TURN, JOIN)
    product = next(node.outputs[0] for node in m.graph if node.outputs[0].name == "ac")
    product.shape, product.type = ir.Shape(["b", 2, "n", 3]), ir.TensorType(ir.DataType.FLOAT)
    m.graph.outputs.append(product)
    assert "RotaryEmbedding" not in ops(rewritten(m, "fuse.rotary"))


@pytest.mark.parametrize(
    ("first", "rest", "fused"), [("two", "two", True), ("two", "three", False), ("three", "two", False)]
)
def test_the_rotated_part_and_the_rest_are_the_whole_head(first: str, rest: str, fused: bool) -> None:
    m = parse(
        '<ir_version: 10, opset_import: ["": 23]> g (float[b,2,n,6] x, float[b,n,1] c, float[b,n,1] s) => (float[b,2,n,k] y)'
        f"<{CONSTANTS}> {{ part = Slice(x, zero, {first}, last) rest = Slice(x, {rest}, end, last)"
        " turned = RotaryEmbedding(part, c, s) y = Concat<axis = -1>(turned, rest) }"
    )
    result = rewritten(m, "fuse.rotary")
    assert ("Concat" not in ops(result)) == fused
    if fused:
        same(m, result, numbers(m))


@pytest.mark.parametrize(("angles", "shared"), [("1,1,n,3", True), ("b,1,n,3", False)])
def test_angles_that_the_batch_shares_are_not_expanded(angles: str, shared: bool) -> None:
    m = model(SLICES, TURN, JOIN, angles=angles)
    result = ortfuse.optimize(m).model
    [made] = [node for node in result.graph if node.op_type == "RotaryEmbedding"]
    assert (made.domain == "com.microsoft") is shared
    assert "Expand" not in ops(result)
    same(m, result, numbers(m))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("x", "heads"), [("b,2,n,8", ""), ("b,n,2,8", "num_heads = 2, ")])
def test_the_first_elements_of_heads_are_turned_by_one_operator(x: str, heads: str, interleaved: int) -> None:
    by_length = bool(heads)
    turn = f"RotaryEmbedding<{heads}interleaved = {interleaved}>"
    rows = f"f = Reshape(p, flat) g = {turn}(f, c, s) t = Reshape(g, apart)" if by_length else f"t = {turn}(p, c, s)"
    before = parse(
        f'<ir_version: 11, opset_import: ["": 23]> g (float[{x}] x, float[b,n,2] c, float[b,n,2] s) => (float[{x}] y)'
        "<int64[1] zero = {0}, int64[1] four = {4}, int64[1] end = {8}, int64[1] last = {-1}, "
        "int64[3] flat = {0, 0, 8}, int64[4] apart = {0, 0, 2, 4}> "
        f"{{ p = Slice(x, zero, four, last) k = Slice(x, four, end, last) {rows} y = Concat<axis = -1>(t, k) }}"
    )
    after = ortfuse.optimize(before.clone()).model
    assert "Concat" not in ops(after) and ops(after).count("RotaryEmbedding") == 1
    same(before, after, numbers(before))
