"""What the benchmark of lower precision says of its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.by_processor import of_processors, store
from benchmarks.precision.measure import COMMAND, content, summary, verdicts


def row(**tools: tuple[float, float]) -> dict[str, Any]:
    return {
        "sizes": "",
        "tools": {
            name.replace("_", " ").replace("1e2", "0.01"): {"status": "ok", "speedup": speedup, "unseen_error": error}
            for name, (speedup, error) in tools.items()
        },
    }


def test_a_peer_counts_only_under_the_bound() -> None:
    found = verdicts(row(ortfuse_1e2=(2.0, 0.008), dynamic=(3.0, 0.02), static_u8s8=(1.6, 0.01), float32=(1.25, 0.0)))[
        "0.01"
    ]
    assert found["best_peer"] == "static u8s8"
    assert found["of_best_peer"] == pytest.approx(1.25)
    assert found["of_float32"] == pytest.approx(1.6)
    assert found["kept"]


def test_what_is_not_good_enough_is_named() -> None:
    lines = summary({"net": row(ortfuse_1e2=(1.0, 0.02), dynamic=(1.2, 0.005), float32=(1.1, 0.0))})
    assert len(lines) == 1
    assert "behind the best peer: net; slower than float32: net; bound broken: net" in lines[0]


def test_what_other_processors_gave_stays(tmp_path: Path) -> None:
    output = tmp_path / "precision.json"
    store(output, COMMAND, "x86_64 AVX2", content({"net": row(float32=(1.1, 0.0))}))
    store(output, COMMAND, "aarch64 SVE", content({"other": row(float32=(1.2, 0.0))}))
    store(output, COMMAND, "aarch64 SVE", content({"other": row(float32=(1.3, 0.0))}))
    found = of_processors(output)
    assert {kind: list(one["models"]) for kind, one in found.items()} == {
        "x86_64 AVX2": ["net"],
        "aarch64 SVE": ["other"],
    }
    assert found["aarch64 SVE"]["models"]["other"]["tools"]["float32"]["speedup"] == 1.3
