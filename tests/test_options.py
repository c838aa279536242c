"""Options: checked once, the same from Python, from a file and from the command line."""

from __future__ import annotations

import dataclasses
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from docs.options import documents
from ortfuse.cli.app import app
from ortfuse.errors import OptionError, OrtfuseError
from ortfuse.naming import RenamedWarning
from ortfuse.options import DECLARATIONS, IN_FILES, Options
from ortfuse.targets import Target
from ortfuse.transforms import ConstantFolding

EVERYTHING: dict[str, Any] = {
    "passes": ["canonicalize", 'fuse.linear{without="linear.gemm"}'],
    "target": "CPUExecutionProvider",
    "max_opset": 21,
    "patterns": ["/rules/one.py", '/rules/with "quotes" and \\ in ü.py'],
    "approximate": True,
    "explain": ["attention", "gelu.from_erf_form"],
    "force": {"attention": "com.microsoft.MultiHeadAttention", "gelu": "none"},
    "measure": True,
    "sizes": {"batch size": 2, "sequence": 128},
    "verify": "sites",
    "bench": True,
    "fastest": True,
    "seed": 7,
    "tolerance": 1e-3,
    "rounds": 5,
    "threads": 2,
    "output": "/results/out.onnx",
    "link": True,
    "external_data": True,
}


def test_keywords_and_the_page_of_options_follow_from_the_declarations() -> None:
    for path, text in documents().items():
        assert path.read_text() == text, "run python docs/options.py"
    assert {field.name for field in dataclasses.fields(Options)} == {*IN_FILES, "debugging"}


def test_a_command_has_a_flag_for_each_option_that_is_declared_for_it() -> None:
    group: Any = get_command(app)
    for name, command in group.commands.items():
        flags = {flag for one in command.params for flag in one.opts}
        for option in DECLARATIONS.values():
            if name in option.commands:
                assert {*option.spelled(name)} <= flags, (name, option.name)
    assert {name for option in DECLARATIONS.values() for name in option.commands} <= group.commands.keys()


@pytest.mark.parametrize("name", [name for name, one in DECLARATIONS.items() if one.in_files])
def test_the_example_of_each_option_is_read_from_a_file(name: str, tmp_path: Path) -> None:
    """Options that another one is needed for have it."""
    written = 'output = "out.onnx"'
    needed = {"sizes": "bench = true", "fastest": "bench = true", "link": written, "external_data": written}
    file = tmp_path / "options.toml"
    file.write_text(f"{name} = {DECLARATIONS[name].example}\n{needed.get(name, '')}")
    assert name in Options.load(file).to_dict() or name == "target"


def test_a_former_name_stands_for_the_name_of_today_wherever_options_are_read(tmp_path: Path) -> None:
    file = tmp_path / "options.toml"
    file.write_text('pins = {gelu = "none"}')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RenamedWarning)
        for options in (Options.load(file), Options(pins={"gelu": "none"}), Options().with_(pins={"gelu": "none"})):  # type: ignore[call-arg]
            assert options.force == options.pins == {"gelu": "none"}  # type: ignore[attr-defined]
            assert options.to_toml() == 'force = {"gelu" = "none"}\n'
        with pytest.raises(OptionError, match="former name"):
            Options(force={}, pins={})  # type: ignore[call-arg]
    ran = CliRunner().invoke(app, ["optimize", "none.onnx", "--pin", "gelu=none"])
    assert "--pin is now called --force" in ran.output
    assert "prove is now called test-rules" in CliRunner().invoke(app, ["prove", "none.py"]).output


def sentences(text: str) -> list[str]:
    return [one for one in re.split(r"(?<=[.:;!?])\s+", text) if one]


def test_help_texts_are_short_sentences_that_start_with_a_verb_or_a_noun() -> None:
    group: Any = get_command(app)
    for name, command in group.commands.items():
        for text in (command.help or "", *(getattr(one, "help", None) or "" for one in command.params)):
            for sentence in sentences(text.replace("\n\n", ". ")):
                assert len(sentence.split()) <= 25, (name, sentence)
                assert sentence.split()[0] not in ("What", "Where", "Of", "That", "Whether", "How"), (name, sentence)


@pytest.mark.parametrize("given", [{}, EVERYTHING, {"level": "basic", "inputs": "/inputs.npz"}, {"explain": True}])
def test_options_written_to_a_file_are_read_again(tmp_path: Path, given: dict[str, Any]) -> None:
    options = Options(**given)
    file = tmp_path / "ortfuse.toml"
    file.write_text(options.to_toml())
    assert Options.load(file) == options
    assert set(options.to_dict()) == set(given)


def test_paths_in_a_file_start_from_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "ortfuse.toml"
    file.write_text(
        'passes = "mine.toml"\npatterns = ["a.py", "/b.py"]\ninputs = "x.npz"\noutput = "o.onnx"\ntarget = "t.json"\n'
    )
    options = Options.load(file)
    assert options.passes == str(tmp_path / "mine.toml")
    assert options.patterns == (str(tmp_path / "a.py"), "/b.py")
    assert (options.inputs, options.output) == (str(tmp_path / "x.npz"), str(tmp_path / "o.onnx"))
    assert options.target == str(tmp_path / "t.json")


