"""Group normalisation by CUDA's kernel with the channels last: on request, with functions of standard operators for the kernel."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from group_norm import as_functions

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.pipeline import load_catalogue
from ortfuse.rewrite import Rule
from ortfuse.runtime.session import Session
from ortfuse.targets import Target, resolve_target, spec_of
from ortfuse.verification.rule_tests import prove, run_instance

sys.path.insert(0, str(Path(__file__).parents[2] / "golden"))
import suite

FORCE = {"groupnorm": "com.microsoft.GroupNorm"}
SKIP = {"groupnorm": "com.microsoft.SkipGroupNorm"}
RULES = [rule for rule in load_catalogue([], spec_of("cuda")).rules_from("target") if rule.family == "groupnorm"]


@pytest.mark.rule_test
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_is_right(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    def session(model: ir.Model, **options: Any) -> Session:
        return Session(ir.from_proto(as_functions(ir.to_proto(model))), **options)

    monkeypatch.setattr(run_instance, "Session", session)
    asked = Target(replace(resolve_target("cuda").spec, untried=frozenset()))
    report = prove(rule, asked, pairs=8, most_nodes=1500)
    assert report.proved, "\n".join(dict.fromkeys(report.failures))


def optimized(name: str, **options: Any) -> ir.Model:
    model = ortfuse.optimize(suite.MODELS / f"{name}.onnx", target="cuda", loaded=False, **options).model
    assert isinstance(model, ir.Model)
    return model


@pytest.mark.parametrize(
    ("name", "force", "norms", "skips"),
    [
        ("unet_groups.ts", FORCE, 3, 0),
        ("unet_groups.dynamo", FORCE, 3, 0),
        ("unet.sdpa.dynamo", FORCE, 19, 0),
        ("unet.sdpa.dynamo", SKIP, 10, 9),
    ],
)
def test_golden_models_compute_what_they_did(name: str, force: dict[str, str], norms: int, skips: int) -> None:
    model = optimized(name, force=force)
    counts = Counter(node.op_type for node in model.graph)
    assert (counts["GroupNorm"], counts["SkipGroupNorm"], counts["InstanceNormalization"]) == (norms, skips, 0)
    assert ortfuse.verify(suite.MODELS / f"{name}.onnx", as_functions(ir.to_proto(model))).ok


def test_it_is_not_made_unasked() -> None:
    assert not any("GroupNorm" in node.op_type for node in optimized("unet_groups.ts").graph)


HALF = """<ir_version: 10, opset_import: ["": 21]>
g (float16[n, 8, 4, 4] x) => (float16[n, 8, 4, 4] y)
<float16[8] scale = {1, 1, 2, 2, 3, 3, 4, 4}, float16[8] shift = {1, 1, 1, 1, 0, 0, 0, 0}> {
    a = GroupNormalization <num_groups = 2> (x, scale, shift)  s = Sigmoid(a)  y = Mul(a, s)
}"""


def test_half_precision_scales_in_float32() -> None:
    made = ortfuse.optimize(ir.from_onnx_text(HALF), target="cuda", loaded=False, force=FORCE).model
    (node,) = (node for node in made.graph if node.op_type == "GroupNorm")
    assert [node.inputs[index].const_value.dtype for index in (1, 2)] == [ir.DataType.FLOAT] * 2
    assert node.attributes["activation"].value == 1


TEXT = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
g (float[n, 4, 4, {channels}] x, {dtype}[{channels}] gamma, {dtype}[{channels}] beta) => (y) {{
    y = com.microsoft.GroupNorm <activation = 0, channels_last = {last}, groups = {groups}> (x, gamma, beta) }}"""


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({}, True),
        ({"channels": 6}, False),
        ({"groups": 5}, False),
        ({"channels": 2052, "groups": 2}, False),
        ({"last": 0}, False),
        ({"dtype": "float16"}, False),
    ],
)
def test_the_kernel_takes_pairs_of_channels_that_are_last(changes: dict[str, Any], taken: bool) -> None:
    model = ir.from_onnx_text(TEXT.format(**{"channels": 8, "groups": 2, "last": 1, "dtype": "float", **changes}))
    refusal = resolve_target("cuda").check_node(model.graph[0], {"": 21, "com.microsoft": 1}, Facts(model))
    assert (refusal is None) is taken


def test_an_explanation_says_that_force_has_to_ask() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[n, 4, 3, 5] x) => (float[n, 4, 3, 5] y)
    <float[4] scale = {1, 2, 3, 4}, float[4] shift = {0, 1, 2, 3}>
    { y = GroupNormalization <num_groups = 2> (x, scale, shift) }"""
    found = ortfuse.explain(ir.from_onnx_text(text), target="cuda", rules=["groupnorm.to_group_norm"])
    (why,) = found.absent.values()
    assert "com.microsoft.GroupNorm was never run on this target" in why
    assert "--force groupnorm=com.microsoft.GroupNorm" in why
