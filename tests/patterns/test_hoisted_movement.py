"""Data movement that is hoisted above operators: the instances of former rules, random chains, and refusals."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import parsed
from rewriting import parse

from ortfuse.analysis.facts import Facts
from ortfuse.ir.editor import Editor
from ortfuse.pipeline import load_catalogue
from ortfuse.rewrite import Rewriter, Rule
from ortfuse.rewrite.hoist.axis_groups import axis_groups
from ortfuse.targets import Target
from ortfuse.verification import Session

load_catalogue([])
FILES = (
    "canonicalize.sink_expand",
    "canonicalize.sink_reshape",
    "canonicalize.hoist_reshape",
    "data_movement.hoist_reshape_after_fusions",
    "algebra.canonical_identities",
)
RULES: list[Rule] = [rule for file in FILES for rule in importlib.import_module(f"ortfuse.patterns.{file}").RULES]
FORMER = json.loads((Path(__file__).parent / "former_movement.json").read_text())
"""Instances that were built from the rule tests of the rules that hoisting replaced, with the operators that these rules left."""

HEAD = '<ir_version: 9, opset_import: ["" : 18]>'


def hoisted(model: ir.Model) -> ir.Model:
    copy = model.clone()
    Rewriter(Editor(copy, Facts(copy)), Target()).run(RULES)
    return copy


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph if node.op_type not in ("Constant", "Identity")]


def results(model: ir.Model) -> list[np.ndarray]:
    """The results on random numbers, in shapes whose symbols are 2."""
    random, given = np.random.default_rng(0), {}
    for value in model.graph.inputs:
        shape = [dim if isinstance(dim, int) else 2 for dim in value.shape or ()]
        made = random.normal(size=shape)
        if value.dtype in (ir.DataType.INT64, ir.DataType.INT32):
            made = np.ones(shape)
        given[value.name] = (made > 0) if value.dtype == ir.DataType.BOOL else np.asarray(made, value.dtype.numpy())
    return list(Session(model, optimise=False, threads=1).run(given).values())


@pytest.mark.parametrize("name", FORMER)
def test_instances_of_a_former_rule_become_as_few_operators_and_the_same_numbers(name: str) -> None:
    for text, left in FORMER[name]:
        original = parse(text)
        result = hoisted(original)
        assert len(operators(result)) <= len(left.split()), f"{text}: {Counter(operators(result))} instead of {left}"
    for old, new in zip(results(original), results(result), strict=True):
        assert old.shape == new.shape
        np.testing.assert_allclose(new, old, rtol=2e-5, atol=2e-6)


CHAINS = {
    "axes of a softmax": (
        "float[2,3,4] x", "float[2,1,3,4] y",
        "u = Unsqueeze (x, one) s = Softmax <axis: int = 2> (u) d = Squeeze (s, one) y = Unsqueeze (d, one)",
        ["Softmax", "Unsqueeze"],
    ),
    "a column that is broadcast": (
        "float[b,6] x, float[b,1] c", "float[b,2,3] y",
        "r = Reshape (x, split) s = Relu (r) t = Reshape (s, flat) a = Add (t, c) y = Reshape (a, split)",
        ["Reshape", "Relu", "Unsqueeze", "Add"],
    ),
    "a constant row": (
        "float[b,2,3] x", "float[b,2,3] y",
        "t = Reshape (x, flat) a = Mul (t, row) y = Reshape (a, split)", ["Mul"],
    ),
    "means without and with axes": (
        "float[b,2,3] x", "float[b,1,1] y",
        "m = ReduceMean <keepdims: int = 0> (x, last) s = Sqrt (m) y = Reshape (s, ones)", ["ReduceMean", "Sqrt"],
    ),
    "parts that are joined": (
        "float[b,2,3] x", "float[b,2,6] y",
        "u = Unsqueeze (x, one) c = Concat <axis: int = 3> (u, u) y = Squeeze (c, one)", ["Concat"],
    ),
    "lists of indices": (
        "int64[b,s] x", "float[b,s,2] y",
        "t = Reshape (x, all) g = Gather (table, t) n = Shape (x) m = Concat <axis: int = 0> (n, pair) y = Reshape (g, m)",
        ["Gather"],
    ),
    "places of channels": (
        "float[b,3,5] x", "float[b,3,5] y",
        "u = Unsqueeze (x, last_of_four) n = InstanceNormalization (u, three, three) r = Relu (n) "
        "m = BatchNormalization (r, three, three, three, three) y = Squeeze (m, last_of_four)",
        ["InstanceNormalization", "Relu", "BatchNormalization"],
    ),
}  # fmt: skip
CONSTANTS = (
    "int64[1] all = {-1}, int64[1] pair = {2}, float[2, 2] table = {1, 2, 3, 4}, "
    "int64[1] last_of_four = {3}, float[3] three = {1, 2, 3}, float[2] two = {1, 2}, "
    "int64[1] one = {1}, int64[3] split = {-1, 2, 3}, int64[2] flat = {-1, 6}, int64[2] last = {1, 2}, "
    "int64[3] ones = {-1, 1, 1}, float[6] row = {1, 2, 3, 4, 5, 6}"
)


@pytest.mark.parametrize("name", CHAINS)
def test_movement_cancels_through_operators(name: str) -> None:
    inputs, outputs, body, left = CHAINS[name]
    original = parsed(f"{HEAD} g ({inputs}) => ({outputs}) <{CONSTANTS}> {{ {body} }}")
    result = hoisted(original)
    assert operators(result) == left
    for old, new in zip(results(original), results(result), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6)


REFUSED = {
    "the axis of a softmax becomes part of another": (
        "float[b,2,3] x", "float[b,6] y", "t = Reshape (x, split) s = Softmax <axis: int = 2> (t) y = Reshape (s, flat)"
    ),
    "channels become places": (
        "float[b,6] x", "float[b,6] y",
        "t = Reshape (x, split) m = BatchNormalization (t, two, two, two, two) y = Reshape (m, flat)",
    ),
    "what is between is used elsewhere": (
        "float[b,6] x", "float[b,6] y, float[b,2,3] s", "t = Reshape (x, split) s = Relu (t) y = Reshape (s, flat)"
    ),
    "a column differs along one of the merged axes": (
        "float[b,6] x, float[2,1] c", "float[b,6] y", "t = Reshape (x, split) s = Add (t, c) y = Reshape (s, flat)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_movement_stays_where_it_does_not_cancel(name: str) -> None:
    inputs, outputs, body = REFUSED[name]
    original = parsed(f"{HEAD} g ({inputs}) => ({outputs}) <{CONSTANTS}> {{ {body} }}")
    assert operators(hoisted(original)) == operators(original)


def test_a_node_that_reads_a_value_twice_is_not_copied() -> None:
    body = "u = Unsqueeze (x, one) n = Neg (u) m = Mul (n, n) y = Squeeze (m, one)"
    assert operators(hoisted(parsed(f"{HEAD} g (float[b,3] x) => (float[b,3] y) <{CONSTANTS}> {{ {body} }}"))) == [
        "Neg",
        "Mul",
    ]


@pytest.mark.parametrize(
    ("before", "after", "groups"),
    [
        ((2, 3), (6,), [((0, 1), (0,))]),
        ((4, 1, 6), (4, 2, 3), [((0,), (0,)), ((2,), (1, 2))]),
        ((2, 3, 4), (6, 4), [((0, 1), (0,)), ((2,), (1,))]),
        ((4, 6), (3, 8), [((0, 1), (0, 1))]),
        ((2, 3), (2, 4), None),
        ((), (1, 1), []),
    ],
)
def test_axes_are_grouped_by_equal_products(before: tuple[int, ...], after: tuple[int, ...], groups: object) -> None:
    found = axis_groups(before, after)
    assert groups == (None if found is None else [(group.before, group.after) for group in found])


EXPANDED = {
    "as large without": ("float[b,3] x, float[b,1] c", "e = Expand (c, sizes) y = Sub (e, x)", ["Sub"]),
    "smaller without": ("float[b,1] x, float[b,1] c", "e = Expand (c, sizes) y = Sub (e, x)", ["Sub", "Expand"]),
    "of what a function takes": ("float[b,1] x", "e = Expand (x, sizes) f = Relu (e) y = Exp (f)", ["Relu", "Exp", "Expand"]),
    "of both operands": (
        "float[b,1] x", "e = Expand (x, sizes) f = Relu (e) y = Add (f, e)", ["Relu", "Add", "Expand"]
    ),
    "a tile of more than axes of size 1": (
        "float[b,3] x, float[b,6] z", "e = Tile (x, twice) y = Add (e, z)", ["Tile", "Add"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPANDED)
def test_an_expand_sinks_as_long_as_fewer_elements_are_computed(name: str) -> None:
    inputs, body, left = EXPANDED[name]
    constants = "int64[2] sizes = {1, 3}, int64[2] twice = {1, 2}"
    columns = 6 if "Tile" in body else 3
    original = parsed(f"{HEAD} g ({inputs}) => (float[b,{columns}] y) <{constants}> {{ {body} }}")
    result = hoisted(original)
    assert operators(result) == left
    for old, new in zip(results(original), results(result), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6)


@pytest.mark.parametrize("first", ["batch", "rest"])
def test_heads_are_split_above_a_sum_by_computed_sizes(first: str) -> None:
    body = f"""
        sizes = Shape (x) batch = Slice (sizes, zero, one) rows = Slice (sizes, two, four)
        merged = Mul (batch, four) target = Concat <axis: int = 0> (merged, rows)
        m = Reshape <allowzero: int = 1> (x, target) n = Reshape <allowzero: int = 1> (z, target)
        o = CumSum (n, axis) a = Add (m, o) s = Softmax <axis: int = -1> (a)
        apart = Concat <axis: int = 0> ({first}, four, rows) y = Reshape (s, apart)"""
    constants = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4}, int64[1] rest = {-1}, int64 axis = {1}"
    original = parsed(f"{HEAD} g (float[b,4,s,t] x, float[b,4,s,t] z) => (float[b,4,s,t] y) <{constants}> {{ {body} }}")
    result = hoisted(original)
    reshaped = [node for node in result.graph if node.op_type == "Reshape"]
    assert [facts_rank(result, node.outputs[0]) for node in reshaped] == [3, 4]
    for old, new in zip(results(original), results(result), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6)


def facts_rank(model: ir.Model, value: ir.Value) -> int | None:
    return Facts(model).rank(value)


def test_a_view_that_no_reshape_can_make_is_never_planned() -> None:
    """That a Squeeze above such a view would be left out does not make the plan possible."""
    model = parsed(
        HEAD
        + """
        g (float[b, s, 3] x, float[b, s, 3] z) => (float[b, s, 3] y, float[1, bs, 3] w)
        <int64[2] flat = {-1, 3}, int64[3] one = {1, -1, 3}, int64[1] zero = {0}> {
            xs = Reshape(x, flat) zs = Reshape(z, one) w = Relu(zs) ws = Squeeze(w, zero)
            sum = Add(xs, ws) shape = Shape(x) y = Reshape(sum, shape)
        }"""
    )
    assert operators(hoisted(model)) == operators(model)
