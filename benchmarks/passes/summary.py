"""What each pass buys over the models of each list, and which rules buy nothing anywhere."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PRICES = ("executed", "microseconds")
SAME = 1e-3
"""Estimates whose ratio is nearer to 1 than this are the same."""


def summed(rows: Mapping[str, Mapping[str, Any]], rules: Sequence[str]) -> dict[str, Any]:
    """The table of each list, and the rules by what they buy.

    Args:
        rows: What was found of each model.
        rules: The names of all rules.
    """
    lists = {name: _of_list([row for row in rows.values() if row["list"] == name]) for name in _lists(rows)}
    return {"models": len(rows), "lists": lists, "rules": _rules(rows, rules)}


def _lists(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return sorted({row["list"] for row in rows.values()})


def _of_list(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all passes buy, and each: in how many models it does something, and prices without it divided by those with all."""
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
    """The rules that buy something in a model, those that are applied and buy nothing in any, and those not applied at all.

    A rule without which there is no result is one that buys something. `costs` are those that only ever make it worse.
    """
    found: dict[str, dict[str, Any]] = {"buys": {}, "nothing": {}, "costs": {}}
    for name in rules:
        tried = {model: (row["rules"][name], row["all"]) for model, row in rows.items() if name in row["rules"]}
        if not tried:
            continue
        gains = [gain(left, whole) for left, whole in tried.values()]
        kind = "buys" if max(gains) > SAME else "costs" if min(gains) < -SAME else "nothing"
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
    """By which share the result is dearer when something is left out: the larger of both prices; less than 0 if it is cheaper."""
    if "error" in left:
        return 1.0
    gains = [left[price] / whole[price] - 1 for price in PRICES]
    return max(gains, key=abs) if all(one <= 0 for one in gains) else max(gains)
