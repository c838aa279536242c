"""Class `Row`: the result of one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ortfuse.api.models_file import Expected, Settings
from ortfuse.serialization import Record, derived
from ortfuse.serialization.dataclass_from_json import record

Status = Literal["ok", "wrong", "refused", "crashed", "hung"]
"""`refused`: something could not be used, as the reason says. `crashed`, `hung`: the process of the model did, or the runtime."""

Outcome = Literal["ok", "failed", "known failure", "unexpected success"]
"""`known failure`: the model fails as its file says. `unexpected success`: the file says that it fails, and it does not."""


@dataclass(frozen=True)
class Row(Record):
    """The outcome of one model.

    Attributes:
        model: Its path.
        status: How it ended.
        nodes_before: Nodes of the model.
        nodes_after: Nodes of the result.
        families: Sites fused, by family.
        improved: Sites that were one operator before and got a better one, by family.
        seconds: Time of the whole.
        verdict: How the result compares with the original, in words.
        median_ms: The latency of the original and of the result, in milliseconds; 0 if they were not measured.
        executed: The operators that the runtime executes of the original and of the result; 0 if they were not measured.
        speedup: The median over rounds of the former divided by the latter; 0 if it was not measured.
        speedup_bounds: Its 95 % confidence interval.
        reason: Why it is not ok, was left alone, or has nothing to be compared with.
        written: The file of the result; empty if it was not kept.
    """

    model: str
    status: Status
    nodes_before: int = 0
    nodes_after: int = 0
    families: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    verdict: str = ""
    median_ms: tuple[float, float] = (0.0, 0.0)
    speedup: float = 0.0
    speedup_bounds: tuple[float, float] | None = None
    reason: str = ""
    written: str = ""
    executed: tuple[int, int] = (0, 0)
    improved: Mapping[str, int] = field(default_factory=dict)
    expected: Expected = "ok"
    why: str = ""
    says: str = ""

    @property
    @derived()
    def outcome(self) -> Outcome:
        """Whether it ended as it was expected to."""
        if self.status == "ok":
            return "ok" if self.expected == "ok" else "unexpected success"
        known = self.expected in ("fails", self.status) and self.says in self.reason
        return "known failure" if known else "failed"

    @property
    def as_expected(self) -> bool:
        """Whether it is ok, or fails as it is known to."""
        return self.outcome in ("ok", "known failure")

    def remark(self) -> str:
        """The remark on how it ended; empty if it is simply ok."""
        said = f": {self.why}" if self.why else ""
        if self.outcome == "unexpected success":
            return f"unexpected success: the file of models expects {_expected(self)}{said}; take `expect` out of it"
        if self.outcome == "known failure":
            return f"known failure: {'; '.join(part for part in (self.why, self.reason) if part)}"
        if self.status != "ok" and self.expected != "ok":
            return f"another failure than the one that is known ({_expected(self)}{said}): {self.reason}"
        return self.reason

    def judged(self, settings: Settings) -> Row:
        """The row with what the file of models expects."""
        return replace(self, expected=settings.expect, why=settings.why, says=settings.says)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Row:
        """The row of `to_dict`, read back from JSON.

        Raises:
            ValueError: It is none.
        """
        return record(cls, {name: one for name, one in data.items() if name != "outcome"})


def _expected(row: Row) -> str:
    return "a failure" if row.expected == "fails" else f"`{row.expected}`"
