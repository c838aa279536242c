from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import onnxruntime as ort
import pytest

import ortfuse
from ortfuse.api.assess_optimization import idle_options
from ortfuse.errors import ModelFileError, OptionError, PatternError, VerificationError
from ortfuse.targets import Target

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
BERT = GOLDEN / "bert.sdpa.ts.onnx"
ORDER = ["inputs", "seed", "tolerance", "rounds", "threads"]
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[2, 4] x, bool c) => (float[2, 4] y, float[2, 4] z) <float two = {2}> {
    a = Erf(x) \n y = Mul(a, two)
    z = If (c) <then_branch = t () => (float[2, 4] p) { q = Erf(x) \n p = Mul(two, q) },
                else_branch = e () => (float[2, 4] r) { r = Identity(x) }> }"""


@pytest.mark.parametrize("kind", ["path", "text", "proto", "ir", "graphsurgeon"])
def test_optimize_gives_back_the_kind_it_was_given(kind: str) -> None:
    proto = onnx.load(BERT)
    given = {
        "path": BERT,
        "text": str(BERT),
        "proto": proto,
        "ir": ir.from_proto(proto),
        "graphsurgeon": gs.import_onnx(proto) if kind == "graphsurgeon" else None,
    }[kind]
    result = ortfuse.optimize(given)
    assert isinstance(result.model, ir.Model if kind in ("path", "text") else type(given))
    assert result.report.families()["attention"] >= 2
    assert result.report.after.nodes < result.report.before.nodes / 2


def test_a_result_can_be_saved_and_computes_the_same(tmp_path: Path) -> None:
    path = tmp_path / "result.onnx"
    ortfuse.optimize(onnx.load(BERT)).save(path)
    ids = np.random.default_rng(0).integers(0, 100, (2, 7))
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    before, after = (ort.InferenceSession(file).run(None, inputs) for file in (BERT, path))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("level", ["basic", "extended", "all"])
def test_levels_are_pass_lists(level: str) -> None:
    result = ortfuse.optimize(GOLDEN / "resnet.raw.onnx", level=level)
    assert ("com.microsoft.FusedConv" in result.report.after.operators) == (level != "basic")


def test_passes_and_level_exclude_each_other() -> None:
    with pytest.raises(OptionError, match="not both"):
        ortfuse.optimize(BERT, passes="fold", level="basic")


def test_progress_is_told() -> None:
    seen: list[str] = []
    ortfuse.optimize(BERT, passes="fold, dce", on_pass=lambda event: seen.append(event.report.name))
    assert seen == ["fold", "dce", "finalize"]


def test_find_gives_matches_in_all_graphs_and_changes_nothing() -> None:
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    before = str(model)
    x = ortfuse.var("x")
    matches = list(ortfuse.find(model, 2.0 * ortfuse.op.Erf(x)))
    assert [(match.root.name, match["x"].name) for match in matches] == [("y", "x"), ("p", "x")]
    assert matches[0]["x"] is model.graph.inputs[0]
    assert str(model) == before
    in_branches = ortfuse.find(
        model,
        2.0 * ortfuse.op.Erf(x),
        guards=[lambda match: match.refuse("left_out", "root", found="no") if match.root.name == "y" else None],
    )
    assert [match.root.name for match in in_branches] == ["p"]


def test_find_refuses_a_pattern_that_matches_anything() -> None:
    with pytest.raises(ortfuse.OrtfuseError, match="matches any value"):
        ortfuse.find(BERT, ortfuse.var("x"))


def test_verify_compares_models_of_any_kind() -> None:
    verdict = ortfuse.verify(BERT, ortfuse.optimize(onnx.load(BERT)).model)
    assert verdict.ok, verdict.summary()


def test_benchmark_measures_models_side_by_side() -> None:
    models = {"original": BERT, "optimised": ortfuse.optimize(BERT, level="basic").model}
    rows = ortfuse.benchmark(models, rounds=2).latency
    assert [row.name for row in rows] == ["original", "optimised"]
    assert rows[0].speedup == 1


def test_importing_ortfuse_imports_nothing_heavy() -> None:
    code = "import ortfuse, sys; print([name for name in ('onnx', 'onnx_ir', 'numpy', 'onnxruntime') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_every_public_name_can_be_imported() -> None:
    for name in ortfuse.__all__:
        assert getattr(ortfuse, name) is not None
    assert set(ortfuse.__all__) <= set(dir(ortfuse))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ortfuse.nothing


WRONG_RULE = """
from ortfuse.rewrite.pattern import op, var
from ortfuse.rewrite import Exactness, RuleTest, Rule

