"""The page of `ortfuse diff`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from ortfuse.report.html.page_blocks import Block, Card, Cards, Notes, Page, Rows, Sites
from ortfuse.report.html.pages.common import change, command, counted, environment, grouped, site
from ortfuse.report.model_pictures import Pictures, operators
from ortfuse.report.terminal.diff import tables
from ortfuse.verification.diff import ModelDifference
from ortfuse.verification.diff.model_diff import of_tensors

FOLDED = 20
"""Tables with more rows are folded."""

MOST = 60
"""The most different regions that are drawn."""

_ABOUT = (
    "A region is what only A has, and what only B has in its stead. Nodes that both have, with the same names around them, are "
    "not shown."
)


def difference_page(first: str, second: str, before: ir.Model, after: ir.Model, found: ModelDifference) -> Page:
    """Two models side by side: where they differ, and how."""
    was, became = operators(before), operators(after)
    regions = Pictures(before, after, found.name).regions()
    groups = grouped((f"{counted(pair.was, 3)} → {counted(pair.became, 3)}", pair, _place(pair)) for pair in regions)
    names = Path(first).name, Path(second).name
    captions = (f"A, {names[0]}", f"B, {names[1]}")
    drawn = [
        replace(site(title, "", pair, places, captions), was="", became="") for title, pair, places in groups[:MOST]
    ]
    blocks: list[Block] = [
        Cards(
            [
                Card("nodes", f"{sum(was.values())} → {sum(became.values())}", "A → B"),
                Card("kinds of operators", f"{len(was)} → {len(became)}", "A → B"),
                Card("regions that differ", str(len(regions))),
            ]
        ),
        replace(change(was, became), headings=("operator", "A", "B", "change")),
    ]
    if drawn:
        more = f" The first {MOST} of {len(groups)} different ones." if len(groups) > MOST else ""
        blocks.append(
            Sites(
                "Where they differ",
                drawn,
                f"{_ABOUT}{more}",
            )
        )
    if found.tensors is not None:
        blocks.insert(1, Notes("Tensors", [of_tensors(found.tensors)]))
    blocks += [
        Rows(title, headings, rows, folded=len(rows) > FOLDED) for title, headings, rows in tables(found.structure)
    ]
    if found.structure.interface:
        blocks.append(Notes("Inputs, outputs and opsets", list(found.structure.interface)))
    counts = sum(was.values()), sum(became.values())
    places = "1 region" if len(regions) == 1 else f"{len(regions)} regions"
    summary = f"A, {names[0]}, has {counts[0]} nodes, and B, {names[1]}, {counts[1]}; they differ in {places}."
    if not regions:
        summary = f"{names[0]} and {names[1]} have the same nodes."
    others = {"attribute": len(found.structure.attributes), "constant": len(found.structure.constants)}
    told = [f"{number} {what}{'s' * (number > 1)}" for what, number in others.items() if number]
    if told:
        summary += f" Nodes of both differ in {' and '.join(told)}."
    return Page(f"{names[0]} and {names[1]}", summary, blocks, command(), environment())


def _place(pair: object) -> str:
    for picture in (getattr(pair, "after", None), getattr(pair, "before", None)):
        if picture is not None:
            return next((box.detail for box in picture.boxes if box.kind == "output"), "")
    return ""
