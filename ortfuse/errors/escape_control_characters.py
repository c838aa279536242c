"""Escape control and invisible characters in text from models and files, so that it can be printed safely.

A name may hold sequences that move the cursor, colour or hide what stands before, or turn the direction of reading round. All
such characters are shown as escapes, as Python writes them. JSON keeps the text as it is, and has escapes of its own.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

_JOINS = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2028\u2029\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff"
)
"""Characters that are not seen, besides those of the categories for control, format, surrogates and private use."""

_SUSPECT = re.compile(rf"[^\x20-\x7e\u00a0-\u00ac\u00ae-\u024f]|[{_JOINS}]")
"""Characters that are worth a look: most texts have none."""

_UNSEEN = re.compile(rf"[{_JOINS}]")
_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The characters at the start of a cell that a spreadsheet computes."""


def visible(text: str) -> str:
    """The text with escapes in the place of characters that control a terminal, are not seen, or are no characters."""
    return _SUSPECT.sub(_escaped, text)


def brief(value: Any, longest: int = 80) -> str:
    """A value as Python writes it, no longer than so many characters: it may be a number of a million digits."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= longest else f"{text[:longest]}..."


def visible_lines(text: str) -> str:
    """The same for text of several lines, which it stays."""
    return "\n".join(map(visible, text.split("\n")))


def cell(value: Any) -> Any:
    """A value for a cell of CSV: no text is one that a spreadsheet takes for a formula."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if unicodedata.category(character) not in _CATEGORIES and not _UNSEEN.match(character):
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
