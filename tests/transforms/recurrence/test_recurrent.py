"""A chain of recurrent cells becomes one operator, however the cells are spelled."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from graphs import operator_counts
from recurrent_models import HIDDEN, INPUTS, SPELLINGS, constants, elements, gru_sized, model, stacked, unrolled

import ortfuse
from ortfuse.analysis.facts import Facts

PASSES = "canonicalize, fuse_recurrent{always=true}, canonicalize"
STEPS = 4
X, STATES = f"float[4, b, {INPUTS}] X", f", float[b, {HIDDEN}] h0, float[b, {HIDDEN}] c0"
Y = f"float[t, b, {HIDDEN}] Y"
LSTM = "lstm of two Gemms"


def weights_of(spelling: str) -> dict[str, Any]:
    return gru_sized(constants()) if spelling.startswith("gru") else constants()


optimised = partial(operator_counts, passes=PASSES, verify="whole")


def chain(body: str, inputs: str = X + STATES, outputs: str = Y, spelling: str = LSTM) -> Counter[str]:
    return optimised(model(body, inputs, outputs, weights_of(spelling)))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_cells_in_any_spelling_are_one_operator(spelling: str) -> None:
    kind = spelling.split()[0].upper()
    found = chain(f"{elements(STEPS)} {unrolled(spelling, STEPS)} {stacked(STEPS)}", spelling=spelling)
    assert found == Counter({kind: 1, "Squeeze": 1, "Unsqueeze": 2 if kind == "LSTM" else 1})


@pytest.mark.parametrize("spelling", [LSTM, "lstm with peepholes", "gru", "gru that resets first", "rnn"])
def test_steps_may_add_and_multiply_in_other_orders(spelling: str) -> None:
    turned = itertools.cycle([False, True, True])

    def swapped(found: re.Match[str]) -> str:
        operator, first, second = found.groups()
        return f"= {operator}({second}, {first})" if next(turned) else found.group()

    cells = re.sub(r"= (Add|Mul)\((\w+), (\w+)\)", swapped, unrolled(spelling, STEPS))
    found = chain(f"{elements(STEPS)} {cells} {stacked(STEPS)}", spelling=spelling)
    assert found[spelling.split()[0].upper()] == 1
    assert not found.keys() & {"Sigmoid", "Tanh"}


def test_a_chain_of_fifty_cells_is_one_operator() -> None:
    found = constants() | {f"at{number}": number for number in range(50)}
    body = f"{elements(50)} {unrolled(LSTM, 50)}"
    result = optimised(
        model(body, X.replace("4", "50") + STATES, f"float[b, {HIDDEN}] h50, float[b, {HIDDEN}] c50", found)
    )
    assert result == Counter({"LSTM": 1, "Squeeze": 2, "Unsqueeze": 2})


@pytest.mark.parametrize("opset", [8, 11, 13, 22])
def test_old_and_new_opsets(opset: int) -> None:
    sized = "Split<axis = 1, split = [2, 2, 2, 2]>(s{t})" if opset < 13 else "Split<axis = 1>(s{t}, four)"
    spelling = SPELLINGS[LSTM].replace("Split<axis = 1>(s{t}, four)", sized)
    made = model(
        f"{elements(STEPS)} {unrolled(spelling, STEPS)}",
        X.replace("4", "7") + STATES,
        f"float[b, {HIDDEN}] h4",
        constants(),
        opset,
    )
    assert optimised(made)["LSTM"] == 1


@pytest.mark.parametrize("spelling", [LSTM, "gru", "gru that resets first", "rnn"])
@pytest.mark.parametrize("initial", ["zeros", "filled"])
def test_an_initial_state_of_zeros_is_left_out(spelling: str, initial: str) -> None:
    body = (
        ""
        if initial == "zeros"
        else "e0 = Shape(x1) e1 = Slice(e0, no0, no1) e2 = Concat<axis = 0>(e1, no2) filled = ConstantOfShape(e2)"
    )
    inputs = X.replace("b", "2") if initial == "zeros" else X
    body = f"{elements(STEPS)} {body} {unrolled(spelling, STEPS, h=initial, c=initial)} {stacked(STEPS)}"
    kind = spelling.split()[0].upper()
    assert chain(body, inputs, spelling=spelling) == Counter({kind: 1, "Squeeze": 1})


@pytest.mark.parametrize("folded", [False, True])
def test_peepholes_that_a_first_state_of_zeros_hides(folded: bool) -> None:
    """A first step without the terms that a cell state of 0 makes 0, though the hidden state is there: exporters fold these."""
    spelling = "lstm with peepholes"
    first = unrolled(spelling, 1, h="filled", c="filled")
    if folded:
        first = (
            first.replace("ip1 = Add(p1, pp1)", "")
            .replace("Sigmoid(ip1)", "Sigmoid(p1)")
            .replace("pp1 = Mul(filled, pi)", "")
        )
        first = (
            first.replace("iq1 = Sub(q1, qp1)", "")
            .replace("Sigmoid(iq1)", "Sigmoid(q1)")
            .replace("qp1 = Mul(pf, filled)", "")
        )
    rest = unrolled(spelling, STEPS - 1, h="h1", c="c1", first=2)
    filled = "e0 = Shape(x1) e1 = Slice(e0, no0, no1) e2 = Concat<axis = 0>(e1, no2) filled = ConstantOfShape(e2)"
    found = chain(f"{elements(STEPS)} {filled} {first} {rest} {stacked(STEPS)}", inputs=X, spelling=spelling)
    assert found == Counter({"LSTM": 1, "Squeeze": 1})


@pytest.mark.parametrize("spelling", [LSTM, "gru", "gru with 1 - z", "rnn"])
@pytest.mark.parametrize("batch", ["b", "2"])
def test_constant_initial_states_that_are_the_same_for_all_rows(spelling: str, batch: str) -> None:
    """With a batch of known size, the product of the hidden state has become part of a constant."""
    sizes = "e0 = Shape(x1) e1 = Slice(e0, no0, no1) e2 = Concat<axis = 0>(e1, no2)"
    states = "first_h = Expand(pf, e2) first_c = Expand(pi, e2)"
    cells = unrolled(spelling, STEPS, h="first_h", c="first_c")
    inputs = X.replace("b", batch)
    found = chain(f"{elements(STEPS)} {sizes} {states} {cells} {stacked(STEPS)}", inputs, spelling=spelling)
    assert found[spelling.split()[0].upper()] == 1
    assert not found.keys() & {"Tanh", "Sigmoid"}


@pytest.mark.parametrize(("axis", "shape"), [(0, "4, b, 3"), (1, "b, 4, 3"), (2, "b, 3, 4")])
@pytest.mark.parametrize("falling", [False, True])
def test_steps_along_any_axis_in_either_direction(axis: int, shape: str, falling: bool) -> None:
    body = f"{elements(STEPS, axis, falling=falling)} {unrolled(LSTM, STEPS)} {stacked(STEPS, falling=falling)}"
    found = chain(body, f"float[{shape}] X{STATES}")
    assert found == Counter({"LSTM": 1, "Squeeze": 1, "Unsqueeze": 2, "Transpose": int(axis > 0)}) - Counter()


def test_some_steps_of_a_longer_sequence() -> None:
    found = chain(f"{elements(STEPS)} {unrolled(LSTM, STEPS)} {stacked(STEPS)}", f"float[9, b, {INPUTS}] X{STATES}")
    assert (found["LSTM"], found["Slice"]) == (1, 1)


def test_two_layers_and_both_directions() -> None:
    forward = unrolled(LSTM, STEPS)
    back = unrolled(LSTM, STEPS, first=5)
    inner = " ".join(f"x{t + 4} = Gather(X, at{4 - t})" for t in range(1, 5))
    joined = " ".join(f"l{t} = Concat<axis = 1>(h{t}, h{9 - t}) x{t + 8} = MatMul(l{t}, D)" for t in range(1, 5))
    upper = unrolled(LSTM, STEPS, first=9)
    names = ", ".join(f"k{t}" for t in range(9, 13))
    stack = " ".join(f"k{t} = Unsqueeze(h{t}, no0)" for t in range(9, 13)) + f" Y = Concat<axis = 0>({names})"
    found = constants() | {"D": constants(3)["J"][:4, :3]}
    made = model(f"{elements(STEPS)} {inner} {forward} {back} {joined} {upper} {stack}", X + STATES, Y, found)
    assert optimised(made)["LSTM"] == 3


def test_products_of_all_steps_at_once_are_the_operators() -> None:
    spelled = SPELLINGS[LSTM].replace("Gemm<transB = 1>({x}, W, b)", "Gather(P, at{p})")
    steps = [spelled.replace("{p}", str(t - 1)).format(x="", h=f"h{t - 1}", c=f"c{t - 1}", t=t) for t in range(1, 5)]
    found = constants() | {"WT": constants()["W"].T.copy()}
    made = model(f"M = MatMul(X, WT) P = Add(M, b) {' '.join(steps)} {stacked(4)}", X + STATES, Y, found)
    assert optimised(made) == Counter({"LSTM": 1, "Squeeze": 1, "Unsqueeze": 2})


def test_inputs_from_anywhere_and_one_for_all_steps() -> None:
    spelled = SPELLINGS["lstm of [x, h] with a forget bias"].replace("({x}, {h})", "({x}, z, {h})")
    found = constants() | {"J": constants(1)["W"].T.repeat(2, 0)[:6]}
    inputs = "".join(f"float[b, {INPUTS}] x{t}, " for t in range(1, 5)) + "float[b, 1] z" + STATES
    made = model(f"{unrolled(spelled, STEPS)} {stacked(STEPS)}", inputs, Y, found)
    assert optimised(made)["LSTM"] == 1


def test_states_that_are_used_elsewhere_are_elements_of_y() -> None:
    body = f"{elements(STEPS)} {unrolled(LSTM, STEPS)} a = Neg(h2) q = Tanh(h4)"
    state = f"float[b, {HIDDEN}]"
    found = chain(body, outputs=f"{state} a, {state} h3, {state} q, {state} c4")
    assert found == Counter({"LSTM": 1, "Squeeze": 2, "Unsqueeze": 2, "Gather": 3, "Neg": 1, "Tanh": 1})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (f"{elements(2)} {unrolled(LSTM, 2)} Y = Neg(h2)", "too few steps"),
        (f"{elements(4)} {unrolled(LSTM, 4)} e = Neg(c2) Y = Add(e, h4)", "a cell state in the middle is used: 2 and 2"),
        (f"{elements(4)} {unrolled(LSTM, 4)} e = Neg(i3) Y = Add(e, h4)", "a gate is used"),
        (f"{elements(2)} {unrolled(LSTM, 2)} x3 = MatMul(h2, D) x4 = Neg(x3) {unrolled(LSTM, 2, h='h2', c='c2', first=3)} Y = Neg(h4)", "fed back"),
        (f"{elements(4)} {unrolled(LSTM, 4)} Y = Neg(h4)".replace("(x3, W, b)", "(x3, W2, b)"), "other weights in one step"),
        (f"{elements(4)} {unrolled(LSTM, 4)} Y = Neg(h4)".replace("(h2, R, rb)", "(h1, R, rb)"), "a state is skipped"),
        (f"{elements(4)} {unrolled(LSTM, 4)} Y = Neg(h4)".replace("f3 = Sigmoid", "f3 = Tanh"), "another activation"),
        (f"{elements(4)} {unrolled(LSTM, 4)} Y = Neg(h4)".replace("fc3 = Mul(f3, c2)", "fc3 = Mul(f3, c1)"), "not the last state"),
    ],
)  # fmt: skip
def test_what_is_no_chain_is_left_alone(body: str, why: str) -> None:
    found = constants() | {"D": constants(5)["K"].T.copy(), "W2": constants(7)["W"]}
    result = optimised(model(body, X + STATES, f"float[p, {HIDDEN}] Y", found))
    assert result["LSTM"] == 0, why
    assert result["Tanh"] >= 4


@pytest.mark.parametrize("states", [", float[e, 2] h0, float[e, 2] c0", ", float[h0, c0] h0, float[h1, c1] c0"])
def test_states_of_a_batch_that_may_be_another_are_left_alone(states: str) -> None:
    made = model(f"{elements(4)} {unrolled(LSTM, 4)}", X + states, "float[p, 2] h4", constants())
    result = ortfuse.optimize(made, passes=PASSES)
    # The sizes of later steps are not known to be those of the first, either.
    assert "LSTM" not in {node.op_type for node in result.model.graph.node}


def test_types_without_a_kernel_are_left_alone() -> None:
    found = {
        name: array.astype("float64") if getattr(array, "dtype", None) == "float32" else array
        for name, array in constants().items()
    }
    body = f"{elements(4)} {unrolled(LSTM, 4)} Y = Neg(h4)"
    assert optimised(model(body, (X + STATES).replace("float", "double"), "double[p, 2] Y", found))["LSTM"] == 0


def test_a_chain_is_checked_where_it_is_and_reported() -> None:
    made = model(f"{elements(STEPS)} {unrolled('gru', STEPS)}", X + STATES, f"float[b, {HIDDEN}] h4", weights_of("gru"))
    result = ortfuse.optimize(made, verify="sites")
    assert [check.state for check in result.sites or () if check.rule == "fuse_recurrent.gru"] == ["equal"]
    assert result.report.families()["fuse_recurrent"] == 1
    (gru,) = [node for node in result.model.graph.node if node.op_type == "GRU"]
    assert {entry.key for entry in gru.metadata_props} >= {"ortfuse.rule", "ortfuse.nodes"}


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(("size", "left_out"), [("b1", True), ("no1", False)])
def test_an_operator_starts_from_zeros_by_itself(kind: str, size: str, left_out: bool) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind] * HIDDEN
    found = constants() | {"w": constants()["W"][None, :gates], "r": constants()["R"][None, :gates]}
    states = "e, e" if kind == "LSTM" else "e"
    body = f"""s = Shape(X) b1 = Slice(s, no1, no2) z = Concat<axis = 0>(no1, {size}, no2) e = ConstantOfShape(z)
        Y, last = {kind}<hidden_size = {HIDDEN}>(X, w, r, , , {states})"""
    made = model(body, X, f"float[t, 1, b, {HIDDEN}] Y", found)
    result = ortfuse.optimize(made, passes=PASSES, verify="sites")
    assert {check.state for check in result.sites or ()} <= {"equal"}
    # A state of another size than the batch makes the operator fail, and so it stays.
    given = [len(node.input) for node in result.model.graph.node if node.op_type == kind]
    assert (given == [3]) is left_out


@pytest.mark.parametrize(("batch", "operators"), [("1", {"RNN"}), ("b", {"Tanh", "Gemm"}), ("16", {"Tanh", "Gemm"})])
def test_an_rnn_is_made_only_where_the_runtime_has_a_fast_one(batch: str, operators: set[str]) -> None:
    inputs = f"float[4, {batch}, {INPUTS}] X, float[{batch}, {HIDDEN}] h0"
    made = model(f"{elements(STEPS)} {unrolled('rnn', STEPS)}", inputs, f"float[{batch}, {HIDDEN}] h4", constants())
    result = ortfuse.optimize(made, passes="canonicalize, fuse_recurrent, canonicalize")
    assert operators <= {node.op_type for node in result.model.graph.node}
    assert any("RNN is slower" in note for note in result.report.notes) is ("RNN" not in operators)


@pytest.mark.parametrize(("kind", "stays"), [("gru", True), ("lstm", False)])
def test_for_quantization_only_cells_of_an_operator_that_is_quantized_become_one(kind: str, stays: bool) -> None:
    """quantize_dynamic lowers products and LSTM, and leaves GRU and RNN in float32."""
    spelling = next(name for name in SPELLINGS if name.startswith(kind))
    body = f"{elements(STEPS)} {unrolled(spelling, STEPS)} {stacked(STEPS)}"
    made = model(body, X + STATES, Y, weights_of(spelling))
    result = ortfuse.optimize(made, purpose="quantization", verify="whole")
    assert {"LSTM", "GRU"}.isdisjoint(node.op_type for node in result.model.graph.node) is stays
    assert any("GRU cells stays as it is" in note for note in result.report.notes) is stays


@pytest.mark.parametrize("join", ["Add({0}, {0})", "Mul({0}, {0})", "Add({0}, x)"])
def test_sums_of_sums_without_end_take_no_time(join: str) -> None:
    names = ["x", *(f"s{number}" for number in range(1000))]
    body = " ".join(f"{name} = {join.format(before)}" for before, name in itertools.pairwise(names))
    made = model(f"{body} Y = Tanh({names[-1]})", f"float[b, {HIDDEN}] x", f"float[b, {HIDDEN}] Y", {})
    assert "Tanh" in {node.op_type for node in ortfuse.optimize(made, passes="fuse_recurrent").model.graph.node}


def test_nested_sums_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sum may be part of the cells behind it; the questions asked must not double with each of them."""
    names = ["x", *(f"s{number}" for number in range(60))]
    body = " ".join(f"{after} = Add({before}, {before})" for before, after in pairwise(names))
    made = model(f"{body} Y = Tanh({names[-1]})", "float[b, 2] x", "float[b, 2] Y", {})
    asked, is_const = [], Facts.is_const
    monkeypatch.setattr(Facts, "is_const", lambda self, value: asked.append(value) or is_const(self, value))
    ortfuse.optimize(made, passes="fuse_recurrent")
    assert len(asked) < 25 * len(names)


