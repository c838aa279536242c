"""The textual form of a pipeline: `canonicalize, fixpoint(fold{max_growth=0}, cse, dce), fuse.normalization`.

    pipeline := [item ("," item)*]
    item     := name [options] | "fixpoint" [options] "(" pipeline ")"
    options  := "{" [key "=" value ("," key "=" value)*] "}"
    value    := "true" | "false" | integer | number | string in double quotes

Whether the names and options exist is not checked here. `str()` of a pipeline gives a text that parses to the same pipeline.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ortfuse.errors import PipelineError

OptionValue: TypeAlias = bool | int | float | str
Options: TypeAlias = Mapping[str, OptionValue]

_MAX_DEPTH = 20

_LONGEST = 100_000
"""Characters of a pipeline."""

_SHOWN = 60
"""Characters before and after a mistake that are shown."""

_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_][\w\-]*(?:\.[\w\-]+)*(?:\.\*)?)|(?P<number>[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
    r'|(?P<string>"(?:[^"\\]|\\.)*")|(?P<mark>[,(){}=]))'
)


@dataclass(frozen=True)
class Call:
    """A pass or pass list, given by name, with options."""

    name: str
    options: Options = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name + _options_text(self.options)


@dataclass(frozen=True)
class FixpointCall:
    """Items that are repeated until none of them changes anything."""

    items: tuple[Item, ...]
    options: Options = field(default_factory=dict)

    def __str__(self) -> str:
        return f"fixpoint{_options_text(self.options)}({', '.join(map(str, self.items))})"


Item: TypeAlias = "Call | FixpointCall"


@dataclass(frozen=True)
class Pipeline:
    """Items that are run one after the other."""

    items: tuple[Item, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.items))


def parse(text: str) -> Pipeline:
    """Read a pipeline.

    Raises:
        PipelineError: The text does not follow the grammar; the message shows where.
    """
    if len(text) > _LONGEST:
        raise PipelineError(f"pipeline text: it has {len(text):,} characters, and may have {_LONGEST:,}")
    parser = _Parser(text)
    items = parser.items(depth=0)
    if parser.token:
        raise parser.error("expected a comma")
    return Pipeline(items)


def _options_text(options: Options) -> str:
    return "{" + ", ".join(f"{key}={_value_text(value)}" for key, value in options.items()) + "}" if options else ""


def _value_text(value: OptionValue) -> str:
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


class _Parser:
    """Read tokens one by one; `token` is the current one, the empty text at the end."""

    def __init__(self, text: str) -> None:
        self._text, self._end, self._start = text, 0, 0
        self.token, self._kind = "", ""
        self._advance()

    def error(self, message: str) -> PipelineError:
        """The error `message`, located at the current token."""
        line = " ".join(self._text.split())
        at = len(" ".join(self._text[: self._start].split())) if self._start else 0
        at += bool(at and self._text[: self._start][-1:].isspace())
        before, after = line[max(0, at - _SHOWN) : at], line[at : at + _SHOWN]
        return PipelineError(f"pipeline text: {message}, at the mark in: {before}▸{after}")

    def items(self, depth: int) -> tuple[Item, ...]:
        """Parse the items up to the end or a closing parenthesis."""
        if depth > _MAX_DEPTH:
            raise self.error("fixpoints are nested too deeply")
        found: list[Item] = []
        if not self.token and not depth:
            return ()
        while True:
            found.append(self._item(depth))
            if self.token != ",":
                return tuple(found)
            self._advance()

    def _item(self, depth: int) -> Item:
        if self._kind != "name":
            raise self.error("expected the name of a pass")
        name = self.token
        self._advance()
        options = self._options() if self.token == "{" else {}
        if self.token != "(":
            if name == "fixpoint":
                raise self.error("expected the passes to repeat, such as fixpoint(fold, cse)")
            return Call(name, options)
        if name != "fixpoint":
            raise self.error(f"{name} takes no parentheses; options stand in braces, as in fold{{max_growth=0}}")
        self._advance()
        items = self.items(depth + 1)
        self._expect(")")
        if self.token == "{":
            raise self.error("options stand before the parentheses, as in fixpoint{max_rounds=3}(fold, cse)")
        return FixpointCall(items, options)

    def _options(self) -> dict[str, OptionValue]:
        self._expect("{")
        options: dict[str, OptionValue] = {}
        while self.token != "}":
            if options:
                self._expect(",")
            key = self.token
            if self._kind != "name" or key in options:
                raise self.error("expected the name of another option")
            self._advance()
            self._expect("=")
            options[key] = self._value()
            self._advance()
        self._advance()
        return options

    def _value(self) -> OptionValue:
        if self.token in ("true", "false"):
            return self.token == "true"
        if self._kind == "number" and re.fullmatch(r"[+-]?\d{1,18}", self.token):
            return int(self.token)
        if self._kind == "number" and math.isfinite(number := float(self.token)):
            return number
        if self._kind == "string":
            with contextlib.suppress(ValueError):
                text: str = json.loads(self.token)
                return text
        raise self.error('expected a number, true, false or a text in double quotes ("...")')

    def _expect(self, mark: str) -> None:
        if self.token != mark:
            raise self.error(f"expected {mark!r}")
        self._advance()

    def _advance(self) -> None:
        rest = self._text[self._end :]
        self._start = self._end + len(rest) - len(rest.lstrip())
        match = _TOKEN.match(self._text, self._end)
        if match is None:
            self.token, self._kind = self._text[self._start :][:1], ""
            if self.token:
                raise self.error(f"unexpected {self.token!r}")
            return
        self._kind = match.lastgroup or ""
        self.token, self._end = match[self._kind], match.end()
