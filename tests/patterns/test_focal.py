"""Focal losses: functions of the model where they are asked for, and spelled out where not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from rewriting import ops, parse, same

import ortfuse

FOCUS = """r = Sub(one, t) s = Sub(one, p) pt = Mul(p, t) sr = Mul(s, r) near = Add(pt, sr) far = Sub(one, near)
    f = Pow(far, gamma)"""
OTHER_FOCUS = "r = Sub(one, t) s = Sub(one, p) st = Mul(s, t) pr = Mul(p, r) far = Add(st, pr) f = Pow(far, gamma)"
STABLE = "a = Abs(x) n = Neg(a) z = Exp(n) o = Add(z, one) l = Log(o) h = Relu(x) xt = Mul(x, t) g = Sub(h, xt) e = Add(g, l)"
LOGARITHM = "l = Log(p) rx = Mul(r, x) e = Sub(rx, l)"
LOGARITHMS = "l = Log(p) o = Log(s) tl = Mul(t, l) ro = Mul(r, o) m = Add(tl, ro) e = Neg(m)"
BALANCE = "at = Mul(quarter, t) br = Mul(rest, r) w = Add(at, br)"
BALANCED = "loss = Mul(w, fe) y = ReduceMean<keepdims=0>(loss)"
ENTROPIES = {"": STABLE, "by_logarithm": LOGARITHM, "by_logarithms": LOGARITHMS}


def sigmoid_loss(entropy: str, focus: str = FOCUS, end: str = f"{BALANCE} {BALANCED}", opset: int = 17) -> ir.Model:
    return parse(f"""<ir_version: 8, opset_import: ["": {opset}]> g (float[n,5] x, float[n,5] t) => (float y)
        <float one = {{1.0}}, float gamma = {{2.0}}, float quarter = {{0.25}}, float rest = {{0.75}}>
        {{ p = Sigmoid(x) {focus} {entropy} fe = Mul(e, f) {end} }}""")


PICKED = """l = LogSoftmax<axis=1>(x) u = Unsqueeze(labels, one) k = GatherElements<axis=1>(l, u) q = Squeeze(k, one)
    e = Neg(q) m = Neg(e)"""
IGNORING = """h = Equal(labels, two) safe = Where(h, first, labels) l = LogSoftmax<axis=1>(x) u = Unsqueeze(safe, one)
    k = GatherElements<axis=1>(l, u) q = Squeeze(k, one) n = Neg(q) e = Where(h, zero, n) m = Neg(e)"""
OPERATOR = 'e = SoftmaxCrossEntropyLoss<reduction="none", ignore_index=2>(x, labels) m = Neg(e)'


def softmax_loss(entropy: str) -> ir.Model:
    return parse(f"""<ir_version: 8, opset_import: ["": 17]> g (float[n,4] x, int64[n] labels) => (float y)
        <float fone = {{1.0}}, float gamma = {{1.5}}, float quarter = {{0.25}}, int64 two = {{2}}, int64 first = {{0}},
         float zero = {{0.0}}, int64[1] one = {{1}}>
        {{ {entropy} p = Exp(m) far = Sub(fone, p) f = Pow(far, gamma) a = Mul(quarter, f) loss = Mul(a, e)
           y = ReduceMean<keepdims=0>(loss) }}""")


def numbers(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 3


def of_sigmoid() -> dict[str, Any]:
    return {"x": numbers(6, 5), "t": (numbers(6, 5)[::-1] > 0).astype(np.float32)}


def optimised(model: ir.Model, **options: Any) -> ir.Model:
    return ortfuse.optimize(model.clone(), **options).model


def calls(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.domain.startswith("ortfuse")]


@pytest.mark.parametrize("form", ENTROPIES)
@pytest.mark.parametrize("focus", [FOCUS, OTHER_FOCUS])
def test_a_focal_loss_is_a_function_where_it_is_forced(form: str, focus: str) -> None:
    before = sigmoid_loss(ENTROPIES[form], focus)
    assert not calls(optimised(before))
    after = optimised(before, force={"focal": "SigmoidFocalLoss"})
    assert ops(after) == "SigmoidFocalLoss ReduceMean"
    (call,) = calls(after)
    assert call.domain == ".".join(filter(None, ("ortfuse.losses", form, "balanced")))
    assert {name: round(one.value, 6) for name, one in call.attributes.items()} == {
        "alpha": 0.25,
        "beta": 0.75,
        "gamma": 2.0,
    }
    same(before, after, of_sigmoid())


@pytest.mark.parametrize("opset", [13, 17, 21])
def test_a_loss_that_is_not_balanced_in_models_of_any_opset(opset: int) -> None:
    before = sigmoid_loss(STABLE, end="y = ReduceSum<keepdims=0>(fe)", opset=opset)
    after = optimised(before, force={"focal": "SigmoidFocalLoss"})
    assert ops(after) == "SigmoidFocalLoss ReduceSum"
    same(before, after, of_sigmoid())


@pytest.mark.parametrize(("entropy", "domain"), [(PICKED, "ortfuse.losses"), (IGNORING, "ortfuse.losses.ignoring"),
                                                 (OPERATOR, "ortfuse.losses.ignoring")])  # fmt: skip
def test_a_focal_loss_of_many_classes(entropy: str, domain: str) -> None:
    before = softmax_loss(entropy)
    after = optimised(before, force={"focal": "SoftmaxFocalLoss"})
    assert [call.domain for call in calls(after)] == [domain]
    same(before, after, {"x": numbers(6, 4), "labels": np.array([3, 1, 0, 2, 1, 2])})


@pytest.mark.parametrize(
    "loss", [sigmoid_loss(STABLE), sigmoid_loss(LOGARITHMS), softmax_loss(PICKED), softmax_loss(IGNORING)]
)
def test_a_function_that_was_not_asked_for_is_spelled_out(loss: ir.Model) -> None:
    pinned = "SoftmaxFocalLoss" if "LogSoftmax" in ops(loss) else "SigmoidFocalLoss"
    named = optimised(loss, force={"focal": pinned})
    (call,) = calls(named)
    assert calls(optimised(named)), "a forced choice stays"
    call.metadata_props.clear()
    after = optimised(named)
    assert not calls(after)
    assert not after.functions
    inputs = (
        of_sigmoid() if pinned == "SigmoidFocalLoss" else {"x": numbers(6, 4), "labels": np.array([3, 1, 0, 2, 1, 2])}
    )
    same(loss, after, inputs)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Sub(one, near)", "Sub(gamma, near)"),
        ("sr = Mul(s, r)", "sr = Mul(p, r)"),
        ("at = Mul(quarter, t)", "at = Mul(quarter, x)"),
        ("xt = Mul(x, t)", "xt = Mul(x, r)"),
        ("p = Sigmoid(x)", "p = HardSigmoid(x)"),
    ],
)
def test_what_is_nearly_a_focal_loss_is_none(old: str, new: str) -> None:
    text = f"p = Sigmoid(x) {FOCUS} {STABLE} fe = Mul(e, f) {BALANCE} {BALANCED}"
    assert old in text
    before = parse(f"""<ir_version: 8, opset_import: ["": 17]> g (float[n,5] x, float[n,5] t) => (float y)
        <float one = {{1.0}}, float gamma = {{2.0}}, float quarter = {{0.25}}, float rest = {{0.75}}>
        {{ {text.replace(old, new)} }}""")
    after = optimised(before, force={"focal": "SigmoidFocalLoss"})
    for call in calls(after):
        assert call.domain == "ortfuse.losses"  # without what is not balanced
    same(before, after, of_sigmoid())
