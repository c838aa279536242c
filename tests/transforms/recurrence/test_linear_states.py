"""Loops and Scans whose states change linearly are the runtime's operator for linear attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import operator_counts
from recurrent_models import model

import ortfuse
from ortfuse.io.convert_model_objects import enter
from ortfuse.targets import Target

PASSES = "canonicalize, vectorize_loops{always=true}, canonicalize"
B, H, K, V = "b", 2, 3, 4
HEADS = {"S": f"{B}, {H}, {K}, {V}", "q": f"{B}, {H}, {K}", "k": f"{B}, {H}, {K}", "v": f"{B}, {H}, {V}"}
GATE, GATES, RATE = {"g": f"{B}, {H}"}, {"g": f"{B}, {H}, {K}"}, {"r": f"{B}, {H}"}
COLUMNS = "kc = Unsqueeze(k, m1) vr = Unsqueeze(v, m2) qc = Unsqueeze(q, m1)"
WRITE, READ = "kv = Mul(kc, vr) S1 = Add(D, kv)", "qs = Mul(S1, qc) o = ReduceSum<keepdims = 0>(qs, m2)"
DECAY = "eg = Exp(g) ec = Unsqueeze(eg, {axes}) D = Mul(S0, ec)"
ERASE = "dk = Mul(D, kc) w = ReduceSum<keepdims = 0>(dk, m2) rc = Unsqueeze(r, m1) vd = Sub(v, w) vw = Mul(vd, rc) vwr = Unsqueeze(vw, m2) kv = Mul(kc, vwr) S1 = Add(D, kv)"
MAMBA = {"S": f"{B}, 5, {K}", "x": f"{B}, 5", "t": f"{B}, 5", "k": f"{B}, {K}", "q": f"{B}, {K}"}

SPELLINGS: dict[str, tuple[dict[str, str], str, str]] = {
    "linear attention": (HEADS, f"{COLUMNS} D = Identity(S0) {WRITE} {READ}", f"{B}, {H}, {V}"),
    "retention by products": (
        HEADS,
        f"{COLUMNS} qr = Unsqueeze(q, m2) D = Mul(S0, gamma) kv = MatMul(kc, vr) S1 = Add(D, kv) p = MatMul(qr, S1) o = Squeeze(p, m2)",
        f"{B}, {H}, {V}",
    ),
    "by einsum": (
        HEADS | GATE,
        f'{DECAY.format(axes="m12")} kv = Einsum<equation = "bhk,bhv->bhkv">(k, v) S1 = Add(D, kv) o = Einsum<equation = "bhk,bhkv->bhv">(q, S1)',
        f"{B}, {H}, {V}",
    ),
    "gated by head": (HEADS | GATE, f"{COLUMNS} {DECAY.format(axes='m12')} {WRITE} {READ}", f"{B}, {H}, {V}"),
    "gated by key": (HEADS | GATES, f"{COLUMNS} {DECAY.format(axes='m1')} {WRITE} {READ}", f"{B}, {H}, {V}"),
    "gated by a sigmoid": (
        HEADS | GATE,
        f"{COLUMNS} {DECAY.format(axes='m12').replace('Exp', 'Sigmoid')} {WRITE} {READ}",
        f"{B}, {H}, {V}",
    ),
    "delta rule": (HEADS | RATE, f"{COLUMNS} D = Identity(S0) {ERASE} {READ}", f"{B}, {H}, {V}"),
    "gated delta rule": (
        HEADS | GATE | RATE,
        f"{COLUMNS} {DECAY.format(axes='m12')} {ERASE} {READ}",
        f"{B}, {H}, {V}",
    ),
    "gated delta rule on transposed states": (
        HEADS | GATE | RATE | {"S": f"{B}, {H}, {V}, {K}"},
        "kr = Unsqueeze(k, m2) vc = Unsqueeze(v, m1) qc = Unsqueeze(q, m1) kc = Unsqueeze(k, m1) rc = Unsqueeze(r, m12) "
        f"{DECAY.format(axes='m12')} w = MatMul(D, kc) d = Sub(w, vc) dr = Mul(d, rc) e = Mul(dr, kr) S1 = Sub(D, e) "
        "p = MatMul(S1, qc) o = Squeeze(p, m1)",
        f"{B}, {H}, {V}",
    ),
    "selective scan": (
        MAMBA,
        "tc = Unsqueeze(t, m1) ta = Mul(tc, A) ea = Exp(ta) kr = Unsqueeze(k, p1) xc = Unsqueeze(x, m1) tk = Mul(tc, kr) u = Mul(tk, xc) "
        "D = Mul(ea, S0) S1 = Add(D, u) qr = Unsqueeze(q, p1) qs = Mul(S1, qr) s = ReduceSum<keepdims = 0>(qs, m1) dx = Mul(x, skip) o = Add(s, dx)",
        f"{B}, 5",
    ),
    "selective scan read by a product": (
        MAMBA,
        "tc = Unsqueeze(t, m1) ta = Mul(tc, A) ea = Exp(ta) kr = Unsqueeze(k, p1) tx = Mul(t, x) xc = Unsqueeze(tx, m1) u = Mul(xc, kr) "
        "D = Mul(ea, S0) S1 = Add(u, D) qc = Unsqueeze(q, m1) p = MatMul(S1, qc) o = Squeeze(p, m1)",
        f"{B}, 5",
    ),
    "gated average": (
        {"S": f"{B}, 5", "x": f"{B}, 5", "t": f"{B}, 5"},
        "z = Sigmoid(t) n = Sub(one, z) a = Mul(n, S0) c = Mul(z, x) S1 = Add(a, c) o = Identity(S1)",
        f"{B}, 5",
    ),
    "gated average that moves towards x": (
        {"S": f"{B}, 5", "x": f"{B}, 5", "t": f"{B}, 5"},
        "z = Sigmoid(t) n = Sub(x, S0) c = Mul(z, n) S1 = Add(S0, c) o = Tanh(S1)",
        f"{B}, 5",
    ),
}  # fmt: skip


def weights() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "m1": [-1], "m2": [-2], "m12": [-2, -1], "p1": [1], "one": np.float32(1), "count": np.int64(6), "yes": np.bool_(True),
        "gamma": np.array([0.9, 0.8], np.float32).reshape(2, 1, 1), "skip": rng.standard_normal(5).astype(np.float32),
        "A": -np.abs(rng.standard_normal((5, K))).astype(np.float32),
    }  # fmt: skip


def scan(kind: str, options: str = "", runs: str = "t", batch: str = B) -> onnx.ModelProto:
    """A Scan of one kind, with its state `S` and its elements, each an input of the model."""
    shapes, body, result = SPELLINGS[kind]
    given = {name: shape for name, shape in shapes.items() if name != "S"}
    head = ", ".join([f"float[{shapes['S']}] S0", *(f"float[{shape}] {name}" for name, shape in given.items())])
    inner = f"body = one ({head}) => (float[{shapes['S']}] S1, float[{result}] o) {{ {body} }}"
    text = f"last, Y = Scan<num_scan_inputs = {len(given)}, {options} {inner}>({', '.join(['first', *(f'all_{name}' for name in given)])})"
    inputs = [f"float[{shapes['S']}] first", *(f"float[{runs}, {shape}] all_{name}" for name, shape in given.items())]
    outputs = f"float[{runs}, {result}] Y, float[{shapes['S']}] last"
    swap = [(f"[{B},", f"[{batch},"), (f"[t, {B},", f"[t, {batch},")]
    for old, new in swap:
        text, inputs, outputs = (
            text.replace(old, new),
            [one.replace(old, new) for one in inputs],
            outputs.replace(old, new),
        )
    return model(text, ", ".join(inputs), outputs, weights())


optimised = partial(operator_counts, passes=PASSES, verify="whole")


@pytest.mark.parametrize("kind", SPELLINGS)
def test_a_linear_state_is_one_operator(kind: str) -> None:
    found = optimised(scan(kind))
    assert (found["LinearAttention"], found["Scan"]) == (1, 0)


@pytest.mark.parametrize("kind", ["gated delta rule on transposed states", "selective scan", "gated average"])
@pytest.mark.parametrize("batch", ["1", "2"])
def test_a_batch_of_known_size(kind: str, batch: str) -> None:
    assert optimised(scan(kind, batch=batch))["LinearAttention"] == 1


@pytest.mark.parametrize("kind", ["gated delta rule", "selective scan", "gated average"])
def test_it_is_checked_where_it_happens(kind: str) -> None:
    result = ortfuse.optimize(scan(kind), passes=PASSES, verify="sites")
    assert "vectorize_loops.linear" in {check.rule for check in result.sites if check.state == "equal"}


@pytest.mark.parametrize("kind", ["gated delta rule", "selective scan"])
def test_runs_from_the_last_to_the_first(kind: str) -> None:
    count = len(SPELLINGS[kind][0]) - 1
    options = f"scan_input_directions = [{', '.join(['1'] * count)}], scan_output_directions = [1],"
    assert optimised(scan(kind, options))["LinearAttention"] == 1


def test_a_loop_over_elements_is_one_operator() -> None:
    shapes, body, result = SPELLINGS["gated delta rule"]
    taken = " ".join(f"{name} = Gather<axis = 2>(all_{name}, i)" for name in "qkvg") + " r = Gather<axis = 1>(all_r, i)"
    inner = f"body = one (int64 i, bool go, float[{shapes['S']}] S0) => (bool on, float[{shapes['S']}] S1, float[{result}] o) {{ on = Identity(go) {taken} {body} }}"
    inputs = f"float[{shapes['S']}] first, float[b, 2, 6, 3] all_q, float[b, 2, 6, 3] all_k, float[b, 2, 6, 4] all_v, float[b, 2, 6] all_g, float[b, 6, 2] all_r"
    text = f"last, Y = Loop<{inner}>(count, yes, first)"
    made = model(text, inputs, f"float[6, {result}] Y, float[{shapes['S']}] last", weights())
    assert optimised(made)["LinearAttention"] == 1


def test_results_kept_in_a_sequence_and_the_final_state_are_of_one_operator() -> None:
    state, k, q = f"float[b, {K}, {V}]", f"float[b, t, {K}]", f"float[b, t, {K}]"
    inner = f"""body = one (int64 i, bool go, {state} S0, seq(float[b, {V}]) s0) => (bool on, {state} S1, seq(float[b, {V}]) s1) {{
        on = Identity(go) k = Gather<axis = 1>(all_k, i) q = Gather<axis = 1>(all_q, i) v = Gather<axis = 1>(all_v, i)
        kc = Unsqueeze(k, m1) vr = Unsqueeze(v, m2) kv = Mul(kc, vr) S1 = Add(S0, kv) qr = Unsqueeze(q, m2)
        p = MatMul(qr, S1) o = Squeeze(p, m2) s1 = SequenceInsert(s0, o) }}"""
    text = f"""s = Shape(all_k) runs = Gather(s, one_) e = SequenceEmpty() last, kept = Loop<{inner}>(runs, yes, first, e)
        Y = ConcatFromSequence<axis = 1, new_axis = 1>(kept)"""
    inputs = f"{state} first, {k} all_k, {q} all_q, float[b, t, {V}] all_v"
    made = model(text, inputs, f"float[b, t, {V}] Y, {state} last", weights() | {"one_": np.int64(1)})
    found = optimised(made)
    assert (found["LinearAttention"], found["Loop"]) == (1, 0)


@pytest.mark.parametrize("kind", ["gated by key", "delta rule", "selective scan"])
def test_the_final_state_alone(kind: str) -> None:
    made = scan(kind)
    del made.graph.output[0]
    assert optimised(made)["LinearAttention"] == 1


def test_a_state_of_zeros_is_left_out() -> None:
    made = scan("gated by head")
    del made.graph.input[0]
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((2, H, K, V), np.float32), "first"))
    made = onnx.parser.parse_model(onnx.printer.to_text(made).replace("b,", "2,").replace("[t, b", "[t, 2"))
    result = enter(ortfuse.optimize(made, passes=PASSES, verify="whole").model)[0]
    (found,) = [node for node in result.graph if node.op_type == "LinearAttention"]
    assert found.inputs[3] is None


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("eg = Exp(g)", "eg = Tanh(g)", "the decay may be negative"),
        ("eg = Exp(g)", "g0, g1 = Split<axis = 1>(g) pg = Exp(g0) eg = Concat<axis = 1>(pg, g1)", "only part of the decay is positive"),
        ("S1 = Add(D, kv)", "S1 = Mul(D, kv)", "the state is multiplied by itself"),
        ("S1 = Add(D, kv)", "n = Add(D, kv) S1 = Tanh(n)", "the state is squashed"),
        ("qs = Mul(S1, qc)", "qs = Mul(S0, qc)", "the state before is read"),
        ("dk = Mul(D, kc)", "dk = Mul(D, qc)", "another key is erased"),
        ("dk = Mul(D, kc)", "dk = Mul(S0, kc)", "what is erased has not decayed"),
        ("o = ReduceSum", "u = ReduceMean<keepdims = 0, axes = [2]>(S1) p = ReduceSum", "the state is read in another way"),
    ],
)  # fmt: skip
def test_what_the_operator_does_not_do_is_left_alone(old: str, new: str, why: str) -> None:
    shapes, body, result = SPELLINGS["gated delta rule"]
    changed = body.replace(old, new) + (" o = Add(p, u)" if "u = " in new else "")
    assert changed != body, why
    SPELLINGS["changed"] = shapes, changed, result
    try:
        found = optimised(scan("changed"))
    finally:
        del SPELLINGS["changed"]
    assert (found["LinearAttention"], found["Scan"]) == (0, 1), why


@pytest.mark.parametrize(("kind", "kept"), [("gated delta rule", 0), ("selective scan", 1), ("gated average", 1)])
def test_what_has_no_axis_of_values_stays_a_loop(kind: str, kept: int) -> None:
    result = ortfuse.optimize(scan(kind), passes="canonicalize, vectorize_loops, canonicalize")
    assert [node.op_type for node in result.model.graph.node].count("Scan") == kept
    assert any("without an axis of values" in note for note in result.report.notes) == bool(kept)


def test_a_target_without_the_operator_keeps_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "supports", lambda self, domain, op_type, *types: op_type != "LinearAttention")
    assert optimised(scan("gated delta rule"), verify=None)["Scan"] == 1