x = var("x")
RULES = [
    Rule(name="wrong.tanh", pattern=op.Tanh(x), replace=op.Sigmoid(x), exactness=Exactness.ROUNDING, source="none",
         test=RuleTest(shapes={"x": "b 3"})),
]
"""


def test_rewrites_are_checked_at_their_sites_and_wrong_ones_undone(tmp_path: Path) -> None:
    rules = tmp_path / "wrong.py"
    rules.write_text(WRONG_RULE)
    result = ortfuse.optimize(BERT, patterns=[rules], verify="sites")
    assert result.sites is not None
    assert [(check.rule, check.site) for check in result.sites if check.state != "equal"] == [
        ("wrong.tanh", "pooler_output")
    ]
    assert result.report.families()["attention"] == 2
    assert ortfuse.verify(BERT, result.model).ok


def test_the_whole_result_is_verified_when_asked_for(tmp_path: Path) -> None:
    rules = tmp_path / "wrong.py"
    rules.write_text(WRONG_RULE)
    verdict = ortfuse.optimize(BERT, verify="whole").verdict
    assert verdict is not None
    assert verdict.ok
    with pytest.raises(VerificationError, match="pooler_output"):
        ortfuse.optimize(BERT, patterns=[rules], verify="whole")


def test_benchmark_wants_models_by_name() -> None:
    with pytest.raises(OptionError, match="give models by name"):
        ortfuse.benchmark(["a.onnx", "b.onnx"])  # type: ignore[arg-type]


def test_save_says_what_it_writes(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"writes an onnx_ir.Model, not onnx.*with onnx.save"):
        ortfuse.save(onnx.ModelProto(), tmp_path / "a.onnx")  # type: ignore[arg-type]


def test_options_that_nothing_makes_use_of_are_named() -> None:
    given = {"rounds": 3, "threads": 1, "tolerance": 1e-3, "seed": 1, "inputs": "x.npz"}
    assert [note.partition(" ")[0] for note in idle_options(ortfuse.Options(**given))] == sorted(given, key=ORDER.index)
    assert idle_options(ortfuse.Options(**(given | {"verify": "whole", "bench": True}))) == []
    assert idle_options(ortfuse.Options(seed=1, verify="sites")) == []
    assert "rounds is not used: it is for bench" in ortfuse.optimize(ir.from_onnx_text(TEXT), rounds=3).report.notes


def test_only_the_installed_runtime_can_be_measured(tmp_path: Path) -> None:
    Target().to_table(tmp_path / "other.json")
    with pytest.raises(OptionError, match=r"measure: would run onnxruntime .* and the target is"):
        ortfuse.optimize(ir.from_onnx_text(TEXT), measure=True, target=tmp_path / "other.json")


def test_what_is_no_model_no_pattern_and_no_options_is_told_as_that() -> None:
    path = "golden/models/bert.sdpa.ts.onnx"
    with pytest.raises(TypeError, match=r"ortfuse\.load reads a file, by its path, not builtins\.bytes"):
        ortfuse.load(b"")  # type: ignore[arg-type]
    with pytest.raises(ModelFileError, match="the path of the model is empty"):
        ortfuse.optimize("")
    with pytest.raises(PatternError, match="made of `var` and `op`"):
        ortfuse.find(path, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"options are an ortfuse\.Options, or keywords one by one, not builtins\.dict"):
        ortfuse.optimize(path, {"passes": "all"})  # type: ignore[arg-type, call-overload]
