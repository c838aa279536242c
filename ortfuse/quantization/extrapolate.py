"""Extrapolate measurements to other sites of the same kind, where time is short.

The times of such sites are the same. Their errors are taken to be the largest that were measured at any of them. A choice is
run as a whole anyway, and the error of that run is held to the bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ortfuse.ir.model_structure_key import content_of
from ortfuse.quantization.site_measurements import MeasuredScheme, MeasuredSite
from ortfuse.runtime.single_site_model import Part


def in_turns(parts: Sequence[Part]) -> tuple[list[Part], int]:
    """One site of each kind first, those of the kinds with most sites before others; then a second one of each.

    Returns:
        The sites in that order, and the number of kinds.
    """
    kinds = _kinds(parts)
    places = {part.name: (place, -len(kind)) for kind in kinds for place, part in enumerate(kind)}
    return sorted(parts, key=lambda part: places[part.name]), len(kinds)


def with_extrapolated(
    parts: Sequence[Part], measured: Sequence[MeasuredSite], schemes: Mapping[str, Collection[str]]
) -> list[MeasuredSite]:
    """The sites that were measured, and those that were not as far as others of their kind were.

    Args:
        parts: The sites.
        measured: Those that were measured.
        schemes: The names of the schemes that are legal at each site.
    """
    known = {site.name: site for site in measured}
    for kind in _kinds(parts):
        like = [known[part.name] for part in kind if part.name in known]
        for part in kind if like else ():
            if part.name not in known:
                known[part.name] = _extrapolated(part.name, like, schemes[part.name])
    return [known[part.name] for part in parts if part.name in known]


def _extrapolated(name: str, like: Sequence[MeasuredSite], schemes: Collection[str]) -> MeasuredSite:
    first = like[0]
    found = [
        _worst([one for site in like for one in site.schemes if one.name == scheme.name]) for scheme in first.schemes
    ]
    kept = tuple(scheme for scheme in found if scheme.name in schemes)
    return replace(first, name=name, schemes=kept, spread=None, like=first.name)


def _worst(schemes: Sequence[MeasuredScheme]) -> MeasuredScheme:
    """A scheme with the largest of the errors that it made at several sites; not considered where it was not at one of them."""
    if (without := next((scheme for scheme in schemes if scheme.effects is None), None)) is not None:
        return without
    effects = np.max([scheme.effects or () for scheme in schemes], axis=0)
    local = max((scheme.local or 0.0 for scheme in schemes), default=0.0)
    return replace(schemes[0], local=local, effects=tuple(map(float, effects)))


def _kinds(parts: Sequence[Part]) -> list[list[Part]]:
    """The sites that have the same operators, types and declared sizes."""
    found: defaultdict[str, list[Part]] = defaultdict(list)
    for part in parts:
        declared = [(str(value.type), str(value.shape)) for value in part.model.graph.inputs]
        found[repr((content_of(part.model), declared))].append(part)
    return list(found.values())
