from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from ortfuse.errors import PipelineError
from ortfuse.pipeline import Counts, built_in_lists, load_catalogue, read_list, suitable_list
from ortfuse.pipeline.build import Builder

GOLDEN = Path(__file__).parents[2] / "golden" / "models"


def test_levels_and_families_come_with_ortfuse_and_can_be_built() -> None:
    lists = built_in_lists()
    assert set(lists) == {"basic", "extended", "all", "transformer", "convnet", "quantization"}
    for found in lists.values():
        assert found.description
        assert Builder(load_catalogue()).build(found.pipeline.items)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("[br]e[rs]*.onnx")), ids=lambda path: path.stem)
def test_auto_takes_the_list_of_the_golden_models_family(path: Path) -> None:
    expected = "transformer" if path.name.startswith("bert") else "convnet"
    assert suitable_list(Counts.of(ir.load(path)).operators).name == expected


def test_auto_takes_everything_for_a_model_of_no_known_family() -> None:
    assert suitable_list({"LSTM"}).name == "all"


def test_a_list_of_ones_own_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'description = "d"\npasses = ["fold{max_growth=1}", "fixpoint(cse, dce)"]\n[when]\nany = ["Conv"]\n'
    )
    found = read_list(path)
    assert (found.name, str(found.pipeline)) == ("mine", "fold{max_growth=1}, fixpoint(cse, dce)")
    assert found.when is not None
    assert found.when.holds({"Conv"})
    assert not found.when.holds({"Relu"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("passes = [", "not TOML"),
        ("passes = 'fold'", "passes must be a list of texts"),
        ("description = 'no passes'", "passes must be a list of texts"),
        ("passes = ['fold,']", "expected the name"),
        ("passes = []\nwhem = {}", "has no 'whem'"),
        ("passes = []\ndescription = 1", "description must be a text"),
        ("passes = []\n[when]\nsome = ['Conv']", r"\[when\] has lists"),
        ("passes = []\n[when]\nany = 'Conv'", "when.any must be a list"),
    ],
)
def test_mistakes_in_a_list_name_the_file(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(content)
    with pytest.raises(PipelineError, match=message) as error:
        read_list(path)
    assert str(path) in str(error.value)


def test_a_list_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"nothing\.toml"):
        read_list(tmp_path / "nothing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PipelineError, match="not UTF-8"):
        read_list(tmp_path / "binary.toml")
