"""Convert stored JSON of version 1 to the keys of today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMER_VERSION = 1
"""The version whose keys are renamed here."""

FORMER_NAMES: Mapping[str, str] = {"test-rules": "prove"}
"""The names that commands had in version 1, where they had others."""

_EXPLANATION = {
    "taken": "lost", "taken.by": "lost_to", "missed.least": "minimum",
}  # fmt: skip
_CRITERION = "judged_by"
_RULE_TEST = {"proved": "passed", "silent": "untriggered"}


def _below(path: str, names: Mapping[str, str]) -> dict[str, str]:
    return {f"{path}.{name}": key for name, key in names.items()}


_VERDICT = {f"trials.outputs.{_CRITERION}": "criterion"}
_OPTIMIZE = {
    "pins": "forced", "pins.otherwise": "not_followed", "left_alone": "unchanged", "chosen": "pass_list",
    "held_back": "not_folded", "choices.makes": "produces", "choices.taken": "applied", "slowdown.taken": "applied",
    "slowdown.offered": "alternative", **_below("explanation", _EXPLANATION), **_below("verdict", _VERDICT),
    **_below("sites.verdict", _VERDICT),
}  # fmt: skip

RENAMED: Mapping[str, Mapping[str, str]] = {
    "optimize": _OPTIMIZE,
    "substitute": {**_OPTIMIZE, "proof": "rule_test", **_below("proof", _RULE_TEST)},
    "quantize": {
        "taken": "chosen", "left": "unquantized", "kept": "unquantized", "taken.likely": "expected_error",
        "curve.likely": "expected_error", "sites.rung": "scheme", "sites.tried": "schemes", "sites.left": "unquantized",
        "sites.tried.rung": "scheme", "sites.tried.saved": "saved_seconds", "sites.tried.local": "local_error",
        "sites.tried.propagated": "output_error",
    },
    "convert": {
        "to": "precision", "weak": "generated_ranges", "counted": "integer_outputs", "ordered": "errors_in_float32_order",
    },
    "sweep": {"kept": "resumed"},
    "verify": _VERDICT,
    "diff": {
        "tensors.alone": "unmatched", "tensors.sets": "input_sets", f"tensors.first.difference.{_CRITERION}": "criterion",
        f"tensors.differing.difference.{_CRITERION}": "criterion",
    },
    "bisect": {
        **_below("verdict", _VERDICT), f"before.{_CRITERION}": "criterion", f"after.{_CRITERION}": "criterion",
        f"site.difference.{_CRITERION}": "criterion",
    },
    "explain": _EXPLANATION,
    "inspect": {"detours.instead": "fallback"},
    "profile": {
        "reached": "roofline_fraction", "by": "groups", "by.*.reached": "roofline_fraction",
        "kernels.reached": "roofline_fraction", "kernels.least": "roofline_seconds", "kernels.made": "origin",
        "bottlenecks.what": "description",
    },
    "calibrate": {
        "together": "combined", "left": "remaining", "unsure": "inconclusive", "silent": "unmeasurable",
        "changed.here": "measured",
    },
    "passes": {
        "passes.what": "description", "passes.options.what": "description", "rules.makes": "produces",
        "lists.when": "condition",
    },
    "test-rules": _below("rules", _RULE_TEST),
}  # fmt: skip
"""The keys of today by the former ones, for each command. A path leads through objects and lists; `*` is any key."""


def former_schema(command: str) -> str:
    """Return the name of the form of a command's data in version 1."""
    return f"ortfuse.{FORMER_NAMES.get(command, command)}/{FORMER_VERSION}"


def with_keys_of_today(command: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a command of version 1 with the keys of today."""
    names = dict(RENAMED.get(command, {}))
    if command == "quantize" and "kept" in data:  # without a search
        names["left"] = "without_ranges"
    renamed: dict[str, Any] = _renamed(data, {tuple(path.split(".")): key for path, key in names.items()}, ())
    return renamed


def _renamed(data: Any, names: Mapping[tuple[str, ...], str], path: tuple[str, ...]) -> Any:
    if isinstance(data, list):
        return [_renamed(one, names, path) for one in data]
    if not isinstance(data, Mapping):
        return data
    anything = any(known[: len(path) + 1] == (*path, "*") for known in names)
    found = {}
    for name, one in data.items():
        inner = (*path, "*" if anything else name)
        found[names.get(inner, name)] = _renamed(one, names, inner)
    return found
