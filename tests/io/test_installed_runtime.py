"""Tests of a Python environment without ONNX Runtime, and of providers that do not start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx_ir as ir
import pytest

from ortfuse.errors import VerificationError
from ortfuse.io.installed_runtime import MISSING, installed_version
from ortfuse.runtime.session import Session

TEXT = '<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
WITHOUT = "import sys; sys.modules['onnxruntime'] = None; from ortfuse.__main__ import main; main()"


@pytest.mark.parametrize("command", ["optimize", "verify", "sweep"])
def test_without_a_runtime_one_line_names_the_commands_that_install_one(command: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    ir.save(ir.from_onnx_text(TEXT), path)
    arguments = [command, str(path), *([str(path)] if command == "verify" else ["-o", str(tmp_path / "out")])]
    run = subprocess.run([sys.executable, "-c", WITHOUT, *arguments], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr.splitlines()[-1]) == (2, f"error: {MISSING}")
    assert not [file for file in tmp_path.rglob("*.onnx") if file != path]


def test_a_provider_that_does_not_start_is_named_instead_of_replaced() -> None:
    with pytest.raises(VerificationError, match="NoExecutionProvider does not start in this build"):
        Session(ir.from_onnx_text(TEXT), providers=("NoExecutionProvider", "CPUExecutionProvider"))


def test_the_version_of_a_package_is_that_of_the_distribution_that_brings_it() -> None:
    assert installed_version("onnxruntime")[0].isdigit()
    assert installed_version("_pytest") == installed_version("pytest")
    assert installed_version("absent") == "none"
