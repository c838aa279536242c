"""Run instances: apply the rule to a copy, run both sides in ONNX Runtime and compare the results."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import OrtfuseError, VerificationError
from ortfuse.ir.editor import Editor
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.walk import nodes
from ortfuse.rewrite import FirstLegal, Log, Rewriter, Rule
from ortfuse.rewrite.pattern import Match
from ortfuse.rewrite.pattern.compiled_pattern import producers
from ortfuse.rewrite.pattern.match_result import Ranges
from ortfuse.targets import Target, raise_to_newest
from ortfuse.verification import Session
from ortfuse.verification.rule_tests.defined_operators import with_definitions

Arrays = list[np.ndarray[Any, Any]]

FACTOR = 4.0
"""The most that the replacement's error against float64 may be, in errors of the original, beyond rounding."""

ROUNDINGS = 32
"""The most roundings of its largest number that a result may differ by, even if the original happens to be exact."""

MOST_BESIDE = 0.01
"""The share of rounded numbers that may be a step beside what is meant."""

MOST_LOST = 0.5
"""The largest distance (relative L2) of a lossy rule from the original where its definition is tried on random numbers."""


@dataclass
class Rewritten:
    """The result of applying a rule to an instance; `error` describes what it raised.

    For a lossy rule, `defined` is the instance with the rule's definition in place of its replacement.
    """

    model: ir.Model
    hits: int
    reason: str
    error: str | None = None
    defined: ir.Model | None = None


def rewrite(rule: Rule, model: ir.Model, target: Target, *, explain: bool = False) -> Rewritten:
    """Apply `rule` alone to a copy of `model`, raising the opset if the result needs it; of a lossy rule also its definition.

    Why it is not applied is found out only to `explain`.
    """
    rewritten = _rewrite(rule, model, target, explain=explain)
    if rule.definition is None or rewritten.error is not None or not rewritten.hits:
        return rewritten
    defined = _rewrite(rule.as_defined, model, target, once=True, explain=True)
    if defined.error is None and defined.hits != rewritten.hits:
        defined.error = f"its definition cannot stand there: {defined.reason}"
    return dataclasses.replace(rewritten, error=defined.error, defined=defined.model)


def may_fire(rule: Rule, model: ir.Model, target: Target) -> bool:
    """Whether the pattern of `rule` and its guards hold anywhere in `model`, or what they ask raises an error."""
    matcher, ranges = rule.matcher, _seen(rule, model)
    values = [
        output
        for node in nodes(model)
        if node.op_type in matcher.heads and matcher.may_match(node, producers(node))
        for output in node.outputs
    ]
    if not values:
        return False
    facts = Facts(model)
    try:
        return any(
            isinstance(
                matcher.match(value, facts, rule.allow_extra_operands, target.quirks, ranges, target=target.spec),
                Match,
            )
            for value in values
        )
    except Exception:
        # Guards are arbitrary code; `rewrite` reports what they raise.
        return True


class _Once(FirstLegal):
    """Refuse to rewrite nodes that the original model lacks: a definition may have what it defines in it."""

    def __init__(self, model: ir.Model) -> None:
        self._nodes = frozenset(nodes(model))

    def refusal(self, rule: Rule, match: Match) -> Refusal | None:
        """Refuse new nodes."""
        new = not self._nodes.issuperset(match.nodes)
        return refuse("left_out", match.root, found="it is new") if new else None


def _rewrite(rule: Rule, model: ir.Model, target: Target, *, once: bool = False, explain: bool) -> Rewritten:
    copy = model.clone()
    chooser = _Once(copy) if once else FirstLegal()
    log = Log(explain=explain)
    target = target if rule.because is None else target.with_bug(rule.because)
    try:
        hits = Rewriter(Editor(copy, Facts(copy)), target, log, chooser=chooser, ranges=_seen(rule, copy)).run([rule])
    except Exception as error:
        # Guards and replacements are arbitrary code: whatever they raise is reported as a failure of the rule test.
        text = str(error) if isinstance(error, OrtfuseError) else f"{type(error).__name__}: {error}"
        return Rewritten(model, 1, "", text)
    deepest = max(log.misses.values(), key=lambda miss: miss.matched, default=None)
    raise_to_newest(copy)
    return Rewritten(
        copy, hits, deepest.refusal.reason if deepest else "no node has the operator at the pattern's root"
    )


def _seen(rule: Rule, model: ir.Model) -> Ranges:
    """The ranges that the rule test says the inputs and the root were seen to have."""
    root = model.graph.outputs[0].name
    return lambda name, method: rule.test.ranges.get(
        f"root{name[len(root or '') :]}" if name.startswith(root or "?") else name
    )


