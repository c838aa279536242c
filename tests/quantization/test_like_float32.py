"""Models in half precision, held to the bound that they state."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.io.load_and_save import load, save
from ortfuse.quantization.half import convert
from ortfuse.quantization.run_half_models import imitation
from ortfuse.runtime.session import Session

RNG = np.random.default_rng(0)
WEIGHTS = {
    "w": RNG.normal(size=(8, 8)).astype(np.float32),
    "v": RNG.normal(size=(8, 8)).astype(np.float32),
    "c": RNG.normal(size=8).astype(np.float32),
}
BODIES = {
    "plain": "p = MatMul(x, w) q = Add(p, c) r = Relu(q) y = MatMul(r, v)",
    "branch": """p = MatMul(x, w) s = ReduceMax<keepdims = 0>(x) zero = Constant<value = float {0.0}> () k = Greater(s, zero)
        y = If(k) <then_branch = t () => (float[n,8] a) { a = MatMul(p, v) },
                   else_branch = e () => (float[n,8] b) { b = Add(p, c) }>""",
    "input as output": "y = Identity(x)",
}


def proto(body: str = BODIES["plain"]) -> onnx.ModelProto:
    made = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 22]> g (float[n,8] x) => (float[n,8] y) {{ {body} }}'
    )
    made.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in WEIGHTS.items())
    return made


@pytest.mark.parametrize("keep_io", [True, False])
@pytest.mark.parametrize("to", ["float16", "bfloat16"])
@pytest.mark.parametrize("body", BODIES)
def test_a_result_in_half_precision_is_held_to_the_bound_that_it_states(
    body: str, to: str, keep_io: bool, tmp_path: Any
) -> None:
    path = tmp_path / "half.onnx"
    convert(proto(BODIES[body]), to, keep_io=keep_io, max_error=0.05 if to == "float16" else 0.5, output=path)
    verdict = ortfuse.verify(proto(BODIES[body]), path)
    assert (verdict.state, verdict.ok) == ("within the bound", True)
    assert verdict.error > 0 or body == "input as output"


@pytest.mark.parametrize("defect", ["a missing bias", "exchanged channels", "another scale of a channel"])
@pytest.mark.parametrize("to", ["float16", "bfloat16"])
def test_what_is_wrong_with_it_is_found(to: str, defect: str, tmp_path: Any) -> None:
    path = tmp_path / "half.onnx"
    convert(proto(), to, keep_io=True, max_error=0.02, output=path)
    model = load(path)
    name = "c" if defect == "a missing bias" else "w"
    array = model.graph.initializers[name].const_value.numpy().copy()
    if defect == "exchanged channels":
        array[:, [0, 1]] = array[:, [1, 0]]
    else:
        array[..., 1] *= 0 if defect == "a missing bias" else 2
    model.graph.initializers[name].const_value = ir.Tensor(array, dtype=model.graph.initializers[name].dtype)
    save(model, path)
    assert ortfuse.verify(proto(), path).state == "above the bound"


def test_an_imitation_rounds_what_is_computed() -> None:
    x = RNG.normal(size=(3, 8)).astype(np.float32)
    found = convert(proto(), "bfloat16", keep_io=True, inputs=[{"x": x}])
    imitated = imitation(found.model if isinstance(found.model, ir.Model) else ir.from_proto(found.model))
    assert imitated is not None
    expected = Session(proto().SerializeToString()).run({"x": x})["y"]
    other = Session(imitated, optimise=False).run({"x": x})["y"]
    assert np.linalg.norm(other - expected) / np.linalg.norm(expected) == pytest.approx(found.errors["y"], rel=1e-3)
    assert imitation(ir.from_proto(proto())) is None


def test_a_bound_holds_on_other_inputs_than_those_it_was_found_on() -> None:
    found = convert(proto(), "float16", keep_io=True, max_error=0.01)
    assert found.errors["y"] > convert(proto(), "float16", keep_io=True).errors["y"]
    assert ortfuse.verify(proto(), found.model, max_error=found.errors["y"]).ok
