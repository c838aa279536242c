"""Results for WebAssembly in a page of a browser: as ONNX models, with data files, and in the format of ONNX Runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from browser import chromium, run_in_page

import ortfuse
from ortfuse.runtime.session import Session

MODELS = Path(__file__).parents[2] / "golden" / "models"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A golden encoder, optimised for WebAssembly."""
    chromium()
    path = tmp_path_factory.mktemp("result") / "bert.onnx"
    ortfuse.optimize(MODELS / "bert.sdpa.ts.onnx", target="wasm", output=path)
    return path


INPUTS: dict[str, np.ndarray[Any, Any]] = {
    "input_ids": np.random.default_rng(0).integers(0, 100, (2, 9)),
    "token_type_ids": np.array([[0, 1] * 4 + [1]] * 2),
    "attention_mask": (np.arange(9) < [[9], [6]]).astype(np.int64),
}


def _agrees_with_cpu(found: dict[str, np.ndarray[Any, Any]]) -> None:
    expected = Session(MODELS / "bert.sdpa.ts.onnx").run(INPUTS)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=2e-5)


def test_a_result_computes_the_same_in_a_page(result: Path) -> None:
    _agrees_with_cpu(run_in_page(result, INPUTS))


def test_a_result_with_a_data_file_computes_the_same_in_a_page(result: Path, tmp_path: Path) -> None:
    path = tmp_path / "bert.onnx"
    onnx.save(onnx.load(result), path, save_as_external_data=True, location="bert.data", size_threshold=256)
    _agrees_with_cpu(run_in_page(path, INPUTS, ("bert.data",)))


def test_a_result_in_the_format_of_the_runtime_computes_the_same_in_a_page(result: Path) -> None:
    tool = [sys.executable, "-m", "onnxruntime.tools.convert_onnx_models_to_ort", str(result)]
    subprocess.run([*tool, "--optimization_style", "Fixed"], check=True, capture_output=True)
    _agrees_with_cpu(run_in_page(result.with_suffix(".ort"), INPUTS))
