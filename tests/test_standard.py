"""A sample of the standard's own tests: what the runtime passes, it passes after `optimize` too."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from onnx.backend.test.case.node import collect_testcases

from ortfuse.errors import VerificationError
from ortfuse.pipeline import PassManager
from ortfuse.validate import Session

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    CASES = [case for case in collect_testcases(None) if len(case.model.graph.node) > 1]
MANAGER = PassManager("all")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(_same, one, other))
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


@pytest.mark.parametrize("case", CASES[::3], ids=lambda case: case.name)
def test_what_the_runtime_passes_it_still_passes(case: Any) -> None:
    names = [value.name for value in case.model.graph.input]
    given = {name: array for name, array in zip(names, case.data_sets[0][0], strict=False) if array is not None}
    try:
        before = Session(case.model.SerializeToString(), optimise=False).run(given)
    except VerificationError:
        pytest.skip("the runtime does not execute the original")
    after = Session(MANAGER.run(case.model).model.SerializeToString(), optimise=False).run(given)
    assert before.keys() == after.keys()
    assert all(_same(before[name], after[name]) for name in before)
