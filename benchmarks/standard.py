"""The standard's own tests: what the runtime passes, it must pass after `optimize` with every pass, with the same outputs.

    python benchmarks/standard.py          # all node tests of onnx.backend.test; figures go to results/standard.json

`tests/test_standard.py` runs a sample of them.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from rich.progress import track

from ortfuse.errors import VerificationError
from ortfuse.pipeline import PassManager
from ortfuse.validate import Session

RESULTS = Path(__file__).parent / "results" / "standard.json"
MANAGER = PassManager("all")
NOT_EXECUTED = "the runtime does not execute the original"


def cases() -> list[Any]:
    """Every node test that the installed onnx package generates."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(collect_testcases(None))


def same(one: Any, other: Any) -> bool:
    """Whether two outputs (arrays, sequences, optionals) are the same within rounding."""
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    if one is None or other is None:
        return one is other
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    near = 2e-3 if one.dtype.itemsize == 2 else 1e-5
    return bool(
        np.allclose(one.astype(np.float64), other.astype(np.float64), rtol=20 * near, atol=near, equal_nan=True)
    )


def verdict(case: Any) -> str:
    """`same`, `differs`, or that the runtime does not execute the original."""
    names = [value.name for value in case.model.graph.input]
    given = {name: array for name, array in zip(names, case.data_sets[0][0], strict=False) if array is not None}
    try:
        before = Session(case.model.SerializeToString(), optimise=False).run(given)
    except VerificationError:
        return NOT_EXECUTED
    after = Session(MANAGER.run(case.model).model.SerializeToString(), optimise=False).run(given)
    kept = before.keys() == after.keys() and all(same(before[name], after[name]) for name in before)
    return "same" if kept else "differs"


def main() -> int:
    """Run all; the exit code is 1 if one differs."""
    found: Counter[str] = Counter()
    broken = []
    for case in track(cases(), description="node tests"):
        answer = verdict(case)
        found[answer] += 1
        if answer == "differs":
            broken.append(case.name)
    result = {
        "command": "python benchmarks/standard.py",
        "onnx": onnx.__version__,
        "onnxruntime": onnxruntime.__version__,
        "tests": dict(found),
        "broken": broken,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
