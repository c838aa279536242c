"""Compare two models with the original's decisions (ArgMax, TopK, comparisons) imposed, so that near ties do not count.

An ArgMax, TopK, NonMaxSuppression, comparison or quantisation may decide between numbers that are tied within rounding.
Everything after it may then differ. So both models' decisions are compared where they are made, each given the earlier ones of
the original (`ortfuse.runtime.near_ties`), and the other outputs are computed from the original's decisions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import OrtfuseError
from ortfuse.runtime.comparison import Difference, compare, compare_all, failed
from ortfuse.runtime.near_ties import explained, is_one_step, is_quantised
from ortfuse.runtime.reference_runs import Experiment
from ortfuse.runtime.session import Session
from ortfuse.runtime.submodel import computing, forced
from ortfuse.verification.inline_taken_branches import has_branches, with_taken_branches
from ortfuse.verification.match_decision_nodes import Counterpart, by_name, by_order, decisions

GIVEN = "ortfuse.given."

QUANTISES_WEIGHTS = "WeightBiasQuantization"
"""The runtime's optimiser that quantises float32 weights of operators between quantised numbers."""

_UNUSABLE = (OrtfuseError, KeyError, TypeError)
"""The errors by which models have no decisions that can be imposed."""


@dataclass(frozen=True)
class Decided:
    """The comparison of the outputs given the original's decisions, what explains decisions that differ, and what is wrong."""

    differences: Mapping[str, Difference]
    reasons: tuple[str, ...]
    wrong: Mapping[str, str]

    @property
    def ok(self) -> bool:
        """Whether all outputs are equal given the decisions."""
        return all(difference.ok for difference in self.differences.values())


def compare_decided(original: ir.Model, candidate: ir.Model, experiment: Experiment, optimise: bool) -> Decided | None:
    """Compare a candidate's outputs given the decisions of the original, also those in branches that are taken.

    Returns:
        The comparison, or `None` if the models have no decisions in common, none differs, or this cannot be run.
    """
    found = _given_decisions(original, candidate, experiment, optimise)
    if (found is None or not found.ok) and (has_branches(original) or has_branches(candidate)):
        try:
            both = [
                with_taken_branches(model, lambda model, values: _values(model, values, experiment.inputs))
                for model in (original, candidate)
            ]
        except _UNUSABLE:
            return found
        inlined = _given_decisions(both[0], both[1], experiment, optimise)
        return found if inlined is None else inlined
    return found


def _given_decisions(original: ir.Model, candidate: ir.Model, experiment: Experiment, optimise: bool) -> Decided | None:
    """The comparison given the decisions in the main graph."""
    try:
        named = by_name(original, candidate)
        moved = by_order(original, candidate, named, lambda model, values: _values(model, values, experiment.inputs))
        found = _compared(original, candidate, [*named, *moved], experiment, optimise)
        if moved and found is not None and found.wrong:  # it may be no counterpart
            found = _compared(original, candidate, named, experiment, optimise)
        return found
    except _UNUSABLE:
        return None


def _compared(
    original: ir.Model, candidate: ir.Model, pairs: Sequence[Counterpart], experiment: Experiment, optimise: bool
) -> Decided | None:
    """The comparison given the decisions of these nodes; `None` if there are none, or none differs.

    Raises:
        OrtfuseError: This cannot be run.
    """
    if not pairs:
        return None
    wanted = [value for pair in pairs for value in (*pair.node.inputs, *decisions(pair.node)) if value is not None]
    known = _values(original, wanted, experiment.inputs)
    given = {value.name or "": known[value.name or ""] for pair in pairs for value in decisions(pair.node)}
    runs = _Forced(given, pairs, experiment.inputs, optimise)
    found = runs.of(candidate)
    reasons: list[str] = []
    wrong: dict[str, str] = {}
    for pair in pairs:
        node, operands = (
            pair.node,
            [None if value is None else known.get(value.name or "") for value in pair.node.inputs],
        )
        for value, other in pair.decisions:
            name, array = value.name or "", pair.here(found[other.name or ""])
            why = explained(node, operands, given[name], array)
            unlike = "" if why == "" else _unlike(operands, pair, runs.shown(candidate), runs.theirs)
            if why is None or unlike:
                why = runs.as_the_original(original, node, operands, name, array)
            if why is None:
                wrong[name] = f"{node.op_type} '{name}' decides otherwise" + (unlike or " where nothing is tied")
            elif why:
                reasons.append(f"{node.op_type} '{name}': {why}")
    if not reasons and not wrong:
        return None
    rest = {name: array for name, array in experiment.expected.items() if name not in given}
    compared = {d.output: d for d in compare_all(rest, found, experiment.reference, None, experiment.precision)}
    for name in experiment.expected:
        if wrong and (name in given or compared[name].ok):
            compared[name] = failed(name, wrong.get(name) or next(iter(wrong.values())))
        elif name in given:
            compared[name] = Difference(name, True, 0.0, 0.0)
    return Decided(compared, tuple(reasons), wrong)


