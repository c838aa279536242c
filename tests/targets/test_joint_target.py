"""Tests of a list of targets: what is made for all of them is what each of them executes, and measured costs agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest
from graphs import operators

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.errors import OptionError, TargetError
from ortfuse.options import Options
from ortfuse.targets import CostTable, Quirk, Target, TargetSpec, default_spec, resolve_target
from ortfuse.targets.joint_target import JointTarget
from ortfuse.targets.rule_speedups import Measured

GELU = """<ir_version: 8, opset_import: ["": 14]> g (float[8, 16] x) => (float[8, 16] y)
    <float two = {1.4142135}, float one = {1.0}, float half = {0.5}> {
    s = Div(x, two)  e = Erf(s)  p = Add(e, one)  m = Mul(x, p)  y = Mul(m, half) }"""

MASKED = """<ir_version: 10, opset_import: ["": 23]> g (float[1, 2, 4, 8] q, bool[1, 1, 4, 4] mask) => (float[1, 2, 4, 8] y) {
    y = Attention(q, q, q, mask) }"""


def without(target: Target, *names: str) -> Target:
    """A target without the kernels of some operators."""
    kept = {key: one for key, one in target.table.operators.items() if key[1] not in names}
    return Target(table=replace(target.table, operators=kept), costs=CostTable({}))


def test_an_operator_is_made_only_if_every_target_has_its_kernel() -> None:
    full, less = without(Target()), without(Target(), "Gelu", "BiasGelu", "FastGelu")
    model = ir.from_onnx_text(GELU)
    assert "Gelu" in operators(ortfuse.optimize(model, target=full).model)
    for members in ((full, less), (less, full)):
        assert "Gelu" not in operators(ortfuse.optimize(model, target=JointTarget(members)).model)


def test_the_opset_is_the_lowest_that_all_take() -> None:
    joint = resolve_target("cpu", runtime="1.20, 1.24")
    assert isinstance(joint, JointTarget)
    assert (
        joint.max_opset
        == resolve_target(None, runtime="1.20").max_opset
        < resolve_target(None, runtime="1.24").max_opset
    )
    assert joint.limited(17).max_opset == 17
    assert joint.is_lowered("RMSNormalization")
    assert not joint.without_lowering().lowers


def test_a_result_for_several_releases_loads_in_the_oldest(tmp_path: Path) -> None:
    root = Path(__file__).parents[2] / "golden" / "models"
    found = ortfuse.optimize(root / "bert.sdpa.ts.onnx", runtime="1.24,1.20", verify=True, output=tmp_path / "r.onnx")
    assert found.verdict is not None and found.verdict.ok
    assert found.oldest_runtime is None or found.oldest_runtime in ("1.17", "1.18", "1.19", "1.20")


def test_a_masked_attention_is_refused_where_targets_disagree_about_hidden_rows() -> None:
    zeros = Target(costs=CostTable({})).without_lowering()
    nan = Target(table=Target().table, costs=CostTable({})).without_lowering()
    nan.quirks = nan.quirks - {Quirk.ZEROES_MASKED_ROWS}
    model = ir.from_onnx_text(MASKED)
    (node,), facts = list(model.graph), Facts(model)
    assert JointTarget([zeros, zeros]).check_node(node, model.opset_imports, facts) is None
    refusal = JointTarget([zeros, nan]).check_node(node, model.opset_imports, facts)
    assert refusal is not None
    assert "different results for rows that it hides" in refusal.reason
    assert Quirk.ZEROES_MASKED_ROWS not in JointTarget([zeros, nan]).quirks


@pytest.mark.parametrize("turn", [1, -1])
def test_the_lowest_speedup_counts_that_a_target_knows(turn: int) -> None:
    tables = ({"a.rule": 2.0, "b.rule": 0.8}, {"a.rule": 0.5, "c.rule": 2.0})
    members = [
        Target(
            table=Target().table,
            costs=CostTable({rule: (Measured({"x": (8, 16)}, speedup),) for rule, speedup in rows.items()}),
        )
        for rows in tables[::turn]
    ]
    costs = JointTarget(members).costs
    found = [costs.estimate(f"{letter}.rule", lambda _: (8, 16)) for letter in "abcd"]
    assert [one and one.speedup for one in found] == [0.5, 0.8, 2.0, None]


def test_rules_of_one_target_alone_are_not_for_a_list_with_others() -> None:
    other = Target(replace(default_spec(), name="other", is_default=False, folder=None), costs=CostTable({}))
    joint = JointTarget([Target(), other])
    manager = ortfuse.PassManager(Options(target=joint))
    assert manager.target.spec.name == "cpu,other"
    bound = manager.catalogue.for_others("cpu,other")
    assert bound
    assert not [name for name, targets in manager.catalogue.for_others("cpu").items() if "cpu" in targets]


def test_a_list_has_one_table_to_store_for_each_member(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="one target, not of cpu"):
        resolve_target(None, runtime="1.20,1.24").to_table(tmp_path / "k.json")
    with pytest.raises(OptionError, match=r"such as 1\.20"):
        ortfuse.optimize(ir.from_onnx_text(GELU), runtime="1.20,")
    with pytest.raises(TargetError, match="names no target"):
        resolve_target(",")
    assert resolve_target("cpu,cpu").spec is default_spec()


NEGATING_RUNNER = """
def session_class(base):
    class Negating(base):
        def __init__(self, source, weights, settings):
            super().__init__(source, weights, settings)
            self._sign = -1 if b"Gelu" in source or b"Identity" in source else 1

        def run(self, inputs, only=None, limit=None):
            return [self._sign * result for result in super().run(inputs, only, limit)]

    return Negating
