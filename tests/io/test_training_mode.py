"""That models in training mode are told of, and taken out of it only where that is asked for."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import run
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.errors import BoundError
from ortfuse.io.training_mode import to_inference, told_of_training, training_note

NORM = "<float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {3, -1}, float[2] v = {2, 0.5}, float r = {0.5}, bool t = {1}>"
TRAINING = f"""<ir_version: 8, opset_import: ["": 15]> g (float[n, 2] x) => (float[n, 2] y) {NORM} {{
    h, mean, var = BatchNormalization<training_mode = 1>(x, s, b, m, v) k = Relu(h) y, mask = Dropout(k, r, t) }}"""
INFERENCE = f"""<ir_version: 8, opset_import: ["": 15]> g (float[n, 2] x) => (float[n, 2] y) {NORM} {{
    h = BatchNormalization(x, s, b, m, v) y = Relu(h) }}"""
X = np.random.default_rng(0).standard_normal((5, 2)).astype("f4")


def proto(text: str) -> onnx.ModelProto:
    return ir.to_proto(ir.from_onnx_text(text))


def test_training_mode_is_told_and_kept() -> None:
    result = ortfuse.optimize(proto(TRAINING), verify="whole")
    assert any("in training mode (1 BatchNormalization and 1 Dropout)" in note for note in result.report.notes)
    assert [node.op_type for node in result.model.graph.node if node.op_type in ("Dropout", "BatchNormalization")] == [
        "BatchNormalization",
        "Dropout",
    ]
    assert result.verdict is not None
    assert result.verdict.state == "equal"


def test_the_result_of_inference_is_what_the_trained_network_computes() -> None:
    result = ortfuse.optimize(proto(TRAINING), inference=True, verify="whole")
    np.testing.assert_allclose(
        run(result.model, {"x": X}, optimised=True)[0], run(proto(INFERENCE), {"x": X}, optimised=True)[0], rtol=1e-6
    )
    assert any(note.startswith("removed training mode from") for note in result.report.notes)
    assert not any("--inference" in note for note in result.report.notes)


def test_updated_statistics_become_those_that_were_given() -> None:
    text = TRAINING.replace("(float[n, 2] y)", "(float[n, 2] y, float[2] mean, float[2] z)").replace(
        "y, mask", "z = Neg(var) y, mask"
    )
    model = ir.from_onnx_text(text)
    assert to_inference(model) is not None
    _, mean, var = run(ir.to_proto(model), {"x": X}, optimised=True)
    np.testing.assert_array_equal(mean, [3, -1])
    np.testing.assert_array_equal(var, [-2, -0.5])


@pytest.mark.parametrize(
    "body",
    ["y = Dropout(x)", "y = Dropout(x, r)", "y = Dropout(x, r, f)", "y = BatchNormalization(x, s, b, m, v)"],
)
def test_models_for_inference_are_not_told_of(body: str) -> None:
    text = f'<ir_version: 8, opset_import: ["": 15]> g (float[n, 2] x) => (float[n, 2] y) {NORM} {{ {body} }}'
    model = ir.from_onnx_text(text.replace("bool t", "bool f = {0}, bool t"))
    assert training_note(model) is None
    assert to_inference(model) is None


def test_commands_warn_of_training_mode(tmp_path: object) -> None:
    path = f"{tmp_path}/m.onnx"
    onnx.save(proto(TRAINING), path)
    for command in (["inspect", path, "--no-measure"], ["bench", path, "--rounds", "3"], ["verify", path, path]):
        ended = CliRunner().invoke(app, command, env={"COLUMNS": "400"})
        assert "in training mode" in ended.output, command


DROPS = """<ir_version: 8, opset_import: ["": 15]> g (float[n, 64] x) => (float[n, 64] y)
    <float r = {0.5}, bool t = {1}> { h = MatMul(x, w) y, mask = Dropout(h, r, t) }"""


def dropping() -> onnx.ModelProto:
    model = ir.from_onnx_text(DROPS)
    proto = ir.to_proto(model)
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype("f4")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return proto


def test_half_precision_of_a_model_in_training_mode_is_told() -> None:
    assert [note for note in ortfuse.convert(dropping()).notes if "in training mode (1 Dropout)" in note]


def test_lowering_of_a_model_in_training_mode_is_told() -> None:
    found = ortfuse.lower(dropping(), "weight_int8")
    assert [note for note in found.to_dict()["notes"] if "in training mode (1 Dropout)" in note]


def test_a_bound_that_noise_of_training_may_break_tells_of_training_mode() -> None:
    note = "in training mode"
    with pytest.raises(BoundError, match=note), told_of_training(ir.from_onnx_text(TRAINING)) as notes:
        assert len(notes) == 1
        raise BoundError("no")
    with pytest.raises(BoundError, match=r"^no$"), told_of_training(ir.from_onnx_text(INFERENCE)) as notes:
        assert not notes
        raise BoundError("no")
