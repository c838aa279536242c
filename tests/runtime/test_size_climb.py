import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from ortfuse.runtime.inputs.random_inputs import input_specs
from ortfuse.runtime.inputs.size_search import climb
from ortfuse.runtime.reference_runs import explored


def channels_and_length() -> ir.Model:
    """A convolution over 80 channels, of which the graph does not tell, behind a Pad that needs 200 positions."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Reshape", ["x", "s"], ["r"]),
        helper.make_node("Pad", ["r", "pads"], ["p"], mode="reflect"),
        helper.make_node("Conv", ["p", "w"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.ones((2, 80, 3), np.float32), "w"),
        numpy_helper.from_array(np.array([0, 0, 200, 0, 0, 200]), "pads"),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"b{name}", f"c{name}", f"t{name}"]) for name in "xy"
    )
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def test_a_number_of_channels_and_a_least_length_are_found_together() -> None:
    model = channels_and_length()
    found = climb(model, input_specs(model), {"bx": 3, "cx": 7, "tx": 5}, 0)
    assert found is not None
    assert found["cx"] == 80
    assert found["tx"] > 200


def test_a_model_with_joint_conditions_is_run_at_several_sizes() -> None:
    found = explored(channels_and_length(), reference=False).experiments
    assert {one.inputs["x"].shape[1] for one in found} == {80}
    assert len({one.inputs["x"].shape for one in found}) > 2


def test_no_sizes_are_found_where_none_work() -> None:
    text = """<ir_version: 10, opset_import: ["": 17]> g (float[n] x) => (float[5] y)
        <int64[1] s = {3}, float[5] five = {1, 2, 3, 4, 5}> { r = Reshape(five, s) y = Add(x, r) }"""
    model = ir.from_onnx_text(text)
    assert climb(model, input_specs(model), {"n": 4}, 0) is None
