"""What passes do that are no rules, checked where it happens: constants folded, nodes and constants merged, dead code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from crashing import runtime_that
from small_graphs import model

import ortfuse.transforms.cleanup.constant_folding as fold_module
import ortfuse.transforms.cleanup.cse as cse_module
import ortfuse.transforms.cleanup.dce as dce_module
from ortfuse.analysis.facts import Facts
from ortfuse.pipeline import PassManager
from ortfuse.runtime.evaluate_constants import Region, Results, evaluate
from ortfuse.verification import SiteCheck, SiteChecks, verify

WEIGHTS = "<float[3] w = {1, 2, 3}, float[3] v = {1, 2, 4}>"


def run(m: ir.Model, passes: str) -> tuple[list[str], SiteChecks]:
    """The operators that are left, once it is certain that the result computes the same."""
    checks = SiteChecks()
    optimised = m.clone()
    PassManager(passes).run(optimised, inspector=checks)
    assert verify(m, optimised).ok
    return [node.op_type for node in optimised.graph], checks


def undone(checks: SiteChecks) -> list[tuple[str, str]]:
    return [(check.rule, check.site) for check in checks.of_state("undone")]


def states(checks: SiteChecks) -> set[str]:
    return {check.state for check in checks.found.values()}


def test_folded_constants_are_computed_again_by_the_runtime() -> None:
    folded = model("t = Tanh(w) c = Add(t, w) h = Mul(x, c) y = Add(h, t)", initializers=WEIGHTS)
    operators, checks = run(folded, "fold")
    assert operators == ["Mul", "Add"]
    assert states(checks) == {"equal"}
    assert {check.site for check in checks.found.values()} == {"t", "c"}


def test_a_constant_that_was_computed_wrongly_is_not_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(region: Region, wanted: Any) -> Results:
        results = evaluate(region, wanted)
        for value in results.values:
            if value.name == "c":
                results.values[value] = results.values[value] + np.float32(1e-6)
        return results

    monkeypatch.setattr(fold_module, "evaluate", wrong)
    folded = model("t = Tanh(w) u = Relu(t) c = Add(u, w) d = Exp(w) h = Mul(x, c) y = Add(h, d)", initializers=WEIGHTS)
    operators, checks = run(folded, "fold")
    assert operators == ["Tanh", "Relu", "Add", "Mul", "Add"]
    assert undone(checks) == [("fold", "c")]
    assert "other bits" in checks.of_state("undone")[0].reason
    # In a fixpoint it is asked for again, but not checked again, and the pipeline settles.
    assert run(folded, "fixpoint(fold, cse, dce)")[0] == operators


def test_a_constant_that_was_moved_wrongly_is_not_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(node: ir.Node, facts: Facts) -> ir.TensorProtocol:
        return ir.tensor(np.ones((3, 2), np.float32))

    monkeypatch.setattr(fold_module, "moved_constant", wrong)
    matrix = "<float[2,3] w = {1, 2, 3, 4, 5, 6}>"
    moved = model("t = Transpose<perm=[1, 0]>(w) y = MatMul(x, t)", outputs="float[b,2] y", initializers=matrix)
    operators, checks = run(moved, "fold")
    assert operators == ["Transpose", "MatMul"]
    assert undone(checks) == [("fold", "t")]


def test_sizes_that_the_facts_know_are_folded_and_checked() -> None:
    sized = model("n = Shape<start=1, end=2>(x) c = Cast<to=1>(n) y = Mul(x, c)")
    operators, checks = run(sized, "fold")
    assert operators == ["Mul"]
    assert states(checks) == {"equal"}


def test_merged_nodes_are_run_where_they_are_not_the_same_node() -> None:
    operators, checks = run(model("a = Add(x, w) b = Add(w, x) y = Mul(a, b)", initializers=WEIGHTS), "cse")
    assert operators == ["Add", "Mul"]
    assert states(checks) == {"equal"}
    sizes = "n = Shape(x) m = Shape(x) t = Tanh(x) k = Shape(t) r = Reshape(x, n) s = Reshape(r, m) y = Reshape(s, k)"
    operators, checks = run(model(sizes), "cse")
    assert operators.count("Shape") == 1
    assert states(checks) == {"equal"}


def test_nodes_that_are_not_equal_are_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cse_module, "computation", lambda node, imports, facts: (node.op_type, node.inputs[0]))
    m = model("a = LeakyRelu<alpha=0.1>(x) b = LeakyRelu<alpha=0.2>(x) y = Mul(a, b)")
    operators, checks = run(m, "cse")
    assert operators == ["LeakyRelu", "LeakyRelu", "Mul"]
    assert undone(checks) == [("cse", "b")]


def test_constants_that_are_not_equal_are_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cse_module.TensorPool, "first_equal", lambda pool, value: value.graph.initializers["w"])
    operators, checks = run(model("h = Mul(x, w) y = Add(h, v)", initializers=WEIGHTS), "cse")
    assert operators == ["Mul", "Add"]
    assert undone(checks) == [("cse", "v")]


def test_code_that_is_needed_is_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    live = dce_module._live_nodes
    monkeypatch.setattr(dce_module, "_live_nodes", lambda graphs: {n for n in live(graphs) if n.op_type != "Tanh"})
    operators, checks = run(model("a = Exp(x) t = Tanh(x) y = Relu(t)"), "dce")
    assert operators == ["Exp", "Tanh", "Relu"]
    assert [check.rule for check in checks.of_state("undone")] == ["dce"]
    assert "'t' is needed by" in checks.of_state("undone")[0].reason


def test_dead_code_with_graphs_inside_is_removed() -> None:
    body = "then_branch = g1 () => (float[b,3] p) { q = Exp(x) p = Relu(q) }, else_branch = g2 () => (float[b,3] r) { r = Exp(x) }"
    m = model(
        f"c = Cast<to=9>(w) k = ReduceMax<keepdims=0>(w) f = Cast<to=9>(k) d = If(f)<{body}> y = Relu(x)",
        initializers=WEIGHTS,
    )
    operators, checks = run(m, "dce")
    assert operators == ["Relu"]
    assert states(checks) == {"equal"}


def test_what_cannot_be_cut_out_is_let_through_and_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(edit: Any, **options: Any) -> Iterator[SiteCheck]:
        raise ValueError("no cut")

    monkeypatch.setattr("ortfuse.verification.translation_validation.sides", refuse)
    operators, checks = run(model("t = Tanh(w) y = Mul(x, t)", initializers=WEIGHTS), "fold")
    assert operators == ["Mul"]
    assert "no cut" in checks.of_state("unchecked")[0].reason


def test_an_edit_whose_new_side_crashes_the_runtime_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cse_module, "computation", lambda node, imports, facts: (node.inputs[0]) if node.op_type != "Mul" else node
    )
    m = model("a = Softsign(x) b = Tanh(x) y = Mul(a, b)")
    checks = SiteChecks()
    with runtime_that("run", "Softsign"):
        PassManager("cse").run(m, inspector=checks)
    assert [node.op_type for node in m.graph] == ["Softsign", "Tanh", "Mul"]
    assert "crashes when it executes the model" in checks.of_state("undone")[0].reason


@pytest.mark.parametrize(
    "body",
    [
        "m = MatMul(x, w) t = Transpose<perm = [1, 0]>(m) y = Add(t, column)",
        "m = MatMul(x, w) a, c = Split<axis = -1>(m, sizes) t = Transpose<perm = [1, 0]>(a) u = Mul(t, pair) "
        "v = Transpose<perm = [1, 0]>(u) y = Concat<axis = -1>(v, c)",
        "m = MatMul(x, w) a = Slice(m, zero, two, one) c = Slice(m, two, three, one) t = Transpose<perm = [1, 0]>(a) "
        "u = Mul(t, pair) v = Transpose<perm = [1, 0]>(u) y = Concat<axis = -1>(v, c)",
    ],
    ids=["offset behind a Transpose", "one part of a Split", "one of two Slices"],
)
def test_factors_and_offsets_are_compared_behind_what_moves_the_product(body: str) -> None:
    constants = (
        "<float[3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3,1] column = {1, 2, 3}, float[2,1] pair = {2, 3}, "
        "int64[2] sizes = {2, 1}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}>"
    )
    folded = model(body, outputs="float[m,n] y", initializers=constants)
    operators, checks = run(folded, "compose_linear_maps{behind_movement=true}")
    assert states(checks) == {"equal"}
    assert "Mul" not in operators
    assert operators.count("Transpose") == body.count("Transpose")
    assert {check.site for check in checks.found.values()} == {"y" if "column" in body else "u"}
