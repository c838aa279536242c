"""Write a page to a file."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from html import escape
from pathlib import Path
from typing import Any

from ortfuse.errors import OptionError
from ortfuse.errors.escape_control_characters import visible_lines
from ortfuse.io.atomic_write import writable_target, write_text
from ortfuse.report.document import Document
from ortfuse.report.html.reproducibility import command, environment

_PERCENT = r"(?<=\d) ?%"

_PLAIN_START = r"[a-z]+(?=[ ,])"
"""The first word of a sentence, unless it is a name with marks."""

SHORT = 28
"""The letters of code that is not torn apart."""

_WITHIN_NAMES = r"(?<=[A-Za-z])\.(?=\w)|(?<=\w)[_/](?=\w)"
"""The marks in names behind which they may go on in the next line; none of them are in numbers."""

_HYPHENED = r"((?<!\S)--[a-z]+(?:-[a-z]+)*|\d[\d.]*e-\d+)"
"""Options and numbers with a hyphen, behind which a line would end."""

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script}'; base-uri 'none'; form-action 'none'"
)
"""The content security policy of a page: its own style and its own script, and nothing that names in it may hold."""

_TEMPLATES = Path(__file__).parent / "templates"


def demand_libraries(path: str | os.PathLike[str]) -> None:
    """Check early that a page can be made and written.

    Raises:
        OptionError: Jinja is not installed.
        OutputError: The file cannot be written.
    """
    _jinja()
    writable_target(path)


def write_page(page: Document, path: str | os.PathLike[str]) -> None:
    """Write a page as one HTML file without references to anything else.

    Raises:
        OptionError: Jinja is not installed.
        OutputError: The file cannot be written.
    """
    write_text(Path(path), html(page))


def html(page: Document) -> str:
    """The text of a page."""
    jinja = _jinja()
    made = jinja.Environment(
        loader=jinja.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja.StrictUndefined,
        finalize=lambda value: _spaced(value) if type(value) is str else value,
    )
    made.filters.update(prose=_prose, sentence=_sentence, words=_command)
    style, script = ((_TEMPLATES / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    policy = _POLICY.format(script=_digest(script))
    template = made.get_template("page.html")
    repeat, facts = page.command or command(), environment()
    text = template.render(page=page, style=style, script=script, policy=policy, command=repeat, environment=facts)
    return visible_lines(str(text))


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _spaced(text: str) -> str:
    """A text with one kind of space before every sign of percent, at which no line ends."""
    return re.sub(_PERCENT, "\u00a0%", text)


def _sentence(text: str) -> str:
    """A remark as a sentence: it begins with a capital, unless with a name, and ends with a full stop."""
    begun = text[:1].upper() + text[1:] if re.match(_PLAIN_START, text) else text
    return _prose(begun if not begun or begun[-1] in ".!?:" else f"{begun}.")


def _prose(text: str) -> str:
    """A text with what stands between backticks as code, and names that may go on in the next line where they have marks.

    A short piece of code stays in one line: an option that is torn apart at its hyphens is read as another.
    """
    pieces = re.split(r"`([^`]+)`", text)
    return "".join(_code(piece) if number % 2 else _words(piece) for number, piece in enumerate(pieces))


def _words(text: str) -> str:
    named = re.sub(_WITHIN_NAMES, r"\g<0><wbr>", escape(_spaced(text)))
    return re.sub(_HYPHENED, r'<span class="whole">\1</span>', named)


def _command(text: str) -> str:
    """A command line that goes on in the next line between its words."""
    return re.sub(rf"(?<!\S)(\S{{1,{SHORT}}})(?!\S)", r'<span class="whole">\1</span>', escape(text))


def _code(text: str) -> str:
    whole = ' class="whole"' if len(text) <= SHORT else ""
    return f"<code{whole}>{escape(text)}</code>"


def _jinja() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise OptionError("report", "needs Jinja; install it with `pip install 'ortfuse[report]'`") from error
    return jinja2
