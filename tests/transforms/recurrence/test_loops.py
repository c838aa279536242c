"""Loops and Scans of recurrent cells, and of what treats elements alike, compute all their runs at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import run
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from recurrent_models import HIDDEN, INPUTS, constants, gru_sized, model, step

import ortfuse
from ortfuse.io.convert_model_objects import enter
from ortfuse.ir.walk import nodes

PASSES = "canonicalize, vectorize_loops{always=true}, canonicalize"
LSTM = "lstm of two Gemms"
STATE, X = f"float[b, {HIDDEN}]", f"float[t, b, {INPUTS}] X"
KINDS = [LSTM, "gru", "gru that resets first", "rnn with relu"]


def weights_of(spelling: str) -> dict[str, Any]:
    return gru_sized(constants()) if spelling.startswith("gru") else constants()


def names(spelling: str) -> list[str]:
    return ["h", "c"] if spelling.startswith("lstm") else ["h"]


def scan(spelling: str, options: str = "", more: str = "", results: str = "y1", x: str = "x1", taken: str = "X") -> str:
    """A Scan of one cell; `y{n}` are its stacked outputs, `last_h` and `last_c` the final states."""
    states = names(spelling)
    head = ", ".join([*(f"{STATE} {name}0" for name in states), f"float[b, n] {x}"])
    out = ", ".join(
        [*(f"{STATE} {name}1" for name in states), *(f"float[b, p] {name}" for name in results.split(", "))]
    )
    left = ", ".join([*(f"last_{name}" for name in states), *(f"Y{name[1:]}" for name in results.split(", "))])
    body = f"body = one ({head}) => ({out}) {{ {step(spelling, 'x1', 'h0', 'c0', 1)} y1 = Identity(h1) {more} }}"
    given = ", ".join([*(f"first_{name}" for name in states), taken])
    return f"{left} = Scan<num_scan_inputs = 1, {options} {body}>({given})"


def loop(spelling: str, *, runs: str = "count", go: str = "Identity(go)", more: str = "", state: str = "h1") -> str:
    """A Loop of one LSTM cell over X."""
    body = f"""body = one (int64 i, bool go, {STATE} h0, {STATE} c0) => (bool on, {STATE} {state}, {STATE} c1, {STATE} y1) {{
        on = {go} x1 = Gather(X, i) {step(spelling, "x1", "h0", "c0", 1)} y1 = Identity(h1) {more} }}"""
    return f"last_h, last_c, Y1 = Loop<{body}>({runs}, yes, first_h, first_c)"


def inputs_of(spelling: str, sequence: str = X) -> str:
    return ", ".join([sequence, *(f"{STATE} first_{name}" for name in names(spelling))])


def optimised(made: onnx.ModelProto) -> tuple[Counter[str], ortfuse.Result]:
    """The operators of the result, bodies included, which computes the same in float64."""
    result = ortfuse.optimize(made, passes=PASSES, verify="whole")
    return Counter(node.op_type for node in nodes(enter(result.model)[0])), result


def run_on_nothing(made: onnx.ModelProto) -> list[Any]:
    """The results for a sequence of length 0."""
    feeds = {"X": np.zeros((0, 2, INPUTS), np.float32)}
    feeds |= {f"first_{name}": np.ones((2, HIDDEN), np.float32) * 3 for name in ("h", "c")}
    return run(made, {value.name: feeds[value.name] for value in made.graph.input})


@pytest.mark.parametrize("spelling", KINDS)
@pytest.mark.parametrize("direction", [0, 1])
def test_a_scan_of_a_cell_is_one_operator_for_any_length(spelling: str, direction: int) -> None:
    options = f"scan_input_directions = [{direction}], scan_output_directions = [{direction}],"
    outputs = f"float[t, b, {HIDDEN}] Y1, {STATE} last_h" + (f", {STATE} last_c" if spelling == LSTM else "")
    made = model(scan(spelling, options), inputs_of(spelling), outputs, weights_of(spelling))
    found, _ = optimised(made)
    assert found[spelling.split()[0].upper()] == 1
    assert "Scan" not in found


@pytest.mark.parametrize("spelling", KINDS)
def test_a_sequence_of_nothing_does_not_end_the_process(spelling: str) -> None:
    made = model(scan(spelling), inputs_of(spelling), f"float[t, b, {HIDDEN}] Y1", weights_of(spelling))
    result = ortfuse.optimize(made, passes=PASSES).model
    with pytest.raises(Fail):
        run_on_nothing(made)
    # A GRU over no step at all would not return.
    assert run_on_nothing(result)[0].shape == (0, 2, HIDDEN)


def test_a_scan_along_other_axes_of_known_length() -> None:
    options = "scan_input_axes = [1], scan_output_axes = [-2],"
    outputs = f"float[b, t, {HIDDEN}] Y1, {STATE} last_h, {STATE} last_c"
    made = model(scan(LSTM, options), inputs_of(LSTM, f"float[b, 4, {INPUTS}] X"), outputs, constants())
    assert optimised(made)[0] == Counter({"LSTM": 1, "Transpose": 2, "Squeeze": 3, "Unsqueeze": 2})


def test_what_follows_the_cell_in_a_body_is_computed_for_all_runs_at_once() -> None:
    more = "l1 = Gemm<transB = 1>(h1, W, b) y2 = Sigmoid(l1) m = Concat<axis = 1>(h1, h1) s = Add(x1, one) q = Mul(s, k) y3 = Tanh(q)"
    body = scan(LSTM, more=more.replace("m = Concat<axis = 1>(h1, h1) ", ""), results="y2, y3")
    found = constants() | {"W": constants()["W"], "k": np.ones(INPUTS, np.float32) * 2}
    body = body.replace("(h1, W, b)", "(h1, R, b)")
    outputs = f"float[t, b, {4 * HIDDEN}] Y2, float[t, b, {INPUTS}] Y3"
    result, _ = optimised(model(body, inputs_of(LSTM), outputs, found))
    assert (result["LSTM"], result["Scan"], result["MatMul"], result["Tanh"]) == (1, 0, 1, 1)


def test_products_before_the_loop_are_the_operators() -> None:
    spelled = "r1 = Gemm<transB = 1>(h0, R, rb) s1 = Add(x1, r1) h1 = Tanh(s1)"
    body = f"M = MatMul(X, K) P = Add(M, cb) last_h, Y1 = Scan<num_scan_inputs = 1, body = one ({STATE} h0, {STATE} x1) => ({STATE} h1, {STATE} y1) {{ {spelled} y1 = Identity(h1) }}>(first_h, P)"
    found = constants() | {"R": constants()["U"], "rb": constants()["cb"]}
    made = model(body, inputs_of("rnn"), f"float[t, b, {HIDDEN}] Y1", found)
    assert optimised(made)[0] == Counter({"RNN": 1, "Squeeze": 1, "Unsqueeze": 1})


@pytest.mark.parametrize("spelling", [LSTM, "lstm of [x, h] with a forget bias"])
def test_a_loop_over_all_elements_is_one_operator(spelling: str) -> None:
    found = constants() | {"count": np.int64(4), "yes": np.bool_(True)}
    outputs = f"float[p, b, {HIDDEN}] Y1, {STATE} last_h, {STATE} last_c"
    made = model(loop(spelling), inputs_of(LSTM, f"float[4, b, {INPUTS}] X"), outputs, found)
    assert optimised(made)[0] == Counter({"LSTM": 1, "Squeeze": 3, "Unsqueeze": 2})


@pytest.mark.parametrize("length", ["4", "t"])
def test_states_may_be_kept_in_a_sequence(length: str) -> None:
    """Nothing joins a sequence without elements, so that a Loop of open length has run."""
    body = f"""sx = Shape(X) count = Gather(sx, at1) e = SequenceEmpty() last_h, last_c, q = Loop<body = one (int64 i, bool go, {STATE} h0, {STATE} c0, seq({STATE}) s0) =>
        (bool on, {STATE} h1, {STATE} c1, seq({STATE}) s2) {{ on = Identity(go) x1 = Gather<axis = 1>(X, i)
        {step(LSTM, "x1", "h0", "c0", 1)} s2 = SequenceInsert(s0, h1) }}>(count, yes, first_h, first_c, e)
        Y1 = ConcatFromSequence<axis = 1, new_axis = 1>(q)"""
    found = constants() | {"yes": np.bool_(True)}
    made = model(body, inputs_of(LSTM, f"float[b, {length}, {INPUTS}] X"), f"float[b, p, {HIDDEN}] Y1", found)
    assert optimised(made)[0] == Counter({"LSTM": 1, "Transpose": 2, "Squeeze": 1, "Unsqueeze": 2})


@pytest.mark.parametrize(
    ("body", "sequence", "why"),
    [
        (loop(LSTM, runs="n"), f"float[4, b, {INPUTS}] X, int64 n", "an unknown number of runs"),
        (loop(LSTM), f"float[3, b, {INPUTS}] X", "more runs than elements"),
        (f"sx = Shape(X) n = Gather(sx, at0) {loop(LSTM, runs='n')}", X, "perhaps no run at all"),
        (loop(LSTM).replace("on = Identity(go)", "m0 = ReduceMax<keepdims = 0>(h0) on = Less(m0, one)"), f"float[4, b, {INPUTS}] X", "an early exit"),
        (loop(LSTM, more="h2 = Neg(h1)", state="h2"), f"float[4, b, {INPUTS}] X", "another state"),
        (loop(LSTM).replace("Gather(X, i)", "Gather(X, at1)"), f"float[4, b, {INPUTS}] X", "one element for all"),
        (loop(LSTM, more="z = CumSum(h1, at1)").replace("y1 = Identity(h1)", "").replace("z = ", "y1 = "), f"float[4, b, {INPUTS}] X", "a sum over the batch"),
    ],
)  # fmt: skip
def test_what_is_no_loop_over_a_sequence_is_left_alone(body: str, sequence: str, why: str) -> None:
    found = constants() | {"count": np.int64(4), "yes": np.bool_(True), "two_runs": np.int64(2)}
    outputs = f"float[p, b, {HIDDEN}] Y1, {STATE} last_h, {STATE} last_c"
    result = ortfuse.optimize(model(body, inputs_of(LSTM, sequence), outputs, found), passes=PASSES)
    assert "Loop" in {node.op_type for node in result.model.graph.node}, why


@pytest.mark.parametrize("direction", [0, 1])
def test_a_state_before_a_run_is_what_it_was_after_the_one_before(direction: int) -> None:
    """The element before and the one before that, and what an LSTM was before each step."""
    options = f"scan_input_directions = [{direction}],"
    delayed = f"""last, before, Y = Scan<num_scan_inputs = 1, {options} scan_output_directions = [{direction}],
        body = one (float[b, n] p, float[b, n] q, float[b, n] x) => (float[b, n] p1, float[b, n] q1, float[b, n] y) {{ p1 = Tanh(x) q1 = Identity(p) r = Sub(q, p) y = Mul(r, x) }}>(A, B, X)"""
    outputs = "float[b, 3] last, float[b, 3] before, float[t, b, 3] Y"
    made = model(delayed, "float[t, b, 3] X, float[b, 3] A, float[b, 3] B", outputs, {})
    assert optimised(made)[0].keys() == {"Concat", "Gather", "Mul", "Slice", "Sub", "Tanh", "Unsqueeze"}
    options += f" scan_output_directions = [{direction}, {direction}],"
    hidden = scan(LSTM, options, more="y2 = Sub(h0, h1)", results="y1, y2")
    made = model(hidden, inputs_of(LSTM), f"float[t, b, {HIDDEN}] Y1, float[t, b, {HIDDEN}] Y2", constants())
    assert (found := optimised(made)[0])["LSTM"] == found["Sub"] == 1
    assert not found["Scan"]


@pytest.mark.parametrize(
    "after", ["p1 = Identity(q) q1 = Identity(p)", "p1 = Mul(p, x) q1 = Identity(x)", "p1 = Neg(q) q1 = Add(p, x)"]
)
def test_states_that_depend_on_what_they_were_are_left_alone(after: str) -> None:
    body = f"""last, before, Y = Scan<num_scan_inputs = 1, body = one (float[b, n] p, float[b, n] q, float[b, n] x) =>
        (float[b, n] p1, float[b, n] q1, float[b, n] y) {{ {after} y = Sub(p, q) }}>(A, B, X)"""
    made = model(body, "float[t, b, 3] X, float[b, 3] A, float[b, 3] B", "float[t, b, 3] Y", {})
    assert optimised(made)[0]["Scan"] == 1


def test_a_state_of_other_sizes_before_the_first_run_is_left_alone() -> None:
    body = """last, Y = Loop<body = one (int64 i, bool go, float[p, q] s) => (bool on, float[p, q] r, float[p, q] y) {
        on = Identity(go) x = Gather(X, i) r = Tanh(x) y = Sub(x, s) }>(count, yes, A)"""
    found = {"count": np.int64(4), "yes": np.bool_(True)}
    made = model(body, "float[4, b, 3] X, float[1, 3] A", "float[p, b, 3] Y", found)
    assert optimised(made)[0]["Loop"] == 1


def test_a_loop_that_may_not_run_is_noted() -> None:
    found = constants() | {"yes": np.bool_(True)}
    made = model(f"sx = Shape(X) n = Gather(sx, at0) {loop(LSTM, runs='n')}", inputs_of(LSTM), f"{STATE} last_h", found)
    _, result = optimised(made)
    assert any("LSTM" in note and "may not run at all" in note for note in result.report.notes)


def test_a_loop_of_open_length_is_one_operator_if_it_is_said_to_run() -> None:
    found = constants() | {"yes": np.bool_(True)}
    body = f"sx = Shape(X) n = Gather(sx, at0) {loop(LSTM, runs='n')}"
    made = model(body, inputs_of(LSTM), f"{STATE} last_h, float[t, b, {HIDDEN}] Y1", found)
    result = ortfuse.optimize(made, passes="canonicalize, vectorize_loops{nonempty=true}, canonicalize", verify="whole")
    assert "LSTM" in {node.op_type for node in result.model.graph.node}


def test_a_scan_without_states_is_vectorised() -> None:
    body = """Y = Scan<num_scan_inputs = 2, body = one (float[b, n] x, float[b, n] z) => (float[b, n] y) {
        p = Mul(x, z) q = Clip(p, low, high) r = Sub(q, k) y = Exp(r) }>(X, Z)"""
    found = {"low": np.float32(-1), "high": np.float32(1), "k": np.ones((1, 1), np.float32)}
    made = model(body, "float[t, b, 3] X, float[t, b, 3] Z", "float[t, b, 3] Y", found)
    assert optimised(made)[0] == Counter({"Mul": 1, "Clip": 1, "Sub": 1, "Exp": 1})


def test_what_adds_axes_is_vectorised() -> None:
    body = "Y = Scan<num_scan_inputs = 1, body = one (float[n] x) => (float[m, n] y) { y = Add(x, k) }>(X)"
    made = model(body, "float[t, 3] X", "float[t, 2, 3] Y", {"k": np.ones((2, 3), np.float32)})
    assert optimised(made)[0] == Counter({"Unsqueeze": 1, "Add": 1})


def test_an_rnn_of_many_rows_stays_a_loop() -> None:
    made = model(scan("rnn"), inputs_of("rnn"), f"float[t, b, {HIDDEN}] Y1", constants())
    result = ortfuse.optimize(made, passes="canonicalize, vectorize_loops, canonicalize")
    assert "Scan" in {node.op_type for node in result.model.graph.node}
    assert any("RNN is slower" in note for note in result.report.notes)


def test_what_is_the_same_in_all_runs_is_still_stacked() -> None:
    body = "body = one (float[b] x1) => (float[b] same, float[b] y1) { same = Add(r, two) y1 = Exp(x1) }"
    body = body.replace("two", "in2").replace("{ same", "{ in2 = Constant<value = float[1] {2.0}>() same")
    made = model(
        f"S, Y = Scan<num_scan_inputs = 1, {body}>(X)", "float[t, b] X, float[b] r", "float[t, b] S, float[t, b] Y", {}
    )
    assert optimised(made)[0]["Scan"] == 1


def test_elements_at_a_vector_of_one_index_keep_their_axis() -> None:
    body = "body = one (int64[1] i, bool go) => (bool on, float[p, b] y1) { on = Identity(go) e = Gather(X, i) y1 = Exp(e) }"
    made = model(
        f"Y = Loop<{body}>(n, yes)", "float[9, b] X", "float[t, p, b] Y", {"n": np.int64(9), "yes": np.bool_(True)}
    )
    assert optimised(made)[0]["Loop"] == 1


@pytest.mark.parametrize("opset", [9, 17])
def test_a_gru_over_a_sequence_of_open_length_is_padded_as_the_opset_writes_it(opset: int) -> None:
    body = scan("gru").replace(
        "Split<axis = 1>(a1, three)",
        "Split<axis = 1, split = [2, 2, 2]>(a1)" if opset < 13 else "Split<axis = 1>(a1, three)",
    )
    body = body.replace(
        "Split<axis = 1>(r1, three)",
        "Split<axis = 1, split = [2, 2, 2]>(r1)" if opset < 13 else "Split<axis = 1>(r1, three)",
    )
    made = model(body, inputs_of("gru"), f"float[t, b, {HIDDEN}] Y1", weights_of("gru"), opset)
    assert optimised(made)[0]["GRU"] == 1


def counted(limit: float = 4, step: int = 1) -> onnx.ModelProto:
    """A Loop as of TensorFlow, which counts besides, hands on its weights, and compares what it counts with the length."""
    cell = "m = MatMul(x1, w) r = MatMul(h0, U) s = Add(m, r) a = Add(s, cb) h1 = Tanh(a)"
    body = f"""body = one (int64 i, bool go, int64 n, {STATE} h0, float[{INPUTS}, {HIDDEN}] w) =>
        (bool on, int64 n1, {STATE} h1, float[{INPUTS}, {HIDDEN}] w, {STATE} y1) {{
        n1 = Add(n, step) x1 = Gather(X, n) {cell} y1 = Identity(h1)
        f = Cast<to = 1>(i) g = Cast<to = 1>(n1) b1 = Less(f, limit) b2 = Less(g, limit) on = And(b1, b2) }}"""
    numbers = {"count": np.int64(4), "yes": np.bool_(True), "limit": np.float32(limit)}
    numbers |= {"begin": 0, "step": step}
    text = f"last_n, last_h, last_w, Y1 = Loop<{body}>(count, yes, begin, first_h, K)"
    sequence = f"float[4, b, {INPUTS}] X"
    return model(text, inputs_of("rnn", sequence), f"float[p, b, {HIDDEN}] Y1", constants() | numbers)


def test_a_loop_that_counts_besides_and_ends_when_all_is_counted() -> None:
    found, _ = optimised(counted())
    assert (found["RNN"], found["Loop"]) == (1, 0)


def test_a_loop_that_ends_before_all_elements_are_taken_is_over_a_part() -> None:
    found, _ = optimised(counted(3.0))
    assert (found["RNN"], found["Loop"], found["Slice"]) == (1, 0, 1)
    numbers = constants() | {"count": np.int64(4), "yes": np.bool_(True), "two_runs": np.int64(2)}
    outputs = f"float[p, b, {HIDDEN}] Y1, {STATE} last_h, {STATE} last_c"
    made = model(loop(LSTM, go="Less(i, two_runs)"), inputs_of(LSTM, f"float[4, b, {INPUTS}] X"), outputs, numbers)
    assert optimised(made)[0] == Counter({"LSTM": 1, "Slice": 1, "Squeeze": 3, "Unsqueeze": 2})


def test_a_loop_that_is_ended_by_floating_point_numbers_in_steps_of_2_stays() -> None:
    assert optimised(counted(4.0, 2))[0]["Loop"] == 1
