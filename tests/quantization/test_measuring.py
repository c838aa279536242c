"""Which schemes of a site are looked into, and choices that ranges would spoil."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from ortfuse.quantization import model_trials as trials
from ortfuse.quantization.error_prediction import Predictions
from ortfuse.quantization.knapsack_search_loop import Search
from ortfuse.quantization.metrics import METRICS
from ortfuse.quantization.site_measurements import MOST, MeasuredScheme, MeasuredSite, _worthwhile

pytest.importorskip("scipy")


def test_of_many_schemes_those_stay_that_would_be_missed_most() -> None:
    """As measured for a product of BERT: the one that is a hundred times as exact is not given up for five that are alike."""
    found = {"a": (958, 1.5e-2), "b": (1000, 1.45e-2), "c": (1100, 1.4e-2), "d": (1459, 1.1e-2), "e": (1579, 7.7e-3),
             "f": (2871, 1e-4), "g": (6466, 5e-5)}  # fmt: skip
    schemes = [MeasuredScheme(name, float(seconds), 1, local=local) for name, (seconds, local) in found.items()]
    kept = _worthwhile(schemes, "latency")
    assert len(kept) == MOST
    assert {"a", "e", "f", "g"} <= {*kept}


class _Trial:
    """Errors that add up as predicted; where ranges were observed, much larger ones may come."""

    def test(self, choice: Mapping[str, str]) -> trials.Tested:
        error = math.sqrt(sum((1e-3 if scheme == "seen" else 2e-3) ** 2 for scheme in choice.values()))
        likely = error * (6.0 if "seen" in choice.values() else 1.2)
        return trials.Tested(seen=error, held_out=error, likely=likely, size=1, effects=(error,))

    def proved(self, choice: Mapping[str, str]) -> Any:
        return None


def test_few_schemes_with_observed_ranges_do_not_keep_the_others_back() -> None:
    """For size, so that no scheme is tried everywhere."""
    schemes = (MeasuredScheme("seen", 0.5, 1, effects=(1e-3,)), MeasuredScheme("exact", 0.52, 2, effects=(2e-3,)))
    sites = [MeasuredSite(f"s{number}", "", "", 1.0, 4, schemes) for number in range(4)]
    trial: Any = _Trial()
    predictions = Predictions(sites, 1, "size", 4.0)
    search = Search(
        predictions,
        trial,
        lambda scheme: scheme == "seen",
        lambda scheme: False,
        METRICS["l2"],
        5e-3,
        lambda text: None,
    )
    best = search.run()[0]
    assert list(best.choice.values()) == 4 * ["exact"]


def test_one_scheme_everywhere_is_run_if_it_is_predicted_to_be_nearly_as_fast() -> None:
    """What sites share is not known of each alone, so that the fastest by their times need not be the fastest."""
    ran: list[set[str]] = []

    class Noting(_Trial):
        def test(self, choice: Mapping[str, str]) -> trials.Tested:
            ran.append(set(choice.values()))
            return super().test(choice)

    schemes = tuple(
        MeasuredScheme(name, seconds, 1, effects=(1e-3,)) for name, seconds in (("a", 0.5), ("b", 0.52), ("c", 0.8))
    )
    sites = [MeasuredSite(f"s{number}", "", "", 1.0, 4, schemes) for number in range(4)]
    trial: Any = Noting()
    predictions = Predictions(sites, 1, "latency", 4.0)
    Search(predictions, trial, lambda scheme: False, lambda scheme: False, METRICS["l2"], 1e-2, lambda text: None).run()
    assert ran == [{"a"}, {"b"}]
