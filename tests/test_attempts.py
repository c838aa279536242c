"""Something usable comes of every model that the runtime loads: without what fails, or as it was."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from crashing import runtime_that
from onnx import numpy_helper, parser

import ortfuse
from ortfuse.errors import OutputError, PassError, PipelineError, RewriteError, VerificationError
from ortfuse.io.convert_model_objects import enter
from ortfuse.runtime.session import Session
from ortfuse.transforms import Context, RulePass
from ortfuse.transforms.cleanup import finalize
from ortfuse.transforms.cleanup.cse import CommonSubexpressionElimination

GELU = """<ir_version: 8, opset_import: ["" : 20]> g (float[b, 4] x) => (float[b, 4] y)
<float r = {1.4142135}, float one = {1}, float h = {0.5}>
{ s = Neg(x) u = Neg(x) v = Sub(s, u) w = Add(v, x) d = Div(w, r) e = Erf(d) a = Add(e, one) m = Mul(w, a) y = Mul(m, h) }"""
X = {"x": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)}


def gelu() -> onnx.ModelProto:
    return parser.parse_model(GELU)


def same(one: Any, other: Any) -> bool:
    first, second = (Session(model).run(X)["y"] for model in (one.SerializeToString(), other))
    return np.allclose(first, second, atol=1e-6)


def fail(*_: object) -> int:
    raise KeyError("a mistake")


def test_a_pass_that_fails_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(CommonSubexpressionElimination, "run", fail)
    result = ortfuse.optimize(gelu(), output=tmp_path / "o.onnx")
    assert "Gelu" in {node.op_type for node in result.model.graph.node}
    (text,) = result.report.failures
    assert "the pass cse failed (KeyError: 'a mistake')" in text and "report it" in text
    assert same(gelu(), tmp_path / "o.onnx")


def test_the_pass_manager_says_which_pass_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommonSubexpressionElimination, "run", fail)
    with pytest.raises(PassError) as caught:
        ortfuse.PassManager("cse").run(enter(gelu())[0])
    assert caught.value.name == "cse"


def test_a_rule_without_which_the_others_settle_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run = RulePass.run

    def fails_with_gelu(self: RulePass, context: Context) -> int:
        if (
            any(rule.name == "gelu.from_erf_form" for rule in self.rules)
            and "gelu.from_erf_form" not in context.without
        ):
            raise RewriteError(
                "the rules gelu.from_erf_form and gelu.other undo each other without end", "gelu.from_erf_form"
            )
        return run(self, context)

    monkeypatch.setattr(RulePass, "run", fails_with_gelu)
    result = ortfuse.optimize(gelu())
    operators = [node.op_type for node in result.model.graph.node]
    assert "Erf" in operators and "Gelu" not in operators
    assert len(operators) < 9, "the other rules are applied"
    (text,) = result.report.failures
    assert "the result is without the rule gelu.from_erf_form" in text
    assert same(gelu(), result.model.SerializeToString())


@dataclass(frozen=True)
class Mine:
    """A pass of a user's that fails."""

    name: str = "mine"

    def run(self, context: object) -> int:
        raise KeyError("of mine")


def test_an_error_of_a_pass_of_the_user_is_the_users() -> None:
    with pytest.raises(PipelineError, match="of mine"):
        ortfuse.optimize(gelu(), passes=["dce", Mine()])


