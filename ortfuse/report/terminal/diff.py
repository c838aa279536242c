"""The difference of two models on the console."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from ortfuse.report.terminal.long_names import Names

if TYPE_CHECKING:
    from ortfuse.verification.diff import ConstantDifference, ModelDifference, Structure

MOST = 20
"""The most rows of a table; `--json` has them all."""


def show_difference(console: Console, before: ir.Model, after: ir.Model, found: ModelDifference) -> None:
    """Print the operators that differ in number, regions, attributes, constants, the interface, and the first other tensor."""
    from ortfuse.report.model_pictures import Pictures, operators

    structure = found.structure
    was, became = operators(before), operators(after)
    rows = [
        [name, str(was.get(name, 0)), str(became.get(name, 0)), f"{became.get(name, 0) - was.get(name, 0):+d}"]
        for name in {**was, **became}
        if was.get(name, 0) != became.get(name, 0)
    ]
    title = f"{sum(was.values())} and {sum(became.values())} nodes"
    _show(console, title, ["operator", "A", "B", "change"], rows, numbers=range(1, 4))
    regions = len(Pictures(before, after, found.name).regions())
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
    console.print(said, highlight=False)
    show_structure(console, structure)
    if found.tensors is not None:
        from ortfuse.verification.diff.model_diff import of_tensors

        console.print(of_tensors(found.tensors), markup=False, highlight=False)


def show_structure(console: Console, structure: Structure) -> None:
    """Print what nodes of both models differ in, and the interface."""
    for title, headings, rows in tables(structure):
        _show(console, title, headings, rows)
    for line in structure.interface:
        console.print(line, markup=False, highlight=False)


def tables(structure: Structure) -> Iterable[tuple[str, list[str], list[list[str]]]]:
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


def _show(
    console: Console, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Iterable[int] = ()
) -> None:
    """Print a table, if it has rows, as far as these are not too many."""
    if not rows:
        return
    right = set(numbers)
    left = len(rows) - MOST
    made = Table(
        title=title, title_justify="left", caption_justify="left",
        caption=f"and {left} more; --json has them all" if left > 0 and not right else None,
    )  # fmt: skip
    for number, heading in enumerate(headings):
        made.add_column(heading, justify="right" if number in right else "left", overflow="fold")
    for row in rows if right else rows[:MOST]:
        made.add_row(*(text if number in right else Names(text) for number, text in enumerate(row)))
    console.print(made)
