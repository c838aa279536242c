"""Draw small graphs as SVG by layered layout with barycentre ordering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from ortfuse.errors.escape_control_characters import visible

ROW, GAP, HEIGHT, PAD = 62.0, 18.0, 30.0, 12.0
CHARACTER = 7.4
"""The width of a character of the labels, in the units of the drawing."""

READABLE = 0.8
"""To what part of its width a drawing is made narrower at most; what is wider still is scrolled."""

LONGEST = 28
"""Characters of a label; the rest is shown when it is pointed at."""

SWEEPS = 6


@dataclass(frozen=True)
class Box:
    """A node of a drawing.

    Attributes:
        key: What edges call it.
        label: Its text.
        detail: What is shown when it is pointed at.
        kind: `op`, `input`, `constant` or `output`, for its looks.
    """

    key: str
    label: str
    detail: str = ""
    kind: str = "op"


@dataclass(frozen=True)
class Picture:
    """A graph to draw.

    Attributes:
        boxes: Its nodes.
        edges: Pairs of keys, from what makes a value to what takes it, with the value's name.
        omitted: How many nodes are left out.
    """

    boxes: Sequence[Box]
    edges: Sequence[tuple[str, str, str]] = ()
    omitted: int = 0


@dataclass
class _Laid:
    """The positions of the boxes."""

    layers: list[list[str]] = field(default_factory=list)
    at: dict[str, tuple[float, float]] = field(default_factory=dict)
    width: float = 0.0


def svg(picture: Picture, title: str) -> str:
    """A drawing as an SVG element, with a title for those who cannot see it."""
    boxes = {box.key: box for box in picture.boxes}
    edges = [edge for edge in picture.edges if edge[0] in boxes and edge[1] in boxes]
    laid = _lay_out(boxes, edges)
    height = PAD * 2 + HEIGHT + ROW * max(0, len(laid.layers) - 1)
    size = f'viewBox="0 0 {laid.width:.0f} {height:.0f}" width="{laid.width:.0f}" height="{height:.0f}"'
    least = f'style="min-width:{READABLE * laid.width:.0f}px"'
    parts = [f'<svg class="graph" {least} role="img" {size} xmlns="http://www.w3.org/2000/svg">']
    parts.append(f"<title>{escape(title)}</title>")
    parts += [_edge(laid.at[a], laid.at[b], name) for a, b, name in edges]
    parts += [_box(box, *laid.at[key]) for key, box in boxes.items()]
    return "".join(parts) + "</svg>"


def _width(box: Box) -> float:
    return max(46.0, CHARACTER * len(_short(box.label)) + 18)


def _short(label: str) -> str:
    text = visible(label)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _lay_out(boxes: Mapping[str, Box], edges: Sequence[tuple[str, str, str]]) -> _Laid:
    layer = _layers(boxes, edges)
    laid = _Laid(
        [[key for key in boxes if layer[key] == number] for number in range(max(layer.values(), default=-1) + 1)]
    )
    before: dict[str, list[str]] = {key: [] for key in boxes}
    after: dict[str, list[str]] = {key: [] for key in boxes}
    for a, b, _ in edges:
        before[b].append(a)
        after[a].append(b)
    for sweep in range(SWEEPS):
        near = before if sweep % 2 == 0 else after
        place = {key: number for row in laid.layers for number, key in enumerate(row)}
        for row in laid.layers:
            row.sort(key=lambda key: _mean([place[one] for one in near[key]], place[key]))
    widths = [sum(_width(boxes[key]) for key in row) + GAP * (len(row) - 1) for row in laid.layers]
    laid.width = max(widths, default=0.0) + 2 * PAD
    for number, row in enumerate(laid.layers):
        x = (laid.width - widths[number]) / 2
        for key in row:
            laid.at[key] = (x + _width(boxes[key]) / 2, PAD + HEIGHT / 2 + number * ROW)
            x += _width(boxes[key]) + GAP
    return laid


def _layers(boxes: Mapping[str, Box], edges: Sequence[tuple[str, str, str]]) -> dict[str, int]:
    """The longest way to each box from where nothing comes before; what only enters lies right above where it enters."""
    layer = dict.fromkeys(boxes, 0)
    for _ in boxes:
        moved = False
        for a, b, _name in edges:
            if layer[b] <= layer[a]:
                layer[b], moved = layer[a] + 1, True
        if not moved:
            break
    entered = {a for _, a, _name in edges}
    for key in boxes:
        if key not in entered:
            below = [layer[b] for a, b, _name in edges if a == key]
            layer[key] = min(below) - 1 if below else layer[key]
    return layer


def _mean(numbers: Sequence[int], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise


def _edge(start: tuple[float, float], end: tuple[float, float], name: str) -> str:
    (x1, y1), (x2, y2) = (start[0], start[1] + HEIGHT / 2), (end[0], end[1] - HEIGHT / 2)
    middle = (y1 + y2) / 2
    path = f"M{x1:.1f} {y1:.1f}C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"
    return f'<path class="edge" d="{path}"><title>{escape(name)}</title></path>'


def _box(box: Box, x: float, y: float) -> str:
    width = _width(box)
    detail = f"<title>{escape(box.detail or box.label)}</title>"
    rect = (
        f'<rect x="{x - width / 2:.1f}" y="{y - HEIGHT / 2:.1f}" width="{width:.1f}" height="{HEIGHT:.0f}" rx="6"/>'
        if box.kind == "op"
        else f'<rect x="{x - width / 2:.1f}" y="{y - HEIGHT / 2 + 3:.1f}" width="{width:.1f}" height="{HEIGHT - 6:.0f}" rx="12"/>'
    )
    text = f'<text x="{x:.1f}" y="{y + 4.5:.1f}" text-anchor="middle">{escape(_short(box.label))}</text>'
    return f'<g class="{escape(box.kind)}">{detail}{rect}{text}</g>'
