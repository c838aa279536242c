"""The arguments that declare sizes of a model's inputs, and their conversion to options."""

from __future__ import annotations

from typing import Annotated

import typer

from ortfuse.errors import OptionError
from ortfuse.errors.printable import brief
from ortfuse.options import LONGEST

Same = Annotated[
    list[str] | None,
    typer.Option(
        "--same",
        metavar="NAME=NAME",
        help="Two open dimensions of the inputs that are equal in every run, such as s54=s84; on the right a formula of names "
        "may stand, and an axis without a name is x[0]; may be given several times.",
        show_default=False,
    ),
]
SizeRange = Annotated[
    list[str] | None,
    typer.Option(
        "--size-range",
        metavar="NAME=LEAST:MOST",
        help="The sizes that an open dimension has in any run, such as sequence=1:512; may be given several times.",
        show_default=False,
    ),
]
Fix = Annotated[
    list[str] | None,
    typer.Option(
        "--fix",
        metavar="NAME=NUMBER",
        help="The size that an open dimension has in every run, such as sequence=128: the result has fixed shapes; may be "
        "given several times.",
        show_default=False,
    ),
]


def fixed(texts: list[str]) -> dict[str, int]:
    """The same, as sizes that are declared."""
    return numbers("fix", texts)


def _pairs(option: str, texts: list[str], example: str) -> dict[str, str]:
    """`["s54=s84"]` as `{"s54": "s84"}`."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, other = (part.strip() for part in text.partition("="))
        if not (name and equals and other):
            raise OptionError(option, f"write it as {example}, not {text}")
        if pairs.setdefault(name, other) != other:
            raise OptionError(option, f"{name} is given as {pairs[name]} and as {other}; write one of the two")
    return pairs


def same(texts: list[str]) -> dict[str, str]:
    """`["s54=s84"]` as `{"s54": "s84"}`."""
    return _pairs("same", texts, "NAME=NAME, such as s54=s84")


def ranges(texts: list[str]) -> dict[str, str]:
    """`["sequence=1:512"]` as `{"sequence": "1:512"}`."""
    return _pairs("size_range", texts, "NAME=LEAST:MOST, such as sequence=1:512")


def numbers(option: str, texts: list[str]) -> dict[str, int]:
    """`["sequence=128"]` as `{"sequence": 128}`.

    Raises:
        OptionError: A text is something else, or two say different numbers.
    """
    sizes: dict[str, int] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if not name or not number.isdecimal() or len(number) > LONGEST:
            raise OptionError(
                option, f"write NAME=NUMBER, such as sequence=128, with a number of 0 or more, not {brief(text)}"
            )
        if sizes.setdefault(name, int(number)) != int(number):
            raise OptionError(option, f"{name} has two sizes, {sizes[name]} and {number}; write one of them")
    return sizes
