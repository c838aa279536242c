"""Assertions about models, and tests that hold a user's models to stored expectations."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import onnx
import pytest

import ortfuse
from ortfuse.errors import RuleError
from ortfuse.testing import assert_equal, assert_fused
from ortfuse.testing.expectation import Expectation
from ortfuse.testing.golden_tests import Case, _cases, check, refreshed

ROOT = Path(__file__).parents[2]
GELU = """<ir_version: 10, opset_import: ["": 21]> g (float[n,8] x) => (float[n,8] y)
<float half = {0.5}, float one = {1}, float root = {1.4142135}> {
    d = Div(x, root) e = Erf(d) a = Add(e, one) h = Mul(x, a) y = Mul(h, half) }"""
OTHER = GELU.replace("{1}", "{2}")


def saved(path: Path, text: str = GELU) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_fused_sites_are_counted_in_models_results_and_what_results_are_written_to(tmp_path: Path) -> None:
    model = saved(tmp_path / "m.onnx")
    result = ortfuse.optimize(model, output=tmp_path / "r.onnx")
    for one in (model, str(model), onnx.load(model), ortfuse.load(model), result, result.model, tmp_path / "r.onnx"):
        assert_fused(one, gelu=1)
    for one in (model, result):
        with pytest.raises(AssertionError, match="gelu: 1 fused, 2 expected"):
            assert_fused(one, gelu=2)
    assert_fused(model, gelu=1, attention=0)
    assert_fused(model, ortfuse.Options(passes="disabled"), gelu=0)


def test_a_missing_site_is_told_with_what_stopped_it(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"gelu: 0 fused, 1 expected\n(?s:.)*stopped by: .*would match if"):
        assert_fused(saved(tmp_path / "m.onnx", OTHER), gelu=1)


def test_a_family_that_does_not_exist_is_no_family_without_sites(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="did you mean 'gelu"):
        assert_fused(saved(tmp_path / "m.onnx"), gelo=0)
    with pytest.raises(TypeError, match="by family"):
        assert_fused(tmp_path / "m.onnx")


def test_equal_models_are_equal_and_others_are_not(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "a.onnx"), saved(tmp_path / "b.onnx", OTHER)
    assert_equal(first, first, sizes={"n": 3})
    with pytest.raises(AssertionError, match="not equal: output 'y' differs"):
        assert_equal(first, second)
    assert_equal(first, second, tolerance=9.0)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    saved(tmp_path / "nets" / "a.onnx")
    saved(tmp_path / "nets" / "inner" / "a.onnx")
    (tmp_path / "nets" / "cut.onnx").write_bytes(b"\x08\x0a\xff")
    (tmp_path / "models.toml").write_text(
        '[models."nets/**/a.onnx"]\nsizes = {n = 3}\n[models."nets/cut.onnx"]\nexpect = "refused"\nwhy = "it is cut"\n'
    )
    return tmp_path / "models.toml"


def case(table: Path, name: str) -> Case:
    return next(one for one in _cases(table, table.parent / "expected") if one.name == name)


def test_models_are_called_by_their_paths_from_the_file_that_names_them(table: Path, tmp_path: Path) -> None:
    assert [one.name for one in _cases(table, tmp_path)] == ["nets/a", "nets/inner/a", "nets/cut"]
    assert [one.name for one in _cases(tmp_path / "nets", tmp_path)] == ["a", "cut", "inner/a"]
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "models.toml").write_text('[models."../nets/a.onnx"]')
    assert [one.expected for one in _cases(tmp_path / "tests" / "models.toml", tmp_path)] == [
        tmp_path / "up" / "nets" / "a.json"
    ]


def test_an_expectation_is_stored_once_and_then_held_to(table: Path) -> None:
    one = case(table, "nets/a")
    with pytest.raises(AssertionError, match="no expectation on file; pytest --ortfuse-refresh"):
        check(one)
    assert refreshed(one) == ["stored"]
    data = json.loads(one.expected.read_text())
    assert (data["families"], data["executed"], data["verdict"]) == ({"gelu": 1}, {"Gelu": 1}, "equal")
    check(one)
    written = one.expected.stat().st_mtime_ns
    assert refreshed(one) == [] and one.expected.stat().st_mtime_ns == written


def test_what_changed_is_said_with_the_versions_that_did(table: Path) -> None:
    one = case(table, "nets/a")
    found = Expectation({"gelu": 2, "conv": 1}, {}, {"Gelu": 1}, "equal as far as exercised", {"onnxruntime": "1.0"})
    found.write(one.expected)
    with pytest.raises(AssertionError) as raised:
        check(one)
    lines = str(raised.value).splitlines()
    assert lines[1:4] == [
        "families: conv 1 -> 0", "families: gelu 2 -> 1", "verdict: equal as far as exercised -> equal",
    ]  # fmt: skip
    assert lines[4].startswith("stored with onnxruntime 1.0, and this is")
    assert refreshed(one) == lines[1:4]
    check(one)


def test_a_damaged_expectation_is_told_and_stored_anew(table: Path) -> None:
    one = case(table, "nets/a")
    one.expected.parent.mkdir(parents=True)
    one.expected.write_text('{"families": {}')
    with pytest.raises(AssertionError, match="is no expectation"):
        check(one)
    assert refreshed(one) == ["stored in the place of a damaged file"]
    check(one)


def test_known_failures_are_expected_and_others_are_never_stored(table: Path, tmp_path: Path) -> None:
    one = case(table, "nets/cut")
    with pytest.raises(pytest.xfail.Exception, match="it is cut"):
        check(one)
    assert refreshed(one) == [] and not one.expected.exists()
    saved(tmp_path / "nets" / "cut.onnx")
    for act in (check, refreshed):
        with pytest.raises(AssertionError, match=r"unexpected success: .*it is cut; take `expect` out"):
            act(one)
    (tmp_path / "nets" / "cut.onnx").write_bytes(b"\x08\x0a\xff")
    table.write_text(table.read_text().replace('"refused"', '"wrong"'))
    with pytest.raises(AssertionError, match="another failure"):
        check(case(table, "nets/cut"))
    unnamed = next(one for one in _cases(tmp_path / "nets", tmp_path / "expected") if one.name == "cut")
    with pytest.raises(AssertionError, match=r"is refused, which is not stored: .*cut off"):
        refreshed(unnamed)
    with pytest.raises(AssertionError, match=r"^cut is refused: [^\n]*cut off[^\n]*$"):
        check(unnamed)  # and not that a refresh would store it, which it would not


def test_costs_are_the_same_on_every_machine(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ortfuse.targets import default_spec, shipped_tables

    seen = []
    real = ortfuse.optimize
    monkeypatch.setattr(
        "ortfuse.api.optimize.optimize", lambda model, options: (seen.append(options.target), real(model, options))[1]
    )
    refreshed(case(table, "nets/a"))
    assert seen[0].costs.speedups == shipped_tables(default_spec())[0].speedups


def blocks(kind: str, opening: str) -> str:
    text = (ROOT / "docs" / "testing.md").read_text()
    (found,) = re.findall(rf"```{kind}\n{re.escape(opening)}\n(.*?)```", text, re.DOTALL)
    return str(found)


def test_the_example_of_the_documents_stores_expectations_and_shows_what_changed(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_models.py").write_text(blocks("python", "# tests/test_models.py"))
    (tmp_path / "models.toml").write_text(blocks("toml", "# models.toml"))
    shutil.copy(ROOT / "golden" / "models" / "bert.sdpa.ts.onnx", tmp_path / "bert.onnx")
    shutil.copy(tmp_path / "bert.onnx", tmp_path / "bert.opt.onnx")
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "200"}

    def ran(*flags: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-p", "ortfuse.testing.plugin", "-q", "-W", "error", *flags]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    code, said = ran("tests", "--ortfuse-refresh", "--junitxml=junit.xml")
    assert code == 0 and "what the refresh changed" in said and "bert: stored" in said, said
    place = tmp_path / "tests" / "expected" / "bert.json"
    data = json.loads(place.read_text())
    assert data["families"]["attention"] == 2
    place.write_text(json.dumps({**data, "families": {**data["families"], "attention": 3}}))
    code, said = ran("tests/test_models.py::test_models")
    assert code == 1 and "families: attention 3 -> 2" in said and "golden_tests.py" not in said, said
    assert "another exception" not in said


def test_the_plugin_imports_nothing_that_takes_time() -> None:
    code = "import sys, ortfuse.testing.plugin; print(*sorted({'numpy', 'onnx', 'onnx_ir', 'onnxruntime'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout == "\n"


def test_pytest_finds_the_plugin() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert points["pytest11"] == {"ortfuse": "ortfuse.testing.plugin"}
