"""The pass for Olive, where Olive is installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

import ortfuse

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[n,8] x) => (float[n,8] y)
<float half = {0.5}, float one = {1}, float root = {1.4142135}> {
    d = Div(x, root) e = Erf(d) a = Add(e, one) h = Mul(x, a) y = Mul(h, half) }"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CI", "1")  # Olive would report its use
    pytest.importorskip("olive.passes")
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "a.onnx")
    return tmp_path / "a.onnx"


def run(path: Path, out: Path, **config: Any) -> Any:
    from olive.model import ONNXModelHandler
    from olive.passes.olive_pass import create_pass_from_dict

    from ortfuse.interop.olive import OrtfuseOptimize

    made = create_pass_from_dict(OrtfuseOptimize, config, disable_search=True)
    return made.run(ONNXModelHandler(str(path)), str(out))


def test_the_pass_optimises_a_model(path: Path, tmp_path: Path) -> None:
    made = run(path, tmp_path / "out", verify="whole")
    assert [node.op_type for node in onnx.load(made.model_path).graph.node] == ["Gelu"]
    assert not made.inference_settings


def test_the_pass_takes_options(path: Path, tmp_path: Path) -> None:
    made = run(path, tmp_path / "out", level="disabled")
    assert len(onnx.load(made.model_path).graph.node) == 5


def test_recommended_settings_go_into_inference_settings(path: Path) -> None:
    from ortfuse.interop.olive import _settings

    session = ortfuse.SessionConfig().with_({"session.set_denormal_as_zero": "1", "enable_mem_reuse": False})
    known = {"session_options": {"enable_mem_reuse": True}}
    found = _settings(known, session)
    assert found == {
        "session_options": {"enable_mem_reuse": True, "extra_session_config": {"session.set_denormal_as_zero": "1"}}
    }
    assert known == {"session_options": {"enable_mem_reuse": True}}
    assert _settings(None, ortfuse.SessionConfig()) is None


def test_olive_knows_the_pass_by_its_configuration(path: Path) -> None:
    from olive.package_config import OlivePackageConfig

    from ortfuse.interop.olive import OrtfuseOptimize, package_config

    config = OlivePackageConfig.model_validate(package_config())
    assert config.import_pass_module("OrtfuseOptimize") is OrtfuseOptimize


def test_without_olive_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "olive.model", None)
    monkeypatch.delitem(sys.modules, "ortfuse.interop.olive", raising=False)
    with pytest.raises(ImportError, match=r"needs Olive \(.*pip install 'ortfuse\[olive\]'"):
        importlib.import_module("ortfuse.interop.olive")


def test_olive_may_run_the_pass_for_each_target_that_has_an_accelerator(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ortfuse.interop.olive import package_config
    from ortfuse.targets import TargetSpec, default_spec, registry

    toy = TargetSpec(name="toy", provider="ToyExecutionProvider", accelerator="gpu")
    far = TargetSpec(name="far", provider="FarExecutionProvider")
    monkeypatch.setattr(registry, "_loaded", {"toy": toy, "far": far})
    offered = package_config()["passes"]["OrtfuseOptimize"]
    assert offered["supported_providers"] == [default_spec().provider, "ToyExecutionProvider"]
    assert offered["supported_accelerators"] == ["cpu", "gpu"]
