"""The runtime never has to transpose more often in a golden model's result than in the model itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ortfuse.bench import executed_ops, typical_inputs
from ortfuse.model.io import load

sys.path.insert(0, str(Path(__file__).parents[2] / "golden"))
import suite

IN_PARTS = ("suppression",)
"""Parts are transposed one by one instead of all at once: the centres and sizes of boxes, without the scores of classes, which stay
as they are."""

ONE_OPERATOR = ("gru_cells", "gru_loop", "lstm_cells", "lstm_loop")
"""Steps that were taken apart are one operator, which has the steps first."""

NAMES = [name for name in suite.expected_names() if not name.startswith((*IN_PARTS, *ONE_OPERATOR))]


@pytest.mark.parametrize("name", NAMES)
def test_no_more_is_transposed_than_by_the_runtime_alone(name: str) -> None:
    executed = suite.executed(name)["Transpose"]
    if executed:
        original = load(suite.MODELS / f"{name}.onnx")
        assert executed <= executed_ops(original, typical_inputs(original)[1])["Transpose"]
