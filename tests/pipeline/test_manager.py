from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from rule_files import HEAD, rules

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.errors import PassError, PipelineError, TargetError
from ortfuse.options import Options, PipelineLike
from ortfuse.pipeline import PassEvent, PassManager, RunReport, registry
from ortfuse.pipeline.registry import register_pass
from ortfuse.pipeline.schedule import Schedule
from ortfuse.pipeline.steps import Repeated, Single
from ortfuse.targets import Target
from ortfuse.transforms import ConstantFolding, Context
from ortfuse.transforms.cleanup import finalize

GOLDEN = Path(__file__).parents[2] / "golden" / "models"
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[2] x) => (float[2] y) <float[2] w = {1, 2}, float[2] unused = {3, 4}> {
    c = Constant <value = float[2] {1, 2}> () \n a = Exp(w) \n b = Exp(c) \n d = Neg(x) \n e = Neg(d)
    f = Add(e, a) \n y = Add(f, b) }"""

EVEN = """<ir_version: 8, opset_import: ["" : 17]> agraph (float[2] x) => (float[2] y) { d = Neg(x) \n y = Cos(d) }"""


def proto() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def run(pipeline: PipelineLike, model: ir.Model | Path | None = None, **options: Any) -> tuple[ir.Model, RunReport]:
    """A model after a pipeline, and what was done."""
    given = ir.from_proto(proto()) if model is None else ir.load(model) if isinstance(model, Path) else model
    return given, PassManager(Options(passes=pipeline, **options)).run(given)


@pytest.fixture
def registered() -> Iterator[None]:
    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)


@pytest.mark.parametrize("pipeline", ["", "disabled", ()])
def test_a_pipeline_without_passes_says_that_nothing_is_optimised(pipeline: PipelineLike) -> None:
    _, report = run(pipeline)
    assert report.notes == ["the pipeline has no passes, so nothing is optimised; `auto` has those that suit the model"]
    assert not run("dce")[1].notes


def test_pipelines_that_come_to_the_same_passes_have_the_same_text() -> None:
    model = ir.from_proto(proto())
    auto, every, less = (PassManager(Options(passes=name)).pipeline_for(model) for name in ("auto", "all", "basic"))
    assert auto == every != less
    assert every == PassManager(Options(passes="all")).run(model).pipeline


def test_a_run_reports_what_each_pass_did() -> None:
    _, report = run("lift_constants, fold, fixpoint(cse, dce)")
    assert [(entry.name, entry.changes, entry.nodes_before, entry.nodes_after) for entry in report.passes] == [
        ("lift_constants", 1, 7, 6),
        ("fold", 2, 6, 4),
        ("fixpoint(cse, dce)", 4, 4, 4),
        ("finalize", report.passes[-1].changes, 4, 4),
    ]
    assert [(part.name, part.runs, part.changes) for part in report.passes[2].parts] == [("cse", 2, 2), ("dce", 2, 2)]
    assert report.pipeline == "lift_constants, fold, fixpoint(cse, dce), finalize"
    assert (report.before.nodes, report.after.nodes) == (7, 4)
    assert report.after.operators == {"Neg": 2, "Add": 2}
    assert report.seconds > report.analysis_seconds > 0
    assert json.loads(json.dumps(report.to_dict()))["passes"][1]["name"] == "fold"


def test_the_same_kind_of_model_comes_back_and_the_original_stays() -> None:
    original = proto()
    before = original.SerializeToString(deterministic=True)
    assert isinstance(ortfuse.optimize(original, passes="canonicalize").model, onnx.ModelProto)
    assert original.SerializeToString(deterministic=True) == before
    model = ir.from_proto(proto())
    assert ortfuse.optimize(model, passes="canonicalize").model is not model
    assert len(model.graph) == 7
    PassManager("canonicalize").run(model)
    assert len(model.graph) < 7


def test_pipelines_come_as_text_path_and_sequence(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('passes = ["fold{max_growth=7}", "dce"]')
    expected = "fold{max_growth=7}, dce"
    for pipeline in (expected, path, str(path), ["fold{max_growth=7}", "dce"], [ConstantFolding(max_growth=7), "dce"]):
        assert str(PassManager(pipeline)) == expected  # type: ignore[arg-type]
        assert run(pipeline)[1].pipeline == f"{expected}, finalize"  # type: ignore[arg-type]


def test_lists_are_resolved_wherever_they_stand() -> None:
    pipeline = "tree, fixpoint(tree, dce)"
    assert str(PassManager(pipeline)) == pipeline
    resolved = "canonicalize, canonicalize, fixpoint(canonicalize, user, canonicalize, dce), finalize"
    assert run(pipeline)[1].pipeline == resolved


def test_auto_picks_the_list_by_the_model() -> None:
    _, bert = run("auto", GOLDEN / "bert.sdpa.ts.onnx")
    assert "fuse.*" in bert.pipeline
    assert bert.families()["attention"] == 2


def test_fusions_that_are_named_are_not_run_again_by_the_wildcard() -> None:
    found = run("fuse.linear, fuse.*")[1].pipeline.split(", ")
    assert found.count("fuse.linear") == 1
    assert len(found) > 3


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ("canonicalise", "no pass or pass list 'canonicalise'; did you mean 'canonicalize'"),
        ("fold{max_grow=1}", "no option 'max_grow'; it has max_growth; did you mean 'max_growth'"),
        ("fold{max_growth=1.5}", "max_growth is an integer, not 1.5"),
        ("fold{max_growth=true}", "max_growth is an integer, not True"),
        ("dce{x=1}", "no option 'x'; it has none"),
        ("basic{x=1}", "no option 'x'"),
        ("fixpoint{rounds=1}(dce)", "no option 'rounds'; it has max_rounds"),
        ('fuse.linear{without="no.such"}', "fuse.linear has no rule 'no.such'"),
        ([3], "3 is neither"),
    ],
)
def test_mistakes_in_a_pipeline_are_errors_before_a_model_is_loaded(pipeline: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        PassManager(pipeline)


def test_a_pass_of_ones_own_with_options(registered: None) -> None:
    @register_pass
    @dataclass(frozen=True)
    class Rename:
        name: ClassVar[str] = "rename"
        to: str = "n"
        times: int = 1

        def run(self, context: Context) -> int:
            changed = [node for node in context.model.graph if node.name != self.to]
            for node in changed:
                node.name = self.to
            return len(changed)

    model, _ = run('fixpoint(rename{to="m"})')
    assert {node.name for node in model.graph} == {"m"}


@pytest.mark.parametrize("mistake", ["name", "run", "default", "type", "taken", "dataclass"])
def test_a_class_that_is_no_pass_is_refused(registered: None, mistake: str) -> None:
    fields: dict[str, object] = {
        "run": lambda self, context: 0,
        "name": "mine",
        "__annotations__": {"name": ClassVar[str]},
    }
    if mistake in ("name", "run"):
        fields[mistake] = None
    if mistake in ("default", "type"):
        fields["__annotations__"] = {"name": ClassVar[str], "option": int if mistake == "default" else list}
        fields |= {} if mistake == "default" else {"option": ()}
    if mistake == "taken":
        fields["name"] = "fold"
    made = type("Made", (), fields)
    with pytest.raises(PipelineError, match="pass class Made"):
        register_pass(made if mistake == "dataclass" else dataclass(frozen=True)(made))


def test_passes_that_never_settle_are_named() -> None:
    @dataclass(frozen=True)
    class Flip:
        name: ClassVar[str] = "flip"

        def run(self, context: Context) -> int:
            return 1

    assert run("fixpoint(dce, cse)")[1].passes[0].parts[0].runs == 2
    assert run([Flip()])[1].passes[0].changes == 1
    context = _context()
    schedule = Schedule([Repeated("fixpoint", (Single("flip", Flip()), Single("fold", ConstantFolding())), 4)], context)
    with pytest.raises(PipelineError, match=r"fixpoint has not settled after 4 rounds.*flip \(1 changes\)") as caught:
        for turn in schedule:
            turn.changes = turn.transformer.run(context)
    assert isinstance(caught.value, PassError) and caught.value.name == "flip"


def _context() -> Context:
    model = ir.from_proto(proto())
    return Context(model, Facts(model), Target())


def test_a_fixpoint_stops_when_everything_was_unchanged_once_in_a_row() -> None:
    model, report = run("fixpoint(lift_constants, fold, cse, dce)")
    # After the last change (dce, first round) the others are run once more, dce itself is not run in vain.
    assert [part.runs for part in report.passes[0].parts] == [2, 2, 2, 2]
    _, again = run("fixpoint(lift_constants, fold, cse, dce)", model)
    assert [part.runs for part in again.passes[0].parts] == [1, 1, 1, 1]


def test_every_item_is_reported_and_snapshots_can_be_executed() -> None:
    events: list[PassEvent] = []
    snapshots: list[ir.Model] = []

    def on_pass(event: PassEvent) -> None:
        events.append(event)
        snapshots.append(event.snapshot())

    manager = PassManager("canonicalize, fuse.activation, fuse.attention, canonicalize")
    model = ir.load(GOLDEN / "bert.sdpa.ts.onnx")
    report = manager.run(model, on_pass=on_pass)
    items = [event.report for event in events if any(event.report is entry for entry in report.passes)]
    assert items == report.passes
    assert {event.total for event in events} == {5}
    inputs = {
        "input_ids": np.ones((2, 5), np.int64),
        "attention_mask": np.ones((2, 5), np.int64),
        "token_type_ids": np.zeros((2, 5), np.int64),
    }
    results = [_run(model, inputs) for model in snapshots]
    assert model.opset_imports[""] >= 23
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-4, atol=1e-5)


def _run(model: ir.Model, inputs: dict[str, np.ndarray]) -> np.ndarray:
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def test_the_opset_stays_below_the_limit() -> None:
    model, _ = run("auto", GOLDEN / "bert.sdpa.ts.onnx", max_opset=17)
    assert model.opset_imports[""] == 17


def test_a_model_whose_opset_cannot_be_raised_is_optimised_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise TargetError("no way up")

    monkeypatch.setattr(finalize, "raise_opset", fail)
    result = ortfuse.optimize(GOLDEN / "bert.sdpa.ts.onnx")
    assert result.model.opset_imports[""] == 17
    assert "no way up" in result.report.notes[0]
    assert result.report.families()["gelu"] >= 2


def test_near_misses_are_kept_on_request() -> None:
    assert not run("auto", GOLDEN / "bert.sdpa.ts.onnx")[1].misses
    assert run("auto", GOLDEN / "bert.sdpa.ts.onnx", explain=True)[1].misses


def test_rules_of_the_user_run_with_every_list_and_by_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{HEAD}RULES = [rule('mine.even', op.Cos(op.Neg(x)), op.Cos(x))]")
    for pipeline in ("auto", "basic", "extended", "all", "canonicalize, user", "fuse.mine", "fuse.mine, user"):
        _, report = run(pipeline, ir.from_onnx_text(EVEN), patterns=[path])
        assert report.log.hits()["mine.even"] == 1, pipeline
    assert "Neg" not in report.after.operators


def test_rules_of_the_user_that_the_pipeline_does_not_run_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(rules("mine.neg_neg"))
    with pytest.raises(PipelineError, match=r"does not run the rules of .*mine\.py: add `user`, or fuse\.mine"):
        PassManager(Options(passes="fold, dce", patterns=path))


@pytest.mark.parametrize(("last", "opset"), [("Relu", 17), ("Gelu", 17)])
def test_a_limit_below_the_models_own_opset_lowers_it_if_that_is_possible_and_blocks_nothing(
    last: str, opset: int
) -> None:
    text = f"""<ir_version: 9, opset_import: ["": 20]> g (float[2,3,4] x) => (float[4,2,3] y)
        {{ t = Transpose<perm = [1, 2, 0]>(x) u = Transpose<perm = [1, 2, 0]>(t) y = {last}(u) }}"""
    model, _ = run("all", ir.from_onnx_text(text), max_opset=17)
    assert [node.op_type for node in model.graph] == ["Transpose", last]
    assert model.graph[-1].domain == ("com.microsoft" if last == "Gelu" else "")
    assert model.graph.opset_imports[""] == opset


def test_the_installed_cpu_given_as_the_target_is_the_default() -> None:
    plain, *named = (
        ortfuse.optimize(GOLDEN / "bert.sdpa.ts.onnx", target=target).report
        for target in (None, Target(), "CPUExecutionProvider")
    )
    for report in named:
        assert report.after.operators == plain.after.operators
        assert [choice.to_dict() for choice in report.choices] == [choice.to_dict() for choice in plain.choices]
    assert not any("SkipLayerNormalization" in name for name in plain.after.operators)


@pytest.mark.parametrize("model", ["model.onnx", onnx.ModelProto()])
def test_a_manager_says_what_kind_of_model_it_works_on(model: Any) -> None:
    with pytest.raises(TypeError, match=r"works in place on an onnx_ir.Model.*ortfuse.optimize takes any"):
        PassManager("dce").run(model)


def test_a_pass_given_as_its_class_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"ConstantFolding is a class; give an object of it, ConstantFolding\(\)"):
        PassManager(["dce", ConstantFolding])  # type: ignore[list-item]


def test_a_file_without_rules_may_register_a_pass(registered: None, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom typing import ClassVar\nfrom ortfuse import register_pass\n"
        "@register_pass\n@dataclass(frozen=True)\nclass Idle:\n"
        "    name: ClassVar[str] = 'idle'\n    def run(self, context):\n        return 0\n"
        "RULES = []\n"
    )
    assert str(PassManager(Options(passes="idle, dce", patterns=(file,)))) == "idle, dce"


def test_sites_that_were_one_operator_are_improved_and_not_fused() -> None:
    spelled = """<ir_version: 10, opset_import: ["": 21]> g (float[2,8] x) => (float[2,8] y)
        <float[8] b = {1, 2, 3, 4, 5, 6, 7, 8}, float half = {0.5}, float one = {1}, float root = {1.4142135}> {
        s = Add(x, b) d = Div(s, root) e = Erf(d) a = Add(e, one) h = Mul(s, a) y = Mul(h, half) }"""
    single = """<ir_version: 10, opset_import: ["": 21]> g (float[2,8] x) => (float[2,8] y)
        <float[8] b = {1, 2, 3, 4, 5, 6, 7, 8}> { s = Add(x, b) y = Gelu (s) }"""
    single = single.replace(": 21]", ': 21, "com.microsoft": 1]').replace("= Gelu", "= com.microsoft.Gelu")
    counts = [run("all", ir.from_onnx_text(text))[1] for text in (spelled, single)]
    assert [(one.families().get("gelu"), one.improved().get("gelu")) for one in counts] == [(1, None), (None, 1)]
    assert counts[1].to_dict()["improved"] == {"gelu": 1}


def test_what_is_called_after_each_pass_is_no_time_of_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 21]> g (float[n] x) => (float[n] y) { a = Relu(x) b = Relu(x) y = Add(a, b) }'
    )
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def slowly(event: PassEvent) -> None:
        now[0] += 100.0

    report = PassManager("fixpoint(cse, dce)").run(model, on_pass=slowly)
    assert now[0] >= 300.0
    assert [report.seconds, *(entry.seconds for entry in report.passes)] == [0.0] * (1 + len(report.passes))
