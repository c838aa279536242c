"""The class in the place of Optimum's `ORTOptimizer`; with Optimum itself where it is installed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
from graphs import operators

import ortfuse
from ortfuse.errors import ModelFileError, OptionError
from ortfuse.interop.optimum import ORTOptimizer

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[n,8] x) => (float[n,8] y)
<float half = {0.5}, float one = {1}, float root = {1.4142135}> {
    d = Div(x, root) e = Erf(d) a = Add(e, one) h = Mul(x, a) y = Mul(h, half) }"""


@dataclass
class OptimizationConfig:
    """The fields of Optimum's class that matter here."""

    optimization_level: int = 1
    enable_gelu_approximation: bool = False
    enable_transformers_specific_optimizations: bool = True
    fp16: bool = False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "exported"
    made.mkdir()
    onnx.save(onnx.parser.parse_model(TEXT), made / "model.onnx")
    (made / "config.json").write_text("{}")
    (made / "model.onnx_data").write_text("not to be copied")
    return made


def test_a_folder_is_optimised_into_another_with_its_other_files(folder: Path, tmp_path: Path) -> None:
    optimizer = ORTOptimizer.from_pretrained(folder)
    assert optimizer.optimize(save_dir=tmp_path / "out") == tmp_path / "out"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model_optimized.onnx", "config.json"}
    assert operators(tmp_path / "out" / "model_optimized.onnx") == ["Gelu"]
    assert optimizer.results["model_optimized.onnx"].written
    difference = ORTOptimizer.get_operators_difference(folder / "model.onnx", tmp_path / "out" / "model_optimized.onnx")
    assert difference == {"Div": 1, "Erf": 1, "Add": 1, "Mul": 2, "Gelu": -1}
    assert ORTOptimizer.get_nodes_number_difference(folder / "model.onnx", folder / "model.onnx") == 0


def test_the_models_of_an_object_with_sessions_are_found(folder: Path) -> None:
    one = SimpleNamespace(path=folder / "model.onnx", config=None)
    assert ORTOptimizer.from_pretrained(one).onnx_model_path == [folder / "model.onnx"]
    parts = SimpleNamespace(encoder=one, decoder=SimpleNamespace(path="d.onnx"), decoder_with_past=None)
    assert ORTOptimizer.from_pretrained(parts).onnx_model_path == [folder / "model.onnx", Path("d.onnx")]


def test_options_and_configurations_of_optimum_are_read(folder: Path, tmp_path: Path) -> None:
    optimizer = ORTOptimizer.from_pretrained(folder)
    optimizer.optimize(ortfuse.Options(level="disabled"), tmp_path / "a", file_suffix="")
    assert "Erf" in operators(tmp_path / "a" / "model.onnx")
    optimizer.optimize(OptimizationConfig(optimization_level=99), tmp_path / "b")
    assert operators(tmp_path / "b" / "model_optimized.onnx") == ["Gelu"]
    with pytest.raises(OptionError, match="fp16=True means nothing to ortfuse"):
        optimizer.optimize(OptimizationConfig(fp16=True), tmp_path / "c")
    with pytest.raises(OptionError, match=r"write ortfuse\.Options, not a dict"):
        optimizer.optimize({}, tmp_path / "c")


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"there is no \.onnx file in it"):
        ORTOptimizer.from_pretrained(tmp_path)
    with pytest.raises(ModelFileError, match="there is no such folder"):
        ORTOptimizer.from_pretrained(tmp_path / "none")
    with pytest.raises(ModelFileError, match="int does not tell where its models are"):
        ORTOptimizer.from_pretrained(3)


def test_models_of_optimum_go_in_and_come_out(folder: Path, tmp_path: Path) -> None:
    theirs = pytest.importorskip("optimum.onnxruntime")
    from transformers import BertConfig

    BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1).save_pretrained(folder)
    ORTOptimizer.from_pretrained(folder).optimize(theirs.OptimizationConfig(optimization_level=2), tmp_path / "out")
    model = theirs.ORTModelForCustomTasks.from_pretrained(tmp_path / "out", file_name="model_optimized.onnx")
    assert ORTOptimizer.from_pretrained(model).onnx_model_path == [tmp_path / "out" / "model_optimized.onnx"]
    with pytest.raises(OptionError, match="fp16=True"):
        ORTOptimizer.from_pretrained(model).optimize(theirs.OptimizationConfig(fp16=True), tmp_path / "half")
