"""Kinds of option values: check, reader and writer on the command line for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ortfuse.options import checks, parse_text
from ortfuse.options.checks import Check

Shape = Literal["value", "flag", "path", "texts", "paths"]
"""The form on the command line: a value, a pair of flags (`--x/--no-x`), a path, or repeated texts or paths."""

Collector = Callable[[str, list[str]], Mapping[str, Any]]
"""Makes a table of the texts that the command line has one by one; takes the name of the option first."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of option values.

    Attributes:
        check: The check of a value from Python or a file.
        shape: The form on the command line.
        metavar: The placeholder in the help; empty for flags.
        read: The reader of a text of the command line; by default the text or the path itself.
        collect: For tables, the function that makes one of repeated texts.
        path_endings: For values that can be paths, the endings by which a text is one; `("",)` for every text.
        folder_endings: For paths that may be folders, the endings of the files in them that are read.
    """

    check: Check
    shape: Shape = "value"
    metavar: str = ""
    read: Callable[[Any], Any] | None = None
    collect: Collector | None = None
    path_endings: tuple[str, ...] = ()
    folder_endings: frozenset[str] = frozenset()

    @property
    def repeated(self) -> bool:
        """Whether the command line has one value after the other."""
        return self.shape in ("texts", "paths")

    def or_none(self) -> Kind:
        """The same kind, with `None` as a value."""
        return replace(self, check=checks.or_none(self.check))

    def paths_in(self, value: Any) -> list[str]:
        """The paths in a value of a file or of the command line; a pipeline as text is none."""
        several = value if isinstance(value, list | tuple) else [value]
        return [one for one in several if isinstance(one, str) and one and one.endswith(self.path_endings)]


def whole_number(least: int) -> Kind:
    """Make the kind of whole numbers that are at least `least`."""
    return Kind(check=checks.whole_number(least), metavar="NUMBER", read=parse_text.whole_number(least))


def one_of(choices: tuple[str, ...], metavar: str) -> Kind:
    """Make the kind of texts that are one of several."""
    return Kind(check=checks.one_of(choices), metavar=metavar, read=parse_text.one_of(choices))


def table(check: Check, metavar: str, collect: Collector) -> Kind:
    """Make the kind of tables, of which the command line has one entry after the other."""
    return Kind(check=check, shape="texts", metavar=metavar, collect=collect)


def path(metavar: str = "FILE", folder_endings: frozenset[str] = frozenset()) -> Kind:
    """Make the kind of paths."""
    return Kind(
        check=checks.path, shape="path", metavar=metavar, path_endings=("",), folder_endings=folder_endings
    ).or_none()


def paths(metavar: str, check: Check = checks.paths, folder_endings: frozenset[str] = frozenset()) -> Kind:
    """Make the kind of one or several paths."""
    return Kind(check=check, shape="paths", metavar=metavar, path_endings=("",), folder_endings=folder_endings)


FLAG = Kind(check=checks.boolean, shape="flag")
SECONDS = Kind(check=checks.seconds, metavar="TIME", read=parse_text.seconds)
DURATION = Kind(check=checks.duration, metavar="TIME", read=parse_text.seconds)
ERROR_BOUND = Kind(check=checks.error_bound, metavar="NUMBER", read=parse_text.positive_number)
SHARE = Kind(check=checks.share, metavar="SHARE", read=parse_text.positive_number)
BYTES = Kind(check=checks.whole_number(0), metavar="SIZE", read=parse_text.size_in_bytes)
THREADS = Kind(check=checks.threads, metavar="NUMBER", read=parse_text.whole_number(0))
ASSUMPTIONS = Kind(check=checks.assumptions, shape="texts", metavar="NAME")
EXPLAIN = Kind(check=checks.explain, shape="flag")
VERIFICATION = Kind(check=checks.verification, metavar="[sites]", read=parse_text.verification)
PIPELINE = Kind(check=checks.passes, metavar="PASSES", path_endings=(".toml",))
TARGET = Kind(check=checks.target, metavar="TARGET", path_endings=(".json", "/"))
RELEASE = Kind(check=checks.release, metavar="RELEASE")
SIZES = table(checks.sizes, "NAME=NUMBER", parse_text.numbers)
FIXED = table(checks.fixed, "NAME=SIZE", parse_text.sizes_and_shapes)
NAMES = Kind(check=checks.names, shape="texts", metavar="NAME")
EQUAL_DIMS = table(
    checks.equal_dims, "NAME=NAME", lambda name, texts: parse_text.pairs(name, texts, "NAME=NAME, such as s54=s84")
)
SIZE_RANGES = table(
    checks.size_ranges,
    "NAME=LEAST:MOST",
    lambda name, texts: parse_text.pairs(name, texts, "NAME=LEAST:MOST, such as sequence=1:512"),
)
OPERATORS = table(
    checks.operators,
    "FAMILY=OPERATOR",
    lambda name, texts: parse_text.pairs(name, texts, "FAMILY=OPERATOR, such as attention=Attention"),
)
INPUTS = Kind(
    check=checks.inputs,
    shape="path",
    metavar="PATH",
    path_endings=("",),
    folder_endings=frozenset({".npz", ".npy", ".pb", ".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff"}),
)
RULE_FILES = paths("PATH", checks.patterns, frozenset({".py", ".so", ".pyd"}))
PASS_LISTS = paths("PATH", folder_endings=frozenset({".toml"}))
LIBRARIES = paths("LIBRARY")
