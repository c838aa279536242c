"""The document of `ortfuse diff`: two models side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from ortfuse.report.document import Block, Card, Cards, Document, Notes, Rows, Sites
from ortfuse.report.documents.operators import change, counted, grouped, site
from ortfuse.report.model_pictures import Pictures, operators
from ortfuse.verification.diff import ConstantDifference, ModelDifference, Structure
from ortfuse.verification.diff.model_diff import of_tensors

FOLDED = 20
"""Tables with more rows are folded."""

MOST_ROWS = 20
"""The most rows of a table on the terminal; `--json` has them all."""

MOST = 60
"""The most different regions that are drawn."""

_ABOUT = (
    "A region is what only A has, and what only B has in its stead. Nodes that both have, with the same names around them, are "
    "not shown."
)


def difference_document(first: str, second: str, before: ir.Model, after: ir.Model, found: ModelDifference) -> Document:
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
        replace(change(was, became), title=_nodes(was, became), headings=("operator", "A", "B", "change")),
        Notes("", [_said(found.structure, len(regions))], on="terminal"),
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
        tensors = Notes("Tensors", [of_tensors(found.tensors)], on="page")
        blocks = [blocks[0], tensors, *blocks[1:]]
    blocks += [
        Rows(title, headings, rows, folded=len(rows) > FOLDED, most=MOST_ROWS)
        for title, headings, rows in _tables(found.structure)
    ]
    if found.structure.interface:
        blocks.append(Notes("Inputs, outputs and opsets", list(found.structure.interface)))
    if found.tensors is not None:
        blocks.append(replace(tensors, on="terminal"))
    counts = sum(was.values()), sum(became.values())
    places = "1 region" if len(regions) == 1 else f"{len(regions)} regions"
    summary = f"A, {names[0]}, has {counts[0]} nodes, and B, {names[1]}, {counts[1]}; they differ in {places}."
    if not regions:
        summary = f"{names[0]} and {names[1]} have the same nodes."
    others = {"attribute": len(found.structure.attributes), "constant": len(found.structure.constants)}
    told = [f"{number} {what}{'s' * (number > 1)}" for what, number in others.items() if number]
    if told:
        summary += f" Nodes of both differ in {' and '.join(told)}."
    return Document(f"{names[0]} and {names[1]}", summary, blocks)


def _place(pair: object) -> str:
    for picture in (getattr(pair, "after", None), getattr(pair, "before", None)):
        if picture is not None:
            return next((box.detail for box in picture.boxes if box.kind == "output"), "")
    return ""


def _nodes(was: Mapping[str, int], became: Mapping[str, int]) -> str:
    return f"Operators: {sum(was.values())} and {sum(became.values())} nodes"


def _said(structure: Structure, regions: int) -> str:
    """The answer in a line."""
    if structure.same:
        said = "they have the same nodes, attributes, constants, inputs and outputs"
    elif structure.same_nodes:
        said = "they have the same nodes"
    else:
        said = f"they differ in {regions} region" + ("" if regions == 1 else "s")
    if structure.renamed:
        said += (
            f"; {structure.renamed} value{' has another name' if structure.renamed == 1 else 's have other names'} in B"
        )
    return said


def _tables(structure: Structure) -> Iterable[tuple[str, list[str], list[list[str]]]]:
    """The tables of what nodes of both models differ in: title, headings and rows."""
    yield (
        "Operands that are others",
        ["node", "operand", "A", "B"],
        [[f"{one.operator} '{one.node}'", str(one.operand), one.first, one.second] for one in structure.operands],
    )
    yield (
        "Attributes that are others",
        ["node", "attribute", "A", "B"],
        [
            [f"{one.operator} '{one.node}'", one.attribute, one.first or "none", one.second or "none"]
            for one in structure.attributes
        ],
    )
    yield (
        "Constants that are others",
        ["constant", "taken by", "A", "B", "difference"],
        [[_named(one), _taken_by(one), one.first, one.second, _apart(one)] for one in structure.constants],
    )


def _named(one: ConstantDifference) -> str:
    return one.constant if one.constant == one.second_constant else f"{one.constant} (B: {one.second_constant})"


def _taken_by(one: ConstantDifference) -> str:
    return f"{one.operator} '{one.node}', operand {one.operand}" if one.operator else "no node of both"


def _apart(one: ConstantDifference) -> str:
    if one.elements is None:
        return "another shape"
    if not one.elements:
        return "another type" if one.first.split("[")[0] != one.second.split("[")[0] else "other bytes"
    said = f"{one.elements} element" + ("" if one.elements == 1 else "s")
    return said if one.largest is None else f"{said}, by {one.largest:.3g} at most"
