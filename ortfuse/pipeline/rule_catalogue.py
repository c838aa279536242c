"""Catalogue of rules: the files found, each with its rules, or with deferred rules until it is loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from ortfuse import targets
from ortfuse.rewrite import Rule, RuleEntry
from ortfuse.targets import KnownBug

CONTRIB = "contrib"
"""The folder of rules that are applied by name only, and the beginning of the names of their passes."""

Source = Literal["built-in", "package", "user", "target"]


_TARGETS = Path(targets.__file__).parent
"""The folder of the targets that come with ortfuse."""


@dataclass(frozen=True)
class RuleFile:
    """The rules of one file, with the pass they belong to, their location and their source.

    `entries` are rules, or stand for rules until the file is loaded. `targets` are the short names of the targets that they are
    for; none if they are for all.
    """

    pass_name: str
    entries: tuple[RuleEntry, ...]
    origin: str
    source: Source
    targets: tuple[str, ...] = ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules, for which the file is loaded."""
        return tuple(entry.loaded() for entry in self.entries)

    @property
    def comes_with_ortfuse(self) -> bool:
        """Whether it is a built-in file, or one in the folder of a target that is."""
        return self.source == "built-in" or (self.source == "target" and Path(self.origin).is_relative_to(_TARGETS))


@dataclass(frozen=True)
class Catalogue:
    """All rule files that were found, in order: built-in ones, those of installed packages, the user's own.

    `asked` are passes of rules that no list of passes has (`CONTRIB`), but that are asked for by name.
    """

    files: tuple[RuleFile, ...]
    asked: tuple[str, ...] = ()

    def asking(self, rules: Iterable[str]) -> Catalogue:
        """The same catalogue, in which the passes of `contrib` with some rules, or rules of some families, are asked for."""
        return self._asking(file.pass_name for file in self._contrib({*rules}))

    def explaining(self, rules: Iterable[str]) -> Catalogue:
        """The same, in which passes of `contrib` are asked for whose rules are made on request only, so that none is applied."""
        found = self._contrib({*rules})
        return self._asking(file.pass_name for file in found if all(rule.on_request for rule in file.rules))

    def _contrib(self, wanted: Collection[str]) -> Iterator[RuleFile]:
        """The files of `contrib` with one of the rules or families."""
        for file in self.files:
            names = {name for entry in file.entries for name in (entry.name, entry.name.partition(".")[0])}
            if file.pass_name.startswith(f"{CONTRIB}.") and not names.isdisjoint(wanted):
                yield file

    def _asking(self, passes: Iterable[str]) -> Catalogue:
        return replace(self, asked=tuple(dict.fromkeys((*self.asked, *passes))))

    def passes(self) -> dict[str, tuple[Rule, ...]]:
        """The rules of each pass, in the order of the files; all are loaded."""
        return {name: tuple(entry.loaded() for entry in entries) for name, entries in self.entries().items()}

    def entries(self) -> dict[str, tuple[RuleEntry, ...]]:
        """The rules of each pass, in the order of the files; none is loaded for this."""
        found: dict[str, tuple[RuleEntry, ...]] = {}
        for file in self.files:
            found[file.pass_name] = (*found.get(file.pass_name, ()), *file.entries)
        return found

    @cached_property
    def _built_in(self) -> Mapping[str, RuleEntry]:
        return {entry.name: entry for file in self.files if file.comes_with_ortfuse for entry in file.entries}

    def is_built_in(self, rule: Rule) -> bool:
        """Whether a rule is one of those that come with ortfuse, and not one of the user's."""
        entry = self._built_in.get(rule.name)
        return entry is not None and entry.is_rule(rule)

    def reasons(self) -> dict[str, KnownBug]:
        """The known bugs that are the only reason for rules, by the names of these."""
        return {entry.name: entry.because for file in self.files for entry in file.entries if entry.because is not None}

    def passes_from(self, *sources: Source) -> tuple[str, ...]:
        """The passes whose rules all come from these sources, each once."""
        others = {file.pass_name for file in self.files if file.source not in sources}
        return tuple(dict.fromkeys(file.pass_name for file in self.files if file.pass_name not in others))

    def for_others(self, target: str) -> dict[str, tuple[str, ...]]:
        """The rules that are not for a target, given by its short name, each with the targets that it is for.

        The short name of several targets lists theirs with commas; a rule for some of them is not for all.
        """
        asked = set(target.split(","))
        bound = (file for file in self.files if file.targets and not asked <= {*file.targets})
        return {entry.name: file.targets for file in bound for entry in file.entries}

    def rules(self) -> Iterator[Rule]:
        """Every rule; all are loaded."""
        for file in self.files:
            yield from file.rules

    def rules_from(self, *sources: Source) -> Iterator[Rule]:
        """The rules that come from these sources, which are loaded."""
        for file in self.files:
            if file.source in sources:
                yield from file.rules
