"""Parse option values from command-line text; raise `ValueError` with the message to show."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from ortfuse.errors import OptionError
from ortfuse.errors.escape_control_characters import brief

LONGEST = 100
"""The most digits of a size in a text: Python reads no number of thousands of digits."""

_SHAPE = re.compile(rf"\d{{1,{LONGEST}}}(x\d{{1,{LONGEST}}})*")
_LISTED = re.compile(r"(?<=\d),")
"""The commas between sizes, which stand behind a number."""

_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0, "MB": 1.0, "GB": 1e3, "kB": 1e-3}


def whole_number(least: int) -> Callable[[Any], int]:
    """Make a reader of whole numbers that are at least `least`."""

    def read(text: Any) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise ValueError(f"write a whole number, {least} or more, not {text!r}")
        return number

    return read


def positive_number(text: Any) -> float:
    """Read a finite number that is not negative."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise ValueError(f"write a number that is 0 or more, such as 1e-3, not {text!r}")
    return number


def quantity(
    units: tuple[str, ...], scale: float, example: str, least: float = math.ulp(0.0)
) -> Callable[[Any], float]:
    """Make a reader of finite numbers with one of several units, as multiples of `scale`, that are at least `least`."""

    def read(text: Any) -> float:
        found = re.fullmatch(r"\s*([0-9.eE+-]+?)\s*([A-Za-z]*)\s*", str(text))
        try:
            number = float(found[1]) if found else -1.0
        except ValueError:
            number = -1.0
        if found is None or found[2] not in units or not least <= number < math.inf:
            raise ValueError(f"write a number and a unit, such as {example}, not {text}")
        return number * (_UNITS[found[2]] / scale if found[2] else 1.0)

    return read


seconds = quantity(("", "s", "min", "m", "h"), 1.0, "120s", 0.0)
"""Reads a time that a command may take."""

_megabytes = quantity(("", "kB", "MB", "GB"), 1.0, "10MB", 0.0)


def size_in_bytes(text: Any) -> int:
    """Read a size as a number of bytes."""
    return round(_megabytes(text) * 1e6)


def one_of(choices: tuple[str, ...]) -> Callable[[Any], str]:
    """Make a reader of a text that is one of several."""

    def read(text: Any) -> str:
        if text not in choices:
            raise ValueError(f"write one of {', '.join(choices)}, not {text!r}")
        return str(text)

    return read


def verification(text: Any) -> str:
    """Read the value of `--verify`; the flag alone stands for `whole`."""
    if text not in ("whole", "sites"):
        raise ValueError(f"write --verify alone or --verify=sites, not {text!r}")
    return str(text)


def pairs(option: str, texts: list[str], example: str) -> dict[str, str]:
    """Read `["s54=s84"]` as `{"s54": "s84"}`.

    Raises:
        OptionError: A text is something else, or two give one name different values.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, other = (part.strip() for part in text.partition("="))
        if not (name and equals and other):
            raise OptionError(option, f"write it as {example}, not {text}")
        if found.setdefault(name, other) != other:
            raise OptionError(option, f"{name} is given as {found[name]} and as {other}; write one of the two")
    return found


def sizes_and_shapes(option: str, texts: list[str]) -> dict[str, int | str]:
    """Read `["batch=1,ids=1x128"]` as `{"batch": 1, "ids": "1x128"}`.

    Raises:
        OptionError: A text is something else, or two give one name different sizes.
    """
    found: dict[str, int | str] = {}
    for text in (one for given in texts for one in _LISTED.split(given)):
        name, _, size = text.rpartition("=")
        if not name or not _SHAPE.fullmatch(size):
            words = f"write NAME=NUMBER or INPUT=SHAPE, such as sequence=128 or input_ids=1x128, not {brief(text)}"
            raise OptionError(option, words)
        value = int(size) if size.isdecimal() else size
        if found.setdefault(name, value) != value:
            raise OptionError(option, f"{name} has two sizes, {found[name]} and {value}; write one of them")
    return found


def numbers(option: str, texts: list[str]) -> dict[str, int]:
    """Read `["sequence=128"]` as `{"sequence": 128}`.

    Raises:
        OptionError: A text is something else, or two give one name different numbers.
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
