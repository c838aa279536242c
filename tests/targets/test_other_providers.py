"""A provider that is not installed here: its table says what its kernels are, and nothing found on the CPU binds it."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from graphs import operators

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.errors import TargetError
from ortfuse.pipeline import load_catalogue
from ortfuse.targets import Quirk, Target
from ortfuse.transforms import Choices, RulePass
from ortfuse.transforms.context import Context

ROOT = Path(__file__).parents[2]
BERT = ROOT / "golden" / "models" / "bert.eager.ts.onnx"


@pytest.fixture(scope="module")
def cpu_table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("tables") / "cpu.json"
    Target().to_table(path)
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def made_up(table: dict[str, Any], path: Path, *without: str, **findings: Any) -> Target:
    """The CPU's kernels under another name, without some operators of ai.onnx."""
    kept = [entry for entry in table["operators"] if entry["domain"] or entry["name"] not in without]
    target = path / "table.json"
    target.write_text(json.dumps({**table, "provider": "MadeUpExecutionProvider", "operators": kept, **findings}))
    return Target.from_table(target)


def test_a_provider_without_the_standard_attention_gets_the_runtimes_own(
    cpu_table: dict[str, Any], tmp_path: Path
) -> None:
    report = ortfuse.optimize(BERT, target=made_up(cpu_table, tmp_path, "Attention")).report
    assert "Attention" not in report.after.operators
    assert report.after.operators["com.microsoft.MultiHeadAttention"] == 2


def test_what_was_found_on_the_cpu_does_not_bind_it(cpu_table: dict[str, Any], tmp_path: Path) -> None:
    target = made_up(cpu_table, tmp_path)
    assert not target.costs.speedups
    assert not target.quirks
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 23]> g (float[1, 2, 3, 4] x, float[1, 3] m) => (float[1, 2, 3, 4] y)'
        "{ y = Attention <scale = -1.0> (x, x, x, m) }"
    )
    facts, node = Facts(model), next(iter(model.graph))
    assert Target().check_node(node, {"": 23}, facts) is not None
    assert target.check_node(node, {"": 23}, facts) is None


def test_what_is_documented_of_an_operator_binds_every_provider(cpu_table: dict[str, Any], tmp_path: Path) -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 20, "com.microsoft": 1]> g (float[2, 3] x, float[2, 3] b) => (float[2, 3] y)'
        "{ y = com.microsoft.BiasGelu (x, b) }"
    )
    node, imports = next(iter(model.graph)), {"": 20, "com.microsoft": 1}
    assert made_up(cpu_table, tmp_path).check_node(node, imports, Facts(model)) is not None


def test_a_table_can_have_limits_costs_and_quirks_of_its_own(cpu_table: dict[str, Any], tmp_path: Path) -> None:
    target = made_up(
        cpu_table, tmp_path,
        limits=[
            {"domain": "", "name": "Attention", "input": 3, "ranks": [4]},
            {"domain": "", "name": "Attention", "attribute": "softcap", "values": [0.0]},
        ],
        costs={"source": "a test", "speedups": {"gelu.from_erf_form": {"x 1x128x768": 0.5}}},
        quirks=["FUSES_SUMS_BEFORE_NORMALISATION"],
    )  # fmt: skip
    assert target.quirks == {Quirk.FUSES_SUMS_BEFORE_NORMALISATION}
    estimate = target.costs.estimate("gelu.from_erf_form", lambda name: None)
    assert estimate is not None and estimate.speedup == 0.5
    reasons = {}
    for mask, softcap in (("1, 1, 3, 3", 0.0), ("3, 3", 0.0), ("1, 1, 3, 3", 2.0)):
        model = ir.from_onnx_text(
            f'<ir_version: 10, opset_import: ["": 23]> g (float[1, 2, 3, 4] x, float[{mask}] m) => (float[1, 2, 3, 4] y)'
            f"{{ y = Attention <softcap = {softcap}> (x, x, x, m) }}"
        )
        refusal = target.check_node(next(iter(model.graph)), {"": 23}, Facts(model))
        reasons[mask, softcap] = None if refusal is None else refusal.reason
    assert reasons["1, 1, 3, 3", 0.0] is None
    assert "rank 4" in str(reasons["3, 3", 0.0])
    assert "softcap" in str(reasons["1, 1, 3, 3", 2.0])


@pytest.mark.parametrize("findings", [{"quirks": ["unheard of"]}, {"limits": [{"name": "Add"}]}, {"costs": {}}])
def test_findings_of_another_form_are_refused(
    findings: dict[str, Any], cpu_table: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(TargetError, match="not a kernel table"):
        made_up(cpu_table, tmp_path, **findings)


@pytest.mark.parametrize(("quirky", "made"), [(True, "Sum"), (False, "Add")])
def test_a_rule_that_a_quirk_asks_for_is_for_targets_that_have_it(
    quirky: bool, made: str, cpu_table: dict[str, Any], tmp_path: Path
) -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 20]> g (float[2, 3, 8] x, float[2, 3, 8] y, float[8] s) => (float[2, 3, 8] z)'
        "{ a = Add(x, y) \n z = LayerNormalization(a, s) }"
    )
    target = Target() if quirky else made_up(cpu_table, tmp_path)
    rules = [rule for rule in load_catalogue([]).rules() if rule.because is not None]
    RulePass("test", tuple(rules)).run(Context(model, Facts(model), target, choices=Choices()))
    assert operators(model) == [made, "LayerNormalization"]


@pytest.mark.parametrize(("quirky", "fused"), [(True, False), (False, True)])
def test_rows_that_are_hidden_as_a_whole_are_a_concern_where_the_kernel_makes_zeros_of_them(
    quirky: bool, fused: bool, cpu_table: dict[str, Any], tmp_path: Path
) -> None:
    """Of a mask that is an input nothing is known."""
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 23]> g (float[2, 2, 3, 4] q, float[2, 2, 3, 4] v, float[2, 1, 3, 3] m)'
        " => (float[2, 2, 3, 4] y) { t = Transpose <perm = [0, 1, 3, 2]> (q)  p = MatMul(q, t)  s = Add(p, m)"
        "  w = Softmax <axis = -1> (s)  y = MatMul(w, v) }"
    )
    target = Target() if quirky else made_up(cpu_table, tmp_path)
    rules = [rule for rule in load_catalogue([]).rules() if rule.name == "attention.sdpa"]
    RulePass("test", tuple(rules)).run(Context(model, Facts(model), target, choices=Choices()))
    assert ("Attention" in operators(model)) == fused


def test_targets_are_built_where_users_come_in_and_nowhere_else() -> None:
    found = set()
    for path in (ROOT / "ortfuse").rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if re.search(r"\bTarget\s*\(", text) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Target":
                found.add(path.relative_to(ROOT / "ortfuse").as_posix())
    assert found <= {
        "targets/target.py", "targets/resolve.py", "tuning/rule_costs/measure_rule_costs.py", "tuning/rule_costs/speedup.py",
        "testing/assertions.py", "targets/find_oldest_release.py", "runtime/load_check.py",
    }  # fmt: skip
