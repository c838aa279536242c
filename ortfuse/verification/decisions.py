"""Compares two models apart from near ties: what the original has decided is imposed on the other model.

Where an ArgMax, TopK, NonMaxSuppression, a comparison or a quantisation decides between numbers that are tied within rounding,
everything after it may be different. So both models' decisions are compared where they are made, each given the earlier ones of
the original (`ortfuse.execution.ties`), and the other outputs are computed from the original's decisions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import OrtfuseError
from ortfuse.execution.compare import Difference, compare, compare_all, failed
from ortfuse.execution.experiments import Experiment
from ortfuse.execution.part import computing, forced
from ortfuse.execution.session import Session
from ortfuse.execution.ties import decided, explained, is_integer_operator, is_one_step, is_quantised
from ortfuse.facts.facts import Facts

GIVEN = "ortfuse.given."

QUANTISES_WEIGHTS = "WeightBiasQuantization"
"""The runtime's optimiser that quantises float32 weights of operators between quantised numbers."""


@dataclass(frozen=True)
class Decided:
    """The comparison of the outputs given the original's decisions, and what explains the decisions that differ."""

    differences: Mapping[str, Difference]
    reasons: tuple[str, ...]


def compare_decided(original: ir.Model, candidate: ir.Model, experiment: Experiment, optimise: bool) -> Decided | None:
    """Compare a candidate's outputs given the decisions of the original.

    Returns:
        The comparison, or `None` if the models have no decisions in common, none differs, or this cannot be run.
    """
    pairs = _common(original, candidate)
    nodes = [node for node, _ in pairs]
    if not nodes:
        return None
    try:
        known = _known(original, nodes, experiment.inputs)
        given = {value.name or "": known[value.name] for node in nodes for value in _decisions(node)}
        runs = _Forced(given, experiment.inputs, optimise)
        found = runs.of(candidate)
    except (OrtfuseError, KeyError, TypeError):
        return None
    reasons: list[str] = []
    wrong: dict[str, str] = {}
    for node, other in pairs:
        operands = [None if value is None else known.get(value.name) for value in node.inputs]
        for value in _decisions(node):
            name = value.name or ""
            why = explained(node, operands, given[name], found[name])
            unlike = "" if why == "" else _unlike(operands, other, runs.shown(candidate, pairs), given)
            if why is None or unlike:
                why = runs.as_the_original(original, node, operands, name, found[name])
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
    return Decided(compared, tuple(reasons))


class _Forced:
    """Runs models whose decisions are imposed.

    Args:
        given: The decisions, by name.
        inputs: The inputs of the model.
        optimise: Whether the runtime's own optimisations are on.
    """

    def __init__(self, given: Mapping[str, Any], inputs: Mapping[str, Any], optimise: bool) -> None:
        self._given, self._optimise = given, optimise
        self._inputs = {**inputs, **{f"{GIVEN}{name}": array for name, array in given.items()}}
        self._shown: Mapping[str, Any] | None = None
        self._own: Mapping[str, Any] | None = None
        self._exact: Mapping[str, Any] | None = None

    def of(self, model: ir.Model, also: Collection[str] = (), disabled: Collection[str] = ()) -> Mapping[str, Any]:
        """The outputs of a model, what it decides by itself given the decisions before, and the values named in `also`.

        To output a value keeps the runtime from merging what computes it with what uses it.
        """
        part = forced(model, self._given, GIVEN, also)
        return Session(part, optimise=self._optimise, disabled=disabled).run(self._inputs)

    def shown(self, candidate: ir.Model, pairs: Sequence[tuple[ir.Node, ir.Node]]) -> Mapping[str, Any]:
        """What the candidate decides from, too."""
        if self._shown is None:
            names = {value.name or "" for _, other in pairs for value in other.inputs if value is not None}
            self._shown = self.of(candidate, names - set(self._given))
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
            self._own = self.of(original)
        if explained(node, operands, self._own[name], found) is None:
            return None
        how = "by one step"
        if not is_one_step(self._given[name], found):
            if self._exact is None:
                self._exact = self.of(original, disabled=[QUANTISES_WEIGHTS])
            if not is_one_step(self._given[name], self._exact[name]):
                return None
            how = "because the runtime quantises weights"
        wrong = int((np.asarray(self._given[name]) != found).sum())
        return f"{wrong} of {found.size} {how}, as in the original with the runtime's optimisations"


def _unlike(operands: Sequence[Any], other: ir.Node, found: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """In words, whether the candidate decides from other numbers than the original; empty if not, or if it is not known."""
    for expected, value in zip(operands, other.inputs, strict=True):
        name = "" if value is None else value.name or ""
        if expected is not None and name in found and name not in given:
            difference = compare(name, np.asarray(expected), found[name])
            if not difference.ok:
                return f", and from other numbers: {difference.reason}"
    return ""


def _decisions(node: ir.Node) -> list[ir.Value]:
    return [
        node.outputs[number] for number in decided(node) if number < len(node.outputs) and node.outputs[number].name
    ]


def _common(original: ir.Model, candidate: ir.Model) -> list[tuple[ir.Node, ir.Node]]:
    """The original's nodes that decide from numbers, each with its counterpart: of that operator and name of the result."""
    facts = Facts(original)
    theirs = {value.name: node for node in candidate.graph for value in _decisions(node)}
    found = []
    for node in original.graph:
        others = [theirs.get(value.name) for value in _decisions(node)]
        other = others[0] if others else None
        if other is not None and all(_alike(node, one) for one in others) and _from_numbers(node, facts):
            found.append((node, other))
    return found


def _alike(node: ir.Node, other: ir.Node | None) -> bool:
    return other is not None and node.op_identifier() == other.op_identifier() and len(node.inputs) == len(other.inputs)


def _from_numbers(node: ir.Node, facts: Facts) -> bool:
    """Whether a node decides from floating-point numbers; a Cast only if to integers. Integer operators always round."""
    kinds = [facts.dtype(node.inputs[0]), facts.dtype(_decisions(node)[0])]
    if node.op_type == "Cast" and (kinds[1] is None or not kinds[1].is_integer()):
        return False
    return is_integer_operator(node) or (kinds[0] is not None and kinds[0].is_floating_point())


def _known(original: ir.Model, nodes: list[ir.Node], inputs: Mapping[str, Any]) -> dict[str | None, Any]:
    """What the original decides, and from what, by name."""
    values = dict.fromkeys(value for node in nodes for value in (*node.inputs, *_decisions(node)) if value is not None)
    known: dict[str | None, Any] = {v.name: v.const_value.numpy() for v in values if v.const_value is not None}
    known |= {name: np.asarray(array) for name, array in inputs.items()}
    wanted = [(value.name or "", value) for value in values if value.name not in known]
    return known | dict(Session(computing(original, wanted), optimise=False).run(inputs))
