"""What a benchmark reports (never how fast anything is)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortfuse.bench import executed_ops, measure, table

TEXT = '<ir_version: 9, opset_import: ["": 18]> g (float[2,3] x) => (float[2,3] y) { t = Relu(x) y = Sigmoid(t) }'


def test_every_model_is_measured_and_the_first_is_the_yardstick() -> None:
    one, other = ir.from_onnx_text(TEXT), ir.from_onnx_text(TEXT)
    rows = measure({"one": one, "other": other}, {"x": np.ones((2, 3), np.float32)}, rounds=4, warmup=1)
    assert [row.name for row in rows] == ["one", "other"]
    assert rows[0].speedup == 1.0
    assert all(row.median_ms > 0 and row.low_ms <= row.median_ms <= row.high_ms for row in rows)
    assert rows[0].nodes == 2
    assert table(rows).row_count == 2
    assert rows[1].to_dict()["name"] == "other"


def test_executed_operators_are_those_after_the_runtimes_own_optimisations() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 9, opset_import: ["": 18]> g (float[2,3] x) => (float[2,3] y) { t = Identity(x) y = Relu(t) }'
    )
    assert executed_ops(model) == {"Relu": 1}