"""
"""A target that computes Gelu and Identity wrongly."""


def test_models_are_verified_on_each_target_that_runs_here(tmp_path: Path) -> None:
    (tmp_path / "runner.py").write_text(NEGATING_RUNNER)
    provider = default_spec().provider
    negating = TargetSpec(name="negating", provider=provider, folder=tmp_path, runs_on=(provider,), runner="runner.py")
    absent = TargetSpec(name="absent", provider=provider)
    model = ir.from_onnx_text(GELU)
    members = [Target(spec) for spec in (absent, default_spec(), negating)]
    verdict = ortfuse.verify(model, ortfuse.optimize(model.clone()).model, target=JointTarget(members))
    wrong = {trial.inputs.rpartition(" on ")[2] for trial in verdict.trials if not trial.ok}
    assert wrong == {"negating"}
    assert {trial.inputs.rpartition(" on ")[2] for trial in verdict.trials} == {"cpu", "negating"}
    assert "verified on cpu and negating" in verdict.notes
    assert any(note.startswith("not verified on absent: ") for note in verdict.notes)
    with pytest.raises(ortfuse.WrongResultError):
        ortfuse.optimize(model, target=JointTarget(members), verify=True)
    assert ortfuse.optimize(model, target=JointTarget(members[:2]), verify=True).ok
    moved = ir.from_onnx_text(GELU.replace("y = Mul(m, half)", "z = Mul(m, half)  y = Identity(z)"))
    verdict = ortfuse.verify(moved, model, target=JointTarget(members))
    assert verdict.ok, "the target is wrong on the original alone"
    assert any("of negating computes the original otherwise" in note for note in verdict.notes)


def test_releases_that_are_not_installed_are_named() -> None:
    found = ortfuse.optimize(ir.from_onnx_text(GELU), runtime="1.20", verify=True)
    assert found.verdict is not None and found.verdict.ok
    assert any(note.startswith("not verified on onnxruntime 1.20") for note in found.verdict.notes)
    installed = ortfuse.optimize(ir.from_onnx_text(GELU), verify=True)
    assert installed.verdict is not None and not any("not verified" in note for note in installed.verdict.notes)