class _Forced:
    """Run models whose decisions are imposed.

    Args:
        given: The decisions of the original, by name.
        pairs: The nodes that decide, and their counterparts in the candidate.
        inputs: The inputs of the model.
        optimise: Whether the runtime's own optimisations are on.
    """

    def __init__(
        self, given: Mapping[str, Any], pairs: Sequence[Counterpart], inputs: Mapping[str, Any], optimise: bool
    ) -> None:
        self._given, self._pairs, self._inputs, self._optimise = given, pairs, inputs, optimise
        self.theirs = {
            other.name or "": pair.there(given[value.name or ""]) for pair in pairs for value, other in pair.decisions
        }
        self._shown: Mapping[str, Any] | None = None
        self._own: Mapping[str, Any] | None = None
        self._exact: Mapping[str, Any] | None = None

    def of(self, candidate: ir.Model, also: Collection[str] = ()) -> Mapping[str, Any]:
        """The outputs of the candidate, what it decides by itself given the decisions before, and the values named in `also`.

        To output a value keeps the runtime from merging what computes it with what uses it.
        """
        return self._run(candidate, self.theirs, also)

    def shown(self, candidate: ir.Model) -> Mapping[str, Any]:
        """The operands of the candidate's decisions, too."""
        if self._shown is None:
            names = {value.name or "" for pair in self._pairs for value in pair.other.inputs if value is not None}
            self._shown = self.of(candidate, names - set(self.theirs))
        return self._shown

    def as_the_original(
        self, original: ir.Model, node: ir.Node, operands: Sequence[Any], name: str, found: Any
    ) -> str | None:
        """Why quantised numbers may be other ones: the runtime, which computes them in integers, says so of the original.

        They may be off by one step, or by more where that is due to float32 weights, which the runtime quantises as well.
        """
        if not self._optimise or not is_quantised(node):
            return None
        if self._own is None:
            self._own = self._run(original, self._given)
        if explained(node, operands, self._own[name], found) is None:
            return None
        how = "by one step"
        if not is_one_step(self._given[name], found):
            if self._exact is None:
                self._exact = self._run(original, self._given, disabled=[QUANTISES_WEIGHTS])
            if not is_one_step(self._given[name], self._exact[name]):
                return None
            how = "because the runtime quantises weights"
        wrong = int((np.asarray(self._given[name]) != found).sum())
        return f"{wrong} of {found.size} {how}, as in the original with the runtime's optimisations"

    def _run(
        self, model: ir.Model, given: Mapping[str, Any], also: Collection[str] = (), disabled: Collection[str] = ()
    ) -> Mapping[str, Any]:
        part = forced(model, given, GIVEN, also)
        inputs = {**self._inputs, **{f"{GIVEN}{name}": array for name, array in given.items()}}
        return Session(part, optimise=self._optimise, disabled=disabled).run(inputs)


def _unlike(operands: Sequence[Any], pair: Counterpart, found: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """In words, whether the candidate decides from other numbers than the original; empty if not, or if it is not known."""
    if pair.node.op_identifier() != pair.other.op_identifier():
        return ""
    for expected, value in zip(operands, pair.other.inputs, strict=True):
        name = "" if value is None else value.name or ""
        if expected is not None and name in found and name not in given:
            difference = compare(name, np.asarray(expected), pair.here(found[name]))
            if not difference.ok:
                return f", and from other numbers: {difference.reason}"
    return ""


def _values(model: ir.Model, values: Iterable[ir.Value], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a run of the model, by name."""
    wanted = {value.name or "": value for value in values}
    known: dict[str, Any] = {name: v.const_value.numpy() for name, v in wanted.items() if v.const_value is not None}
    known |= {name: np.asarray(array) for name, array in inputs.items()}
    computed = [(name, value) for name, value in wanted.items() if name not in known]
    return known | dict(Session(computing(model, computed), optimise=False).run(inputs) if computed else {})
