"""The sums of the benchmark of passes."""

from __future__ import annotations

from typing import Any

from benchmarks.estimate import gain
from benchmarks.passes.summary import brief, summed


def weight(executed: int, microseconds: float, **more: Any) -> dict[str, Any]:
    return {"executed": executed, "microseconds": microseconds, **more}


def row(passes: dict[str, Any], name: str = "bert") -> dict[str, Any]:
    return {
        "list": name, "original": weight(40, 400.0), "all": weight(10, 100.0), "idle": ["idle"], "passes": passes,
    }  # fmt: skip


def test_a_pass_is_worth_what_the_result_costs_without_it() -> None:
    found = summed({"a": row({"fuse": weight(20, 150.0)}), "b": row({"fuse": {"error": "no result"}})})
    assert found["lists"]["bert"] == {
        "models": 2, "executed": 4.0, "microseconds": 4.0, "idle": ["idle"],
        "passes": {"fuse": {"models": 2, "executed": 2.0, "microseconds": 1.5, "needed": 1}},
    }  # fmt: skip


def test_the_summary_counts_passes_that_change_nothing() -> None:
    assert brief(summed({"a": row({})}))["lists"]["bert"]["idle"] == 1


def test_a_saving_in_one_price_counts_though_the_other_is_dearer() -> None:
    assert gain(weight(12, 90.0), weight(10, 100.0)) > 0 > gain(weight(9, 100.0), weight(10, 100.0))