@pytest.mark.parametrize("given", ["path", "proto"])
def test_where_nothing_helps_the_model_stays_as_it_is(
    given: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(finalize.Finalize, "run", fail)
    onnx.save(gelu(), tmp_path / "m.onnx")
    result = ortfuse.optimize(tmp_path / "m.onnx" if given == "path" else gelu(), output=tmp_path / "o.onnx")
    assert "finalize failed" in result.unchanged
    assert result.report.notes == [f"the model is left as it is: {result.unchanged}"]
    assert (tmp_path / "o.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()
    assert result.written == tmp_path / "o.onnx"


def test_an_operator_with_which_the_runtime_does_not_load_the_result_is_avoided(tmp_path: Path) -> None:
    with runtime_that("load", "Gelu"):
        result = ortfuse.optimize(gelu(), output=tmp_path / "o.onnx")
    made = [node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node]
    assert "Erf" in made and "Gelu" not in made
    assert len(made) < 9, "the other edits are made"
    (note,) = [note for note in result.report.notes if note.startswith("left out")]
    assert "gelu.from_erf_form at 'y'" in note and "ONNX Runtime crashes" in note
    assert list(tmp_path.iterdir()) == [tmp_path / "o.onnx"]


def test_a_result_that_is_not_written_loads_too() -> None:
    with runtime_that("load", "Gelu"):
        made = ortfuse.optimize(gelu())
        unseen = ortfuse.optimize(gelu(), loaded=False)
    assert "Erf" in {node.op_type for node in made.model.graph.node}
    assert "Gelu" in {node.op_type for node in unseen.model.graph.node}


ANY_RANK = """<ir_version: 8, opset_import: ["" : 20]> g (float x) => (float[] y) <int64 no = {0}, int64[1] last = {-1}> {
    a = Loop<body = one (int64 i, bool go, float[] s) => (bool on, float[] t) { on = Identity(go) t = Neg(s) }>(no, , x)
    y = ReduceMax<keepdims = 1>(a, last) }"""


def test_shapes_that_the_runtime_cannot_do_with_are_not_declared() -> None:
    """It reduces a scalar along its last axis, but not if it knows that it is one."""
    original = parser.parse_model(ANY_RANK)
    result = ortfuse.optimize(original)
    assert any(note.startswith("no shapes are declared that were not") for note in result.report.notes)
    before, after = (
        Session(model.SerializeToString()).run({"x": np.array(3, np.float32)})["y"]
        for model in (original, result.model)
    )
    assert np.array_equal(before, after)


def test_the_result_is_written_unseen_if_that_is_asked_for(tmp_path: Path) -> None:
    with runtime_that("load", "Gelu"):
        ortfuse.optimize(gelu(), output=tmp_path / "o.onnx", loaded=False)
    assert "Gelu" in {node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node}


def test_a_model_that_the_runtime_does_not_load_is_no_reason_to_change_the_result(tmp_path: Path) -> None:
    with runtime_that("load", "g"):  # the name of the graph
        result = ortfuse.optimize(gelu(), output=tmp_path / "o.onnx")
    assert any("loads neither" in note for note in result.report.notes)
    assert "Gelu" in {node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node}


def test_of_a_model_without_outputs_something_is_left_for_the_runtime_to_load(tmp_path: Path) -> None:
    model = gelu()
    model.graph.ClearField("output")
    result = ortfuse.optimize(model, output=tmp_path / "o.onnx")
    assert any("dce at 's'" in note for note in result.report.notes)
    Session(tmp_path / "o.onnx")


def test_what_only_the_runtime_understands_is_copied(tmp_path: Path) -> None:
    model = gelu()
    model.ir_version = 0
    onnx.save(model, tmp_path / "m.onnx")
    for given in (tmp_path / "m.onnx", model):
        result = ortfuse.optimize(given, output=tmp_path / "o.onnx")
        assert result.unchanged
        assert (tmp_path / "o.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()
        result.save(tmp_path / "p.onnx")


def external(folder: Path) -> Path:
    """A model without an IR version, with external data."""
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 20]> g (float[3, 4] x) => (float[3, 4] y) { y = Add(x, w) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(3, 4), "w"))
    model.ir_version = 0
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    return folder / "m.onnx"


def test_external_data_are_copied_along_but_replace_nothing(tmp_path: Path) -> None:
    source, folder = external(tmp_path), tmp_path / "to"
    folder.mkdir()
    ortfuse.optimize(source, output=tmp_path / "beside.onnx")
    ortfuse.optimize(source, output=folder / "o.onnx")
    ortfuse.optimize(source, output=folder / "o.onnx")
    assert np.array_equal(Session(folder / "o.onnx").run(X)["y"], Session(source).run(X)["y"])
    (folder / "w.bin").write_bytes(b"something else")
    with pytest.raises(OutputError, match=r"w\.bin: external data of the model would replace this file"):
        ortfuse.optimize(source, output=folder / "other.onnx")
    assert (folder / "w.bin").read_bytes() == b"something else"
    assert not (folder / "other.onnx").exists()


def test_large_weights_are_not_read_to_see_whether_a_result_loads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ortfuse.runtime import load_check

    given = []
    opened = load_check.opened
    monkeypatch.setattr(load_check, "opened", lambda *args, **kwargs: given.append(args) or opened(*args, **kwargs))
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 20]> g (float[b, 20000] x) => (float[b, 200] y) { y = MatMul(x, w) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((20_000, 200), np.float32), "w"))
    result = ortfuse.optimize(model, output=tmp_path / "o.onnx")
    assert [settings.level for _, _, settings in given] == ["all", "none", "basic"]
    source, weights, settings = given[0]
    assert len(source) < 1000 and not weights
    zeros = Path(settings.folder) / "zeros"
    assert zeros.stat().st_size >= 16_000_000 > 512 * zeros.stat().st_blocks
    assert not result.report.notes


