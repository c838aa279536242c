"""Write what follows from the declarations of options: `python docs/options.py`.

The keywords of the functions (`ortfuse/options/keywords.py`, for type checkers) and the page of options (`docs/options.md`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ortfuse.options.declaration import TITLES, Declaration, declarations_of
from ortfuse.options.options import Options

ROOT = Path(__file__).parents[1]

CLASSES = {
    "PipelineOptions": ("explain", "The options that say what is rewritten."),
    "ComparisonOptions": ("verify", "The options that say how models are compared."),
    "BenchOptions": ("bench", "The options that say how models are measured."),
    "BisectOptions": ("bisect", "The options that say what is rewritten, and how the results are compared."),
    "AllOptions": ("", "All options."),
}
"""The classes of keywords, each with the command whose options it has."""

HEAD = '''"""Generated TypedDicts of the options as keyword arguments; edit `ortfuse.options.options` instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from ortfuse.options.type_aliases import (
    FixedLike,
    InputsLike,
    Level,
    PathLike,
    PatternsLike,
    PipelineLike,
    Purpose,
    RangeLike,
    TargetLike,
    Verification,
)

if TYPE_CHECKING:
    from ortfuse.rewrite import Debugging
'''

PAGE = """# Options

This page lists the options of commands and functions. An option has the same name everywhere but on the command line, where it
has a flag:

- in Python (`ortfuse.Options(NAME=...)`, keywords of functions);
- in files of options (`--config FILE`) and in files of models (`--models FILE`).

A yes-or-no option also has `--no-FLAG`. Options with several values are repeated on the command line. Elsewhere they are a list
or a table.
"""


def keywords() -> str:
    """The text of the module of keywords."""
    types = {one.name: str(one.type) for one in dataclasses.fields(Options)}
    parts = [HEAD]
    for name, (command, text) in CLASSES.items():
        chosen = [one for one in declarations_of(Options).values() if not command or command in one.commands]
        lines = [f"    {one.name}: {types[one.name]}" for one in chosen]
        parts.append(f'class {name}(TypedDict, total=False):\n    """{text}"""\n\n' + "\n".join(lines) + "\n")
    return "\n\n".join(parts)


def page() -> str:
    """The text of the page of options."""
    return "\n".join([PAGE, *_tables(declarations_of(Options))])


def _tables(declared: Mapping[str, Declaration]) -> Iterator[str]:
    for group, title in TITLES.items():
        yield f"## {title}\n"
        yield "| name and flag | meaning | in a file | commands |\n|---|---|---|---|"
        for one in declared.values():
            if one.group == group and one.in_files:
                yield f"| {' | '.join(_row(one))} |"
        yield ""


def _row(one: Declaration) -> Iterator[str]:
    flag = ", ".join(f"`{flag}`" for flag in one.flags)
    yield f"`{one.name}`" + (f"<br>{flag}" if flag else "")
    yield _escaped(f"{one.help} {one.more}".strip())
    yield f"`{one.name} = {one.example}`"
    yield ", ".join(f"`{name}`" for name in sorted(one.commands))


def _escaped(text: str) -> str:
    return re.sub(r"(?<![`\w])(--[a-z][a-z-]*(?:=\w+)?)", r"`\1`", text).replace("|", "\\|").replace("[0]", "\\[0]")


def documents() -> dict[Path, str]:
    """The files and their texts."""
    return {ROOT / "ortfuse" / "options" / "keywords.py": keywords(), ROOT / "docs" / "options.md": page()}


def main() -> None:
    """Write the files."""
    for path, text in documents().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
