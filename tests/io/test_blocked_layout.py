"""That models in the runtime's blocked layout are told of."""

from __future__ import annotations

import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.io.blocked_layout import blocked_layout_note

BLOCKED = """<ir_version: 8, opset_import: ["": 17, "com.microsoft.nchwc": 1]>
g (float[1, 16, 4, 4] x) => (float[1, 16, 4, 4] y) {
    r = com.microsoft.nchwc.ReorderInput (x)  y = com.microsoft.nchwc.ReorderOutput <channels = 16> (r) }"""
PLAIN = """<ir_version: 8, opset_import: ["": 17, "com.microsoft.nchwc": 1]>
g (float[1, 16, 4, 4] x) => (float[1, 16, 4, 4] y) { y = Relu (x) }"""


@pytest.mark.fast
def test_the_report_says_that_blocks_are_for_one_processor() -> None:
    result = ortfuse.optimize(ir.from_onnx_text(BLOCKED), loaded=False)
    (note,) = (note for note in result.report.notes if "com.microsoft.nchwc" in note)
    assert note.startswith("2 of the nodes")
    assert "ORT_ENABLE_EXTENDED" in note


@pytest.mark.fast
def test_an_import_of_the_domain_alone_says_nothing() -> None:
    assert blocked_layout_note(ir.from_onnx_text(PLAIN)) is None
