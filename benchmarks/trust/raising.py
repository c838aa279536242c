"""Raising the opset of single operators: the same bits, or a refusal.

    python -m benchmarks.trust.raising                        # everything
    python -m benchmarks.trust.raising --write                # the same; writes the summary
    python -m benchmarks.trust.raising --one-in 50 --seed 3   # a sample
    python -m benchmarks.trust.raising --most 50              # of each operator about so many cells
    python -m benchmarks.trust.raising Clip Dropout           # these operators

The models are the cells of the conformance grid (`benchmarks.trust.operators`): every operator of ai.onnx, every opset since 7
at which it changed, element types, attributes away from their defaults, inputs and outputs present or absent. Each is raised to
every later opset at which the operator changed and to the newest one, and run without the runtime's optimisations.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import onnx_ir as ir

from benchmarks.results import Results
from benchmarks.trust.grid.cells import Cell, Sample, about, cells
from benchmarks.trust.grid.known import is_known
from benchmarks.trust.grid.seeds import seeds, versions
from benchmarks.trust.grid.trying import OPTIMISED, Failure
from benchmarks.trust.standard import same
from ortfuse.errors import OrtfuseError, TargetError, VerificationError
from ortfuse.io.convert_model_objects import enter
from ortfuse.runtime.session import Session
from ortfuse.targets import raise_opset

NEWEST = 26
SHOWN, SUMMED = 400, 110
"""Characters of an error that are printed, and in the summary."""

SAME, ROUNDED, REFUSED, NOT_RUN = "same", "rounded otherwise", "refused", "the runtime does not run it"
FINE = frozenset({SAME, ROUNDED, REFUSED, NOT_RUN})


def outcome(cell: Cell, opset: int) -> str:
    """Return one of `FINE`, or the failure in words. The runtime's kernels of two opsets may round otherwise (AveragePool 19)."""
    try:
        session = Session(cell.model.SerializeToString(), optimise=False, lean=True)
        expected = [session.run(feeds) for feeds, _ in cell.runs[:1]]
    except VerificationError:
        return NOT_RUN
    try:
        model = enter(cell.model)[0]
        raise_opset(model, opset)
    except TargetError:
        return REFUSED
    except OrtfuseError as error:
        return f"not taken in: {error}"[:SHOWN]
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:SHOWN]
    try:
        raised = Session(ir.to_proto(model).SerializeToString(), optimise=False, lean=True)
        found = [raised.run(feeds) for feeds, _ in cell.runs[:1]]
    except VerificationError as error:
        return f"does not run: {error}"[:SHOWN]
    if is_known(cell, Failure(OPTIMISED, "")) or saturates_strangely(cell):
        return NOT_RUN
    if all_are(equal, expected, found):
        return SAME
    return ROUNDED if all_are(same, expected, found) else "differs"


def saturates_strangely(cell: Cell) -> bool:
    """Casts with a `saturate` that is neither 0 nor 1 leave the result as the memory was."""
    value = cell.seed.attributes.get("saturate")
    return cell.seed.op_type in ("Cast", "CastLike") and value is not None and value.i not in (0, 1)


def all_are(alike: Callable[[Any, Any], bool], before: list[dict[str, Any]], after: list[dict[str, Any]]) -> bool:
    """Whether all outputs of all runs are alike."""
    return all(
        one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
        for one, other in zip(before, after, strict=True)
    )


def equal(one: Any, other: Any) -> bool:
    """Whether two outputs have the same bits."""
    if isinstance(one, list) or isinstance(other, list):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool((one == other).all()) if one.dtype.kind in "OSU" else one.tobytes() == other.tobytes()


def opsets_above(cell: Cell) -> list[int]:
    """The opsets to raise a cell to."""
    (version,) = [one.version for one in cell.model.opset_import if not one.domain]
    later = [other for other in versions("", cell.seed.op_type) if other > version]
    return sorted({*later, NEWEST})


def brief(result: dict[str, Any]) -> dict[str, Any]:
    """Return the summary: of each wrong one the label and the first words."""
    return {**result, "wrong": [one[:SUMMED] for one in result["wrong"]]}


def main() -> int:
    """Raise the cells of some operators, or of all; the exit code is 1 if one is wrong."""
    parser = argparse.ArgumentParser(description="Raising the opset of single operators.")
    parser.add_argument("operators", nargs="*", help="names of operators; all of ai.onnx by default")
    parser.add_argument("--one-in", type=int, default=1, help="raise one of so many cells")
    parser.add_argument("--most", type=int, default=0, help="raise about so many cells of each operator")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--write", action="store_true", help="write the summary")
    given = parser.parse_args()
    if given.write and given.operators:
        parser.error("the summary is about all operators; leave out --write or the names")
    warnings.simplefilter("ignore")
    started = time.monotonic()
    counts: Counter[str] = Counter()
    wrong = []
    chosen = given.operators or [name for name, found in seeds().items() if not found[0].domain]
    drawn = (about(given.most, given.seed, name) for name in chosen)
    for cell in chain(*drawn) if given.most else cells(Sample(given.one_in, given.seed), frozenset(chosen)):
        for opset in opsets_above(cell):
            found = outcome(cell, opset)
            counts[found if found in FINE else "wrong"] += 1
            if found not in FINE:
                wrong.append(f"{cell.label} to {opset}: {found}")
                print(wrong[-1], flush=True)
            if found == NOT_RUN:
                break
    result = {
        "raised": dict(sorted(counts.items())),
        "seconds": round(time.monotonic() - started),
        "wrong": wrong,
    }
    if given.write:
        command = " ".join(["python -m benchmarks.trust.raising", *sys.argv[1:]])
        Results("trust.raising").store(command, brief(result), raw=result)
    print(json.dumps(result["raised"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
