"""The sums of the benchmark of passes."""

from __future__ import annotations

from typing import Any

from benchmarks.passes.measure import rules_to_judge
from benchmarks.passes.summary import brief, gain, summed


def weight(executed: int, microseconds: float, **more: Any) -> dict[str, Any]:
    return {"executed": executed, "microseconds": microseconds, **more}


def row(passes: dict[str, Any], rules: dict[str, Any], name: str = "bert") -> dict[str, Any]:
    return {
        "list": name, "original": weight(40, 400.0), "all": weight(10, 100.0), "idle": ["idle"], "passes": passes, "rules": rules,
    }  # fmt: skip


def test_a_pass_is_worth_what_the_result_costs_without_it() -> None:
    found = summed({"a": row({"fuse": weight(20, 150.0)}, {}), "b": row({"fuse": {"error": "no result"}}, {})}, [])
    assert found["lists"]["bert"] == {
        "models": 2, "executed": 4.0, "microseconds": 4.0, "idle": ["idle"],
        "passes": {"fuse": {"models": 2, "executed": 2.0, "microseconds": 1.5, "needed": 1}},
    }  # fmt: skip


def test_rules_save_something_or_nothing_or_cost_something() -> None:
    rules = {
        "good": weight(12, 90.0, hits=1), "idle": weight(10, 100.0, hits=2), "bad": weight(9, 100.0, hits=1),
        "needed": {"hits": 1, "error": "no result"},
    }  # fmt: skip
    found = summed({"a": row({}, rules), "b": row({}, {"idle": weight(10, 100.0, hits=3)})}, [*rules, "unused"])[
        "rules"
    ]
    assert (
        set(found["saves"]) == {"good", "needed"}
        and set(found["nothing"]) == {"idle"}
        and set(found["costs"]) == {"bad"}
    )
    assert found["nothing"]["idle"] == {"models": 2, "hits": 5, "most": "a", "executed": 1.0, "microseconds": 1.0}
    assert found["never"] == ["unused"]


def test_the_summary_counts_what_is_never_applied() -> None:
    sums = summed({"a": row({}, {"idle": weight(10, 100.0, hits=2)})}, ["idle", "unused", "other"])
    found = brief(sums)
    assert found["rules"] == {"saves": {}, "nothing": ["idle"], "costs": {}, "never": 2}
    assert found["lists"]["bert"]["idle"] == 1


def test_a_saving_in_one_price_counts_though_the_other_is_dearer() -> None:
    assert gain(weight(12, 90.0), weight(10, 100.0)) > 0 > gain(weight(9, 100.0), weight(10, 100.0))


def test_only_rules_that_are_applied_unasked_are_judged() -> None:
    judged = {*rules_to_judge()}
    assert {"gelu.from_erf_form", "attention.sdpa"} <= judged
    assert (
        not {
            "glu.swish_times_x_to_swiglu_function",
            "focal.to_sigmoid_focal_loss_function",
            "qdq.hoist_quantize_above_reshape",
            "matmul_form.gemm_to_matmul_add",
        }
        & judged
    )
