"""The summary of a loop says how each loop-carried value is updated, and which values are elements of others."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs import run
from recurrent_models import model

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.analysis.loop_summary.loop_structure import Iteration, iteration_of
from ortfuse.analysis.loop_summary.summary import summary_of
from ortfuse.io.convert_model_objects import enter

STATE = "float[b, 3]"
NUMBERS = {
    "count": np.int64(4), "yes": np.bool_(True), "k0": np.int64(0), "k1": np.int64(1), "k2": np.float32(2), "k3": np.int64(3),
    "kx": np.float32(1), "no0": [0], "no1": [1], "m1": [-1], "far": [2**62], "half": np.float32(0.5), "weight": np.eye(3, dtype=np.float32),
}  # fmt: skip


def loop(states: dict[str, tuple[str, str, str]], body: str, result: str = "x", initial: str = "") -> onnx.ModelProto:
    """A Loop over X, [4, b, 3], of states: for each its type, its value before the loop, and the name of the next value."""
    taken = "".join(f", {kind} {name}" for name, (kind, _, _) in states.items())
    left = "".join(f", {kind} {after}" for kind, _, after in states.values())
    given = "".join(f", {first}" for _, first, _ in states.values())
    finals = "".join(f"last_{name}, " for name in states)
    text = f"""{initial} {finals} Y = Loop<body = one (int64 i, bool go{taken}) => (bool on{left}, {STATE} y) {{
        on = Identity(go) {body} y = Identity({result}) }}>(count, yes{given})"""
    declared = [f"{kind} last_{name}" for name, (kind, _, _) in states.items() if "seq" not in kind]
    inputs = f"float[4, b, 3] X, {STATE} A, float[b, 3, 2] V"
    return model(text, inputs, ", ".join([*declared, "float[t, b, 3] Y"]), NUMBERS)


def iteration(made: onnx.ModelProto) -> tuple[Iteration, Facts]:
    entered = enter(made)[0]
    facts = Facts(entered)
    found = next(one for node in entered.graph if (one := iteration_of(node, facts)) is not None)
    return found, facts


@pytest.mark.parametrize(
    ("state", "body", "kind"),
    [
        ((STATE, "A", "s"), "x = Gather(X, i)", "Unchanged"),
        (("int64", "k3", "r"), "x = Gather(X, i) q = Sub(s, k1) r = Sub(q, k1)", "Counted"),
        (("float", "kx", "r"), "x = Gather(X, i) r = Add(kx, s)", "Counted"),
        ((STATE, "A", "r"), "x = Gather(X, i) p = MatMul(x, weight) q = MatMul(s, weight) z = Add(p, q) r = Tanh(z)", "Recurrence"),
        (("float[b, 3, 2]", "V", "r"), "x = Gather(X, i) u = Unsqueeze(x, m1) j = Concat<axis = 2>(s, u) r = Slice(j, no1, far, m1)", "Window"),
        (("float[b, 3, 2]", "V", "r"), "x = Gather(X, i) u = Unsqueeze(x, m1) o = Slice(s, no1, far, m1) r = Concat<axis = 2>(o, u)", "Window"),
        ((STATE, "A", "r"), "x = Gather(X, i) d = Mul(s, half) r = Add(d, x)", "LinearState"),
        ((STATE, "A", "r"), "x = Gather(X, i) d = Mul(s, s) r = Add(d, x)", None),
        (("int64", "k3", "r"), "x = Gather(X, i) r = Add(s, s)", None),
        (("int64", "k3", "r"), "x = Gather(X, i) r = Add(s, i)", None),
    ],
)  # fmt: skip
def test_the_update_of_a_state(state: tuple[str, str, str], body: str, kind: str | None) -> None:
    found, facts = iteration(loop({"s": state}, body))
    updates = summary_of(found, facts, linear=True).updates
    assert [type(update).__name__ for update in updates.values()] == ([] if kind is None else [kind])


def test_counters_that_count_each_other_are_none() -> None:
    states = {"p": ("int64", "k0", "q1"), "q": ("int64", "k0", "p1")}
    found, facts = iteration(loop(states, "x = Gather(X, i) p1 = Add(p, k1) q1 = Add(q, k1)"))
    assert not summary_of(found, facts, linear=True).updates


@pytest.mark.parametrize(
    ("body", "is_element"),
    [
        ("x = Gather(X, i)", True),
        ("a = Unsqueeze(i, no0) e = Add(a, no1) c = Slice(X, a, e, no0) x = Squeeze(c, no0)", True),
        ("a = Unsqueeze(i, no0) c = Gather(X, a) x = Squeeze(c, no0)", True),
        ("j = Sub(k3, i) k = Sub(k3, j) x = Gather(X, k)", True),
        ("j = Sub(k3, i) x = Gather(X, j)", True),
        ("j = Add(i, k1) x = Gather(X, j)", False),
        ("j = Add(i, i) k = Div(j, count) x = Gather(X, k)", False),
        ("x = Gather(X, k1)", False),
    ],
)
def test_elements_of_a_sequence_in_their_order(body: str, is_element: bool) -> None:
    found, _ = iteration(loop({}, body))
    assert ("x" in {value.name for value in found.elements}) == is_element


@pytest.mark.parametrize(
    ("states", "body"),
    [
        ({"j": ("int64", "k3", "k")}, "x = Gather(X, i) k = Sub(j, k1) f = Cast<to = 1>(j) r = Mul(x, f)"),
        ({"j": ("float", "kx", "k")}, "x = Gather(X, i) k = Sub(j, kx) r = Add(x, j)"),
        ({"j": ("int64", "k0", "k")}, "x = Gather(X, j) k = Add(j, k1) t = Mul(k, k3) f = Cast<to = 1>(t) r = Mul(x, f)"),
    ],
)  # fmt: skip
def test_induction_variables_are_known_in_all_iterations(states: dict[str, tuple[str, str, str]], body: str) -> None:
    made = loop(states, body, "r")
    result = ortfuse.optimize(made, passes="vectorize_loops").model
    assert "Loop" not in {node.op_type for node in result.graph.node}
    rng = np.random.default_rng(0)
    shapes = {"X": (4, 2, 3), "A": (2, 3), "V": (2, 3, 2)}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for old, new in zip(run(made, feeds), run(result, feeds), strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    ("length", "runs", "first", "index"),
    [
        ("t", "Sub(n, k0)", "k0", "j = Sub(first, i)"),
        ("t", "Sub(n, k1)", "k1", "j = Add(i, first)"),
        ("t", "Sub(n, k1)", "k0", "j = Add(i, first)"),
        ("t", "Sub(n, k1)", "k1", "j = Sub(first, i)"),
        ("6", "Identity(k3)", "k2i", "j = Add(i, first)"),
        ("6", "Identity(k3)", "k1", "m = Mul(i, k2i) j = Add(m, first)"),
        ("6", "Identity(k2i)", "k0", "j = Mul(i, k3)"),
        ("6", "Identity(k3)", "k2i", "m = Sub(k3, i) j = Add(m, first)"),
    ],
)
def test_elements_of_a_part_or_from_the_last_to_the_first(length: str, runs: str, first: str, index: str) -> None:
    """The rest of a sequence, and loops that come back: a cell over the elements in their order."""
    last = "first = Sub(n, k1)" if "Sub(first" in index else f"first = Identity({first})"
    text = f"""sx = Shape(X) n = Gather(sx, k0) r = {runs} {last} last, Y = Loop<body = one (int64 i, bool go, {STATE} s) =>
        (bool on, {STATE} h, {STATE} y) {{ on = Identity(go) {index} x = Gather(X, j) p = MatMul(x, weight) q = MatMul(s, weight)
        z = Add(p, q) h = Tanh(z) y = Add(h, x) }}>(r, yes, A)"""
    made = model(
        text, f"float[{length}, b, 3] X, {STATE} A", f"{STATE} last, float[r, b, 3] Y", NUMBERS | {"k2i": np.int64(2)}
    )
    result = ortfuse.optimize(
        made, passes="canonicalize, vectorize_loops{always=true, nonempty=true}, canonicalize"
    ).model
    assert {node.op_type for node in result.graph.node} & {"RNN", "Loop"} == {"RNN"}
    rng = np.random.default_rng(0)
    feeds = {
        "X": rng.standard_normal((6, 2, 3)).astype(np.float32),
        "A": rng.standard_normal((2, 3)).astype(np.float32),
    }
    for old, new in zip(run(made, feeds), run(result, feeds), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-6)


def test_elements_of_a_constant_are_elements() -> None:
    text = "Y = Scan<num_scan_inputs = 2, body = one (float[b] x, float w) => (float[b] y) { y = Mul(x, w) }>(X, ramp)"
    made = model(text, "float[3, b] X", "float[3, b] Y", {"ramp": np.arange(3, dtype=np.float32)})
    result = ortfuse.optimize(made, passes="vectorize_loops").model
    assert "Scan" not in {node.op_type for node in result.graph.node}


@pytest.mark.parametrize(
    ("counted", "is_known"),
    [
        ("f = Cast<to = 1>(m) d = Div(f, minus) c = Ceil(d) r = Cast<to = 7>(c)", True),
        ("f = Cast<to = 1>(m) d = Neg(f) r = Cast<to = 7>(d)", True),
        ("f = Cast<to = 1>(m) d = Mul(f, minus) c = Floor(d) r = Cast<to = 7>(c)", True),
        ("f = Cast<to = 1>(m) d = Sqrt(f) r = Cast<to = 7>(d)", False),
        ("f = Cast<to = 3>(m) d = Cast<to = 1>(f) e = Neg(d) r = Cast<to = 7>(e)", False),
    ],
)
def test_a_number_of_iterations_that_is_converted(counted: str, is_known: bool) -> None:
    """As exporters of PyTorch count a range that falls: the difference, divided by -1 in floating point and rounded up."""
    text = f"""sx = Shape(X) n = Gather(sx, k0) m = Sub(k0, n) {counted} Y = Loop<body = one (int64 i, bool go) => (bool on, {STATE} x) {{
        on = Identity(go) x = Gather(X, i) }}>(r, yes)"""
    entered = enter(model(text, "float[t, b, 3] X", "float[r, b, 3] Y", NUMBERS | {"minus": np.float32(-1)}))[0]
    facts = Facts(entered)
    (node,) = [node for node in entered.graph if node.op_type == "Loop"]
    assert (iteration_of(node, facts) is not None) == is_known


def test_numbers_of_as_many_iterations_as_the_limit_says() -> None:
    text = f"""sx = Shape(X) n = Gather(sx, k0) r = Sub(n, k1) Y = Loop<body = one (int64 i, bool go) => (bool on, {STATE} y) {{
        on = Identity(go) j = Add(i, k1) x = Gather(X, j) f = Cast<to = 1>(i) y = Mul(x, f) }}>(r, yes)"""
    made = model(text, "float[t, b, 3] X", "float[r, b, 3] Y", NUMBERS)
    result = ortfuse.optimize(made, passes="vectorize_loops{nonempty=true}").model
    assert "Loop" not in {node.op_type for node in result.graph.node}
    feeds = {"X": np.random.default_rng(0).standard_normal((5, 2, 3)).astype(np.float32)}
    np.testing.assert_array_equal(run(made, feeds)[0], run(result, feeds)[0])
