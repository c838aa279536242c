"""What the benchmark of lower precision says of its numbers."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.precision.measure import brief, content, summary, verdicts


def row(**tools: tuple[float, float]) -> dict[str, Any]:
    return {
        "sizes": "",
        "tools": {
            name.replace("_", " ").replace("1e2", "0.01"): [speedup, error] for name, (speedup, error) in tools.items()
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


def test_the_summary_names_the_best_peer_under_each_bound() -> None:
    rows = {"net": row(ortfuse_1e2=(2.0, 0.008), dynamic=(1.5, 0.005)), "other": row(ortfuse_1e2=(2.0, 0.008))}
    found = content(rows)["models"]
    assert found["net"]["best_peer"] == {"0.01": "dynamic"} and found["other"]["best_peer"] == {"0.01": ""}


def test_a_row_of_the_summary_has_speedup_and_error_of_each_tool() -> None:
    tools = {"dynamic": {"status": "ok", "speedup": 1.5, "unseen_error": 0.1}, "static": {"status": "failed"}}
    found = brief({"sizes": "batch=1", "load": 1.0, "default_ms": 2.0, "tools": tools})
    assert found == {"sizes": "batch=1", "default_ms": 2.0, "tools": {"dynamic": [1.5, 0.1], "static": "failed"}}
    assert brief({"error": "no inputs"}) == {"error": "no inputs", "tools": {}}
