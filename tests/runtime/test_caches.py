"""Which inputs are caches, and that a model is run with empty ones."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

from ortfuse.runtime.inputs.find_kv_caches import caches_of
from ortfuse.runtime.reference_runs import experiments

APPENDED = """g (float[b, 2, past, 4] k, float[b, 2, s, 4] new, int64[b, total] mask) => (float[b, 2, t, 4] out, int64[4] sizes)
    { made = Relu(new)  out = Concat<axis = -2>(k, made)  sizes = Shape(k)  masked = Cast<to = 1>(mask) }"""


def model_of(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}'))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (APPENDED, {"past"}),
        (APPENDED.replace("axis = -2", "axis = 2"), {"past"}),
        (APPENDED.replace("axis = -2", "axis = 0"), set()),
        (APPENDED.replace("sizes = Shape(k)", "sizes = Shape(k) other = Relu(k)"), set()),
        (APPENDED.replace("int64[b, total]", "int64[b, past]"), set()),
    ],
)
def test_what_is_only_appended_to_is_a_cache(text: str, found: set[str]) -> None:
    assert caches_of(model_of(text)) == found


def test_a_model_is_run_with_empty_caches_too() -> None:
    ran, notes = experiments(model_of(APPENDED), reference=False)
    assert [one.inputs["k"].shape[2] == 0 for one in ran] == [False] * 4 + [True]
    assert not notes


def test_a_model_that_refuses_empty_caches_is_not_run_with_them() -> None:
    first = "at = Constant<value_ints = [0]>() old = Concat<axis = -2>(k) one = Gather<axis = 2>(old, at) made = "
    refuses = APPENDED.replace("made = ", first).replace(
        "(float[b, 2, t, 4] out", "(float[b, 2, 1, 4] one, float[b, 2, t, 4] out"
    )
    ran, notes = experiments(model_of(refuses), reference=False)
    assert all(one.inputs["k"].shape[2] for one in ran)
    assert not any("past=0" in note for note in notes)
