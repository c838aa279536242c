"""Selections of rows above the nodes that compute the rows: what is hoisted, what stays, and that results are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from graphs import operators, run
from small_models import model_of, proto_of

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.io.check_model import check
from ortfuse.targets import Target
from ortfuse.transforms import Context, HoistSelection

HEAD = '<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>\n'
SIZE, HEADS = 8, "q_num_heads = 2, kv_num_heads = 2"


def weights(*names: str) -> str:
    generator = np.random.default_rng(1)
    text = []
    for name in names:
        numbers = ", ".join(f"{number:.3f}" for number in generator.standard_normal(SIZE * SIZE) / 3)
        text.append(f"float[{SIZE}, {SIZE}] {name} = {{{numbers}}}")
    ones = ", ".join("1" for _ in range(SIZE))
    return ", ".join([*text, f"float[{SIZE}] g = {{{ones}}}"])


WEIGHTS = weights("wq", "wk", "wv", "wo", "wf")
LAYER = f"""q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) a = Attention <{HEADS}> (q, k, v MASK)
    o = MatMul(a, wo) s = Add(x, o) n = LayerNormalization(s, g) f = MatMul(n, wf) h = Gelu(f) r = Add(n, h)
    z = LayerNormalization(r, g)"""
PLAIN = LAYER.replace("MASK", "")
CAUSAL = PLAIN.replace(HEADS, f"{HEADS}, is_causal = 1")
CONSTANTS = """int64 first = {0}, int64 second = {1}, int64 last = {-1}, int64[1] one = {1}, int64[1] minus = {-1}, int64[1] far = {9223372036854775807},
    int64[1] zero = {0}, int64[1] two = {2}, int64[2] pair = {0, -1}, int64[1] batch_axis = {0}, int64[1] last_axis = {2}"""


def text(body: str, inputs: str = "float[b, s, 8] x", outputs: str = "y", constants: str = "") -> str:
    more = f", {constants}" if constants else ""
    return f"{HEAD} g ({inputs}) => ({outputs}) <{WEIGHTS}, {CONSTANTS}{more}> {{ {body} }}"


def floats(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def hoisted(source: str, *inputs: dict[str, Any]) -> tuple[ir.Model, int]:
    """Run the pass; the result must be valid and compute the same."""
    model = model_of(source)
    context = Context(model, Facts(model), Target())
    count = HoistSelection().run(context)
    check(model, name="result")
    for given in inputs:
        for before, after in zip(run(proto_of(source), given), run(model, given), strict=True):
            assert before.shape == after.shape
            assert before.dtype == after.dtype
            np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-5)
    return model, count


def rows_of(model: ir.Model) -> dict[str, Any]:
    """The sizes of the second axis of what products, attention and normalisations compute."""
    facts = Facts(model)
    return {
        (node.op_type, number): (facts.shape(node.outputs[0]) or (0, 0))[1]
        for number, node in enumerate(model.graph)
        if node.op_type in ("MatMul", "Attention", "LayerNormalization", "Gelu")
    }


def whole(model: ir.Model) -> list[str]:
    """The operators that compute all rows."""
    return [name for (name, _), size in rows_of(model).items() if size != 1]


X = [{"x": floats(2, 5, 8)}, {"x": floats(1, 1, 8)}, {"x": floats(3, 2, 8)}]

SELECTIONS = {
    "the first row by a number": "y = Gather <axis = 1> (z, first)",
    "the last row by a number": "y = Gather <axis = 1> (z, last)",
    "the first row by a vector": "y = Gather <axis = 1> (z, zero)",
    "the first row by a slice": "y = Slice(z, zero, one, one)",
    "the last row by a slice": "y = Slice(z, minus, far, one)",
    "below other operators": "t = Tanh(z) u = MatMul(t, wf) w = Gather <axis = 1> (u, first) y = Neg(w)",
    "of a Transpose": "t = Transpose <perm = [1, 0, 2]> (z) y = Gather <axis = 0> (t, first)",
    "of columns, too": "t = Slice(z, zero, two, last_axis) y = Gather <axis = 1> (t, last)",
}


@pytest.mark.parametrize("layer", [PLAIN, CAUSAL], ids=["plain", "causal"])
@pytest.mark.parametrize("kind", SELECTIONS)
def test_a_layer_computes_the_selected_row_alone(kind: str, layer: str) -> None:
    model, count = hoisted(text(f"{layer} {SELECTIONS[kind]}"), *X)
    assert count == 1
    if "slice" not in kind:  # such a slice may be empty
        assert whole(model) == ["MatMul", "MatMul"]  # keys and values
    assert all(node.attributes.get_int("is_causal", 0) == 0 for node in model.graph)


@pytest.mark.parametrize("kind", [kind for kind in SELECTIONS if "slice" in kind])
def test_a_slice_of_no_rows_is_empty(kind: str) -> None:
    body = "n = LayerNormalization(x, g) f = MatMul(n, wf) z = Gelu(f) "
    _, count = hoisted(text(body + SELECTIONS[kind]), {"x": floats(2, 0, 8)}, *X)
    assert count == 1


@pytest.mark.parametrize("layer", [PLAIN, CAUSAL], ids=["plain", "causal"])
def test_a_row_in_the_middle_sees_the_keys_up_to_it(layer: str) -> None:
    model, count = hoisted(text(f"{layer} y = Gather <axis = 1> (z, second)"), X[0], X[2])
    assert count == 1
    assert ("LessOrEqual" in operators(model)) == (layer is CAUSAL)


def test_the_last_row_of_causal_attention_needs_no_mask() -> None:
    model, _ = hoisted(text(f"{CAUSAL} y = Gather <axis = 1> (z, last)"), *X)
    assert "LessOrEqual" not in operators(model)


MASKS = {
    "of each query": "float[b, 1, s, s] m",
    "of each head and query": "float[1, 2, s, s] m",
    "of two axes": "float[s, s] m",
    "of truth values": "bool[b, 1, s, s] m",
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_mask_is_selected_along_its_queries(kind: str, place: str) -> None:
    shape = {"b": 2, "s": 5, "1": 1, "2": 2}
    sizes = [shape[part.strip()] for part in MASKS[kind].partition("[")[2].partition("]")[0].split(",")]
    mask = floats(*sizes) > -1.5 if "bool" in MASKS[kind] else floats(*sizes)
    body = f"{LAYER.replace('MASK', ', m')} y = Gather <axis = 1> (z, {place})"
    model, count = hoisted(text(body, f"float[b, s, 8] x, {MASKS[kind]}"), {"x": floats(2, 5, 8), "m": mask})
    assert (count, whole(model)) == (1, ["MatMul", "MatMul"])


def test_a_mask_that_is_expanded_for_queries_is_read_as_it_was() -> None:
    body = f"""t = Shape <start = 0, end = 1> (x) u = Shape <start = 1, end = 2> (x) e = Concat <axis = 0> (t, one, u, u)
        w = Expand(m, e) {LAYER.replace("MASK", ", w")} y = Gather <axis = 1> (z, first)"""
    model, count = hoisted(
        text(body, "float[b, s, 8] x, float[b, 1, 1, s] m"), {"x": floats(2, 5, 8), "m": floats(2, 1, 1, 5)}
    )
    attention = next(node for node in model.graph if node.op_type == "Attention")
    assert (count, attention.inputs[3]) == (1, model.graph.inputs[1])


def test_present_keys_and_values_stay_those_of_all_tokens() -> None:
    body = f"{LAYER.replace('a = Att', 'a, e, d = Att').replace('MASK', ', , c, c')} y = Gather <axis = 1> (z, last)"
    source = text(body, "float[b, s, 8] x, float[b, 2, p, 4] c", "y, e, d")
    model, count = hoisted(source, {"x": floats(2, 5, 8), "c": floats(2, 2, 3, 4)})
    assert (count, whole(model)) == (1, ["MatMul", "MatMul"])


BY_BATCH = {
    "pairs of numbers": """l = Shape <start = 0, end = 1> (x) d = Squeeze(l) t = Range(first, d, second) p = Unsqueeze(t, one)
        j = Unsqueeze(i, one) c = Concat <axis = -1> (p, j) y = GatherND(z, c)""",
    "a GatherND of batches": "j = Unsqueeze(i, one) y = GatherND <batch_dims = 1> (z, j)",
}
FLAT = """l = Shape <start = 0, end = 1> (x) d = Squeeze(l) w = Shape <start = 1, end = 2> (x) t = Range(first, d, second)
    u = Mul(t, w) j = Add(u, i) c = Flatten <axis = 2> (z) y = Gather(c, j)"""


@pytest.mark.parametrize("layer", [PLAIN, CAUSAL, LAYER.replace("MASK", ", m")], ids=["plain", "causal", "masked"])
@pytest.mark.parametrize("kind", BY_BATCH)
@pytest.mark.parametrize("index", [[3, 0], [-1, 2]])
def test_each_sequence_has_a_row_of_its_own(kind: str, layer: str, index: list[int]) -> None:
    mask = ", float[s, s] m" if ", m)" in layer else ""
    given = {"x": floats(2, 5, 8), "i": np.array(index), **({"m": floats(5, 5)} if mask else {})}
    model, count = hoisted(text(f"{layer} {BY_BATCH[kind]}", f"float[b, s, 8] x, int64[b] i{mask}"), given)
    assert (count, whole(model)) == (1, ["MatMul", "MatMul"])


@pytest.mark.parametrize("layer", [PLAIN, CAUSAL], ids=["plain", "causal"])
def test_flattened_rows_are_those_of_sequences_if_no_number_reaches_the_next(layer: str) -> None:
    """As those of the end of text, the largest token: its index is below the length."""
    inputs = "float[b, s, 8] x, int64[b, s] t0"
    found = "i = ArgMax <axis = 1, keepdims = 0> (t0)"
    tokens = np.array([[1, 2, 9, 1, 1], [9, 2, 3, 1, 1]])
    _, count = hoisted(text(f"{layer} {found} {FLAT}", inputs), {"x": floats(2, 5, 8), "t0": tokens})
    assert count == 1


def test_flattened_rows_of_other_numbers_stay() -> None:
    """-1 is the last row of the sequence before."""
    source = text(f"{PLAIN} {FLAT}", "float[b, s, 8] x, int64[b] i")
    _, count = hoisted(source, {"x": floats(2, 5, 8), "i": np.array([0, -1])})
    assert count == 0


ROTARY = """p = com.microsoft.RotaryEmbedding <num_heads = 2> (q0, START, cos, sin)
    q = Identity(p) k = com.microsoft.RotaryEmbedding <num_heads = 2> (k0, START, cos, sin)"""


@pytest.mark.parametrize("start", ["zero", "two"])
@pytest.mark.parametrize(
    "selection",
    ["y = Gather <axis = 1> (z, last)", "y = Gather <axis = 1> (z, second)", BY_BATCH["a GatherND of batches"]],
)
@pytest.mark.parametrize("rows", ["s", 16])
def test_a_row_is_rotated_by_the_angles_of_its_position(start: str, selection: str, rows: str | int) -> None:
    body = PLAIN.replace("q = Mat", "q0 = Mat").replace("k = Mat", "k0 = Mat")
    body = body.replace("v = Mat", f"{ROTARY.replace('START', start)} v = Mat") + selection
    inputs = f"float[b, s, 8] x, float[{rows}, 2] cos, float[{rows}, 2] sin, int64[b] i"
    if start == "two" and rows == "s":
        return  # there are no angles for the last positions
    size = 5 if rows == "s" else 16
    given = {"x": floats(2, 5, 8), "cos": floats(size, 2), "sin": floats(size, 2) + 1, "i": np.array([4, 1])}
    model, count = hoisted(text(body, inputs), given)
    assert (count, whole(model)) == (1, ["MatMul", "MatMul"])


def test_rows_of_two_selections_are_computed_together() -> None:
    body = f"{PLAIN} y = Gather <axis = 1> (z, first) t = Gather <axis = 1> (z, second)"
    model, count = hoisted(text(body, "float[b, 9, 8] x", "y, t"), {"x": floats(2, 9, 8)})
    assert count == 1
    assert sorted(set(rows_of(model).values()), key=str) == [2, 9]


STAYING = {
    "two selections of an open length": f"{PLAIN} y = Gather <axis = 1> (z, first) t = Gather <axis = 1> (z, last)",
    "two selections along two axes": f"{PLAIN} y = Gather <axis = 1> (z, first) t = Gather <axis = 0> (z, first)",
    "a value that is read as a whole": f"{PLAIN} y = Gather <axis = 1> (z, first) t = ReduceMean(z)",
    "an output": f"{PLAIN.replace('z =', 't =')} y = Gather <axis = 1> (t, first)",
    "no work above": "t = Neg(x) y = Gather <axis = 1> (t, first)",
    "two rows of an open length": f"{PLAIN} y = Gather <axis = 1> (z, pair) t = Neg(x)",
    "most rows": f"{PLAIN} y = Slice(z, one, far, one) t = Neg(x)",
    "rows along which values are normalised": "n = Softmax <axis = 1> (x) y = Gather <axis = 1> (n, first) t = Neg(x)",
    "heads": "n = LayerNormalization(x, g) y = Gather <axis = 2> (n, first) t = Neg(x)",
    "numbers of a vector": "n = LayerNormalization(x, g) l = Shape(x) i = Gather(l, pair) y = Gather <axis = 1> (n, i) t = Neg(x)",
}


@pytest.mark.parametrize("kind", STAYING)
def test_other_selections_stay(kind: str) -> None:
    given = [] if kind == "numbers of a vector" else [{"x": floats(2, 5, 8)}]
    _, count = hoisted(text(STAYING[kind], outputs="y, t"), *given)
    assert count == 0


def test_rows_of_a_value_that_is_read_in_a_body_stay() -> None:
    body = f"""{PLAIN} y = Gather <axis = 1> (z, first)
        t = If(c) <then_branch = g1 () => (float[b, s, 8] u) {{ u = Neg(z) }}, else_branch = g2 () => (float[b, s, 8] w) {{ w = Abs(z) }}>"""
    _, count = hoisted(text(body, "float[b, s, 8] x, bool c", "y, t"), {"x": floats(2, 5, 8), "c": np.array(True)})
    assert count == 0


def test_a_dimension_of_the_batch_is_selected_as_rows_are() -> None:
    model, count = hoisted(text(f"{PLAIN} y = Gather <axis = 0> (z, last)"), *X)
    assert count == 1
    facts = Facts(model)
    assert all((facts.shape(node.outputs[0]) or (1,))[0] == 1 for node in model.graph if node.op_type == "MatMul")


def test_batches_behind_rows_are_selected_alike() -> None:
    """As nn.TransformerEncoder has them: [length, batch, size], with attention between two Transposes."""
    body = f"""w = Transpose <perm = [1, 0, 2]> (x) q = MatMul(w, wq) k = MatMul(w, wk) v = MatMul(w, wv)
        a0 = Attention <{HEADS}> (q, k, v) a = Transpose <perm = [1, 0, 2]> (a0) o = MatMul(a, wo) r = Add(x, o)
        z = LayerNormalization(r, g) y = Gather <axis = 0> (z, first)"""
    model, count = hoisted(text(body, "float[s, b, 8] x"), {"x": floats(5, 2, 8)})
    assert count == 1
    assert len(whole(model)) < 6


def test_an_index_out_of_range_fails_as_before() -> None:
    source = text(f"{PLAIN} y = Gather <axis = 1> (z, i)", "float[b, s, 8] x, int64 i")
    model, count = hoisted(source, {"x": floats(2, 5, 8), "i": np.array(4)}, {"x": floats(2, 5, 8), "i": np.array(-5)})
    assert count == 1
    for index in (5, -6):
        with pytest.raises(Exception, match="out of"):
            run(model, {"x": floats(2, 5, 8), "i": np.array(index)})


def test_attention_that_is_written_in_products_is_hoisted_above_too() -> None:
    body = """q0 = MatMul(x, wq) k0 = MatMul(x, wk) v0 = MatMul(x, wv) q1 = Reshape(q0, heads) k1 = Reshape(k0, heads)
        v1 = Reshape(v0, heads) q = Transpose <perm = [0, 2, 1, 3]> (q1) k = Transpose <perm = [0, 2, 3, 1]> (k1)
        v = Transpose <perm = [0, 2, 1, 3]> (v1) s0 = MatMul(q, k) s1 = Softmax <axis = -1> (s0) a0 = MatMul(s1, v)
        a1 = Transpose <perm = [0, 2, 1, 3]> (a0) a2 = Reshape(a1, joined) o = MatMul(a2, wo) r = Add(x, o)
        z = LayerNormalization(r, g) y = Gather <axis = 1> (z, first)"""
    constants = "int64[4] heads = {0, 0, 2, 4}, int64[3] joined = {0, 0, 8}"
    model, count = hoisted(text(body, constants=constants), *X)
    assert count == 1
    assert whole(model).count("MatMul") == 4  # keys, values, and two that have heads as their second axis


def test_optimize_computes_one_token_in_the_last_layer() -> None:
    source = proto_of(text(f"{PLAIN} y = Gather <axis = 1> (z, first)"))
    result = ortfuse.optimize(source, verify=True)
    assert result.verdict is not None
    assert result.verdict.ok
    assert next(one for one in result.report.passes if one.name == "hoist_selection").changes == 1
