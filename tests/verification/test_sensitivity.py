"""That what a model amplifies by itself is not held against a result, and that nothing else is excused by it."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from small_graphs import model, ones

import ortfuse
from ortfuse.runtime.comparison import compare
from ortfuse.runtime.rounding_sensitivity import Sensitivity, shaken
from ortfuse.verification import experiments, verify
from ortfuse.verification.compare_regions import compare_places

CONSTANTS = "<float r = {3.99}, float wrong = {3.9902}, float one = {1.0}>"


def logistic(step: str, steps: int = 30, name: str = "h") -> str:
    """The logistic map r h (1 - h), which doubles every difference: `step` computes {new} from {old}."""
    lines = [f"{name}0 = Sigmoid(x)"]
    for k in range(steps):
        lines.append(step.replace("NEW", f"{name}{k + 1}").replace("OLD", f"{name}{k}").replace("#", f"{name}{k}"))
    return " ".join([*lines, f"y = Identity({name}{steps})"])


PLAIN = "a# = Mul(r, OLD) b# = Sub(one, OLD) NEW = Mul(a#, b#)"
REGROUPED = "b# = Sub(one, OLD) c# = Mul(OLD, b#) NEW = Mul(r, c#)"
WRONG = "a# = Mul(wrong, OLD) b# = Sub(one, OLD) NEW = Mul(a#, b#)"


def chaotic(step: str, steps: int = 30, name: str = "h"):
    return model(logistic(step, steps, name), initializers=CONSTANTS)


@pytest.mark.parametrize("name", ["h", "g"])
def test_what_a_chaotic_model_amplifies_is_equal_within_its_sensitivity(name: str) -> None:
    verdict = verify(chaotic(PLAIN), chaotic(REGROUPED, name=name))
    assert verdict.ok
    assert verdict.state == "equal within the model's own sensitivity"
    reason = verdict.excused["y"].reason
    assert "(inputs off by one rounding)" in reason
    assert "(weights off by one rounding)" in reason
    assert "in float64 both are" in reason
    assert json.loads(json.dumps(verdict.to_dict(), allow_nan=False))["state"] == verdict.state


def test_only_the_worst_run_is_weighed_where_time_is_over() -> None:
    verdict = verify(chaotic(PLAIN), chaotic(REGROUPED), budget=1e-9)
    assert verdict.ok
    assert any("are left out: the time for verifying is over (--verify-budget)" in note for note in verdict.notes)
    assert not verify(chaotic(PLAIN), chaotic(WRONG), budget=1e-9).ok


@pytest.mark.parametrize("name", ["h", "g"])
@pytest.mark.parametrize("steps", [12, 30])
def test_a_wrong_constant_in_a_chaotic_model_is_found(name: str, steps: int) -> None:
    verdict = verify(chaotic(PLAIN, steps), chaotic(WRONG, steps, name))
    assert verdict.state == "not equal"
    assert "the original by itself by" in verdict.summary()


def test_a_wrong_place_is_named_where_float64_tells_nothing() -> None:
    found, _ = experiments(chaotic(PLAIN))
    places = compare_places(chaotic(PLAIN), chaotic(WRONG), found[0])
    assert places is not None
    assert "'ah0' is another value already where it is computed" in places.wrong
    right = compare_places(chaotic(PLAIN), chaotic(REGROUPED), found[0])
    assert right is not None
    assert (right.wrong, right.count) == ("", 30)


def test_a_model_that_is_not_sensitive_is_judged_as_before() -> None:
    one = model(
        "y = LayerNormalization<epsilon = 0.00001>(x, s)", "float[b,8] x", "float[b,8] y", f"<{ones('float[8] s', 8)}>"
    )
    other = model(
        "y = LayerNormalization<epsilon = 0.0001>(x, s)", "float[b,8] x", "float[b,8] y", f"<{ones('float[8] s', 8)}>"
    )
    verdict = verify(one, other)
    assert verdict.state == "not equal"
    assert "the original by itself by" in verdict.summary()


def test_a_tolerance_of_the_users_is_taken_at_its_word() -> None:
    assert not verify(chaotic(PLAIN), chaotic(REGROUPED), tolerance=1e-4).ok


def test_the_front_door_writes_what_is_equal_within_the_sensitivity(tmp_path) -> None:
    from dataclasses import dataclass

    import onnx_ir as ir

    @dataclass(frozen=True)
    class Regroup:
        name: str = "regroup"

        def run(self, context) -> int:
            count = 0
            for node in [node for node in context.model.graph if node.op_type == "Mul"]:
                first = node.inputs[0].producer()
                if first is not None and first.op_type == "Mul":
                    inner = ir.node("Mul", [first.inputs[1], node.inputs[1]])
                    outer = ir.node("Mul", [first.inputs[0], inner.outputs[0]])
                    context.editor.insert_before(node, inner, outer)
                    context.editor.replace(node.outputs[0], outer.outputs[0])
                    count += 1
            return count

    result = ortfuse.optimize(chaotic(PLAIN), passes=[Regroup(), "dce"], verify="whole", output=tmp_path / "out.onnx")
    assert result.verdict is not None
    assert result.verdict.state == "equal within the model's own sensitivity"
    assert result.written is not None


def test_the_sensitivity_is_measured_in_several_ways() -> None:
    original = chaotic(PLAIN, 12)
    found, _ = experiments(original)
    moved = Sensitivity(original).of(found[1])["y"]
    assert set(moved) == {
        "the runtime's optimisations",
        "inputs off by one rounding",
        "weights off by one rounding",
        "float64",
    }
    assert 1e-6 < moved["inputs off by one rounding"] < 1


def test_only_numbers_that_are_not_whole_are_shaken() -> None:
    array = np.array([0.0, 1.0, -3.0, 0.1, np.inf, -1e9, np.nan], np.float32)
    moved = shaken(array, np.random.default_rng(0))
    np.testing.assert_array_equal(np.isclose(moved, array, rtol=0, equal_nan=True), [1, 1, 1, 0, 1, 1, 1])
    assert compare("x", array, moved).relative < 1e-6


@pytest.mark.parametrize(("factor", "wrong"), [(np.float32(3.3) * np.float32(300.1), False), (990.4, True)])
def test_constants_that_are_rounded_anew_are_judged_by_what_a_rounding_does(factor: float, wrong: bool) -> None:
    before = model("a = Mul(x, k) b = Mul(a, m) y = Sin(b)", initializers="<float k = {3.3}, float m = {300.1}>")
    after = model("c = Mul(x, n) y = Sin(c)", initializers=f"<float n = {{{factor!s}}}>")
    places = compare_places(before, after, experiments(before)[0][0])
    assert places is not None
    assert bool(places.wrong) == wrong


def four_bits(tail: str) -> ir.Model:
    """A product with weights of four bits, which the runtime's optimisations compute in bytes."""
    rng = np.random.default_rng(0)
    weights = onnx.helper.make_tensor("w", onnx.TensorProto.INT4, [64, 64], rng.integers(-8, 8, 4096).tolist())
    scales = onnx.numpy_helper.from_array(rng.uniform(0.5, 1, (2, 64)).astype(np.float32), "s")
    made = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]> g (float[b, 64] x) => (float[b, 64] y) {{
        d = DequantizeLinear <axis = 0, block_size = 32> (w, s) p = MatMul(x, d) {tail} }}"""
    )
    made.graph.initializer.extend([weights, scales])
    return ir.from_proto(made)


def test_what_is_another_value_without_the_runtimes_optimisations_is_not_equal_by_them() -> None:
    assert not verify(four_bits("y = Identity(p)"), four_bits("q = Add(p, p) y = Identity(q)")).ok


@pytest.mark.parametrize("tail", ["q = Neg(p) y = Neg(q)", "one = Constant <value_float = 1.0> () y = Mul(p, one)"])
def test_what_is_equal_at_each_level_of_the_runtimes_optimisations_is_equal(tail: str) -> None:
    before, after = four_bits("y = Identity(p)"), four_bits(tail)
    assert (
        max(moved["y"]["the runtime's optimisations"] for moved in map(Sensitivity(before).of, experiments(before)[0]))
        > 1e-4
    )
    verdict = verify(before, after)
    assert verdict.state == "equal"
    assert "which change the original alike" in verdict.alike
    assert verdict.alike in verdict.summary()
    assert not verdict.excused
    assert json.loads(json.dumps(verdict.to_dict(), allow_nan=False))["state"] == "equal"
