"""Trials of single operators on a target: is the node executed by its provider, and are the results those of the default target?

The operators, opsets, element types, attributes and operands are those of the conformance grid (`benchmarks.trust.grid`).
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx

from benchmarks.trust.grid import cells
from benchmarks.trust.grid.building import MODES, Cell, dtype_of
from benchmarks.trust.grid.seeds import TYPE_ATTRIBUTES, Seed, at, seeds, versions
from ortfuse.errors import CrashError, OrtfuseError
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.session import Session
from ortfuse.runtime.session_subprocess import RECORDS_PLACEMENT
from ortfuse.targets import TargetSpec, default_spec

Outcome = Literal["equal", "differs", "other provider", "refused", "fails", "crashes"]
"""`refused`: no session is created; `fails`: it does not run, although the default target runs it."""

TOLERANCES = {"float16": 4e-3, "bfloat16": 4e-2, "float32": 1e-4, "float64": 1e-4}
"""The largest error of a right result, relative to the largest number of the expected one."""


@dataclass(frozen=True)
class Trial:
    """The outcome of one use of an operator.

    Attributes:
        operator: The domain and name of the operator.
        version: The version of its domain.
        label: The name of the use: that of its cell.
        types: The element type of each operand by the name of its type variable.
        outcome: What became of it.
        error: The largest error relative to the largest expected number, where both run.
        words: The message of an error.
    """

    operator: tuple[str, str]
    version: int
    label: str
    types: tuple[tuple[str, str], ...]
    outcome: Outcome
    error: float = 0.0
    words: str = ""


def uses(operators: Collection[str] | None = None, most: int = 3, but: Container[str] = frozenset()) -> Iterator[Cell]:
    """The uses of operators that are tried: some seeds of each, at each opset, in each element type.

    Args:
        operators: The names; by default all.
        most: The most seeds of an operator whose element types are varied.
        but: The names of operators that are left out.
    """
    for name, found in seeds().items():
        if name in but or (operators is not None and name not in operators):
            continue
        for number, seed in enumerate(found):
            for version in versions(seed.domain, seed.op_type):
                written = at(seed, version)
                if written is None:
                    continue
                yield from _ways(f"{name}-{version}/{number}/as it is", written)
                yield from _of_computed_sizes(f"{name}-{version}/{number}/as it is", written)
                if number >= most:
                    continue
                for what, other in (*cells._typed(written), *_of_type_attributes(written)):
                    yield from _ways(f"{name}-{version}/{number}/{what}", other)


def _of_computed_sizes(label: str, seed: Seed) -> Iterator[Cell]:
    """The use with an operand of integers that is computed of sizes, as that of ConstantOfShape is in models."""
    for part in range(len(seed.inputs)):
        cell = MODES["sizes"](f"{label}/sizes {part}", seed, part)
        if cell is not None:
            yield cell


def _of_type_attributes(seed: Seed) -> Iterator[tuple[str, Seed]]:
    if TYPE_ATTRIBUTES.isdisjoint(seed.schema.attributes):
        return
    for what, other in cells._attributed(seed):
        if what.partition("=")[0] in TYPE_ATTRIBUTES:
            yield what, other


def _ways(label: str, seed: Seed) -> Iterator[Cell]:
    """The use with its first operand unknown, as models have it, and with all unknown if that is something else."""
    for how in ("one unknown", "unknown") if len(seed.inputs) > 1 else ("unknown",):
        cell = MODES[how](f"{label}/{how}", seed, 0)
        if cell is not None and not cell.constant:
            yield cell


def tried(cell: Cell, spec: TargetSpec) -> Trial | None:
    """Try a use of an operator on a target; `None` if the default target does not load it."""
    seed = cell.seed
    source = cell.model.SerializeToString()
    feeds, _ = cell.runs[0]
    try:
        expected: Any = Session(source, optimise=False, threads=1, lean=True).run(feeds)
    except OrtfuseError as error:
        if "NOT_IMPLEMENTED" not in str(error) and "Could not find an implementation" not in str(error):
            return None
        expected = None
    made = _Maker(cell)
    try:
        with executing_for(spec):
            session = Session(source, optimise=False, threads=1, settings={RECORDS_PLACEMENT: "1"})
            placed = session.placement()
    except CrashError as error:
        return made.trial("crashes", words=str(error))
    except OrtfuseError as error:
        return None if expected is None else made.trial("refused", words=str(error))
    own = [name == spec.provider for name, nodes in placed for node in nodes if node[:2] == (seed.domain, seed.op_type)]
    if not own or not all(own):
        return made.trial("other provider")
    try:
        found = session.run(feeds)
    except CrashError as error:
        return made.trial("crashes", words=str(error))
    except OrtfuseError as error:
        return made.trial("fails", words=str(error))
    if expected is None:
        return made.trial("equal")
    distance = largest_error(expected, found)
    return made.trial("equal" if distance <= _tolerance(cell) else "differs", distance)


@dataclass(frozen=True)
class _Maker:
    cell: Cell

    def trial(self, outcome: Outcome, error: float = 0.0, words: str = "") -> Trial:
        seed = self.cell.seed
        return Trial(
            (seed.domain, seed.op_type), seed.version, self.cell.label, types_of(seed), outcome, error, words[:300]
        )


def types_of(seed: Seed) -> tuple[tuple[str, str], ...]:
    """The element type of each array operand by the name of its type variable, and types that attributes name."""
    found = {}
    for index, value in enumerate(seed.inputs):
        if isinstance(value, np.ndarray):
            found[cells._variable(seed.schema, index)] = _name(dtype_of(value))
    for name in TYPE_ATTRIBUTES & seed.attributes.keys():
        found[f".{name}"] = _name(seed.attributes[name].i)
    return tuple(sorted(found.items()))


def _name(kind: int) -> str:
    return f"tensor({onnx.TensorProto.DataType.Name(kind).lower()})"


def _tolerance(cell: Cell) -> float:
    names = {value.dtype.name for value in cell.seed.inputs if isinstance(value, np.ndarray)}
    return max((TOLERANCES[name] for name in names & TOLERANCES.keys()), default=0.0) or 1e-6


def largest_error(expected: dict[str, Any], found: dict[str, Any]) -> float:
    """The largest error relative to the largest expected number; infinite where shapes, NaN or infinities differ."""
    worst = 0.0
    for name, one in expected.items():
        first, second = (np.asarray(value) for value in (one, found[name]))
        if isinstance(one, list) or first.dtype.kind not in "fiub" or first.shape != second.shape:
            same = not isinstance(one, list) and first.shape == second.shape and first.tolist() == second.tolist()
            worst = max(worst, 0.0 if same or isinstance(one, list) else np.inf)
            continue
        first, second = first.astype(np.float64), second.astype(np.float64)
        finite = np.isfinite(first)
        if not np.array_equal(first[~finite], second[~finite], equal_nan=True) or not np.isfinite(second[finite]).all():
            return np.inf
        scale = np.abs(first[finite]).max(initial=1e-6)
        worst = max(worst, float(np.abs(first[finite] - second[finite]).max(initial=0.0) / scale))
    return worst


def trials(
    spec: TargetSpec, operators: Collection[str] | None = None, but: Container[str] = frozenset()
) -> Iterator[Trial]:
    """Try operators on a target, all or those named but some, and yield what became of each use that is valid."""
    assert spec != default_spec()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cell in uses(operators, but=but):
            trial = tried(cell, spec)
            if trial is not None:
                yield trial
