"""The command `passes`: list passes, rules and pass lists."""

from __future__ import annotations

from typing import Annotated

import typer

from ortfuse.cli.command_output import Answer
from ortfuse.cli.options_as_flags import Given, with_options


@with_options
def passes(
    given: Given,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Pass, rule, family of rules or pass list to describe.")
    ] = None,
    family: Annotated[
        str | None,
        typer.Option("--family", metavar="FAMILY", help="Family whose rules alone are listed, such as attention."),
    ] = None,
    *,
    answer: Answer,
) -> None:
    """List all passes, rules and pass lists: ortfuse passes fold

    With the name of a pass, describe it, its options and an example. With a rule, show its formula, exactness, operators and
    source. With a family, list its rules. With a pass list, list its passes, and the models that auto takes it for.
    """
    from ortfuse.pipeline import lists_with, load_catalogue
    from ortfuse.pipeline.descriptions import described
    from ortfuse.report.documents.catalogue import catalogue_document, name_document

    known = lists_with(given.get("lists", []))
    found = described(load_catalogue(given.get("patterns", [])), known)
    chosen = found.of(name or "", family or "")
    document = name_document(name, chosen) if name else catalogue_document(chosen, () if family else known.values())
    answer.give(document, chosen.to_dict())
