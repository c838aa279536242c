"""Generations of decoders and generators are measured side by side."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

import ortfuse
from ortfuse.api.benchmark_generation import benchmark_generation
from ortfuse.cli.app import app_of
from ortfuse.cli.parsing import COMMANDS
from ortfuse.errors import GenerationError, ModelFileError, OptionError

GOLDEN = Path(__file__).parents[2] / "golden" / "models"


def test_both_write_the_same(tmp_path: Path) -> None:
    model = GOLDEN / "gpt2_cache.sdpa.ts.onnx"
    ortfuse.generator(model, tmp_path / "out", max_length=48)
    found = benchmark_generation([model, tmp_path / "out"], new_tokens=24, prompt=8, rounds=2)
    assert found.same_tokens
    assert [len(one.steps) > 2 and one.tokens_per_second > 0 for one in found.models] == [True, True]
    assert found.models[0].ratio == 1
    assert all(one.memory is None or one.memory > 0 for one in found.models)


def test_numbers_below_one() -> None:
    with pytest.raises(OptionError, match="at least 1"):
        benchmark_generation([GOLDEN / "gpt2_cache.sdpa.ts.onnx"], prompt=0)


def _for_genai(folder: Path) -> Path:
    """A folder that onnxruntime-genai runs and that is no generator, as its builder writes them."""
    ortfuse.generator(GOLDEN / "llama_cache.sdpa.ts.onnx", folder, max_length=48)
    model = onnx.load(folder / "model.onnx")
    del model.metadata_props[:]
    onnx.save(model, folder / "model.onnx")
    return folder


def test_more_tokens_than_the_buffers_hold(tmp_path: Path) -> None:
    ortfuse.generator(GOLDEN / "llama_cache.sdpa.ts.onnx", tmp_path / "out", max_length=48)
    with pytest.raises(GenerationError, match="49 tokens, of the prompt and generated, are more than the 48"):
        benchmark_generation([tmp_path / "out"], new_tokens=40, prompt=9)


def test_a_folder_of_genai_is_measured_in_its_loop(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai", reason="the extra genai is not installed")
    found = benchmark_generation(
        [GOLDEN / "llama_cache.sdpa.ts.onnx", _for_genai(tmp_path / "out")], new_tokens=16, prompt=8, rounds=1
    )
    assert found.same_tokens


def test_a_folder_of_genai_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "genai_config.json").write_text("{}")
    with pytest.raises(GenerationError, match="pip install onnxruntime-genai"):
        benchmark_generation([tmp_path])


def test_inputs_that_are_not_given(tmp_path: Path) -> None:
    """The process that measures memory says what the model says."""
    ortfuse.generator(GOLDEN / "t5_decoder.sdpa.ts.onnx", tmp_path / "out", max_length=32)
    with pytest.raises(GenerationError, match="needs an array"):
        benchmark_generation([tmp_path / "out"], new_tokens=4, prompt=2, rounds=1)


def test_single_runs_of_the_folder_of_a_generator(tmp_path: Path) -> None:
    ortfuse.generator(GOLDEN / "gpt2_cache.sdpa.ts.onnx", tmp_path / "out", max_length=32)
    found = CliRunner().invoke(app_of(COMMANDS), ["bench", str(tmp_path / "out")])
    assert found.exit_code
    assert isinstance(found.exception, ModelFileError | SystemExit)
    assert "--generate" in f"{found.exception} {found.output}"
