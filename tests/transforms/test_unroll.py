"""Loops of a few runs are their runs, one after the other."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from recurrent_models import model

import ortfuse

PASSES = "canonicalize, unroll_loops, canonicalize"
NUMBERS = {
    "three": np.int64(3),
    "one": np.int64(1),
    "many": np.int64(20),
    "yes": np.bool_(True),
    "ones": np.ones((2, 2), np.float32),
}


def operators(made: onnx.ModelProto, verify: str = "whole") -> list[str]:
    result = ortfuse.optimize(made, passes=PASSES, verify=verify)
    return [node.op_type for node in result.model.graph.node]


def loop(limit: str = "three", go: str = "Identity(on)", body: str = "t = MatMul(s, x)") -> onnx.ModelProto:
    inner = f"body = one (int64 i, bool on, float[2, 2] s) => (bool next, float[2, 2] t, float[2, 2] each) {{ next = {go} {body} each = Tanh(t) }}"
    outputs = "float[2, 2] last, float[k, 2, 2] Y"
    return model(f"last, Y = Loop<{inner}>({limit}, yes, ones)", "float[2, 2] x, int64 n, bool c", outputs, NUMBERS)


@pytest.mark.parametrize("verify", ["whole", "sites"])
def test_a_loop(verify: str) -> None:
    found = operators(loop(), verify)
    assert (found.count("MatMul"), found.count("Loop")) == (3, 0)


def test_a_loop_that_its_condition_ends_early_runs_as_often_as_it_says() -> None:
    found = operators(loop(go="Less(i, one)"))
    assert (found.count("MatMul"), found.count("Loop")) == (2, 0)


def test_the_number_of_the_run_is_known() -> None:
    found = operators(loop(body="f = Cast<to = 1>(i) u = Mul(s, f) t = Add(u, x)"))
    assert "Cast" not in found
    assert "Loop" not in found


BRANCHES = """If<then_branch = first () => (float[2, 2] t1) { t1 = MatMul(s, x) },
    else_branch = others () => (float[2, 2] t2) { r = Relu(s) t2 = Add(r, x) }>"""


def test_an_if_that_goes_by_the_number_of_the_run_is_one_of_its_branches() -> None:
    found = operators(loop(body=f"p = Less(i, one) t = {BRANCHES}(p)"))
    assert (found.count("MatMul"), found.count("Add")) == (1, 2)
    assert not {"If", "Loop"} & {*found}


@pytest.mark.parametrize(
    "condition", ["p = Identity(c)", "f = ReduceMax<keepdims = 0>(s) g = Cast<to = 1>(i) p = Less(g, f)"]
)
def test_a_loop_around_another_if_stays(condition: str) -> None:
    assert "Loop" in operators(loop(body=f"{condition} t = {BRANCHES}(p)"))


@pytest.mark.parametrize("direction", [0, 1])
def test_a_scan_in_either_direction(direction: int) -> None:
    inner = "body = one (float[2] s, float[2] x) => (float[2] t, float[2] y) { c = CumSum(x, zero) t = Mul(s, c) y = Add(t, x) }"
    options = f"num_scan_inputs = 1, scan_input_directions = [{direction}], scan_output_directions = [{direction}], scan_input_axes = [1], scan_output_axes = [1]"
    made = model(
        f"last, Y = Scan<{options}, {inner}>(first, X)",
        "float[2] first, float[2, 4] X",
        "float[2] last, float[2, 4] Y",
        {"zero": np.int64(0)},
    )
    assert operators(made).count("CumSum") == 4


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (loop("many"), "too many runs"),
        (loop("n"), "an unknown number of runs"),
        (loop(go="And(on, c)"), "it may end early"),
        (loop(body="u = If (c) <then_branch = a () => (float[2, 2] r) { r = Exp(s) }, else_branch = b () => (float[2, 2] q) { q = Neg(s) }> t = Add(u, x)"), "a body in the body"),
        (loop(body=" ".join(f"a{n} = Tanh({f'a{n - 1}' if n else 's'})" for n in range(25)) + " t = Add(a24, x)"), "too many nodes"),
    ],
)  # fmt: skip
def test_what_stays(made: onnx.ModelProto, why: str) -> None:
    assert "Loop" in operators(made), why


def test_counters_that_a_body_takes_as_vectors_are_vectors() -> None:
    inner = """body = one (int64[1] i, bool[1] on) => (bool[1] next, float[p, 2] each, int64[q] n)
        { next = Identity(on) each = Gather(x, i) n = Shape(on) }"""
    made = model(f"Y, N = Loop<{inner}>(two, yes)", "float[4, 2] x", "float[k, p, 2] Y, int64[k, q] N", {"two": np.int64(2), "yes": np.bool_([True])})  # fmt: skip
    assert "Loop" not in operators(made)


def test_nodes_of_the_runs_have_names_of_their_own() -> None:
    made = loop()
    for node in made.graph.node[0].attribute[0].g.node:
        node.name = f"cell/{node.op_type}"
    result = ortfuse.optimize(made, passes=PASSES, verify="whole")
    names = [node.name for node in result.model.graph.node]
    assert len(names) == len(set(names))
    assert {"cell/MatMul", "cell/Tanh"} < {*names}
