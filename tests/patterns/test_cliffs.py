"""Other spellings of operators that are slow: what is spelled anew, what is not, and that it stays right."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import ops, parse, rewritten, same

X = np.array([[np.nan, np.inf, -np.inf, -0.0, 0.0], [1e-40, 1e38, 4.0, -4.0, 2.0]], np.float32)
NUMBERS = """float half = {0.5}, int64[1] last = {1}, int64[3] row = {1, 2, 3}, int64[2] gap = {1, 3}, int64[2] ends = {-2, -1},
    int64 one = {1}"""

RESPELLED = {
    "s = Abs(x) y = Pow(s, half)": "Abs Sqrt",
    "y = Pow(x, half)": "Pow",
    "y = Gather<axis=1>(x, row)": "Slice",
    "y = Gather<axis=-1>(x, gap)": "Gather",
    "y = Gather<axis=1>(x, ends)": "Gather",
    "y = ReduceLogSum(x, last)": "ReduceSum Log",
    "y = ReduceL1(x, last)": "Abs ReduceSum",
    "y = ReduceL1(x)": "ReduceL1",
}


@pytest.mark.parametrize("body", RESPELLED)
def test_a_slow_operator_is_spelled_anew(body: str) -> None:
    original = parse(
        f"""<ir_version: 9, opset_import: ["": 20]> g (float[n,5] x) => (float[n,m] y) <{NUMBERS}> {{ {body} }}"""
    )
    result = rewritten(original, "cliffs")
    assert ops(result) == RESPELLED[body]
    same(original, result, {"x": X})
