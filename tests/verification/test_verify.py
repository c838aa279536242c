"""That a verdict finds what is wrong and says where."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from small_graphs import model

from ortfuse.errors import VerificationError
from ortfuse.io.load_and_save import load
from ortfuse.runtime.comparison import failed
from ortfuse.verification import Trial, Verdict, experiments, judge, verify

GOLDEN = Path(__file__).parents[2] / "golden" / "models"


def test_the_same_function_in_other_operators_is_equal() -> None:
    verdict = verify(model("y = Mul(x, x)"), model("y = Pow(x, two)", initializers="<float two = {2.0}>"))
    assert verdict.ok
    assert verdict.summary().startswith("equal on 8 runs, largest error ")
    assert "against float64" in verdict.summary()
    assert verdict.notes == []


def test_a_changed_weight_is_found_with_output_element_and_sizes() -> None:
    before = model("y = Mul(x, w)", initializers="<float[3] w = {1.0, 2.0, 3.0}>")
    after = model("y = Mul(x, w)", initializers="<float[3] w = {1.0, 2.01, 3.0}>")
    verdict = verify(before, after)
    assert not verdict.ok
    worst = verdict.worst
    assert worst is not None
    assert worst.output == "y"
    assert worst.element is not None
    assert worst.element[1] == 1
    assert "output 'y' differs at [" in verdict.summary()
    assert "with b=" in verdict.summary()


@pytest.mark.parametrize("name", ["bert.sdpa.ts", "bert.eager.dynamo", "resnet.dynamo"])
def test_one_changed_weight_of_a_golden_model_is_found(name: str) -> None:
    original, changed = load(GOLDEN / f"{name}.onnx"), load(GOLDEN / f"{name}.onnx")
    assert verify(original, changed).ok
    weights = [value for value in changed.graph.initializers.values() if len(value.shape or ()) == 2]
    target = weights[len(weights) // 2] if len(weights) > 1 else weights[0]
    array = target.const_value.numpy().copy()
    array[0, 0] += 0.01
    target.const_value = ir.Tensor(array, name=target.name)
    verdict = verify(original, changed)
    assert not verdict.ok
    assert verdict.worst is not None
    assert verdict.worst.element is not None


def test_the_tanh_form_of_gelu_is_not_the_erf_form() -> None:
    header = '<ir_version: 10, opset_import: ["": 20]> g (float[b,64] x) => (float[b,64] y)'
    erf = ir.from_onnx_text(header + " { y = Gelu(x) }")
    tanh = ir.from_onnx_text(header + ' { y = Gelu<approximate = "tanh">(x) }')
    assert not verify(erf, tanh).ok
    assert verify(erf, tanh, tolerance=1e-2).ok


def test_an_epsilon_that_the_tolerance_would_let_pass_is_found_by_float64() -> None:
    one = model("y = LayerNormalization<epsilon = 0.00001>(x, s)", "float[b,64] x", "float[b,64] y", SCALE)
    other = model("y = LayerNormalization<epsilon = 0.00001002>(x, s)", "float[b,64] x", "float[b,64] y", SCALE)
    assert not verify(one, other).ok
    assert verify(one, other, reference=False).ok


SCALE = "<float[64] s = {" + ",".join(["1"] * 64) + "}>"


def test_wrong_integers_are_found() -> None:
    before = model("y = ArgMax<axis = 1, keepdims = 0>(x)", outputs="int64[b] y")
    after = model("y = ArgMin<axis = 1, keepdims = 0>(x)", outputs="int64[b] y")
    verdict = verify(before, after)
    assert not verdict.ok
    assert "elements differ" in verdict.summary()


def test_nan_where_the_original_has_none_is_found() -> None:
    verdict = verify(model("y = Abs(x)"), model("r = Sqrt(x) y = Mul(r, r)"))
    assert not verdict.ok
    assert verdict.worst is not None
    assert verdict.worst.found == "nan"


def test_a_frozen_dimension_is_found() -> None:
    before = model("y = Relu(x)", "float[b,s] x", "float[b,s] y")
    after = model("y = Relu(x)", "float[b,1] x", "float[b,1] y")
    verdict = verify(before, after)
    assert not verdict.ok
    assert "Got invalid dimensions for input: x" in verdict.summary()


def test_a_candidate_that_the_runtime_refuses_is_not_equal() -> None:
    verdict = verify(model("y = Relu(x)"), model("y = Unheard(x)"))
    assert not verdict.ok
    assert "refuses the model" in verdict.summary()


def test_models_with_other_inputs_or_outputs_are_not_compared() -> None:
    with pytest.raises(VerificationError, match="different outputs"):
        verify(model("y = Relu(x)"), model("z = Relu(x)", outputs="float[b,3] z"))
    with pytest.raises(VerificationError, match="different inputs"):
        verify(model("y = Relu(x)"), model("y = Relu(z)", "float[b,3] z"))
    two = "y = Relu(x) z = Abs(x)"
    with pytest.raises(VerificationError, match="different outputs"):
        verify(model(two, outputs="float[b,3] y, float[b,3] z"), model(two, outputs="float[b,3] z, float[b,3] y"))


def test_given_inputs_are_used() -> None:
    before, after = model("y = Abs(x)"), model("y = Relu(x)")
    assert verify(before, after, inputs=[{"x": np.ones((2, 3), np.float32)}]).ok
    assert not verify(before, after, inputs=[{"x": -np.ones((2, 3), np.float32)}]).ok


def test_candidates_are_judged_against_one_run_of_the_original() -> None:
    original = model("y = Mul(x, w)", initializers="<float w = {2.0}>")
    found, _ = experiments(original)
    original.graph.initializers["w"].const_value = ir.Tensor(np.float32(3.0), name="w")
    assert not all(trial.ok for trial in judge(found, original))
    assert all(trial.ok for trial in judge(found, model("y = Add(x, x)")))


def test_an_error_only_with_the_runtimes_own_optimisations_is_called_that() -> None:
    verdict = Verdict([Trial("b=1", False, []), Trial("b=1", True, [failed("y", "wrong")])])
    assert verdict.only_optimised
    assert "only with the runtime's own optimisations" in verdict.summary()
    assert not Verdict([Trial("b=1", False, [failed("y", "wrong")])]).only_optimised


def test_nothing_compared_is_not_equal() -> None:
    assert not Verdict().ok
    assert "nothing could be compared" in Verdict().summary()


def test_a_verdict_is_data_for_json() -> None:
    content = verify(model("y = Relu(x)"), model("y = Unheard(x)")).to_dict()
    assert json.loads(json.dumps(content, allow_nan=False))["ok"] is False
