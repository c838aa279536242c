"""Whether what ortfuse makes of a model is valid, runs where the original runs, and computes the same."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import ortfuse
from ortfuse.errors import VerificationError
from ortfuse.ir.walk import graphs, own_values
from ortfuse.runtime.comparison import compare_all
from ortfuse.runtime.float64.reference import Reference
from ortfuse.runtime.session import Session

from .builder import Array, session

SECONDS = 60
"""After which optimising a small model counts as hanging."""

Feeds = dict[str, Array]


@dataclass(frozen=True)
class Failure:
    """What went wrong: a kind (`exception`, `invalid`, `refused`, `outputs`, ...), the site of it, and details."""

    kind: str
    where: str
    detail: str

    @property
    def signature(self) -> str:
        """What failures of one cause have in common."""
        return f"{self.kind}: {self.where}"


class HangError(BaseException):
    """Time is up; no `except Exception` may hide it."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise after so many seconds."""

    def ring(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def judge(
    model: onnx.ModelProto,
    feeds: Sequence[Feeds],
    seconds: int = SECONDS,
    on_stage: Callable[[str], object] = lambda stage: None,
    **options: Any,
) -> tuple[Failure | None, dict[str, int]]:
    """A failure if there is one, and how often each rule was applied; the first of the feeds must run.

    `on_stage` is told what is done next.

    Raises:
        VerificationError: The runtime does not execute the model on the first feeds.
    """
    on_stage("running the original")
    original = ir.from_proto(model)
    ran = _run_all(Session(original, optimise=False, threads=1), feeds)
    on_stage("optimising")
    try:
        with limited(seconds):
            result = ortfuse.optimize(model, level="all", **options)
    except HangError:
        return Failure("hang", _place(), f"more than {seconds} s"), {}
    except Exception as error:
        return Failure("exception", f"{type(error).__name__} {_place()}", traceback.format_exc()[-2000:]), {}
    if result.report.failures or result.unchanged:
        return Failure("exception", "; ".join(result.report.failures) or result.unchanged, ""), {}
    hits = result.report.log.hits()
    on_stage("running the result")
    exact = not result.report.log.rounded and not _is_of_half_precision(original)
    return _invalid(model, result.model) or _wrong(original, result.model, ran, hits, exact), hits


def _is_of_half_precision(model: ir.Model) -> bool:
    """Whether there may be float16, which the runtime computes in float32 and rounds only between some nodes.

    Without a node that moves numbers between two that compute, nothing is rounded there any more.
    """
    return any(ir.DataType.FLOAT16 in (value.dtype for value in own_values(graph)) for graph in graphs(model))


def _run_all(session: Session, feeds: Sequence[Feeds]) -> list[tuple[Feeds, dict[str, Any]]]:
    ran = [(feeds[0], session.run(feeds[0]))]
    for other in feeds[1:]:
        try:
            ran.append((other, session.run(other)))
        except VerificationError:
            continue
    return ran


def _place() -> str:
    """Where an exception came from: the innermost two functions of ortfuse."""
    import sys

    frames = [f for f in traceback.extract_tb(sys.exc_info()[2]) if "ortfuse" in f.filename or "patterns" in f.filename]
    return " < ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.name}" for frame in reversed(frames[-2:]))


def _invalid(before: onnx.ModelProto, after: onnx.ModelProto) -> Failure | None:
    names = lambda model: ([v.name for v in model.graph.input], [v.name for v in model.graph.output])  # noqa: E731
    if names(before) != names(after):
        return Failure("interface", "names", f"{names(before)} became {names(after)}")
    for old, new in zip(before.graph.output, after.graph.output, strict=True):
        if old.type.tensor_type.elem_type != new.type.tensor_type.elem_type:
            return Failure("interface", "element types", f"{old} became {new}")
    try:
        onnx.checker.check_model(before)
    except onnx.checker.ValidationError:
        return None  # the checker knows nothing of some operators and versions that the runtime has
    try:
        onnx.checker.check_model(_only_standard(after))
    except onnx.checker.ValidationError as error:
        return Failure("invalid", str(error).splitlines()[0][:80], str(error))
    return None


