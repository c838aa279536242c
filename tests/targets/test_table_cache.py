"""The kernel table of the installed runtime is asked for once for each build."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortfuse.errors import TargetError
from ortfuse.targets import default_spec, kernel_table_cache
from ortfuse.targets.kernel_table import KernelTable

CPU = default_spec().provider

kept_table = kernel_table_cache.installed_table.__wrapped__


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kernel_table_cache.platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    return tmp_path / "ortfuse" / "kernels"


def test_what_is_kept_is_what_the_runtime_says(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = kept_table(CPU)
    monkeypatch.setattr(KernelTable, "of_runtime", None)
    assert kept_table(CPU) == asked
    assert [file.suffix for file in cache.iterdir()] == [".json"]


def test_another_build_has_a_table_of_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = kernel_table_cache.cache_file(CPU)
    build = kernel_table_cache._build()
    assert build is not None
    monkeypatch.setattr(kernel_table_cache, "_build", lambda: (*build[:-1], (*build[-1][:2], 0)))
    assert kernel_table_cache.cache_file(CPU) != before


def test_a_cache_that_cannot_be_used_is_none(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    asked = kept_table(CPU)
    assert asked.provider == CPU
    monkeypatch.setattr(kernel_table_cache, "_build", lambda: None)
    assert kept_table(CPU) == asked
    with pytest.raises(TargetError, match="has no kernels for 'NoProvider'"):
        kept_table("NoProvider")
