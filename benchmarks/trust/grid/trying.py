"""Puts a cell to the test: what is known, folded and optimised must agree with what the runtime computes."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.trust.grid.cells import Cell
from benchmarks.trust.grid.judge import Judge
from benchmarks.trust.standard import same
from ortfuse import optimize
from ortfuse.errors import OrtfuseError
from ortfuse.execution.session import Session
from ortfuse.facts.facts import Facts
from ortfuse.model.interop import enter
from ortfuse.passes import Context
from ortfuse.passes.fold import Fold
from ortfuse.targets import Target

FACTS, FOLDED, OPTIMISED, RAISED, REFUSED = "facts", "folding", "optimising", "raised", "refused"


@dataclass(frozen=True)
class Failure:
    """What is wrong with a cell: of which kind, and the details."""

    kind: str
    details: str


def failures(cell: Cell) -> list[Failure] | None:
    """What is wrong with a cell; `None` if the runtime does not run it."""
    session = _session(cell.model)
    if session is None:
        return None
    runs = [(feeds, sizes, results) for feeds, sizes in cell.runs if (results := _run(session, feeds)) is not None]
    if not runs:
        return None
    model = _typed(cell.model, runs[0][2])
    checks = [_facts, _folding if cell.constant else _optimising]
    found = []
    for check in checks:
        try:
            found += check(model, session, runs)
        except OrtfuseError as error:
            found.append(Failure(REFUSED, f"{check.__name__[1:]}: {error}"))
        except Exception:
            found.append(Failure(RAISED, f"{check.__name__[1:]}: {traceback.format_exc(limit=-3)}"))
    return found


def _session(model: onnx.ModelProto) -> Session | None:
    try:
        return Session(model.SerializeToString(), optimise=False, threads=1, lean=True)
    except OrtfuseError:
        return None


def _run(session: Session, feeds: dict[str, Any]) -> dict[str, Any] | None:
    try:
        return session.run(feeds)
    except OrtfuseError:
        return None


def _typed(model: onnx.ModelProto, results: dict[str, Any]) -> onnx.ModelProto:
    """The model with the element types of its outputs, which every model has."""
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    for output in typed.graph.output:
        array = results[output.name]
        if isinstance(array, np.ndarray | np.generic):
            kind = onnx.TensorProto.STRING
            if array.dtype.kind not in "OSU":
                kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            output.type.tensor_type.elem_type = kind
        elif isinstance(array, list) and array and isinstance(array[0], np.ndarray):
            kind = onnx.helper.np_dtype_to_tensor_dtype(array[0].dtype)
            output.type.sequence_type.elem_type.tensor_type.elem_type = kind
    return typed


Runs = list[tuple[dict[str, Any], dict[str, int], dict[str, Any]]]


def _facts(proto: onnx.ModelProto, session: Session, runs: Runs) -> list[Failure]:
    """Every fact about the outputs holds for what they really are."""
    model = ir.from_proto(proto)
    facts, wrong = Facts(model), dict[str, None]()
    for _, sizes, results in runs:
        judge = Judge(facts, sizes)
        for value in model.graph.outputs:
            real = results[value.name or ""]
            if isinstance(real, np.ndarray | np.generic):
                judge.judge(value, np.asarray(real))
        wrong.update(dict.fromkeys(f"{sizes}: {one}" if len(runs) > 1 else one for one in judge.wrong))
    return [Failure(FACTS, one) for one in list(wrong)[:2]]


def _folding(proto: onnx.ModelProto, session: Session, runs: Runs) -> list[Failure]:
    """What is folded has the bits that the runtime computes."""
    model, _ = enter(proto)
    Fold().run(Context(model, Facts(model), Target()))
    found = []
    ((_, _, results),) = runs
    for output in model.graph.outputs:
        if output.const_value is None:
            continue
        folded, real = output.const_value.numpy(), np.asarray(results[output.name or ""])
        if not identical(folded, real):
            again = _run(session, {}) or {}
            why = (
                "" if identical(real, np.asarray(again.get(output.name or ""))) else " (which differs from run to run)"
            )
            found.append(Failure(FOLDED, f"{output.name}: {_short(folded)}, really{why} {_short(real)}"))
    return found


def _optimising(proto: onnx.ModelProto, session: Session, runs: Runs) -> list[Failure]:
    """The optimised model computes the same."""
    result = optimize(proto, level="all").model
    after = _session(result)
    if after is None:
        return [Failure(OPTIMISED, "does not load")]
    for feeds, _, results in runs:
        found = _run(after, feeds)
        if found is None:
            return [Failure(OPTIMISED, "does not run")]
        for name, expected in results.items():
            if name not in found or not same(expected, found[name]):
                again = _run(session, feeds) or {}
                if same(expected, again.get(name)):
                    return [Failure(OPTIMISED, f"{name}: {_short(found.get(name))}, was {_short(expected)}")]
    return []


def identical(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays have the same bits; one NaN is like another."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return (
            one.dtype.kind in "OSU"
            and one.shape == other.shape
            and [*map(_text, one.flat)] == [*map(_text, other.flat)]
        )
    if one.dtype.kind not in "fV":
        return bool(np.array_equal(one, other))
    with np.errstate(all="ignore"):
        nan = np.isnan(one.astype(np.float64)), np.isnan(other.astype(np.float64))
    bits = f"u{one.dtype.itemsize}"
    return np.array_equal(*nan) and np.array_equal(one[~nan[0]].view(bits), other[~nan[1]].view(bits))


def _text(one: Any) -> str:
    return one.decode(errors="replace") if isinstance(one, bytes) else str(one)


def _short(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return repr(value)[:80]
    return f"{value.dtype}{list(value.shape)} {' '.join(map(str, value.reshape(-1)[:12].tolist()))}"
