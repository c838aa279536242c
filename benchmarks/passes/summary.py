"""Savings by each pass over the models of each list, and the rules that save nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PRICES = ("executed", "microseconds")
SAME = 1e-3
"""Estimates whose ratio is nearer to 1 than this are the same."""


def brief(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sums for the summary: of passes and rules that are never applied only the number."""
    lists = {name: {**entry, "idle": len(entry["idle"])} for name, entry in sums["lists"].items()}
    rules = {**sums["rules"], "nothing": sorted(sums["rules"]["nothing"]), "never": len(sums["rules"]["never"])}
    return {"models": sums["models"], "lists": lists, "rules": rules}


def summed(rows: Mapping[str, Mapping[str, Any]], rules: Sequence[str]) -> dict[str, Any]:
    """Return the table of each list, and the rules by their savings.

    Args:
        rows: The raw row of each model.
        rules: The names of all rules.
    """
    lists = {name: _of_list([row for row in rows.values() if row["list"] == name]) for name in _lists(rows)}
    return {"models": len(rows), "lists": lists, "rules": _rules(rows, rules)}


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


def _rules(rows: Mapping[str, Mapping[str, Any]], rules: Sequence[str]) -> dict[str, Any]:
    """Sort the rules into those that save something on a model, those that save nothing, and those that are never applied.

    A rule without which there is no result saves something. `costs` are those that make every result dearer.
    """
    found: dict[str, dict[str, Any]] = {"saves": {}, "nothing": {}, "costs": {}}
    for name in rules:
        tried = {model: (row["rules"][name], row["all"]) for model, row in rows.items() if name in row["rules"]}
        if not tried:
            continue
        gains = [gain(left, whole) for left, whole in tried.values()]
        kind = "saves" if max(gains) > SAME else "costs" if min(gains) < -SAME else "nothing"
        best = max(tried, key=lambda model: gain(*tried[model]))
        found[kind][name] = {
            "models": len(tried),
            "hits": sum(left["hits"] for left, _ in tried.values()),
            "most": best,
            **(
                {}
                if "error" in tried[best][0]
                else {p: round(tried[best][0][p] / tried[best][1][p], 4) for p in PRICES}
            ),
        }
    return {**found, "never": [name for name in rules if not any(name in row["rules"] for row in rows.values())]}


def gain(left: Mapping[str, Any], whole: Mapping[str, Any]) -> float:
    """Return the share by which leaving something out makes the result dearer: the larger of both prices, below 0 if cheaper."""
    if "error" in left:
        return 1.0
    gains = [left[price] / whole[price] - 1 for price in PRICES]
    return max(gains, key=abs) if all(one <= 0 for one in gains) else max(gains)
