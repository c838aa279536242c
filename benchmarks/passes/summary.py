"""Savings by each pass over the models of each list."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.estimate import PRICES


def brief(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sums for the summary: of passes that change nothing only the number."""
    lists = {name: {**entry, "idle": len(entry["idle"])} for name, entry in sums["lists"].items()}
    return {"models": sums["models"], "lists": lists}


def summed(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the table of each list.

    Args:
        rows: The raw row of each model.
    """
    return {
        "models": len(rows),
        "lists": {name: _of_list([row for row in rows.values() if row["list"] == name]) for name in _lists(rows)},
    }


def _lists(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return sorted({row["list"] for row in rows.values()})


def _of_list(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the savings by all passes and by each: the models that it changes, and prices without it over those with all."""
    passes = sorted({name for row in rows for name in row["passes"]})
    return {
        "models": len(rows),
        **{price: _mean(row["original"][price] / row["all"][price] for row in rows) for price in PRICES},
        "passes": {name: _of_pass([row for row in rows if name in row["passes"]], name) for name in passes},
        "idle": sorted({name for row in rows for name in row["idle"]} - {*passes}),
    }


def _of_pass(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    found = [(row["passes"][name], row["all"]) for row in rows if "error" not in row["passes"][name]]
    measured = [left["latency"][0] for left, _ in found if "latency" in left]
    return {
        "models": len(rows),
        **{price: _mean(left[price] / whole[price] for left, whole in found) for price in PRICES if found},
        **({"latency": _mean(measured)} if measured else {}),
        **({"needed": len(rows) - len(found)} if len(found) < len(rows) else {}),
    }


def _mean(ratios: Iterator[float] | Sequence[float]) -> float:
    return round(statistics.geometric_mean(ratios), 4)
