"""A file that names models with their options and known failures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ortfuse.api.models_file import ModelsFile
from ortfuse.cli.app import app
from ortfuse.errors import ModelFileError, OptionError
from ortfuse.options import Options

DOCUMENT = Path(__file__).parents[1] / "docs" / "sweep.md"
RELU = """<ir_version: 10, opset_import: ["": 21]> g (float[n,8] x) => (float[n,8] y) { y = Relu(x) }"""

SHARED = """
rounds = 40
[models."nets/**/*.onnx"]
sizes = {n = 4, m = 3}
passes = "bert"
[models."nets/one.onnx"]
sizes = {n = 9}
tolerance = 1e-3
[models."nets/inner"]
inputs = "samples/inner"
level = "basic"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import onnx

    (tmp_path / "nets" / "inner").mkdir(parents=True)
    for place in ("nets/two.onnx", "nets/one.onnx", "nets/inner/three.onnx"):
        onnx.save(onnx.parser.parse_model(RELU), tmp_path / place)
    return tmp_path


def table(folder: Path, text: str) -> ModelsFile:
    (folder / "models.toml").write_text(text)
    return ModelsFile.load(folder / "models.toml")


def test_the_file_of_the_documents_is_read_as_they_say(folder: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    found = table(folder, text)
    (folder / "nets" / "one.onnx").rename(folder / "nets" / "bert.onnx")
    (folder / "nets" / "two.onnx").rename(folder / "nets" / "whisper.onnx")
    assert {path.name for path in found.models()} == {"bert.onnx", "whisper.onnx", "three.onnx"}
    bert, whisper = (found.settings(folder / "nets" / f"{name}.onnx") for name in ("bert", "whisper"))
    assert bert.options == {
        "rounds": 40, "inputs": str(folder / "samples" / "bert"), "passes": "bert", "tolerance": 1e-3
    }  # fmt: skip
    assert (whisper.options["sizes"], whisper.expect) == ({"sequence": 64}, "wrong")


def test_models_are_those_of_paths_folders_and_globs_each_once(folder: Path) -> None:
    found = table(folder, '[models."nets/one.onnx"]\n[models."nets/*.onnx"]\n[models."nets/inner"]\n').models()
    assert [path.name for path in found] == ["one.onnx", "two.onnx", "three.onnx"]
    for name in ("none.onnx", "none/*.onnx"):
        with pytest.raises(ModelFileError, match="no model at none"):
            table(folder, f'[models."{name}"]').models()


def test_later_entries_go_before_and_take_the_place_of_what_they_exclude(folder: Path) -> None:
    found = table(folder, SHARED)
    one, three = (found.settings(folder / "nets" / name) for name in ("one.onnx", "inner/three.onnx"))
    assert one.options == {"rounds": 40, "sizes": {"n": 9, "m": 3}, "passes": "bert", "tolerance": 1e-3}
    assert three.options == {"rounds": 40, "level": "basic", "inputs": str(folder / "samples" / "inner")}
    assert not found.settings(folder / "other.onnx").named
    with pytest.raises(OptionError, match=r"no entry for .*other\.onnx"):
        found.demand(folder / "other.onnx")


def test_a_model_is_known_by_any_path_to_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = table(folder, '[models."nets/one.onnx"]\nexpect = "wrong"')
    (folder / "link.onnx").symlink_to(folder / "nets" / "one.onnx")
    monkeypatch.chdir(folder / "nets")
    for path in ("one.onnx", "../link.onnx", folder / "nets" / "inner" / ".." / "one.onnx"):
        assert found.settings(path).expect == "wrong"


def test_a_name_with_characters_of_globs_is_a_path(folder: Path) -> None:
    (folder / "nets" / "two.onnx").rename(folder / "nets" / "two[1].onnx")
    assert [path.name for path in table(folder, '[models."nets/two[1].onnx"]').models()] == ["two[1].onnx"]


def test_what_is_given_goes_before_the_file_and_this_before_other_options(folder: Path) -> None:
    settings = table(folder, SHARED).settings(folder / "nets" / "one.onnx")
    base = Options(rounds=7, seed=5, bench=True)
    assert settings.over(base) == Options(
        rounds=40, seed=5, bench=True, sizes={"n": 9, "m": 3}, passes="bert", tolerance=1e-3
    )
    assert settings.over(base, rounds=8, sizes={"m": 1}, level="basic") == Options(
        rounds=8, seed=5, bench=True, sizes={"n": 9, "m": 1}, level="basic", tolerance=1e-3
    )
    assert settings.over(base, inputs="a.npz").sizes == {}


def test_what_a_command_has_no_use_for_is_left_out(folder: Path) -> None:
    settings = table(folder, SHARED).settings(folder / "nets" / "one.onnx")
    assert settings.without_idle(settings.over(Options())) == Options(passes="bert")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rounds = 3", "names no model"),
        ("models = 3", "names no model"),
        ("[models.", "is not TOML"),
        ("[models.nets.one]\nonnx = {}", "no key 'one'"),
        ('models."a.onnx" = 3', "write a table"),
        ('[models."a.onnx"]\nsize = {n = 3}', "did you mean sizes"),
        ('[models."a.onnx"]\nsizes = {n = -3}', r"sizes\[n\]: write a whole number.*a\.onnx"),
        ('[models."a.onnx"]\noutput = "b.onnx"', "output is not of a model; give it to the command"),
        ('[models."a.onnx"]\nexpect = "odd"', "write 'ok' or 'fails'"),
        ('[models."a.onnx"]\nwhy = "odd"', "add `expect`"),
        ('[models."a.onnx"]\nmax_error = true', "write a number"),
        ('bench = true\n[models."a.onnx"]', "bench is not of a model"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(folder: Path, text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        table(folder, text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        ModelsFile.load(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "command", ["optimize", "explain", "bisect", "bench", "profile", "quantize", "convert", "tune"]
)
def test_commands_read_the_options_of_their_model(folder: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each calls the function of its name with the options of the entry; what comes of it is another matter."""
    import ortfuse

    (folder / "models.toml").write_text('[models."nets/one.onnx"]\nseed = 77\nmax_error = 0.25\n')
    called: list[Any] = []

    def taken(*given: Any, **named: Any) -> None:
        called.append({**named, **{str(n): one for n, one in enumerate(given)}})
        raise ortfuse.OrtfuseError("stop")

    monkeypatch.setattr(ortfuse, "benchmark" if command == "bench" else command, taken)
    args = [command, str(folder / "nets" / "one.onnx"), "--models", str(folder / "models.toml")]
    args += ["--bench"] if command == "optimize" else []
    assert CliRunner().invoke(app, args).exit_code == 2
    values = [one for one in called[0].values() if isinstance(one, Options)]
    assert (values[0].seed if values else called[0]["seed"]) == 77
    if command in ("quantize", "convert"):
        assert called[0]["max_error"] == 0.25


def test_verify_tells_of_a_failure_that_is_gone(folder: Path) -> None:
    (folder / "models.toml").write_text('[models."nets/one.onnx"]\nexpect = "wrong"\nwhy = "not yet"\nseed = 3\n')
    one, two = str(folder / "nets" / "one.onnx"), str(folder / "nets" / "two.onnx")
    ran = CliRunner().invoke(app, ["verify", one, two, "--models", str(folder / "models.toml")])
    assert ran.exit_code == 0
    assert "unexpected success" in ran.output and "not yet" in ran.output


def test_no_command_writes_over_what_a_file_of_models_names(folder: Path) -> None:
    (folder / "samples.npz").write_bytes(b"")
    (folder / "models.toml").write_text('[models."nets/one.onnx"]\ninputs = "samples.npz"\n')
    one = str(folder / "nets" / "one.onnx")
    for name, said in (("samples.npz", "--models too"), ("models.toml", "--models too")):
        args = ["optimize", one, "--models", str(folder / "models.toml"), "--json", str(folder / name)]
        ran = CliRunner().invoke(app, args)
        assert ran.exit_code == 2 and said in ran.output, ran.output
    args = ["sweep", "--models", str(folder / "models.toml"), "--junit", one]
    ran = CliRunner().invoke(app, args)
    assert ran.exit_code == 2 and "too; write two names" in ran.output, ran.output
