"""Which measurements on older releases become tables of costs."""

from __future__ import annotations

from benchmarks.kernels.release_costs import LAST, medians, others, spans
from ortfuse.targets import CostTable
from ortfuse.targets.rule_speedups import Measured

NEWEST = CostTable(
    {
        "fast.fusion": (Measured.parse("x 1x16", 2.0), Measured.parse("x 1x1024", 2.0)),
        "slow.fusion": (Measured.parse("x 1x16", 0.5),),
    }
)


def test_a_size_counts_if_its_passes_agree() -> None:
    rows = {
        "near.rule": {"x 1x16": [[1.01, 0.9, 1.2], [0.95, 0.9, 1.0]]},
        "sure.rule": {"x 1x16": [[0.5, 0.2, 0.6], [0.8, 0.1, 0.9]], "x 1x32": [None, None]},
        "torn.rule": {"x 1x16": [[0.5, 0.4, 0.6], [2.0, 1.9, 2.1]]},
        "once.rule": {"x 1x16": [[0.5, 0.4, 0.6]]},
    }
    assert medians(rows) == {"near.rule": {"x 1x16": 0.98}, "sure.rule": {"x 1x16": 0.65}}


def test_a_rule_counts_if_half_of_its_sizes_do() -> None:
    sure, torn = [[0.5, 0.4, 0.6], [0.5, 0.4, 0.6]], [[0.5, 0.4, 0.6], [2.0, 1.9, 2.1]]
    assert not medians({"a.rule": {"x 1x1": sure, "x 1x2": torn, "x 1x3": torn}})
    assert medians({"a.rule": {"x 1x1": sure, "x 1x2": torn}}) == {"a.rule": {"x 1x1": 0.5}}


def test_a_table_of_a_release_has_the_rules_that_are_clearly_decided_otherwise() -> None:
    found = others(
        {
            "fast.fusion": {"x 1x16": 1.9, "x 1x1024": 0.8},
            "slow.fusion": {"x 1x16": 0.98},
            "new.fusion": {"x 1x16": 0.9},
            "new.neutral": {"x 1x16": 0.96},
        },
        NEWEST,
    )
    assert found == {"fast.fusion": {"x 1x1024": 0.8, "x 1x16": 1.9}, "new.fusion": {"x 1x16": 0.9}}


def test_a_release_counts_up_to_the_next_one_that_was_measured() -> None:
    assert spans(["1.20.1", "1.17.3", "1.23.2"]) == {
        "1.17.3": ("1.17", "1.19"), "1.20.1": ("1.20", "1.22"), "1.23.2": ("1.23", LAST),
    }  # fmt: skip
