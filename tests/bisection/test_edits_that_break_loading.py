"""The search for edits that keep the runtime from loading a result, which is bounded."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ortfuse.verification.bisection import edits_that_break_loading
from ortfuse.verification.bisection.edits_that_break_loading import edits_to_avoid

Key = tuple[str, str]


class Pipeline:
    """A pipeline of edits, of which some break loading; a "model" is what was applied."""

    def __init__(self, edits: Sequence[Key], breaking: Collection[Key], monkeypatch: pytest.MonkeyPatch) -> None:
        self.edits, self.breaking, self.runs = edits, breaking, 0
        monkeypatch.setattr(edits_that_break_loading, "Loading", self)

    def make(self, inspector: Any) -> Any:
        self.runs += 1
        made = [
            SimpleNamespace(author=author, name=name, nodes=[0], outputs=[], rule=None) for author, name in self.edits
        ]
        return [(edit.author, edit.name) for edit in made if inspector.objection(edit) is None]

    def of_graph(self, applied: Sequence[Key], levels: object) -> Any:
        del levels
        return SimpleNamespace(problem=lambda: "no" if {*applied} & {*self.breaking} or not self.breaking else "")


EDITS = [(f"rule{number % 50}", f"v{number}") for number in range(1000)]


def test_each_edit_that_breaks_loading_is_found_behind_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    breaking = [EDITS[7], EDITS[903], EDITS[990]]
    pipeline = Pipeline(EDITS, breaking, monkeypatch)
    assert edits_to_avoid(pipeline.make, ["all"]) == tuple(breaking)
    assert pipeline.runs <= 5 + sum(math.ceil(math.log2(count)) for count in (1000, 994, 98))


def test_a_rule_that_breaks_loading_in_each_layer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    edits = [("wrong" if number % 20 == 0 else "right", f"v{number}") for number in range(1000)]
    pipeline = Pipeline(edits, [edit for edit in edits if edit[0] == "wrong"], monkeypatch)
    avoided = edits_to_avoid(pipeline.make, ["all"])
    assert avoided is not None
    assert {*avoided} == {*pipeline.breaking}
    assert pipeline.runs <= 40


def test_the_search_ends_where_nothing_or_too_much_is_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(EDITS, [], monkeypatch)  # it never loads
    assert edits_to_avoid(pipeline.make, ["all"]) is None
    assert pipeline.runs == 2
    pipeline = Pipeline(EDITS, EDITS[::20] + EDITS[7::23], monkeypatch)
    assert edits_to_avoid(pipeline.make, ["all"]) is None
    assert pipeline.runs <= 40