@pytest.mark.parametrize(
    ("kind", "axis", "steps", "left_out"),
    [
        ("LSTM", 0, "t", True),
        ("RNN", 0, "t", True),
        ("GRU", 0, "5", True),
        ("GRU", 0, "t", False),
        ("LSTM", 1, "t", False),
    ],
)
def test_lengths_of_whole_sequences_are_left_out(kind: str, axis: int, steps: str, left_out: bool) -> None:
    """Of no step, the runtime's GRU ends the process unless it is given lengths."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind] * HIDDEN
    found = constants() | {"w": constants()["W"][None, :gates], "r": constants()["R"][None, :gates]}
    body = f"""s = Shape(X) b1 = Slice(s, no1, no2) t1 = Gather(s, no{axis}) l = Expand(t1, b1) n = Cast<to = 6>(l)
        Y, last = {kind}<hidden_size = {HIDDEN}>(X, w, r, , n)"""
    made = model(
        body, X.replace("4, b", f"{steps}, b"), f"float[{steps}, 1, b, {HIDDEN}] Y, float[1, b, {HIDDEN}] last", found
    )
    result = ortfuse.optimize(made, passes=PASSES, verify="whole" if left_out else None)
    given = [len(node.input) for node in result.model.graph.node if node.op_type == kind]
    assert (given == [3]) is left_out
