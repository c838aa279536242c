"""The evidence for each rule, from the rows of a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.estimate import PRICES, SAME, gain
from benchmarks.rules import trial
from benchmarks.rules.search import Search

SAVES, MEASURED, NEEDED, IDLE, COSTS = "saves", "measured", "needed", "idle", "costs"
UNTRIED, NEVER = "untried", "never"
KINDS: Mapping[str, str] = {
    SAVES: "executed operators or estimated time are saved",
    MEASURED: "the shipped table of costs has it faster, and it fires",
    NEEDED: "no price changes without it, but other rules fire less",
    IDLE: "it fires, and nothing changes without it",
    COSTS: "it fires, and the prices are lower without it",
    UNTRIED: "it fires, and was not left out yet",
    NEVER: "it fires in no model",
}
"""The kinds of evidence, the best first."""


def evidence(search: Search, names: Sequence[str], measured: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Return the evidence for rules and passes, by name.

    Args:
        search: The search, finished or not.
        names: The rules, and passes after `trial.PASS`.
        measured: The speedup of each rule by the shipped table of costs.
    """
    return {name: _of(search, name, measured.get(name, 0.0)) for name in names}


def counted(found: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of rules of each kind."""
    numbers = Counter(row["kind"] for row in found.values())
    return {kind: numbers[kind] for kind in KINDS}


def table(found: Mapping[str, Mapping[str, Any]], kinds: Sequence[str] = tuple(KINDS)) -> Iterator[str]:
    """The evidence as a table in Markdown, kind by kind, the largest saving first."""
    yield "| rule | evidence | model | operators | time | models | sites |\n|---|---|---|---|---|---|---|"
    for kind in kinds:
        rows = [(name, row) for name, row in found.items() if row["kind"] == kind]
        for name, row in sorted(rows, key=lambda one: (-one[1].get("executed", 1.0), one[0])):
            numbers = " | ".join(f"{row[price]:.3f}" if price in row else "" for price in PRICES)
            yield f"| {name} | {kind} | {row.get('model', '')} | {numbers} | {row['models']} | {row['sites']} |"


def _of(search: Search, name: str, speedup: float) -> dict[str, Any]:
    fired = search.fired_in(name)
    counts = {"models": len(fired), "sites": sum(search.sites(name, sample) for sample in fired)}
    if not fired:
        return {"kind": NEVER, **counts}
    tried = search.tried(name)
    gains = {model: gain(left, whole) for model, (left, whole) in tried.items()}
    if gains and max(gains.values()) > SAME:
        best = max(gains, key=gains.__getitem__)
        return {"kind": SAVES, "model": best, **_prices(*tried[best]), **counts}
    if speedup > 1:
        return {"kind": MEASURED, "model": fired[0].name, "speedup": speedup, **counts}
    if not tried:
        return {"kind": UNTRIED, "model": fired[0].name, **counts}
    needing = {model: left["lost"] for model, (left, _) in tried.items() if left.get("lost") and "together" not in left}
    counts["tried"] = len(tried)
    if needing:
        model = max(needing, key=lambda one: len(needing[one]))
        return {"kind": NEEDED, "model": model, "lost": sorted(needing[model]), **counts}
    cheaper = [model for model, share in gains.items() if share < -SAME]
    if cheaper:
        best = min(cheaper, key=gains.__getitem__)
        return {"kind": COSTS, "model": best, **_prices(*tried[best]), **counts}
    return {"kind": IDLE, "model": fired[0].name, **counts}


def _prices(left: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, float]:
    """The prices without something over those with it; none if there is no result without it."""
    return {} if "error" in left else {price: round(left[price] / whole[price], 4) for price in PRICES}


def passes_of(search: Search) -> list[str]:
    """The passes that change something in a model, after `trial.PASS`."""
    names = {name for row in search.rows.values() for name in row.get("passes", ())}
    return [f"{trial.PASS}{name}" for name in sorted(names)]
