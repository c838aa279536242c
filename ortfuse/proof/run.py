"""Running instances: the rule on a copy, both sides in ONNX Runtime, and the original in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.ir.facts import Facts
from ortfuse.rewrite import Log, Rewriter, Rule
from ortfuse.target import Target, raise_opset
from ortfuse.validate import Reference, Session

Arrays = list[np.ndarray[Any, Any]]

FACTOR = 4.0
"""The replacement may be this much further from float64 than the original, beyond rounding of the result's scale."""


@dataclass
class Rewritten:
    """What a rule made of an instance."""

    model: ir.Model
    hits: int
    reason: str


def rewrite(rule: Rule, model: ir.Model, target: Target) -> Rewritten:
    """Apply `rule` alone to a copy of `model`, raising the opset if the result needs it."""
    copy = model.clone()
    log = Log(explain=True)
    hits = Rewriter(copy, Facts(copy), target, log).run([rule])
    deepest = max(log.misses.values(), key=lambda miss: miss.matched, default=None)
    needed = max((node.version or 0 for node in copy.graph if not node.domain), default=0)
    if needed > copy.graph.opset_imports.get("", 1):
        raise_opset(copy, needed)
    return Rewritten(copy, hits, deepest.reason if deepest else "no node has the operator at the pattern's root")


def in_float64(model: ir.Model, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Arrays | None:
    """The outputs of a model built in float64; `None` where neither the runtime nor ONNX's reference can evaluate it."""
    widened = {name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in inputs.items()}
    found = Reference(model).run(widened)
    return None if found is None else list(found.values())


def disagreement(old: Arrays, new: Arrays, exact: Arrays | None, bit_equal: bool) -> str | None:
    """Why `new` is not as good as `old`, judged by `exact`; `None` when it is."""
    for index, (before, after) in enumerate(zip(old, new, strict=True)):
        if before.shape != after.shape or before.dtype != after.dtype:
            return f"output {index} is {after.dtype}{list(after.shape)} instead of {before.dtype}{list(before.shape)}"
        if bit_equal or before.dtype.kind != "f":
            if not np.array_equal(before, after, equal_nan=before.dtype.kind == "f"):
                return f"output {index} is not the same bits"
            continue
        if not np.array_equal(np.isnan(before), np.isnan(after)):
            return f"output {index} has NaN elsewhere"
        truth = (exact[index] if exact is not None else before).astype(np.float64)
        finite = np.isfinite(before) & np.isfinite(after) & np.isfinite(truth)
        if not finite.any():
            continue
        scale = float(np.abs(truth[finite]).max(initial=0.0))
        allowed = FACTOR * float(np.abs(before[finite] - truth[finite]).max(initial=0.0))
        allowed += 32 * float(np.finfo(before.dtype).eps) * max(scale, 1.0)
        error = float(np.abs(after[finite] - truth[finite]).max(initial=0.0))
        if error > allowed:
            return f"output {index} is off by {error:.3g}, more than {allowed:.3g}"
    return None


def runs(model: ir.Model, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Arrays | None:
    """The outputs without the runtime's own optimisations; `None` if it refuses the model, which is then no instance."""
    try:
        return list(Session(model, optimise=False, threads=1).run(inputs).values())
    except VerificationError:
        return None
