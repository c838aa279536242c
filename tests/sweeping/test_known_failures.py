"""A sweep by a file of models: options of single models, known failures, and what services of continuous integration read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest

import ortfuse
from ortfuse.api.models_file import Settings
from ortfuse.cli.app import main
from ortfuse.errors import ModelFileError
from ortfuse.report.sweep_junit import junit
from ortfuse.report.sweep_markdown import markdown
from ortfuse.sweeping import Row, Sweep, run_sweep, sweep_one_model

GELU = """<ir_version: 10, opset_import: ["": 21]> g (float[n,8] x) => (float[n,8] y)
<float half = {0.5}, float one = {1}, float root = {1.4142135}> {
    d = Div(x, root) e = Erf(d) a = Add(e, one) h = Mul(x, a) y = Mul(h, half) }"""

WRONG = """
from ortfuse.rewrite.pattern import op, var
from ortfuse.rewrite import Exactness, RuleTest, Rule

x = var("x")
RULES = [Rule(name="own.erf", pattern=op.Erf(x), replace=op.Sign(x), exactness=Exactness.EXACT, source="none",
              test=RuleTest(shapes={"x": "b 3"}))]
"""

TABLE = """
[models."good.onnx"]
sizes = {n = 5}
[models."fixed.onnx"]
passes = "disabled"
expect = "wrong"
why = "never mended"
[models."wrong.onnx"]
patterns = "rule.py"
passes = "user"
expect = "wrong"
why = "a rule is wrong"
[models."cut.onnx"]
expect = "refused"
says = "cut off"
[models."other.onnx"]
expect = "refused"
says = "no kernel"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("good", "fixed", "wrong"):
        onnx.save(onnx.parser.parse_model(GELU), tmp_path / f"{name}.onnx")
    for name in ("cut", "other"):
        (tmp_path / f"{name}.onnx").write_bytes(b"\x08\x0a\xff")
    (tmp_path / "rule.py").write_text(WRONG)
    (tmp_path / "models.toml").write_text(TABLE)
    return tmp_path


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Works on the models of a sweep in this process, which takes less time."""

    def in_process(asked: Mapping[str, object], limit: float, processes: object = None) -> Row:
        return sweep_one_model.run(**asked)  # type: ignore[arg-type]

    monkeypatch.setattr(run_sweep, "in_process", in_process)


@pytest.mark.usefixtures("here")
def test_a_known_failure_is_as_expected_and_one_that_is_gone_or_another_is_told(folder: Path) -> None:
    found = ortfuse.sweep(models=folder / "models.toml", measured=False, output=folder / "out")
    outcomes = {Path(row.model).stem: (row.status, row.outcome) for row in found.rows}
    assert outcomes == {
        "good": ("ok", "ok"),
        "fixed": ("ok", "unexpected success"),
        "wrong": ("wrong", "known failure"),
        "cut": ("refused", "known failure"),
        "other": ("refused", "failed"),
    }
    assert not found.ok
    remarks = {Path(row.model).stem: row.remark() for row in found.rows}
    assert remarks["fixed"].startswith("unexpected success") and "never mended" in remarks["fixed"]
    assert remarks["other"].startswith("another failure")
    again = ortfuse.sweep(models=folder / "models.toml", measured=False, output=folder / "out")
    assert again.resumed == 5 and again.rows == found.rows


@pytest.mark.usefixtures("here")
def test_what_the_file_says_of_one_model_does_not_touch_the_rows_of_others(folder: Path) -> None:
    table = folder / "models.toml"
    ortfuse.sweep(models=table, measured=False, output=folder / "out")
    table.write_text(TABLE.replace("n = 5", "n = 6").replace("never mended", "mended").replace("cut off", "gone"))
    again = ortfuse.sweep(models=table, measured=False, output=folder / "out")
    assert again.resumed == 4  # other sizes are another question; another expectation is not
    assert again.rows[1].why == "mended" and again.rows[3].outcome == "failed"


def test_a_sweep_is_fine_if_all_failures_are_known() -> None:
    rows = [Row("a", "ok"), Row("b", "hung", reason="not done").judged(Settings(expect="fails"))]
    assert Sweep(rows).ok
    assert not Sweep([*rows, Row("c", "ok").judged(Settings(expect="fails"))]).ok
    assert not Sweep([Row("b", "hung").judged(Settings(expect="crashed"))]).ok


def test_models_come_from_somewhere(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no model is given"):
        ortfuse.sweep()
    (tmp_path / "models.toml").write_text(TABLE)
    with pytest.raises(ModelFileError, match="--models"):
        ortfuse.sweep(tmp_path / "models.toml")


NASTY = 'a|b <"&>\x1b[31m\x00`'


def rows() -> list[Row]:
    return [
        Row("nets/a.onnx", "ok", 5, 1, {"gelu": 1}, 1.5, "equal", speedup=1.25, speedup_bounds=(1.2, 1.3)),
        Row("nets/b.onnx", "wrong", reason=NASTY),
        Row("c.onnx", "crashed", reason="ended by signal 11"),
        Row("d.onnx", "refused", reason="cut off").judged(Settings(expect="fails", why="known")),
        Row("e.onnx", "ok", 3, 3).judged(Settings(expect="wrong")),
    ]


def test_junit_has_a_test_case_a_model() -> None:
    (suite,) = ElementTree.fromstring(junit(Sweep(rows())))
    counts = {name: suite.attrib[name] for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "5", "failures": "2", "errors": "1", "skipped": "1"}
    cases = {f"{case.attrib['classname']}/{case.attrib['name']}": case for case in suite}
    assert list(cases) == ["nets/a.onnx", "nets/b.onnx", *(f"ortfuse.sweep/{name}.onnx" for name in "cde")]
    kinds = [[(one.tag, one.get("type")) for one in case if one.tag != "properties"] for case in cases.values()]
    assert kinds == [
        [], [("failure", "wrong")], [("error", "crashed")], [("skipped", "refused")], [("failure", "unexpected success")],
    ]  # fmt: skip
    properties = {one.attrib["name"]: one.attrib["value"] for one in cases["nets/a.onnx"].iter("property")}
    assert properties == {
        "nodes": "5 -> 1", "fused": "gelu 1", "outputs": "equal", "speedup": "1.25 (1.20 to 1.30)",
    }  # fmt: skip


def test_junit_has_no_speedup_whose_bounds_include_1() -> None:
    noise = replace(rows()[0], speedup_bounds=(0.9, 1.4))
    assert 'value="no difference beyond noise (0.90 to 1.40)"' in junit(Sweep([noise]))


def test_markdown_is_a_table_whatever_reasons_hold() -> None:
    text = markdown(Sweep(rows()))
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 5
    assert all(line.replace(r"\|", "").count("|") == 7 for line in table)
    assert "1.25 (1.20 to 1.30)" in table[2]
    assert "\x1b" not in text and r"\<" in text
    assert "2 of 5 models are ok, 1 known failure, 1 unexpected success" in text


@pytest.mark.usefixtures("here")
def test_the_command_writes_both(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "models.toml").write_text(
        '[models."cut.onnx"]\nexpect = "refused"\n[models."good.onnx"]\nsizes = {n = 3}\n'
    )
    arguments = ["sweep", "--models", str(folder / "models.toml"), "--no-bench"]
    written = [str(folder / name) for name in ("junit.xml", "summary.md", "page.html")]
    with pytest.raises(SystemExit, match="0"):
        main([*arguments, "--junit", written[0], "--markdown", written[1], "--report", written[2]])
    assert ElementTree.fromstring(Path(written[0]).read_text()).attrib["skipped"] == "1"
    assert "1 known failure" in Path(written[1]).read_text()
    assert "known failure" in Path(written[2]).read_text()
    assert "1 of 2 models is ok, 1 known failure" in capsys.readouterr().out
