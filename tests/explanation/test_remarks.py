"""Without being asked, the report says for each family which sites were left, why, and what would help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import op, var

GOLDEN = Path(__file__).parents[2] / "golden" / "models"
HEAD = '<ir_version: 8, opset_import: ["": 18]>'
GELU = "a = Div(x, r) e = Erf(a) p = Add(e, one) m = Mul(x, p) y = Mul(m, half)"
NORM = "mu = ReduceMean<keepdims = 1>(x, ax) d = Sub(x, mu) q = Mul(d, d) va = ReduceMean<keepdims = 1>(q, ax)"
QKV = "float[b,4,s,8] q, float[b,4,8,s] k, float[b,4,s,8] v"


def gelu(body: str = GELU, root: str = "1.4142135", kind: str = "float", outputs: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"{HEAD} g ({kind}[b,3] x) => ({kind}[b,3] y{outputs}) "
        f"<{kind} r = {{{root}}}, {kind} one = {{1}}, {kind} half = {{0.5}}> {{ {body} }}"
    )


def attention(after: str, weights: str, softmax: str = "w = Softmax(d)", also: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"{HEAD} g ({QKV}{also}) => (float[b,4,s,8] y) <float c = {{0.35}}, float low = {{0.01}}> "
        f"{{ s = MatMul(q, k) d = Mul(s, c) {softmax} {after} y = MatMul({weights}, v) }}"
    )


def norm(deviation: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"{HEAD} g (float[b,4,8] x) => (float[b,4,8] y) <int64[1] ax = {{-1}}, float eps = {{1e-5}}, "
        f"float[8] g = {{1,2,3,4,5,6,7,8}}> {{ {NORM} {deviation} n = Div(d, sd) y = Mul(n, g) }}"
    )


LEFT: list[tuple[onnx.ModelProto, str, str]] = [
    (gelu(root="1.5"), "gelu", "the constants in 'a' make up 0.6666667, not 0.7071068"),
    (gelu(GELU + " z = Tanh(e)", outputs=", float[b,3] z"), "gelu", "'e' is also used by Tanh"),
    (gelu(root="1.4142135623730951", kind="double"), "gelu", "no kernel for Gelu"),
    (attention("l = Clip(w, low)", "l"), "attention", "'l' comes from Clip"),
    (attention("l = Mul(w, g1)", "l", also=", float[b,4,s,s] g1"), "attention", "no part of 'l'"),
    (attention("", "w", "r = Relu(d) w = Softmax(r)"), "attention", "no part of 'r'"),
    (norm("s0 = Sqrt(va) sd = Add(s0, eps)"), "layernorm", "no part of 'n'"),
    (norm("s0 = Max(va, eps) sd = Sqrt(s0)"), "layernorm", "no part of 's0'"),
]


@pytest.mark.parametrize(("model", "family", "reason"), LEFT)
def test_a_site_that_is_left_is_told_with_what_stopped_it(model: onnx.ModelProto, family: str, reason: str) -> None:
    report = ortfuse.optimize(model).report
    assert [(remark.family, len(remark.sites)) for remark in report.remarks] == [(family, 1)]
    remark = report.remarks[0]
    assert reason in remark.reason
    assert remark.remedy
    assert remark.text() in report.notes
    assert report.to_dict()["remarks"][0]["family"] == family


def line(body: str, inputs: str = "float[b,8] x, float[b,8] z") -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEAD} g ({inputs}) => (float[b,8] y) {{ {body} }}")


@pytest.mark.parametrize(
    "model",
    [
        gelu(),
        attention("", "w"),
        norm("s0 = Add(va, eps) sd = Sqrt(s0)"),
        line("s = Sigmoid(x) y = Mul(s, z)"),  # a gate
        line("s = Softmax(x) y = Mul(s, z)"),  # a Softmax, but no products around it
        line("s = Sigmoid(x) n = Neg(s) y = Mul(n, z)"),
        line("m = ReduceMean(x) y = Mul(m, x)"),
        line("p = Pow(x, z) e = Sqrt(p) y = Div(x, e)"),
    ],
)
def test_what_is_fused_or_was_never_meant_is_no_remark(model: onnx.ModelProto) -> None:
    assert ortfuse.optimize(model).report.remarks == []


@pytest.mark.parametrize(
    "name", ["bert.eager.raw", "gpt2.eager.dynamo", "swin.sdpa.ts", "efficientnet.dynamo", "yolo.ts"]
)
def test_a_model_that_is_fused_has_no_remarks(name: str) -> None:
    assert ortfuse.optimize(GOLDEN / f"{name}.onnx").report.remarks == []


def test_all_sites_of_a_family_are_one_remark() -> None:
    report = ortfuse.optimize(GOLDEN / "llama.sdpa.ts.onnx", max_opset=17).report
    norms = next(remark for remark in report.remarks if remark.family == "rmsnorm")
    assert len(norms.sites) == 5
    assert "5 sites left as they were" in norms.text()
    assert "needs opset 23, and at most 17 is allowed" in norms.text()
    assert "--max-opset of 23 or more" in norms.text()


def test_what_a_forced_choice_leaves_is_told_as_that() -> None:
    report = ortfuse.optimize(gelu(), force={"gelu": "none"}).report
    assert report.remarks == []


def test_a_rule_of_the_users_own_that_was_applied_nowhere_is_told() -> None:
    x = var("x")

    def mine(name: str, pattern: Any) -> Rule:
        return Rule(name=name, pattern=pattern, replace=op.Relu(x), exactness=Exactness.ROUNDING, source="test",
                    test=RuleTest(shapes={"x": "b 8"}))  # fmt: skip

    rules = [mine("mine.near", op.Abs(op.Exp(x))), mine("other.nowhere", op.Tan(op.Sin(x)))]
    report = ortfuse.optimize(line("e = Neg(x) y = Abs(e)", "float[b,8] x"), patterns=rules).report
    told = {remark.rule: remark for remark in report.remarks}
    assert "nothing in the model comes near" in told["other.nowhere"].text()
    assert "mine.near" in told


def test_the_command_prints_them_and_writes_them_as_data(tmp_path: Path) -> None:
    path, data = tmp_path / "m.onnx", tmp_path / "m.json"
    onnx.save(LEFT[0][0], path)
    done = CliRunner().invoke(app, ["optimize", str(path), "--json", str(data)])
    assert "note: gelu: 1 site left as it was ('y'); gelu.from_erf_form was stopped" in " ".join(done.output.split())
    assert json.loads(data.read_text())["remarks"][0]["sites"] == ["y"]
    done = CliRunner().invoke(app, ["optimize", str(path), "--explain"])
    assert "left as it was" not in done.output  # explained at length instead
