"""Sites of one kind: what was measured at some of them tells enough of the others to try these too, where time is short.

Their times are the same. Their errors are of one order, and are taken to be the largest that were measured: what is chosen is run
as a whole anyway, and it is the error of that which is held to the bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ortfuse.ir.structure_key import content_of
from ortfuse.quantization.site_measurements import MeasuredSite, Rung
from ortfuse.runtime.site_model import Part


def in_turns(parts: Sequence[Part]) -> tuple[list[Part], int]:
    """One site of each kind first, those of the kinds with most sites before others; then a second one of each.

    Returns:
        The sites in that order, and the number of kinds.
    """
    kinds = _kinds(parts)
    places = {part.name: (place, -len(kind)) for kind in kinds for place, part in enumerate(kind)}
    return sorted(parts, key=lambda part: places[part.name]), len(kinds)


def with_kin(
    parts: Sequence[Part], measured: Sequence[MeasuredSite], rungs: Mapping[str, Collection[str]]
) -> list[MeasuredSite]:
    """The sites that were measured, and those that were not as far as others of their kind were.

    Args:
        parts: The sites.
        measured: Those that were measured.
        rungs: The names of the rungs that are legal at each site.
    """
    known = {site.name: site for site in measured}
    for kind in _kinds(parts):
        like = [known[part.name] for part in kind if part.name in known]
        for part in kind if like else ():
            if part.name not in known:
                known[part.name] = _presumed(part.name, like, rungs[part.name])
    return [known[part.name] for part in parts if part.name in known]


def _presumed(name: str, like: Sequence[MeasuredSite], rungs: Collection[str]) -> MeasuredSite:
    first = like[0]
    found = [_worst([one for site in like for one in site.rungs if one.name == rung.name]) for rung in first.rungs]
    kept = tuple(rung for rung in found if rung.name in rungs)
    return replace(first, name=name, rungs=kept, spread=None, like=first.name)


def _worst(rungs: Sequence[Rung]) -> Rung:
    """A rung with the largest of the errors that it made at several sites; not considered where it was not at one of them."""
    if (without := next((rung for rung in rungs if rung.effects is None), None)) is not None:
        return without
    effects = np.max([rung.effects or () for rung in rungs], axis=0)
    local = max((rung.local or 0.0 for rung in rungs), default=0.0)
    return replace(rungs[0], local=local, effects=tuple(map(float, effects)))


def _kinds(parts: Sequence[Part]) -> list[list[Part]]:
    """The sites that have the same operators, types and declared sizes."""
    found: defaultdict[str, list[Part]] = defaultdict(list)
    for part in parts:
        declared = [(str(value.type), str(value.shape)) for value in part.model.graph.inputs]
        found[repr((content_of(part.model), declared))].append(part)
    return list(found.values())
