"""Speedups of rules that `ortfuse calibrate` measured on this machine, kept in the user's cache folder.

They hold for one build of the runtime, one provider, one processor and one number of threads, which the keys of the file name:

    {"onnxruntime 1.31.1, SomeExecutionProvider, 2 processors of ..., 0 threads": {"threads": 0, "source": ..., "speedups": ...}}
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import platformdirs

from ortfuse.naming import name_today
from ortfuse.targets.measurement_file import keep, kept
from ortfuse.targets.processor import number_formats, processor_kind, processor_name
from ortfuse.targets.rule_speedups import CostTable, shipped_costs
from ortfuse.targets.target_spec import TargetSpec, release_of


def calibration_file() -> Path:
    """The file in the user's cache folder."""
    return Path(platformdirs.user_cache_dir("ortfuse")) / "calibration.json"


def machine_key(runtime: str, provider: str) -> str:
    """Prefix of all keys of this machine."""
    return f"{runtime}, {provider}, {os.cpu_count()} processors of {processor_name()}, "


def stored(runtime: str, provider: str, threads: int, file: Path | None = None) -> dict[str, dict[str, float]]:
    """The speedups measured here with so many threads, by sizes, by rule."""
    found = kept(file or calibration_file()).get(f"{machine_key(runtime, provider)}{threads} threads", {})
    speedups = found.get("speedups", {}) if isinstance(found, dict) else {}
    renamed: dict[str, dict[str, float]] = {}
    for rule, rows in speedups.items():
        renamed.setdefault(name_today(rule, ("rules",), tell=False), {}).update(rows)
    return renamed


def store(
    runtime: str, provider: str, threads: int, speedups: Mapping[str, Mapping[str, float]], file: Path | None = None
) -> bool:
    """Keep what was measured here; returns whether the file could be written."""
    counted = f"{threads} thread{'s' if threads > 1 else ''}" if threads else "threads as the runtime chooses"
    content = {
        "threads": threads,
        "processor": processor_kind(),
        "formats": number_formats(),
        "source": f"measured on this machine by `ortfuse calibrate`: {runtime}, {provider}, {counted}",
        "speedups": speedups,
    }
    written = keep(file or calibration_file(), {f"{machine_key(runtime, provider)}{threads} threads": content})
    costs_here.cache_clear()
    return written


@functools.cache
def costs_here(runtime: str, spec: TargetSpec, threads: int = 0, *, whole_release: bool = False) -> CostTable:
    """The costs to choose by on this machine: those measured here and, for other rules, the shipped ones.

    The table for the nearest number of threads counts.

    Args:
        runtime: The build of the runtime, such as `onnxruntime 1.20.1`.
        spec: The target.
        threads: The threads per operator; 0 is as many as the runtime chooses.
        whole_release: Whether measurements with other builds of the same release count too, such as 1.20.0.
    """
    release = release_of(runtime)
    shipped, here = shipped_costs(spec, release), {machine_key(runtime, spec.provider)}
    calibrations = kept(calibration_file())
    if whole_release:
        builds = {key.partition(", ")[0] for key in calibrations}
        here |= {machine_key(one, spec.provider) for one in builds if release_of(one) == release}
    found = [one for key, one in calibrations.items() if key.startswith(tuple(here)) and _is_table(one)]
    if not found:
        return shipped
    nearest = min(found, key=lambda one: abs(_count(one["threads"]) - _count(threads)))
    return replace(CostTable.from_json(nearest), otherwise=shipped)


def is_calibrated() -> bool:
    """Whether something was measured on this machine, so that the number of threads says by which table to choose."""
    return any(map(_is_table, kept(calibration_file()).values()))


def _is_table(content: Any) -> bool:
    """Whether an entry of the file is what `store` writes; a damaged one is left aside."""
    try:
        return bool(CostTable.from_json(content).speedups) and content["threads"] >= 0
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _count(threads: int) -> int:
    return threads or os.cpu_count() or 1
