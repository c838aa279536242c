"""Small graphs as SVG."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

from ortfuse.report.graph_drawing import Box, Picture, svg


def test_what_takes_a_value_is_drawn_below_what_makes_it() -> None:
    boxes = [Box("a", "MatMul"), Box("b", "Add"), Box("c", "Relu"), Box("x", "x", kind="input")]
    text = svg(Picture(boxes, [("x", "a", "x"), ("a", "b", "t"), ("b", "c", "u"), ("x", "c", "x")]), "a graph")
    heights = {label: float(y) for y, label in re.findall(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>(\w+)</text>', text)}
    assert heights["x"] < heights["MatMul"] < heights["Add"] < heights["Relu"]
    assert ET.fromstring(text).find("{http://www.w3.org/2000/svg}title") is not None


def test_boxes_of_a_layer_do_not_overlap_and_lie_within_the_drawing() -> None:
    boxes = [Box(f"n{number}", "Transpose" * (number % 3 + 1)) for number in range(7)] + [Box("root", "Concat")]
    text = svg(Picture(boxes, [(f"n{number}", "root", "") for number in range(7)]), "wide")
    rects = [
        tuple(map(float, one)) for one in re.findall(r'<rect x="(-?[\d.]+)" y="(-?[\d.]+)" width="([\d.]+)"', text)
    ]
    width = float(re.search(r'viewBox="0 0 (\d+)', text)[1])  # type: ignore[index]
    row = sorted((x, x + wide) for x, y, wide in rects if y == rects[0][1])
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(row))
    assert row[0][0] >= 0
    assert row[-1][1] <= width


def test_names_are_escaped_and_cycles_end() -> None:
    boxes = [Box("a", "<script>", "a & b"), Box("b", "B" * 99)]
    text = svg(Picture(boxes, [("a", "b", '"q"'), ("b", "a", "")]), "<t>")
    assert "<script>" not in text
    ET.fromstring(text)