@pytest.mark.parametrize(
    "given", [{"passes": [ConstantFolding()]}, {"target": Target()}, {"inputs": [{"x": np.zeros(3)}]}]
)
def test_objects_cannot_be_written_to_a_file(given: dict[str, Any]) -> None:
    options = Options(**given)
    (name,) = options.to_dict()
    with pytest.raises(OptionError, match=f"{name}: .* objects cannot stand in a file"):
        options.to_toml()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"passes": "fold", "level": "basic"}, "level: give either `passes` or `level`, not both"),
        (
            {"sizes": {"s": 8}},
            "sizes: s=8 is a size for measuring or verifying; add `bench`, `measure` or `verify`",
        ),
        ({"sizes": {"s": 8}, "bench": True, "inputs": "x.npz"}, "sizes: the `inputs` have sizes of their own"),
        (
            {"output": "x.{Targets}.onnx"},
            "x.{Targets}.onnx: {Targets} is no place for the name of a target; write {target}",
        ),
        ({"link": True}, "link: needs a file that is written; name it with `output`"),
        ({"external_data": True}, "external_data: needs a file that is written; name it with `output`"),
        ({"fastest": True}, "fastest: needs measurements; add `bench`"),
        ({"level": "most"}, "level: write 'disabled' or 'basic' or 'extended' or 'all', not 'most'"),
        ({"verify": "all"}, "verify: write true, 'whole' or 'sites', not 'all'"),
        ({"max_opset": 0}, "max_opset: write a whole number, 1 or more, not 0"),
        ({"max_opset": "17"}, "max_opset: write a whole number, 1 or more, not '17'"),
        ({"seed": -1}, "seed: write a whole number, 0 or more"),
        ({"rounds": 2.5}, "rounds: write a whole number, 1 or more"),
        ({"threads": True}, "threads: write a whole number"),
        ({"tolerance": float("nan")}, "tolerance: write a number that is 0 or more, such as 1e-3"),
        ({"approximate": "yes"}, "approximate: write true or false, not 'yes'"),
        ({"explain": "attention"}, "explain: write true, or a list of families and rules"),
        ({"sizes": {"s": -1}, "bench": True}, r"sizes\[s\]: write a whole number, 0 or more"),
        ({"force": {"gelu": 3}}, "force: write operators by family"),
        ({"patterns": 3}, "patterns: write the paths of files or folders, not 3"),
        ({"patterns": [3]}, "patterns: write a path, not 3"),
        ({"output": ""}, "output: write a path, not ''"),
        ({"target": 3}, "target: write a path"),
        ({"passes": 3}, "passes: write a pipeline"),
        ({"inputs": {"x": 3}}, "inputs: write a path, or a list of sets of inputs"),
    ],
)
def test_what_an_option_cannot_have_is_refused_by_its_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Options(**given)
    with pytest.raises(OptionError, match=message):
        Options().with_(**given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-opset = 17", "there is no option 'max-opset'; did you mean max_opset?"),
        ("outputs = ['y']", "there is no option 'outputs'; did you mean keep_outputs?"),
        ("nonsense = 17", "there is no option 'nonsense'; there are output, link,"),
        ("verify = 'all'", "verify: write true, 'whole' or 'sites', not 'all' .in .*options.toml"),
        ("verify = ", "options.toml is not TOML"),
        ("debugging = 1", "there is no option 'debugging'"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "options.toml"
    file.write_text(text)
    with pytest.raises(OrtfuseError, match=message):
        Options.load(file)
    with pytest.raises(OrtfuseError, match=r"none\.toml cannot be read: No such file"):
        Options.load(tmp_path / "none.toml")


def test_passes_and_levels_take_each_others_place() -> None:
    assert Options(level="basic").with_(passes="fold").pipeline == "fold"
    assert Options(passes="fold").with_(level="basic").pipeline == "basic"
    assert Options(level="basic").with_(seed=3).pipeline == "basic"


def test_a_purpose_has_passes_of_its_own() -> None:
    assert Options(purpose="quantization").pipeline == "quantization"
    assert Options().pipeline == "auto"
    for others in ({"passes": "fold"}, {"level": "basic"}):
        with pytest.raises(OptionError, match="passes of its own"):
            Options(purpose="quantization", **others)  # type: ignore[arg-type]
    with pytest.raises(OptionError):
        Options(purpose="training")  # type: ignore[arg-type]


def test_an_option_that_does_not_exist_is_named_with_what_may_be_meant() -> None:
    with pytest.raises(TypeError, match=r"there is no option 'pases'; did you mean 'passes'\?"):
        Options.of(None, pases="all")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"there is no option 'outputs'; did you mean 'keep_outputs'\?"):
        Options.of(None, outputs=["y"])  # type: ignore[call-arg]