class Runner:
    """Run one model on several inputs, without the runtime's own optimisations; the session is created on first use."""

    def __init__(self, model: ir.Model, rule: Rule) -> None:
        self._model = with_definitions(model, rule.test.definitions)
        self.refusal = ""

    @functools.cached_property
    def _session(self) -> Session | None:
        try:
            return Session(self._model, optimise=False, threads=1)
        except VerificationError as error:
            self.refusal = str(error)
            return None

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Arrays | None:
        """The outputs; `None` if the runtime refuses the model or cannot execute it on these inputs (see `refusal`)."""
        if self._session is None:
            return None
        try:
            return list(self._session.run(inputs).values())
        except VerificationError as error:
            self.refusal = str(error)
            return None

    def run_each(self, inputs: Sequence[Mapping[str, np.ndarray[Any, Any]]]) -> Iterator[Arrays | None]:
        """The results of `run` for each of several sets of inputs; `refusal` is about the last one taken that has no outputs."""
        for found in repeat("", len(inputs)) if self._session is None else self._session.run_each(inputs):
            if isinstance(found, str):
                self.refusal = found or self.refusal
            yield None if isinstance(found, str) else list(found.values())


def disagreement(
    old: Arrays, new: Arrays, exact: Arrays | None, bit_equal: bool, *, step: float = 0.0, beyond: float = 0.0
) -> str | None:
    """Why `new` is not as good as `old`, judged against `exact`; `None` if it is.

    A few numbers may differ by a `step`, and all by the share `beyond` of their size.
    """
    for index, (before, after) in enumerate(zip(old, new, strict=True)):
        if before.shape != after.shape or before.dtype != after.dtype:
            return f"output {index} is {after.dtype}{list(after.shape)} instead of {before.dtype}{list(before.shape)}"
        if not is_float(before):
            if not np.array_equal(before, after):
                return f"output {index} is not the same bits"
            continue
        wide_before, wide_after = np.asarray(before, np.float64), np.asarray(after, np.float64)  # numbers of rank 0 too
        problem = (
            _other_bits(before, after)
            if bit_equal
            else _other_infinities(wide_before, wide_after)
            or _too_far(
                wide_before,
                wide_after,
                None if exact is None else np.asarray(exact[index], np.float64),
                before.dtype,
                beyond,
            )
        )
        if problem is not None and not _is_a_step_beside(wide_before, wide_after, step):
            return f"output {index} {problem}"
    return None


def _is_a_step_beside(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any], step: float) -> bool:
    """Whether a few numbers differ by the step, and the others hardly at all."""
    if step <= 0:
        return False
    apart = np.abs(after - before)
    beside = apart > 1e-3 * step
    return bool(np.all(apart <= 1.001 * step) and beside.sum() <= 1 + MOST_BESIDE * beside.size)


def is_far_from(old: Arrays, new: Arrays) -> bool:
    """Whether some output is so far from what it was that this cannot be a matter of precision."""
    for before, after in zip(old, new, strict=True):
        if is_float(before) and np.isfinite(before).all():
            wide = before.astype(np.float64)
            size, error = np.linalg.norm(wide), np.linalg.norm(after.astype(np.float64) - wide)
            if not error <= MOST_LOST * size + np.finfo(np.float32).tiny:
                return True
    return False


def is_float(array: np.ndarray[Any, Any]) -> bool:
    """Whether the array holds floating-point numbers, including bfloat16 (which numpy does not know itself)."""
    return bool(array.dtype.kind == "f" or array.dtype.name == "bfloat16")


def _other_bits(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> str | None:
    """Describe bits that differ, except between two NaN; `None` if there are none."""
    number = ~np.isnan(before.astype(np.float64))
    same = np.array_equal(number, ~np.isnan(after.astype(np.float64)))
    return None if same and before[number].tobytes() == after[number].tobytes() else "is not the same bits"


def _other_infinities(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> str | None:
    if not np.array_equal(np.isnan(before), np.isnan(after)):
        return "has NaN elsewhere"
    infinite = np.isinf(before) | np.isinf(after)
    return None if np.array_equal(before[infinite], after[infinite]) else "has infinities elsewhere"


def _too_far(
    before: np.ndarray[Any, Any],
    after: np.ndarray[Any, Any],
    exact: np.ndarray[Any, Any] | None,
    dtype: Any,
    beyond: float,
) -> str | None:
    truth = before if exact is None else exact
    finite = np.isfinite(before) & np.isfinite(truth)
    if not finite.any():
        return None
    scale = float(np.abs(truth[finite]).max())
    info = np.finfo(dtype) if dtype.kind == "f" else None
    step, smallest = (float(info.eps), float(info.tiny)) if info is not None else (2.0**-7, 2.0**-126)
    allowed = (
        FACTOR * float(np.abs(before[finite] - truth[finite]).max())
        + ROUNDINGS * (step * scale + smallest)
        + beyond * scale
    )
    error = float(np.abs(after[finite] - truth[finite]).max())
    return f"is off by {error:.3g}, more than {allowed:.3g}" if error > allowed else None
