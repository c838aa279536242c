"""The blocks about operators and fused sites that several documents share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ortfuse.report.document import Rows, Site
from ortfuse.report.graph_drawing import Picture, svg
from ortfuse.report.model_pictures import Pair

MOST_UNFOLDED = 24
"""The rows of the longest table of operators that is not folded."""


def counted(operators: Mapping[str, int], most: int = 6) -> str:
    """Operators with their numbers, in words."""
    said = [
        name.removeprefix("com.microsoft.") + (f" ×{count}" if count > 1 else "") for name, count in operators.items()
    ]
    more = f" and {len(said) - most} more" if len(said) > most else ""
    return ", ".join(said[:most]) + more if said else "nothing"


def signed(number: float) -> str:
    """A whole number with its sign, as it is printed."""
    return f"{number:+.0f}".replace("-", "−")


def change(before: Mapping[str, int], after: Mapping[str, int]) -> Rows:
    """The operators of two models side by side."""
    names = sorted({*before, *after}, key=lambda name: (before.get(name, 0) - after.get(name, 0)) * -1)
    rows = [
        (name, str(before.get(name, 0)), str(after.get(name, 0)), signed(after.get(name, 0) - before.get(name, 0)))
        for name in names
        if before.get(name, 0) != after.get(name, 0)
    ]
    return Rows(
        "Operators",
        ("operator", "before", "after", "change"),
        rows,
        numbers=frozenset({1, 2, 3}),
        folded=len(rows) > MOST_UNFOLDED,
    )


def site(
    title: str, about: str, pair: Pair, places: Sequence[str] = (), names: tuple[str, str] = ("before", "after")
) -> Site:
    """A part of a model before and after, drawn, under these names."""
    drawn = [
        "" if picture is None else svg(picture, f"{title}, {when}: {counted(operators)}")
        for picture, when, operators in ((pair.before, names[0], pair.was), (pair.after, names[1], pair.became))
    ]
    captions = f"{names[0]}{_omitted(pair.before)}", f"{names[1]}{_omitted(pair.after)}"
    was, became, count = counted(pair.was), counted(pair.became), max(1, len(places))
    return Site(title, about, drawn[0], drawn[1], was, became, count, places, captions)


def _omitted(picture: Picture | None) -> str:
    """The part of a drawing's caption about nodes that it leaves out."""
    if picture is None or not picture.omitted:
        return ""
    drawn = sum(box.kind == "op" for box in picture.boxes)
    return f": {drawn} of its {drawn + picture.omitted} nodes"


def grouped(pairs: Iterable[tuple[str, Pair, str]]) -> list[tuple[str, Pair, list[str]]]:
    """Titles and pairs, those of the same title and operators as one, with the places of all."""
    found: dict[tuple[object, ...], tuple[str, Pair, list[str]]] = {}
    for title, pair, place in pairs:
        key = title, tuple(sorted(pair.was.items())), tuple(sorted(pair.became.items()))
        found.setdefault(key, (title, pair, []))[2].append(place)
    return list(found.values())
