"""Losses of classifiers: operators without kernels are spelled out, and what is spelled out becomes an operator where there are."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from rewriting import ops, parse, same

import ortfuse
from ortfuse.targets import Target
from ortfuse.targets.kernel_table import OPEN_END, Kernel

PIN = {"loss": "SoftmaxCrossEntropyLoss"}


def loss(body: str, scores: str = "n,4", labels: str = "n", kind: str = "int64", result: str = "") -> ir.Model:
    return parse(f"""<ir_version: 9, opset_import: ["": 17]>
        g (float[{scores}] x, {kind}[{labels}] labels) => (float{result} y)
        <float[4] w = {{0.5, 1.0, 2.0, 3.0}}, {kind} two = {{2}}, {kind} first = {{0}}, float zero = {{0.0}},
         int64[1] one = {{1}}, int64[1] minus = {{-1}}> {{ {body} }}""")


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 3


def optimised(model: ir.Model, **options: Any) -> ir.Model:
    return ortfuse.optimize(model.clone(), **options).model


def with_kernels() -> Target:
    """A build that has kernels for cross entropy, as those for training have."""
    table = Target().table
    name = ("", "SoftmaxCrossEntropyLoss")
    known = dataclasses.replace(table.operators[name], kernels=(Kernel(12, 12, {}), Kernel(13, OPEN_END, {})))
    return Target(table=dataclasses.replace(table, operators={**table.operators, name: known}))


@pytest.mark.parametrize(
    ("operator", "found"),
    [
        ("SoftmaxCrossEntropyLoss(x, labels)", "LogSoftmax Unsqueeze GatherElements Squeeze Neg ReduceMean"),
        ("NegativeLogLikelihoodLoss(x, labels)", "Unsqueeze GatherElements Squeeze Neg ReduceMean"),
        ("SoftmaxCrossEntropyLoss<ignore_index=2>(x, labels)", None),
        ("SoftmaxCrossEntropyLoss<ignore_index=-100>(x, labels, w)", None),
        ("NegativeLogLikelihoodLoss<reduction=\"sum\">(x, labels, w)", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_without_kernels_losses_are_spelled_out(operator: str, found: str | None, kind: str) -> None:
    before = loss(f"y = {operator}", kind=kind)
    after = optimised(before)
    assert "Loss" not in ops(after)
    assert found is None or ops(after) == found
    same(before, after, {"x": numbers(5, 4), "labels": np.array([3, 2, 0, 1, 2], kind)})


def test_the_classes_of_images_are_moved_once() -> None:
    before = loss('y = SoftmaxCrossEntropyLoss<reduction="none">(x, labels)', "n,4,h,3", "n,h,3", result="[n,h,3]")
    after = optimised(before)
    assert ops(after) == "Transpose LogSoftmax Unsqueeze GatherElements Squeeze Neg"
    same(before, after, {"x": numbers(2, 4, 5, 3), "labels": np.random.default_rng(1).integers(0, 4, (2, 5, 3))})


def test_probabilities_that_are_returned_stay_where_they_were() -> None:
    before = parse("""<ir_version: 9, opset_import: ["": 17]> g (float[n,4,s] x, int64[n,s] labels) => (float[n,4,s] p, float y)
        { y, p = SoftmaxCrossEntropyLoss(x, labels) }""")
    after = optimised(before)
    assert "Loss" not in ops(after)
    same(before, after, {"x": numbers(2, 4, 3), "labels": np.array([[3, 2, 0], [1, 2, 2]])})


def test_labels_that_cannot_be_ignored_are_not_looked_for() -> None:
    before = parse("""<ir_version: 9, opset_import: ["": 17]> g (float[n,4] x, float[n,4] z) => (float y)
        { labels = ArgMax<axis=1, keepdims=0>(z) y = SoftmaxCrossEntropyLoss<ignore_index=-100>(x, labels) }""")
    after = optimised(before)
    assert "Where" not in ops(after)
    same(before, after, {"x": numbers(5, 4), "z": numbers(5, 4)[::-1]})


KEPT = """l = LogSoftmax<axis=1>(x) h = Equal(labels, two) k = Not(h) s = Where(k, labels, first) u = Unsqueeze(s, one)
    g = GatherElements<axis=1>(l, u) q = Squeeze(g, one) m = Neg(q) e = Where(k, m, zero) t = ReduceSum<keepdims=0>(e)
    c = Cast<to=7>(k) n = ReduceSum<keepdims=0>(c) f = Cast<to=1>(n) y = Div(t, f)"""
WEIGHTED = """l = LogSoftmax<axis=-1>(x) u = Unsqueeze(labels, one) g = GatherElements<axis=-1>(l, u) q = Squeeze(g, one)
    v = Gather(w, labels) m = Mul(q, v) e = Neg(m) t = ReduceSum<keepdims=0>(e) n = ReduceSum<keepdims=0>(v) y = Div(t, n)"""
OUTSIDE = """l = LogSoftmax<axis=-1>(x) u = Unsqueeze(labels, minus) g = GatherElements<axis=1>(l, u) q = Squeeze(g, one)
    m = ReduceMean<keepdims=1>(q) r = Squeeze(m) y = Neg(r)"""


PICKED = "l = LogSoftmax<axis=1>(x) u = Unsqueeze(labels, one) g = GatherElements<axis=1>(l, u) "
COLUMNS = [
    PICKED + "m = Neg(g) q = Squeeze(m, one) y = ReduceMean<keepdims=0>(q)",
    PICKED + "m = Neg(g) y = ReduceMean<keepdims=0>(m)",
    PICKED + "m = ReduceMean<axes=[0, 1], keepdims=0>(g) y = Neg(m)",
    PICKED + "m = Neg(g) y = ReduceSum<keepdims=0>(m)",
]
"""The numbers of the labels keep an axis of their own for longer, or for good."""


@pytest.mark.parametrize("body", [KEPT, WEIGHTED, OUTSIDE, *COLUMNS])
def test_cross_entropy_is_recognised_where_it_is_forced_or_has_a_kernel(body: str) -> None:
    before = loss(body)
    assert "Loss" not in ops(optimised(before))
    inputs = {"x": numbers(5, 4), "labels": np.array([3, 2, 0, 1, 2])}
    for options in ({"force": PIN}, {"target": with_kernels(), "patterns": "contrib.losses"}):
        after = optimised(before, **options)
        assert ops(after) == "SoftmaxCrossEntropyLoss"
        same(before, after, inputs)


def test_an_operator_with_a_kernel_is_not_spelled_out() -> None:
    before = loss("y = SoftmaxCrossEntropyLoss(x, labels)")
    assert ops(optimised(before, target=with_kernels())) == "SoftmaxCrossEntropyLoss"
    assert ops(optimised(before, force={"loss": "none"})) == "SoftmaxCrossEntropyLoss"


def test_what_one_rule_was_forced_to_make_another_does_not_spell_out() -> None:
    body = "u = Unsqueeze(labels, one) g = GatherElements<axis=1>(x, u) q = Squeeze(g, one) y = Neg(q)"
    after = optimised(
        loss(body, result="[n]"), force={"loss.gather_of_log_probabilities_to_nll": "NegativeLogLikelihoodLoss"}
    )
    assert ops(after) == "NegativeLogLikelihoodLoss"


@pytest.mark.parametrize(
    "change",
    [
        ("Equal(labels, two)", "Equal(labels, first)", "Cast<to=7>(k)", "Cast<to=7>(h)"),
        ("Where(k, m, zero)", "Where(h, m, zero)"),
        ("GatherElements<axis=1>", "GatherElements<axis=0>"),
        ("m = Neg(q)", "m = Abs(q)"),
    ],
)
def test_what_is_nearly_a_loss_is_none(change: tuple[str, ...]) -> None:
    body = KEPT
    for old, new in zip(change[::2], change[1::2], strict=True):
        body = body.replace(old, new)
    before = loss(body)
    after = optimised(before, force=PIN)
    assert ops(after) != "SoftmaxCrossEntropyLoss"
    same(before, after, {"x": numbers(5, 4), "labels": np.array([3, 2, 0, 1, 2])})


def test_means_over_one_axis_of_a_column_are_no_mean_of_all() -> None:
    before = loss(PICKED + "m = ReduceMean<axes=[1], keepdims=0>(g) y = Neg(m)", result="[n]")
    after = optimised(before, force=PIN)
    same(before, after, {"x": numbers(5, 4), "labels": np.array([3, 2, 0, 1, 2])})


@pytest.mark.parametrize("factor", ["Neg(p)", "Mul(p, part)", "Div(p, minus_two)"])
def test_the_part_of_a_smoothed_loss_that_is_of_the_labels_is_recognised(factor: str) -> None:
    before = loss(f"""l = LogSoftmax<axis=1>(x) u = Unsqueeze(labels, one) k = GatherElements<axis=1>(l, u) p = Squeeze(k, one)
        part = Constant<value_float=-0.9>() minus_two = Constant<value_float=-2.0>() n = {factor}
        m = ReduceMean<axes=[1], keepdims=0>(l) tenth = Constant<value_float=-0.1>() r = Mul(m, tenth) y = Add(n, r)""")
    after = optimised(before, force=PIN)
    assert ops(after).startswith("SoftmaxCrossEntropyLoss")
    same(before, after, {"x": numbers(5, 4), "labels": np.array([3, 2, 0, 1, 2])})
