"""What a run of the command line loads, and what it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = """
import sys
from ortfuse.cli.app import main
try:
    main()
except SystemExit as end:
    assert not end.code
print("loaded:", *sorted({"sympy.core", "pydantic", "onnxruntime", "ortfuse.verification.rule_tests", "ortfuse.runtime.bench", "rich.progress", "onnx.reference", "ortfuse.verification.equivalence", "ortfuse.cli.quantize", "google.protobuf.json_format"} & set(sys.modules)))
"""


def loaded(folder: Path) -> list[str]:
    """Which of the modules that take long are loaded by optimising a small model."""
    model = ROOT / "golden" / "models" / "resnet.raw.onnx"
    ran = subprocess.run(
        [sys.executable, "-c", CODE, "optimize", str(model), "-o", str(folder / "out.onnx")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)},
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.rpartition("loaded:")[2].split()


@pytest.mark.skipif(sys.platform != "linux", reason="the cache folder is set as on Linux")
def test_optimising_loads_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    assert loaded(tmp_path) == ["onnxruntime"], "the first run asks the runtime for its kernels"
    (table,) = (tmp_path / "cache" / "ortfuse" / "kernels").iterdir()
    written = table.read_bytes()
    assert loaded(tmp_path) == []
    table.write_bytes(written[:1000])
    assert loaded(tmp_path) == ["onnxruntime"]
    assert table.read_bytes() == written


def run(code: str) -> list[str]:
    """The words that a program prints."""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def test_what_is_deferred_works_when_it_is_used() -> None:
    code = (
        "import sys, ortfuse, onnx_ir as ir; before = 'sympy.core' in sys.modules; dim = ir.SymbolicDim('a + 1') + 1;"
        "print(before, dim.value, 'sympy.core' in sys.modules)"
    )
    assert run(code) == ["False", "a", "+", "2", "True"]


def test_other_code_meets_the_modules_themselves() -> None:
    code = (
        "import ortfuse, onnx, onnx_ir as ir, sympy, onnx.compose; from onnx import serialization;"
        "print(sympy.__file__ is not None, type(sympy).__name__, type(onnx.compose).__name__, onnx.compose.__name__,"
        "onnx.serialization.registry is serialization.registry, ir.__spec__.loader is ir.__loader__,"
        "isinstance(ir.SymbolicDim(sympy.Symbol('n')), ir.SymbolicDim))"
    )
    assert run(code) == ["True", "module", "module", "onnx.compose", "True", "True", "True"]


def test_a_module_that_there_is_not_is_missed_as_usual(tmp_path: Path) -> None:
    (tmp_path / "onnx_ir.py").write_text("try:\n    import sympy\nexcept ImportError:\n    sympy = 'missing'\n")
    code = (
        "import sys, ortfuse; sys.path[:] = [path for path in sys.path if not path.endswith('site-packages')];"
        f"sys.path.insert(0, {str(tmp_path)!r}); import onnx_ir; print(onnx_ir.sympy)"
    )
    assert run(code) == ["missing"]


def test_a_program_that_has_sympy_keeps_it() -> None:
    code = "import sympy, sys; import ortfuse, onnx_ir; print(sys.modules['sympy'] is sympy is onnx_ir._core.sympy)"
    assert run(code) == ["True"]
