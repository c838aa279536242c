"""Run two models with all inner values as outputs, and find the first tensor that differs.

The first is the first in the order of execution of the first model, over all sets of inputs. All tensors before it are
the same in both, so that its producer is the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.runtime.comparison import TOLERANCES, Difference, compare
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.random_seeds import seeded
from ortfuse.runtime.session import Session
from ortfuse.runtime.submodel import showing
from ortfuse.serialization import Record, derived
from ortfuse.verification.diff.constants import constant_of
from ortfuse.verification.diff.matching import Matching
from ortfuse.verification.diff.structure import name_of, operator_of

AT_ONCE = 128
"""How many tensors are held at a time, of each model."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class TensorDifference(Record):
    """A tensor that both models compute.

    Attributes:
        tensor: Its name in the first model.
        second_tensor: Its name in the second model.
        node: The node that computes it in the first model.
        operator: The operator of that node.
        second_node: The node that computes it in the second model.
        second_operator: The operator of that node.
        inputs: The set of inputs on which it differs most.
        difference: The comparison there.
    """

    tensor: str
    second_tensor: str
    node: str
    operator: str
    second_node: str
    second_operator: str
    inputs: str
    difference: Difference


@dataclass(frozen=True)
class Tensors(Record):
    """The tensors of two models side by side.

    Attributes:
        compared: How many tensors both models compute and were compared.
        unmatched: How many tensors of the first model have no counterpart in the second.
        input_sets: How many sets of inputs both models ran on.
        differing: The tensors that differ, in the order of execution of the first model.
    """

    compared: int
    unmatched: int
    input_sets: int
    differing: Sequence[TensorDifference]

    @property
    @derived()
    def first(self) -> TensorDifference | None:
        """The first tensor that differs."""
        return self.differing[0] if self.differing else None


def compare_tensors(
    first: ir.Model,
    second: ir.Model,
    matching: Matching,
    inputs: Sequence[tuple[str, Inputs]],
    tolerance: float | None = None,
    tell: Tell = lambda text: None,
) -> Tensors:
    """Run both models on the same inputs, and compare every tensor that both compute.

    Args:
        first: A model.
        second: The other one, whose inputs match those of the first.
        matching: What matches.
        inputs: Sets of inputs of the first model, each with a label.
        tolerance: Allowed relative error; by default what `ortfuse.runtime.comparison` says of the element type.
        tell: Called with short messages about what is going on.

    Raises:
        VerificationError: One of the models cannot be run on the inputs, or the second needs an input that the first lacks.
    """
    given = _renamed(first, second, matching)
    computed = [value for node in first.graph for value in node.outputs if value.name and constant_of(value) is None]
    pairs = [
        (value, twin)
        for node in first.graph
        for value in node.outputs
        if value.name
        and (twin := matching.counterpart(value)) is not None
        and twin.name
        and twin.producer() is not None
    ]
    worst: dict[ir.Value, tuple[str, Difference]] = {}
    if pairs:
        tell("running both models with all values inside")
        one, other = (Session(showing(seeded(model)), optimise=False, lean=True) for model in (first, second))
        for label, arrays in inputs:
            theirs = {name: arrays[source] for name, source in given.items() if source in arrays}
            for value, found in _differences(one, other, pairs, arrays, theirs, tolerance):
                known = worst.get(value)
                if known is None or found.relative > known[1].relative:
                    worst[value] = (label, found)
    others = _without_counterpart(first, matching, worst)
    differing = [_told(value, twin, *worst[value]) for value, twin in pairs if value in worst and value not in others]
    compared = len(pairs) - len(others)
    return Tensors(compared, len(computed) - compared, len(inputs), differing)


def _without_counterpart(first: ir.Model, matching: Matching, differing: Collection[ir.Value]) -> set[ir.Value]:
    """The tensors that differ although what is computed from them does not: their counterparts are others in truth.

    This happens if a scale moved from one weight into another. It is known where a value that must be the same comes after.
    """
    reached: dict[ir.Value, bool] = {}
    found = set()
    for node in reversed(first.graph):
        for value in node.outputs:
            if value in matching.sure and value in matching.values:
                reached[value] = value in differing
                continue
            after = [reached[out] for user in value.consumers() for out in user.outputs if out in reached]
            if after:
                reached[value] = all(after)
            if value in differing and not reached.get(value, False):
                found.add(value)
    return found


def _renamed(first: ir.Model, second: ir.Model, matching: Matching) -> Mapping[str, str]:
    """The inputs that the second model must be given, each with the name of the input of the first that it stands for."""
    known = {matching.values[value]: value for value in first.graph.inputs if value in matching.values}
    found = {}
    for value in second.graph.inputs:
        if value in known:
            found[value.name or ""] = known[value].name or ""
        elif value.name not in second.graph.initializers:
            raise VerificationError(
                f"input '{value.name}' is only in the second model; compare models with the same inputs"
            )
    return found


def _differences(
    one: Session,
    other: Session,
    pairs: Sequence[tuple[ir.Value, ir.Value]],
    ours: Inputs,
    theirs: Mapping[str, Any],
    tolerance: float | None,
) -> Iterator[tuple[ir.Value, Difference]]:
    """The tensors that differ on a set of inputs, in order."""
    for start in range(0, len(pairs), AT_ONCE):
        part = pairs[start : start + AT_ONCE]
        expected = one.run(ours, [value.name or "" for value, _ in part])
        found = other.run(theirs, list(dict.fromkeys(twin.name or "" for _, twin in part)))
        for value, twin in part:
            result = _compared(value.name or "", expected[value.name or ""], found[twin.name or ""], tolerance)
            if not result.ok:
                yield value, result


def _compared(name: str, expected: Any, found: Any, tolerance: float | None) -> Difference:
    """Compare tensors; of two floating-point types, by the tolerance of the coarser one."""
    if not isinstance(expected, np.ndarray) or not isinstance(found, np.ndarray) or expected.dtype == found.dtype:
        return compare(name, expected, found, tolerance=tolerance)
    kinds = expected.dtype.name, found.dtype.name
    if not all(kind in TOLERANCES for kind in kinds):
        return compare(name, expected, found, tolerance=tolerance)
    fine, coarse = sorted(kinds, key=lambda kind: TOLERANCES[kind].relative)
    wide = expected.dtype if expected.dtype.name == fine else found.dtype
    return compare(name, expected.astype(wide), found.astype(wide), tolerance=tolerance, precision=coarse)


def _told(value: ir.Value, twin: ir.Value, label: str, found: Difference) -> TensorDifference:
    node, other = value.producer(), twin.producer()
    assert node is not None and other is not None
    return TensorDifference(
        value.name or "",
        twin.name or "",
        name_of(node),
        operator_of(node),
        name_of(other),
        operator_of(other),
        label,
        found,
    )
