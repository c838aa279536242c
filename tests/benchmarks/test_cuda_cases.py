"""The uses of operators that are tried on a GPU: their formulas agree with functions that stand for kernels in other tests."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from packed_attention import BODIES, as_functions

from benchmarks.kernels.measure import _cast, _model
from benchmarks.targets.cuda.more_cases import packed_attention


@pytest.mark.parametrize("body", BODIES)
def test_attention_of_packed_tokens_is_that_of_each_sequence(body: str) -> None:
    cases = [case for case in packed_attention() if case.inputs[3] is None]
    assert cases
    for case in cases:
        arrays = [None if array is None else _cast(array, "float") for array in case.inputs]
        model, _ = as_functions(_model(case, arrays), body)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {f"x{number}": array for number, array in enumerate(arrays) if array is not None})
        np.testing.assert_allclose(found, case.expected[0], atol=1e-4)
