"""That models of every kind reach the runtime, and that its messages are short."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from small_graphs import model

from ortfuse.errors import VerificationError
from ortfuse.io.load_and_save import load, save
from ortfuse.verification import Session

WEIGHTS = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)


def with_weights(kind: ir.DataType = ir.DataType.FLOAT) -> ir.Model:
    m = model("y = MatMul(x, w)", "float[n,64] x", "float[n,64] y", "<float w = {1.0}>")
    if kind != ir.DataType.FLOAT:
        m = model("c = Cast<to = 1>(w) y = MatMul(x, c)", "float[n,64] x", "float[n,64] y", "<float w = {1.0}>")
    value = m.graph.initializers["w"]
    value.const_value = ir.Tensor(WEIGHTS.astype(kind.numpy()), name="w")
    value.dtype, value.shape = kind, ir.Shape((64, 64))
    return m


@pytest.mark.parametrize("kind", [ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.INT8, ir.DataType.BFLOAT16])
@pytest.mark.parametrize("optimise", [False, True])
def test_weights_arrive_without_being_serialised(kind: ir.DataType, optimise: bool) -> None:
    x = np.eye(64, dtype=np.float32)
    found = Session(with_weights(kind), optimise=optimise).run({"x": x})["y"]
    assert (found == WEIGHTS.astype(kind.numpy()).astype(np.float32)).all()


def test_weights_outlive_the_model_they_came_from() -> None:
    session = Session(with_weights())
    x = np.eye(64, dtype=np.float32)
    for _ in range(3):
        np.full((64, 64), 7, np.float32)
        assert (session.run({"x": x})["y"] == WEIGHTS).all()


def test_files_bytes_and_models_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(with_weights(), path)
    x = np.ones((2, 64), np.float32)
    results = [Session(source).run({"x": x})["y"] for source in (path, str(path), path.read_bytes(), load(path))]
    assert all((result == results[0]).all() for result in results)


def test_inputs_that_the_model_does_not_have_are_left_out() -> None:
    session = Session(model("y = Relu(x)"))
    assert session.run({"x": -np.ones((1, 3), np.float32), "z": np.ones(1)})["y"].max() == 0


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"x": np.ones((2, 4), np.float32)}, r"Got invalid dimensions for input: x .* Got: 4 Expected: 3"),
        ({"x": np.ones((2, 3))}, r"Unexpected input data type\. Actual: \(tensor\(double\)\)"),
        ({}, r"Required inputs \(\['x'\]\) are missing"),
    ],
)
def test_what_the_runtime_cannot_execute_is_said_in_its_words(inputs: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(VerificationError, match=words) as caught:
        Session(model("y = Relu(x)")).run(inputs)
    assert "ONNXRuntimeError" not in str(caught.value)


def test_a_failing_node_is_named_without_places_in_the_runtimes_source() -> None:
    m = model("y = Add(x, w)", "float[n] x", "float[n] y", "<float[3] w = {1, 2, 3}>")
    m.graph[0].name = "sum"
    with pytest.raises(VerificationError, match=r"Add 'sum': .*broadcast") as caught:
        Session(m).run({"x": np.ones(5, np.float32)})
    assert ".h:" not in str(caught.value)


def test_a_model_that_the_runtime_refuses_is_an_error() -> None:
    with pytest.raises(VerificationError, match="refuses the model"):
        Session(model("y = Unheard(x)"))
    with pytest.raises(VerificationError, match="refuses the model"):
        Session(b"no model")


def test_weights_that_nothing_uses_are_not_handed_to_the_runtime() -> None:
    model = ir.from_onnx_text('<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { y = Neg(x) }')
    idle = ir.Value(name="idle", const_value=ir.tensor(np.zeros((64, 64), np.float32)))
    model.graph.register_initializer(idle)
    assert Session(model).run({"x": np.ones(2, np.float32)})["y"].tolist() == [-1, -1]


def test_an_operator_that_the_runtime_lacks_is_said_to_need_a_library() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["": 17, "mine": 1]> g (float[b] x) => (float[b] y) { y = mine.Unheard(x) }'
    )
    with pytest.raises(VerificationError, match=r"mine:Unheard.*; --custom-ops LIBRARY names a library that has it"):
        Session(model)


def test_no_outputs_are_none_of_them() -> None:
    """The runtime takes an empty list for all outputs."""
    assert Session(with_weights()).run({"x": np.eye(64, dtype=np.float32)}, []) == {}


def test_the_runtime_sees_the_numbers_of_long_shapes() -> None:
    ones = ", ".join(["1"] * 199)
    made = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": 20]> g (float[n] x) => (float[{ones}, n] y)'
        f" <int64[200] s = {{{ones}, -1}}> {{ y = Reshape(x, s) }}"
    )
    assert Session(made).input_names == ["x"]
