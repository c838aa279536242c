"""Class `Context`, on which every pass works, and protocol `Pass`, which every pass implements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.edit import Inspector
from ortfuse.ir.editor import Editor
from ortfuse.ir.walk import Scope, nested, scopes
from ortfuse.rewrite import Debugging, Log
from ortfuse.targets import Quirk, Target
from ortfuse.transforms.choose_legal_form import Choices
from ortfuse.transforms.constant_growth import Growth
from ortfuse.transforms.spill_constants import Spill
from ortfuse.transforms.veto_edits_that_join_qdq_pairs import PairsApart


@dataclass
class Context:
    """One model on its way through a pipeline.

    Attributes:
        model: The model. It is changed in place, only through the editor.
        facts: What is known about its values; the editor keeps them up to date.
        target: The runtime that will execute the result.
        log: Rewrites, other changes, statistics per rule and, on request, near misses.
        approximate: Whether rules that replace the mathematics by an approximation may be applied.
        notes: What a pass could not do and why, in words for the user.
        failures: Mistakes of ortfuse that were got round, in words for the user.
        without: Names of rules that are left out, because they failed.
        choices: Decides by cost between a rewrite and what it replaces, and records the decisions.
        inspector: Sees every change before it is final, and may object.
        checks: Sees the changes of the user's own rules and passes alone, and may object.
        debugging: Extra checks and random orders for debugging.
        spill: Where computed constants are kept.
        max_growth: The bytes that constant folding may add, if the user gave a bound.
        growth: What it has added, and may add.
        least_sizes: The least values of sizes, by the names that the model gives them, with which it succeeds as it was given.
        opaque: Functions that are not in the model while passes work on it: to these, their calls are of an unknown operator.
        editor: Makes the changes: passes change a model only through it.
    """

    model: ir.Model
    facts: Facts
    target: Target
    log: Log = field(default_factory=Log)
    approximate: bool = False
    notes: dict[str, None] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    without: set[str] = field(default_factory=set)
    choices: Choices = field(default_factory=Choices)
    inspector: Inspector | None = None
    checks: Inspector | None = None
    debugging: Debugging = field(default_factory=Debugging)
    spill: Spill = field(default_factory=Spill)
    max_growth: int | None = None
    growth: Growth = field(init=False)
    least_sizes: Mapping[str, int] = field(default_factory=dict)
    opaque: Sequence[ir.Function] = ()
    editor: Editor = field(init=False)

    def __post_init__(self) -> None:
        self.growth = Growth(self.model, self.max_growth)
        self.editor = Editor(self.model, self.facts, [self.inspector] if self.inspector is not None else [], self.log)
        if self.checks is not None:
            self.editor.checks.append(self.checks)
        if Quirk.MERGES_QUANTISED_PAIRS in self.target.quirks:
            self.editor.guards.append(PairsApart(self.facts))

    @property
    def is_inspected(self) -> bool:
        """Whether changes of passes that do not come with ortfuse are inspected."""
        return self.inspector is not None or self.checks is not None

    def scopes(self) -> Iterator[Scope]:
        """Every graph of the model, an outer graph before its subgraphs."""
        return scopes(self.model)

    def note(self, text: str) -> None:
        """Keep a remark for the user; a repeated remark is kept once."""
        self.notes[text] = None


@runtime_checkable
class Pass(Protocol):
    """A graph transformer: a frozen dataclass whose fields are its options."""

    @property
    def name(self) -> str:
        """The name of the pass in pipelines."""

    def run(self, context: Context) -> int:
        """Transform the model through `context.editor`; returns the number of changes, 0 if and only if there were none."""


def version_in(scope: Scope, node: ir.Node) -> int:
    """The opset version that applies to a node: its own if it is marked with one, else the one its domain is imported at."""
    return node.version if node.version is not None else scope.root.opset_imports.get(node.domain, 1)


def final_opset(scope: Scope, target: Target) -> int:
    """The ai.onnx version that the scope will import: today's, or the newest that one of its nodes is marked with.

    Nodes that are newer than what the target takes are lowered.
    """
    marked = [node.version or 0 for graph in nested(scope.root) for node in graph if not node.domain]
    return max(scope.opset, *(version for version in marked if version <= target.max_opset), 0)