def _only_standard(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the operators that the runtime keeps in ONNX's own domain moved into one that is not checked."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if node.op_type == "SimplifiedLayerNormalization":
            node.domain = "com.microsoft"
    return copy


def _wrong(
    original: ir.Model,
    result: onnx.ModelProto,
    ran: list[tuple[Feeds, dict[str, Any]]],
    hits: dict[str, int],
    exact: bool,
) -> Failure | None:
    candidate = ir.from_proto(result)
    rules = " ".join(sorted(hits)) or "no rule"
    for optimise in (False, True):
        try:
            running = Session(candidate, optimise=optimise, threads=1)
        except VerificationError as error:
            if optimise and _runtime_is_wrong(original, ran[0]):
                continue
            return Failure("refused", f"optimise={optimise} {str(error)[:80]}", f"{rules}: {error}")
        for feeds, expected in ran:
            try:
                found = running.run(feeds)
            except VerificationError as error:
                if optimise and _runtime_is_wrong(original, (feeds, expected)):
                    continue
                return Failure("cannot run", f"optimise={optimise} {rules}", str(error))
            failure = _difference(original, candidate, feeds, expected, found, exact and not optimise, rules)
            if failure is not None and not (optimise and _runtime_is_wrong(original, (feeds, expected))):
                return Failure(failure.kind, f"optimise={optimise} {failure.where}", failure.detail)
    return None


def _runtime_is_wrong(original: ir.Model, ran: tuple[Feeds, dict[str, Any]]) -> bool:
    """Whether the runtime's own optimisations make the original fail or go wrong too."""
    feeds, expected = ran
    try:
        found = Session(original, optimise=True, threads=1).run(feeds)
    except VerificationError:
        return True
    return _difference(original, original, feeds, expected, found, False, "") is not None


def _difference(
    original: ir.Model,
    candidate: ir.Model,
    feeds: Feeds,
    expected: dict[str, Any],
    found: dict[str, Any],
    exact: bool,
    rules: str,
) -> Failure | None:
    if exact:
        unequal = [name for name, array in expected.items() if not _equal(array, found[name])]
        if unequal and not _same_unpacked(original, candidate, feeds):
            return Failure("bits", rules, f"{unequal[0]}: {expected[unequal[0]]!r} became {found[unequal[0]]!r}"[:1500])
        return None
    if all(difference.ok for difference in compare_all(expected, found, None, None)):
        return None
    truth = Reference(original).run(feeds)
    wrong = [d for d in compare_all(expected, found, truth, None) if not d.ok]
    wrong = [d for d in wrong if not _is_sensitive(original, feeds, expected, found, d.output)]
    if not wrong:
        return None
    name = wrong[0].output
    return Failure("outputs", rules, f"{name}: {wrong[0].reason}\n{expected[name]!r}\nbecame\n{found[name]!r}"[:2500])


def _same_unpacked(original: ir.Model, candidate: ir.Model, feeds: Feeds) -> bool:
    """Whether the bits are the same where weights are not packed.

    Products of constants are folded, by ortfuse as by the runtime itself, by kernels without packed weights.
    """
    one, other = (session(ir.to_proto(model), packed=False).run(None, feeds) for model in (original, candidate))
    return all(_equal(before, after) for before, after in zip(one, other, strict=True))


def _equal(expected: Any, found: Any) -> bool:
    if not isinstance(expected, np.ndarray) or expected.dtype.kind in "OSU":
        return bool(np.array_equal(expected, found))
    return (
        expected.dtype == found.dtype
        and expected.shape == found.shape
        and np.array_equal(expected, found, equal_nan=expected.dtype.kind == "f")
    )


def _is_sensitive(original: ir.Model, feeds: Feeds, expected: dict[str, Any], found: dict[str, Any], name: str) -> bool:
    """Whether inputs changed by roundings change this output as much: then no rounding elsewhere is a mistake."""
    array, other = expected[name], found[name]
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or array.shape != other.shape:
        return False
    if not np.array_equal(np.isfinite(array), np.isfinite(other)):
        return False
    running, moved = Session(original, optimise=False, threads=1), 0.0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        shaken = {
            key: (value * (1 + rng.uniform(-4, 4, value.shape) * np.finfo(value.dtype).eps)).astype(value.dtype)
            if value.dtype.kind == "f"
            else value
            for key, value in feeds.items()
        }
        try:
            changed = running.run(shaken)[name]
        except VerificationError:
            return False
        with np.errstate(all="ignore"):
            moved = max(moved, float(np.nanmax(np.abs(changed.astype(float) - array.astype(float)), initial=0)))
    with np.errstate(all="ignore"):
        return bool(np.nanmax(np.abs(other.astype(float) - array.astype(float)), initial=0) <= 16 * moved)
