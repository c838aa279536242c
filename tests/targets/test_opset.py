"""What raising the opset does to a model besides converting operators, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import run
from raising import inputs_of, model_text, raised_is_the_same, read

from ortfuse.errors import TargetError
from ortfuse.targets import raise_opset
from ortfuse.targets.opset_converter_skeleton import SMALL

GOLDEN = sorted((Path(__file__).parents[2] / "golden" / "models").glob("[br]e[rs]*.onnx"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_models_compute_the_same_bits_after_raising(path: Path) -> None:
    original = onnx.load(path)
    inputs = {}
    for value in original.graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value or 5 for dim in kind.shape.dim]
        ones = np.ones(shape, onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
        inputs[value.name] = ones
    model = ir.load(path)
    raise_opset(model, 24)
    for before, after in zip(run(original, inputs), run(ir.to_proto(model), inputs), strict=True):
        np.testing.assert_array_equal(after, before)


def test_nodes_that_are_not_changed_stay_the_objects_they_are() -> None:
    model = read(model_text(17, "{ r = Relu(x) m = ReduceMean<axes=[1]>(r) y = Neg(m) }"))
    relu, mean, neg = model.graph
    raise_opset(model, 18)
    assert relu.graph is model.graph
    assert neg.graph is model.graph
    assert mean.graph is None


def test_a_new_node_has_the_name_metadata_and_documentation_of_the_old() -> None:
    model = read(model_text(17, "{ m = ReduceMean<axes=[1]>(x) y = Neg(m) }"))
    mean = model.graph[0]
    mean.name, mean.doc_string = "the mean", "of rows"
    mean.metadata_props["origin"] = "layer 3"
    mean.outputs[0].metadata_props["scale"] = "0.5"
    mean.outputs[0].doc_string = "means"
    mean.outputs[0].type, mean.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([2, 1, 4])
    raise_opset(model, 18)
    new = next(node for node in model.graph if node.op_type == "ReduceMean")
    assert (new.name, new.doc_string, dict(new.metadata_props)) == ("the mean", "of rows", {"origin": "layer 3"})
    output = new.outputs[0]
    assert (output.name, output.doc_string, dict(output.metadata_props)) == ("m", "means", {"scale": "0.5"})
    assert output.dtype == ir.DataType.FLOAT
    assert output.shape == [2, 1, 4]


def test_names_of_inputs_and_outputs_stay_also_when_their_node_changes() -> None:
    model = raised_is_the_same(model_text(17, "{ y = ReduceMean<axes=[1]>(x) }"), 23)
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert [value.name for value in model.graph.outputs] == ["y"]


def test_new_values_get_names_that_nothing_in_the_model_has() -> None:
    body = "{ m_1 = Neg(x) v5 = Neg(m_1) m = ReduceMean<axes=[1]>(v5) y = Sub(m, m_1) }"
    model = raised_is_the_same(model_text(17, body), 23)
    names = [value.name for node in model.graph for value in node.outputs]
    assert len(set(names)) == len(names)


def test_the_ir_version_rises_when_the_opset_needs_it_and_never_falls() -> None:
    model = read(model_text(17, "{ y = Relu(x) }"))
    raise_opset(model, 23)
    assert model.ir_version == 11
    model = read(model_text(17, "{ y = Relu(x) }"))
    model.ir_version = 13
    raise_opset(model, 18)
    assert model.ir_version == 13


def test_an_opset_that_is_high_enough_is_left_alone() -> None:
    model = read(model_text(20, "{ y = ReduceMean(x) }"))
    before = ir.to_proto(model).SerializeToString()
    raise_opset(model, 20)
    raise_opset(model, 18)
    assert ir.to_proto(model).SerializeToString() == before


def test_a_model_that_imports_no_onnx_imports_the_opset_afterwards() -> None:
    model = read(
        '<ir_version: 8, opset_import: ["com.microsoft" : 1]> g (float[2] x) => (y) { y = com.microsoft.Gelu(x) }'
    )
    raise_opset(model, 20)
    assert model.graph.opset_imports == {"com.microsoft": 1, "": 20}


def test_nodes_of_other_domains_are_untouched() -> None:
    head = ', "com.microsoft" : 1, "my.domain" : 7'
    text = model_text(17, "{ g = com.microsoft.QuickGelu<alpha=1.5>(x) y = ReduceMean<axes=[1]>(g) }", head=head)
    model = read(text)
    gelu = model.graph[0]
    raise_opset(model, 23)
    assert model.graph[0] is gelu
    assert gelu.attributes["alpha"].as_float() == 1.5
    assert model.graph.opset_imports == {"": 23, "com.microsoft": 1, "my.domain": 7}
    raised_is_the_same(text, 23)


def test_operators_that_only_the_runtime_has_are_untouched() -> None:
    body = "<float[4] w = {1.0,2.0,3.0,4.0}> { n = SimplifiedLayerNormalization<axis=-1>(x, w) y = ReduceMean(n) }"
    model = raised_is_the_same(model_text(17, body), 23)
    assert model.graph[0].op_type == "SimplifiedLayerNormalization"


def test_a_node_made_for_the_new_opset_is_not_converted() -> None:
    model = read(model_text(17, "{ r = ReduceMean<axes=[1]>(x) g = Gelu(r) y = Neg(g) }"))
    gelu = model.graph[1]
    gelu.version = 20
    raise_opset(model, 20)
    assert gelu.graph is model.graph
    assert gelu.version is None
    proto = ir.to_proto(model)
    run(proto, inputs_of(proto))


def test_a_node_made_for_an_opset_between_is_converted_from_there() -> None:
    # Split of 18 says how many parts there are; that of 13 must not.
    model = read(model_text(13, "{ m = ReduceMean<axes=[0]>(x) p, q = Split<axis=2, num_outputs=2>(m) y = Add(p, q) }"))
    split = model.graph[1]
    split.version = 18
    raise_opset(model, 23)
    proto = ir.to_proto(model)
    inputs = inputs_of(proto)
    mean = inputs["x"].mean(0, keepdims=True)
    np.testing.assert_allclose(run(proto, inputs)[0], mean[..., :2] + mean[..., 2:], rtol=1e-5)


def test_a_node_that_needs_more_than_the_opset_to_be_reached_is_an_error() -> None:
    model = read(model_text(17, "{ y = Gelu(x) }"))
    model.graph[0].version = 20
    with pytest.raises(TargetError, match=r"Gelu .*needs opset 20.*18"):
        raise_opset(model, 18)


BRANCHES = """{
    total = ReduceSum<keepdims=0>(x)
    positive = Cast<to=9>(total)
    y = If(positive) <
        then_branch = t () => (float a) { a = ReduceMean<axes=[1]>(x) },
        else_branch = e () => (float b) { c = Neg(x) b = ReduceMean<axes=[1]>(c) }
    >
}"""


def test_branches_are_converted_and_see_the_values_around_them() -> None:
    model = raised_is_the_same(model_text(17, BRANCHES), 23)
    branch = model.graph[-1].attributes["then_branch"].as_graph()
    assert all("axes" not in node.attributes for node in branch)


def test_loop_bodies_are_converted() -> None:
    body = """<int64 trips = {3}, bool always = {1}> {
        y = Loop(trips, always, x) <body = b (int64 i, bool on, float[2,3,4] s) => (bool go, float[2,3,4] t) {
            go = Identity(on)
            r = ReduceMean<axes=[-1]>(s)
            t = Sub(s, r)
        }>
    }"""
    raised_is_the_same(model_text(17, body), 23)


def test_branches_of_operators_that_the_converter_does_not_know_are_converted_too() -> None:
    body = "{ y = my.Maybe<body = t () => (float a) { a = ReduceMean<axes=[1]>(x) }>(x) }"
    model = read(model_text(17, body, head=', "my" : 1'))
    raise_opset(model, 18)
    inner = model.graph[0].attributes["body"].as_graph()
    assert "axes" not in next(node for node in inner if node.op_type == "ReduceMean").attributes


FUNCTION = '<domain: "my", opset_import: ["" : 17]> F (a) => (b) {{ t = Relu(a) b = ReduceMean<axes=[-1]{more}>(t) }}'


def test_function_bodies_are_converted() -> None:
    text = model_text(17, "{ f = my.F(x) y = ReduceMean<axes=[0]>(f) }", head=', "my" : 1') + FUNCTION.format(more="")
    model = raised_is_the_same(text, 23)
    assert model.functions["my", "F", ""].opset_imports[""] == 23


def test_a_function_attribute_that_the_converter_cannot_see_is_refused() -> None:
    function = FUNCTION.format(more=",keepdims:int=@k").replace("F (a)", "F <k> (a)")
    model = read(model_text(17, "{ y = my.F<k=0>(x) }", head=', "my" : 1') + function)
    with pytest.raises(TargetError, match=r"ReduceMean .*an attribute of its function"):
        raise_opset(model, 18)
    assert model.graph.opset_imports[""] == 17


def test_a_function_attribute_of_an_operator_that_means_the_same_is_kept() -> None:
    function = '<domain: "my", opset_import: ["" : 17]> F <k> (a) => (b) { b = LeakyRelu<alpha:float=@k>(a) }'
    raised_is_the_same(model_text(13, "{ y = my.F<k=0.5>(x) }", head=', "my" : 1') + function, 23)


def test_large_weights_are_not_shown_to_the_converter(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    convert = onnx.version_converter.convert_version

    def measured(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
        sizes.append(proto.ByteSize())
        return convert(proto, opset)

    monkeypatch.setattr(onnx.version_converter, "convert_version", measured)
    weight = ir.tensor(np.ones((512, 512), np.float32), name="w")
    model = read(model_text(17, "{ h = MatMul(x, w) c = Constant<value = float {0}>() i = Add(h, c) y = ReduceMean(i) }",
                            "float[2,512] x, float[512,512] w"))  # fmt: skip
    value = model.graph.inputs.pop()
    value.const_value = weight
    model.graph.register_initializer(value)
    constant = next(node for node in model.graph if node.op_type == "Constant")
    constant.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.ones(SMALL + 1000, np.float32)))
    raise_opset(model, 23)
    assert max(sizes) < 2000
    assert model.graph.initializers["w"].const_value is weight
    assert constant.graph is model.graph


def test_sparse_constants_are_left_as_they_are() -> None:
    model = read(model_text(17, "{ c = Constant<value = float {0}>() m = ReduceMean(x) y = Add(m, c) }"))
    constant = model.graph[0]
    del constant.attributes["value"]
    constant.attributes["sparse_value"] = ir.Attr(
        "sparse_value", ir.AttributeType.SPARSE_TENSOR, ir.tensor(np.ones(1, np.float32))
    )
    raise_opset(model, 23)
    assert constant.graph is model.graph


def test_optional_inputs_that_are_left_out_and_unused_outputs_stay_so() -> None:
    body = "<int64[3] s = {2,4,8}> { z = Resize(x, , , s) v, i = TopK(z, k) y = ReduceMean<axes=[0]>(v) }"
    model = read(model_text(17, body, "float[1,2,4] x, int64[1] k"))
    resize = model.graph[0]
    raise_opset(model, 19)
    new = next(node for node in model.graph if node.op_type == "Resize")
    assert [value is None for value in new.inputs] == [value is None for value in resize.inputs] or new is resize


def test_the_same_name_in_two_branches_is_no_problem() -> None:
    body = BRANCHES.replace("float b", "float a").replace("b = ReduceMean", "a = ReduceMean")
    raised_is_the_same(model_text(17, body), 23)


@pytest.mark.parametrize(
    ("opset", "body", "inputs", "reason"),
    [
        (21, "{ y = Bernoulli(x) }", "float[2,3,4] x", "no kernel"),
        (17, "{ y, z = Split<axis = 1>(x) }", "float[2,0,4] x", "equal parts of nothing"),
    ],
    ids=["a body of operators without kernels", "parts of nothing"],
)
def test_what_would_not_run_any_more_is_not_raised(opset: int, body: str, inputs: str, reason: str) -> None:
    model = read(model_text(opset, body, inputs))
    with pytest.raises(TargetError, match=reason):
        raise_opset(model, 22)
    assert model.graph.opset_imports[""] == opset


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
def test_the_last_axis_is_not_flattened(operator: str) -> None:
    model = read(model_text(12, f"{{ z = Relu(x) y = {operator}<axis=2>(z) }}", "float[a,b,c] x"))
    raise_opset(model, 20)
    assert [node.op_type for node in model.graph] == ["Relu", operator]


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
def test_what_the_converter_flattens_may_be_empty(operator: str) -> None:
    """A size of 0 in the middle is a size, and copies none of the flattened rows."""
    text = model_text(12, f"{{ z = Relu(x) y = {operator}<axis=3>(z) }}", "float[a,b,c,d,e] x")
    model = read(text)
    raise_opset(model, 20)
    x = {"x": np.zeros((2, 4, 0, 1, 3), np.float32)}
    before, after = (run(ir.to_proto(one), x)[0] for one in (read(text), model))
    assert before.shape == after.shape == (2, 4, 0, 1, 3)
