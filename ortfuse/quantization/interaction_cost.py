"""Measure the interaction of schemes: neighbours pass integers directly, or share a computation on the same value.

A site by itself quantises its inputs and returns float32. If its neighbours are on schemes of the same family, some of these
conversions disappear. So the model is timed with each family everywhere. The speedup beyond the sum of its sites is divided
among them, in proportion to their time in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from ortfuse.errors import OrtfuseError
from ortfuse.quantization.measurement_store import Store
from ortfuse.quantization.scheme_families import family_of
from ortfuse.quantization.scheme_set_protocol import Choice, SchemeSet
from ortfuse.quantization.site_measurements import MeasuredScheme, MeasuredSite
from ortfuse.quantization.site_times import Clock
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.single_site_model import Part

LEAST = 0.05
"""The least share of its own time that a scheme keeps, whatever the speedup by interaction."""


@dataclass(frozen=True)
class Interaction:
    """A family of schemes at every site where one of them is legal.

    Attributes:
        choice: A scheme of the family for each of these sites.
        share: The time of the whole model, divided by its time in float32 measured side by side.
    """

    choice: Choice
    share: float


def interactions(
    scheme_set: SchemeSet,
    model: ir.Model,
    parts: Sequence[Part],
    schemes: Mapping[str, Sequence[str]],
    calibration: Any,
    clock: Clock,
    inputs: Inputs,
    store: Store,
    enough: Callable[[], bool] = lambda: False,
) -> dict[str, Interaction]:
    """The families whose sites can share something, each at all its sites, by name; those that are timed before `enough`."""
    found: dict[str, Interaction] = {}
    for family, choice in _everywhere(parts, schemes).items():
        share = store.get("company", family)
        if not isinstance(share, int | float):
            if enough():
                continue
            share = _share(scheme_set, model, parts, choice, calibration, clock, inputs)
            store.put(share, "company", family)
        if share:
            found[family] = Interaction(choice, share)
    return found


def _everywhere(parts: Sequence[Part], schemes: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
    """The first scheme of each family at each site, by family and site; families of a single site are left out."""
    found: dict[str, dict[str, str]] = {}
    for part in parts:
        for scheme in schemes[part.name]:
            found.setdefault(family_of(scheme), {}).setdefault(part.name, scheme)
    return {family: choice for family, choice in found.items() if len(choice) > 1}


def _share(
    scheme_set: SchemeSet,
    model: ir.Model,
    parts: Sequence[Part],
    choice: Choice,
    calibration: Any,
    clock: Clock,
    inputs: Inputs,
) -> float:
    """The time of the model with a choice divided by that in float32; 0 if nothing can be shared, or it cannot be run."""
    first = next(part for part in parts if part.name in choice)
    try:
        alone = scheme_set.lowered(first.model, {first.name: choice[first.name]}, calibration)
        if not any(node.op_type.endswith("QuantizeLinear") for node in alone.graph):
            return 0.0
        taken = clock.seconds({"": model, "lowered": scheme_set.lowered(model, choice, calibration)}, inputs)
        return taken["lowered"] / taken[""] if len(taken) == 2 and taken[""] else 0.0
    except OrtfuseError:
        return 0.0


def shared(
    sites: Sequence[MeasuredSite], interaction: Mapping[str, Interaction], float_seconds: float
) -> list[MeasuredSite]:
    """Return the sites with the times of their schemes next to such neighbours, in the seconds of sites alone."""
    scale = share_of_whole(sites, float_seconds)
    more = {family: _more(sites, one, float_seconds / scale) for family, one in interaction.items()}
    return [
        replace(site, schemes=tuple(_with_interaction(scheme, site, more) for scheme in site.schemes)) for site in sites
    ]


def share_of_whole(sites: Sequence[MeasuredSite], float_seconds: float) -> float:
    """Return the share of the whole per second of a site alone, at most 1.

    Sites alone also convert layouts and read cold weights.
    """
    alone = sum(site.seconds for site in sites)
    return min(1.0, float_seconds / alone) if alone and float_seconds else 1.0


def _more(sites: Sequence[MeasuredSite], interaction: Interaction, float_seconds: float) -> float:
    """Return the time that a family saves beyond its sites alone, as a share of their time in float32."""
    taken = [
        (site, scheme) for site in sites for scheme in site.schemes if interaction.choice.get(site.name) == scheme.name
    ]
    plain = sum(site.seconds for site, _ in taken)
    alone = sum(site.seconds - scheme.seconds for site, scheme in taken)
    return ((1 - interaction.share) * float_seconds - alone) / plain if plain else 0.0


def _with_interaction(scheme: MeasuredScheme, site: MeasuredSite, more: Mapping[str, float]) -> MeasuredScheme:
    saved = more.get(family_of(scheme.name), 0.0) * site.seconds
    return replace(scheme, seconds=max(scheme.seconds - saved, LEAST * scheme.seconds))
