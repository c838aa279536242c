"""Linear maps are composed at least as far as the rules did that the pass replaces, and compute the same."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from former_instances import cost, instance
from rewriting import composed, ops, parse, same

import ortfuse
from ortfuse.verification import Session
from tests.fuzz.linear_chains import TOLERANCE, error_of

FORMER = json.loads((Path(__file__).parent / "former_linear_maps.json").read_text())
"""Instances that were built from the rule tests of the rules, with their constants and the cost of what the rules left."""


def inputs(model: ir.Model) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        value.name or "": np.asarray(
            random.standard_normal([dim if isinstance(dim, int) else 3 for dim in value.shape or ()])
        ).astype(value.dtype.numpy() if value.dtype else np.float32)
        for value in model.graph.inputs
    }


def results(model: ir.Model) -> list[np.ndarray]:
    return list(Session(model, optimise=False, threads=1).run(inputs(model)).values())


@pytest.mark.parametrize("rule", FORMER)
def test_instances_of_former_rules(rule: str) -> None:
    for text, constants, left in FORMER[rule]:
        original = instance(text, constants)
        found = composed(original)
        assert cost(found) <= left, [node.op_type for node in found.graph]
        tolerance = 3e-2 if "float16" in text else 2e-4
        for before, after in zip(results(original), results(found), strict=True):
            largest = np.abs(before).max(initial=1)
            np.testing.assert_allclose(after, before, rtol=tolerance, atol=tolerance * largest)


def test_random_chains_compute_the_same() -> None:
    """Seeds of `python -m tests.fuzz.linear_chains`, which compares tens of thousands."""
    assert max(error_of(seed, Counter()) for seed in range(60)) <= TOLERANCE


WEIGHTS = (
    "<float[2,2,1,1] w = {1, 0.5, -1, 2}, float[2,2,3,3] v = {" + ", ".join(str(n / 8) for n in range(36)) + "}, "
    "float[2] t = {1, 2}, float[2,1,1] s = {0.5, 2}, float[1,3,1] row = {1, 2, 3}, float two = {2}, float[2] minus = {-1, 1}, "
    "int64[3] flat = {0, 2, -1}, int64[1] ones = {1}, int64[1] nines = {9}, "
    "int64[4] mixed = {0, 3, 2, 3}, float[3,3] h = {1, 2, 3, 4, 5, 6, 7, 8, 1}>"
)


def image(body: str, output: str = "float[n,i,j,k] y") -> ir.Model:
    return parse(f'<ir_version: 8, opset_import: ["": 17]> g (float[n,2,3,3] x) => ({output}) {WEIGHTS} {{ {body} }}')


COMPOSED = {
    "a factor through a Reshape": ("c = Conv(x, w) r = Reshape(c, flat) y = Mul(r, e)", "Conv Reshape"),
    "of some operands of a Concat": ("a = Mul(x, s) b = Relu(x) c = Concat<axis = 1>(a, b) y = Conv(c, u)", "Relu Concat Conv"),
    "of all operands of a Concat": ("a = Neg(x) b = Sub(s, x) d = Mul(x, two) c = Concat<axis = 1>(a, b, d) y = Relu(c)", "Concat Mul Add Relu"),
    "products in a Concat": ("a = MatMul(x, m) b = MatMul(x, m) y = Concat<axis = -1>(a, b)", "MatMul"),
    "a residual product": ("a = MatMul(x, m) y = Add(a, x)", "MatMul"),
    "columns of a product": ("a = MatMul(x, m) y = Slice(a, ones, nines, axis)", "MatMul"),
    "maxima of positive multiples": ("c = Conv(x, w) p = GlobalMaxPool(c) y = Mul(p, s)", "Conv GlobalMaxPool"),
    "a Sum of two, by which fusions of the runtime are blocked": ("a = Add(x, s) b = Sum(a, s) y = Relu(b)", "Add Relu"),
    "a product whose rows a convolution reads": ("a = MatMul(x, m) r = Transpose<perm = [0, 3, 1, 2]>(a) y = Conv(r, z)", "MatMul Transpose"),
    "products around movement": ("a = MatMul(x, m) r = Transpose<perm = [2, 0, 1, 3]>(a) y = MatMul(r, m)", "MatMul Transpose"),
    "a mean over channels": ("c = Conv(x, w) p = ReduceMean<axes = [1]>(c) y = Mul(p, two)", "Conv ReduceMean"),
}  # fmt: skip
MORE = {
    "z": "float[2,3,1,1] z = {1, 2, 3, -1, 0.5, 4}",
    "e": "float[2,1] e = {0.5, 2}", "u": "float[1,4,1,1] u = {1, 2, 3, 4}", "axis": "int64[1] axis = {3}",
    "m": "float[3,3] m = {1, 2, 3, 4, 5, 6, 7, 8, 1}",
}  # fmt: skip


@pytest.mark.parametrize("reason", COMPOSED)
def test_maps_are_composed_that_no_rule_was_for(reason: str) -> None:
    body, left = COMPOSED[reason]
    words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    more = "".join(f", {text}" for name, text in MORE.items() if name in words)
    output = "float[n,i,j] y" if "Reshape" in body else "float[n,i,j,k] y"
    text = f"g (float[n,2,3,3] x) => ({output}) {WEIGHTS[:-1]}{more}> {{ {body} }}"
    original = parse(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    found = composed(original)
    assert ops(found) == left
    same(original, found, {"x": np.random.default_rng(0).standard_normal((2, 2, 3, 3)).astype(np.float32)})


KEPT = {
    "an offset before padding": "a = Add(x, s) y = Conv<pads = [1, 1, 1, 1]>(a, v)",
    "an offset behind padding with zeros": "c = Conv(x, w) p = Pad(c, border) y = Add(p, s)",
    "a number for each row": "c = Conv(x, w) y = Mul(c, row)",
    "maxima of negative multiples": "c = Conv(x, w) p = GlobalMaxPool(c) n = Neg(p) y = Mul(n, s)",
    "a product of whose rows a convolution reads columns": "a = MatMul(x, h) r = Transpose<perm = [0, 1, 3, 2]>(a) y = Conv(r, w)",
    "a product whose columns and rows are mixed": "a = MatMul(x, h) r = Reshape(a, mixed) y = MatMul(r, h)",
    "rows of a Concat along channels": "a = Mul(x, row) b = Add(a, s) c = Mul(x, two) d = Sub(c, s) y = Concat<axis = 1>(b, d)",
    "a sum of other positions": "a = Conv<pads = [1, 1, 1, 1]>(x, v) b = Conv<pads = [2, 2, 0, 0]>(x, w) c = Relu(b) y = Relu(a)",
}  # fmt: skip


@pytest.mark.parametrize("reason", KEPT)
def test_maps_that_would_compute_something_else_stay(reason: str) -> None:
    body = KEPT[reason]
    border = ", int64[8] border = {0, 0, 1, 1, 0, 0, 1, 1}>" if "border" in body else ">"
    text = f"g (float[n,2,3,3] x) => (float[n,i,j,k] y) {WEIGHTS[:-1]}{border} {{ {body} }}"
    original = parse(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    found = composed(original)
    kinds = {"Neg"} if "Neg" in body else set()
    assert {*ops(found).split()} | kinds >= {*ops(original).split()} - {"Relu"}
    same(original, found, {"x": np.random.default_rng(0).standard_normal((2, 2, 3, 3)).astype(np.float32)})


def test_each_composition_passes_the_check_at_its_site() -> None:
    body = "c = Conv(x, w) p = AveragePool<kernel_shape = [2, 2]>(c) q = Mul(p, s) r = Relu(q) u = Mul(r, s) v2 = Add(u, s) "
    body += "t1 = Transpose<perm = [0, 1, 3, 2]>(v2) y = Conv(t1, w)"
    result = ortfuse.optimize(image(body), verify="sites")
    assert {"Mul", "Add"}.isdisjoint(node.op_type for node in result.model.graph)
    assert not result.report.log.refused


def test_weights_that_are_stored_small_stay_so() -> None:
    constants = "<int8[2,2,1,1] q = {1, 2, 3, 4}, float scale = {0.1}, int8 zero = {0}, float[2,1,1] s = {0.5, 2}>"
    text = f"g (float[n,2,3,3] x) => (float[n,2,3,3] y) {constants} "
    body = "{ w = DequantizeLinear(q, scale, zero) c = Conv(x, w) y = Mul(c, s) }"
    original = parse(f'<ir_version: 8, opset_import: ["": 17]> {text} {body}')
    assert ops(composed(original)) == ops(original)


def test_a_layer_of_the_graph_around_a_loop_is_not_computed_in_each_iteration() -> None:
    inner = "b (int64 i, bool k, float[n,3] h) => (bool k2, float[n,3] h2) { k2 = Identity(k) q = MatMul(x, m) h2 = Add(p, q) }"
    constants = "<float[3,3] m = {1, 2, 3, 4, 5, 6, 7, 8, 1}, int64 trips = {3}, bool go = {1}>"
    original = parse(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[n,3] x) => (float[n,3] y) {constants} '
        f"{{ p = MatMul(x, m) y = Loop<body = {inner}>(trips, go, x) }}"
    )
    found = composed(original)
    loop = next(node for node in found.graph if node.op_type == "Loop")
    assert [node.op_type for node in loop.attributes["body"].value] == ["Identity", "MatMul", "Add"]
    assert ops(found) == "MatMul Loop"


OUTER = {
    "a factor before a table of frequencies": ("a = Mul(x, two) y = Mul(a, table)", "Mul"),
    "a table times a factor": ("a = Mul(x, table) y = Div(a, two)", "Mul"),
    "a table that a factor makes ones": ("a = Mul(x, two) y = Mul(a, halves)", "Mul"),
    "a shift by a table": ("a = Sub(two, x) y = Sub(a, table)", "Sub"),
    "a shift by a table that is taken back": ("a = Add(x, table) y = Sub(a, table)", "Add Sub"),
    "two tables": ("a = Mul(x, table) y = Mul(a, rows)", "Mul Mul"),
    "a table before BatchNormalization": ("a = Mul(x, column) y = BatchNormalization(a, c, c, c, c)", "Mul BatchNormalization"),
}  # fmt: skip
TABLES = (
    "<float two = {2}, float[1,3] table = {1, 2, -3}, float[3] halves = {0.5, 0.5, 0.5}, float[2,1] rows = {1, 2}, "
    "float[3] column = {1, 2, 3}, float[3] c = {1, 2, 3}>"
)


@pytest.mark.parametrize("reason", OUTER)
def test_data_is_broadcast_to_the_constants_that_are_left(reason: str) -> None:
    body, left = OUTER[reason]
    original = parse(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[2,1] x) => (float[2,3] y) {TABLES} {{ {body} }}'
    )
    found = composed(original)
    assert ops(found) == left
    same(original, found, {"x": np.float32([[0.5], [-3]])})