def test_what_is_written_is_what_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The bytes of the files that will be in place, data files under their temporary names included."""
    from ortfuse.io import write

    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 20]> g (float[b, 20000] x) => (float[b, 1] z) '
        "{ y = MatMul(x, w) t = Shape(y) u = Neg(v) s = Add(y, u) z = Relu(s) }"
    )
    for name, size in {"w": 20_000, "v": 1}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.ones((size, 1), np.float32), name))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    result = ortfuse.optimize(tmp_path / "m.onnx", output=tmp_path / "o.onnx")
    assert not result.report.notes and not result.unchanged
    written = write._write_model

    def damaged(proto: onnx.ModelProto, *args: Any) -> None:
        for node in proto.graph.node:
            node.op_type = node.op_type.replace("Relu", "Rilu")
        written(proto, *args)

    monkeypatch.setattr(write, "_write_model", damaged)
    before = (tmp_path / "o.onnx").read_bytes()
    result = ortfuse.optimize(tmp_path / "m.onnx", output=tmp_path / "o.onnx", passes="canonicalize")
    assert "Rilu" in result.unchanged
    assert before != (tmp_path / "o.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx", "w.bin", "o.onnx", "o.onnx.data"}


def test_a_result_loads_without_the_runtimes_optimisations_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A result that needs them to load is not written where the original does not."""
    from ortfuse.runtime import load_check

    opened = load_check.opened

    def only_optimised(source: bytes, weights: Any, settings: Any, isolated: bool) -> Any:
        if settings.level == "none" and b"Gelu" in source:
            raise ValueError("no kernel for Gelu")
        return opened(source, weights, settings, isolated)

    monkeypatch.setattr(load_check, "opened", only_optimised)
    result = ortfuse.optimize(gelu(), output=tmp_path / "o.onnx")
    assert "Gelu" not in {node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node}
    (note,) = [note for note in result.report.notes if note.startswith("left out")]
    assert "with its optimisations off: no kernel for Gelu" in note


RMS = """<ir_version: 8, opset_import: ["" : 18]> g (float[b, 4] x) => (float[b, 4] y)
<float two = {2}, float e = {0.001}, float[4] w = {1, 2, 3, 4}, int64[1] last = {-1}>
{ s = Pow(x, two) m = ReduceMean(s, last) a = Add(m, e) r = Sqrt(a) d = Div(x, r) y = Mul(d, w) }"""


def test_a_result_stays_below_opsets_at_which_the_runtime_does_not_load_the_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No rewrite is to blame: the model as it was is not loaded there either."""
    from ortfuse.runtime import load_check

    opened = load_check.opened

    def up_to_20(source: bytes, *args: Any, **kwargs: Any) -> Any:
        if max(one.version for one in onnx.load_from_string(source).opset_import if not one.domain) > 20:
            raise ValueError("it is too new")
        return opened(source, *args, **kwargs)

    model = parser.parse_model(RMS)
    assert "RMSNormalization" in {node.op_type for node in ortfuse.optimize(model).model.graph.node}
    monkeypatch.setattr(load_check, "opened", up_to_20)
    result = ortfuse.optimize(model, output=tmp_path / "o.onnx")
    assert not result.unchanged
    assert "RMSNormalization" not in {node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node}
    (note,) = [note for note in result.report.notes if note.startswith("the result has at most opset 20, because")]
    assert "it is too new" in note
    assert same(model, tmp_path / "o.onnx")


def test_what_only_the_runtime_understands_is_verified_measured_and_explained_as_it_is(tmp_path: Path) -> None:
    model, other = gelu(), gelu()
    model.ir_version = other.ir_version = 0
    other.graph.node[-1].op_type = "Add"
    onnx.save(model, tmp_path / "m.onnx")
    assert not ortfuse.verify(gelu(), other).ok
    for given in (tmp_path / "m.onnx", model):
        verdict = ortfuse.verify(given, gelu())
        assert verdict.ok and {trial.runtime_optimisations for trial in verdict.trials} == {False, True}
        assert any("no float64" in note for note in verdict.notes)
        assert not ortfuse.verify(given, other).ok
        assert ortfuse.verify(given, given, inputs=[X]).ok
        rows = ortfuse.benchmark({"as it is": given, "a graph": gelu()}, rounds=1, sizes={"b": 2}).latency
        assert [row.nodes for row in rows] == [9, 9] and rows[0].median_ms > 0 and rows[0].file_mb > 0
        found = ortfuse.explain(given)
        assert not found.fused and "the model is left as it is" in found.notes[0]
    named = parser.parse_model(GELU.replace(" x)", " z)").replace("(x)", "(z)").replace(", x)", ", z)"))
    with pytest.raises(VerificationError, match=r"different inputs: \['z'\] and \['x'\]"):
        ortfuse.verify(named, other)


def test_external_data_of_what_only_the_runtime_understands_are_found(tmp_path: Path) -> None:
    assert ortfuse.verify(external(tmp_path), external(tmp_path)).ok
