"""That a runtime which crashes when it is asked for its kernels costs no more than a warning."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ortfuse.errors import OrtfuseWarning, TargetError
from ortfuse.io import check_node, read_kernel_registry
from ortfuse.io.read_kernel_registry import RegistryError, definitions
from ortfuse.targets import kernel_table_cache
from ortfuse.targets.kernel_table import KernelTable


@pytest.fixture
def crashing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A runtime whose registry query ends its process, as that of a GPU build without the libraries of CUDA."""
    program = tmp_path / "crash.py"
    program.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setattr(read_kernel_registry, "PROGRAM", program)
    monkeypatch.setattr(kernel_table_cache.platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache"))
    caches = (definitions, kernel_table_cache.installed_table, check_node._runtime_operators)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.mark.usefixtures("crashing")
def test_a_crash_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(
        RegistryError, match=r"asked for its kernels, crashes \(signal 11, SIGSEGV\); a GPU build does so"
    ):
        definitions()


@pytest.mark.usefixtures("crashing")
def test_the_table_that_comes_with_ortfuse_stands_in_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_table_cache, "installed_version", lambda package: "1.999.0")
    with pytest.warns(OrtfuseWarning, match="Until then the kernels are those of onnxruntime"):
        table = kernel_table_cache.installed_table("CPUExecutionProvider")
    assert ("", "MatMul") in table.operators
    with pytest.raises(TargetError):
        kernel_table_cache.installed_table("ExecutionProviderOfNobody")


@pytest.mark.usefixtures("crashing")
@pytest.mark.filterwarnings("error")
def test_the_table_of_the_installed_release_serves_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_table_cache, "installed_version", lambda package: "1.30.0")
    table = kernel_table_cache.installed_table("CUDAExecutionProvider")
    assert table.runtime == "onnxruntime 1.30.0"
    assert table.operators["", "Attention"].kernels


@pytest.mark.usefixtures("crashing")
def test_operators_of_the_runtime_are_known_by_its_schemas() -> None:
    assert ("", "SimplifiedLayerNormalization") in check_node._runtime_operators()


@pytest.mark.filterwarnings("ignore")
def test_the_shipped_table_has_most_operators_of_the_installed_runtime() -> None:
    shipped = kernel_table_cache._shipped("CPUExecutionProvider", RegistryError("told"))
    installed = KernelTable.of_runtime("CPUExecutionProvider")
    common = shipped.operators.keys() & installed.operators.keys()
    assert len(common) > 0.9 * len(installed.operators)
