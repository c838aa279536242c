"""Decoders that take embeddings in place of token ids, as the language models of vision-language models do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cached_decoders import WIDTH, WORDS, write
from onnx import numpy_helper
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app_of
from ortfuse.cli.parsing import COMMANDS
from ortfuse.errors import GenerationError
from ortfuse.generation.token_embeddings import table_model

EDITS = [
    ("int64[batch, sequence] ids", "float[batch, sequence, 64] embedded"),
    ("  x0 = Gather(table, ids)", "  x0 = Identity(embedded)"),
    ("(ids)", "(embedded)"),
]
PLACED = ("  x = Identity(x0)", "  pe = Gather(places, positions)\n  x = Add(x0, pe)")
PLACES = {"places": np.random.default_rng(4).standard_normal((80, WIDTH)).astype(np.float32)}
POSITIONS = "int64[batch, sequence] positions"


def decoder(path: Path) -> Path:
    return write(path, EDITS)


@pytest.fixture(scope="module")
def table() -> Any:
    return np.random.default_rng(2).standard_normal((WORDS, WIDTH)).astype(np.float32)


def same_with_ids(path: Path, table: Any) -> Path:
    """The decoder with its table inside."""
    model = onnx.load(write(path))
    for tensor in model.graph.initializer:
        if tensor.name == "table":
            tensor.CopyFrom(numpy_helper.from_array(table, "table"))
    onnx.save(model, path)
    return path


def test_random_embeddings_are_compared(tmp_path: Path) -> None:
    done = ortfuse.generator(decoder(tmp_path / "m.onnx"), tmp_path / "out", max_length=60, verify=True)
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first
    assert not done.kept
    assert (done.interface.tokens, done.interface.embedding) == ("inputs_embeds", WIDTH)
    assert not (tmp_path / "out" / "genai_config.json").exists()
    assert not (tmp_path / "out" / "embed_tokens.onnx").exists()


def test_a_table_gives_the_embeddings_of_token_ids(tmp_path: Path, table: Any) -> None:
    done = ortfuse.generator(
        decoder(tmp_path / "m.onnx"), tmp_path / "out", max_length=60, verify=True, embeddings=table
    )
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first
    ortfuse.generator(same_with_ids(tmp_path / "ids.onnx", table), tmp_path / "ids", max_length=60)
    prompts = [[1, 2, 3], [4]]
    wanted = ortfuse.Generator(tmp_path / "ids").generate(prompts, max_new_tokens=12)
    model = ortfuse.Generator(tmp_path / "out")
    assert model.generate(prompts, max_new_tokens=12) == wanted
    assert model.generate([table[prompt] for prompt in prompts], max_new_tokens=12) == wanted
    assert model.generate([[1, 2, 3], table[[4]]], max_new_tokens=12) == wanted
    shared = [[7, 8, 1], [7, 8, 2, 3]]
    assert model.generate(shared, max_new_tokens=5, shared_prefix=True) == model.generate(shared, max_new_tokens=5)
    with pytest.raises(GenerationError, match="shared by prompts of token ids"):
        model.generate([table[one] for one in shared], max_new_tokens=5, shared_prefix=True)


def test_embeddings_without_those_of_token_ids(tmp_path: Path, table: Any) -> None:
    ortfuse.generator(decoder(tmp_path / "m.onnx"), tmp_path / "out", max_length=60)
    model = ortfuse.Generator(tmp_path / "out")
    first = model.prompt([table[[1, 2]]])
    assert model.step(table[[[3]]]).shape == (1, 1, WORDS)
    for prompt in ([1, 2], table[[1, 2]]):
        with pytest.raises(GenerationError, match="nothing gives those of token ids"):
            model.generate([prompt], max_new_tokens=3)
    with pytest.raises(GenerationError, match=r"or embeddings \[tokens, 64\]"):
        model.prompt([table[[1, 2], :32]])
    given = ortfuse.Generator(tmp_path / "out", embeddings=table)
    assert np.array_equal(given.prompt([[1, 2]]), first)
    assert len(given.generate([[1, 2]], max_new_tokens=3)[0]) == 3
    short = ortfuse.Generator(tmp_path / "out", embeddings=lambda tokens: table[tokens][..., :32])
    with pytest.raises(GenerationError, match="and the model takes"):
        short.prompt([[1, 2]])


@pytest.mark.parametrize("placed", [False, True])
def test_one_token_a_run(placed: bool, tmp_path: Path) -> None:
    edits = [*EDITS, ("embedded,", f"embedded, {POSITIONS},"), PLACED] if placed else EDITS
    path = write(tmp_path / "m.onnx", [*edits, ("sequence", "1")], PLACES)
    done = ortfuse.generator(path, tmp_path / "out", max_length=60, verify=True)
    assert done.interface.longest_run == 1
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first


def test_positions_that_a_table_is_read_by_are_no_tokens(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", [*EDITS, ("embedded,", f"embedded, {POSITIONS},"), PLACED], PLACES)
    done = ortfuse.generator(path, tmp_path / "out", max_length=60, verify=True)
    assert (done.decoder.tokens, done.decoder.positions) == ("embedded", "positions")
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first


def test_the_command_writes_the_model_of_embeddings(tmp_path: Path, table: Any) -> None:
    ir.save(table_model(table), tmp_path / "embed.onnx")
    given = ["generator", str(decoder(tmp_path / "m.onnx")), "--embeddings", str(tmp_path / "embed.onnx"), "--verify"]
    ran = CliRunner().invoke(app_of(COMMANDS), [*given, "-o", str(tmp_path / "out"), "--max-length", "60"])
    assert ran.exit_code == 0, ran.output
    assert len(ortfuse.Generator(tmp_path / "out").generate([[1, 2]], max_new_tokens=4)[0]) == 4


def test_a_model_of_something_else_is_refused(tmp_path: Path) -> None:
    path = decoder(tmp_path / "m.onnx")
    with pytest.raises(GenerationError, match="no model of embeddings"):
        ortfuse.generator(path, tmp_path / "out", max_length=60, embeddings=path, verify=True)
