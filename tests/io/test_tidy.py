"""What the runtime accepts although a graph cannot represent it is taken in as the runtime understands it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import ortfuse
from ortfuse.errors import InvalidModelError
from ortfuse.io.load_and_save import load, save
from ortfuse.runtime.session import Session

X = np.arange(3, dtype=np.float32)


def adding(imports: str = '"": 13') -> onnx.ModelProto:
    return parser.parse_model(
        f"<ir_version: 8, opset_import: [{imports}]> g (float[3] x) => (float[3] y) <float[3] w = {{1, 2, 3}}>"
        "{ a = Add(x, w) y = Neg(a) }"
    )


def tensor(number: float, name: str = "w") -> TensorProto:
    return numpy_helper.from_array(np.full(3, number, np.float32), name)


def constant(number: float) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["w"], value=tensor(number, ""))


def sparse(number: float, indices: list[list[int]] | list[int]) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.full(len(indices), number, np.float32), "w")
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(indices), ""), [3])


def define(*, dense: tuple[float, ...] = (), constants: tuple[float, ...] = (), others: tuple[onnx.SparseTensorProto, ...] = ()) -> onnx.ModelProto:  # fmt: skip
    model = adding()
    model.graph.ClearField("initializer")
    model.graph.initializer.extend(tensor(number) for number in dense)
    for number in reversed(constants):
        model.graph.node.insert(0, constant(number))
    model.graph.sparse_initializer.extend(others)
    return model


def _untyped(model: onnx.ModelProto) -> None:
    model.graph.input.append(onnx.ValueInfoProto(name="w"))


def changed(change: Callable[[onnx.ModelProto], object], **given: str) -> onnx.ModelProto:
    model = adding(**given)
    change(model)
    return model


ACCEPTED = {
    "two initializers of one name": define(dense=(1, 1)),
    "two Constants of one name": define(constants=(1, 1)),
    "an initializer and a Constant": define(dense=(1,), constants=(1,)),
    "an initializer and a sparse one": define(dense=(2,), others=(sparse(2, [0, 1, 2]),)),
    "a sparse initializer by coordinates": define(others=(sparse(2, [[1], [2]]),)),
    "a sparse initializer and a Constant": define(constants=(2,), others=(sparse(2, [0, 1, 2]),)),
    "a sparse Constant": changed(
        lambda m: (
            m.graph.ClearField("initializer")
            or m.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse(2, [[1], [2]])))
        )
    ),
    "an initializer without a name": changed(lambda m: m.graph.initializer.append(tensor(1, ""))),
    "an initializer that is an input without a type": changed(_untyped),
    "two imports": adding('"": 9, "ai.onnx": 13'),
    "an import of version 0": adding('"": 13, "com.microsoft": 0'),
    "training information": changed(lambda m: m.training_info.add()),
}


@pytest.mark.parametrize("source", [True, False], ids=["file", "object"])
@pytest.mark.parametrize("kind", ACCEPTED)
def test_it_computes_what_the_runtime_computes(kind: str, source: bool, tmp_path: Path) -> None:
    model = ACCEPTED[kind]
    before = model.SerializeToString()
    onnx.save(model, tmp_path / "m.onnx")
    ortfuse.optimize(tmp_path / "m.onnx" if source else model, output=tmp_path / "o.onnx")
    expected, found = (Session(tmp_path / name).run({"x": X})["y"] for name in ("m.onnx", "o.onnx"))
    assert np.array_equal(expected, found)
    assert model.SerializeToString() == before


DIFFERENT = {
    "two initializers": define(dense=(1, 2)),
    "two Constants": define(constants=(1, 2)),
    "an initializer and a Constant": define(dense=(1,), constants=(2,)),
    "an initializer and a sparse one": define(dense=(1,), others=(sparse(2, [0, 2]),)),
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_which_of_different_definitions_counts_is_left_to_the_runtime(kind: str, tmp_path: Path) -> None:
    result = ortfuse.optimize(DIFFERENT[kind], output=tmp_path / "o.onnx")
    assert result.unchanged
    assert (tmp_path / "o.onnx").read_bytes() == DIFFERENT[kind].SerializeToString()


def test_what_is_left_out_is_said() -> None:
    assert "training information" in ortfuse.optimize(ACCEPTED["training information"]).report.notes[0]


def test_a_large_weight_stays_with_its_own_initializer(tmp_path: Path) -> None:
    """Those that are left in the file are found by their position among the initializers."""
    arrays = {name: np.full(40_000, number, np.float32) for number, name in enumerate("abc")}
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> g (float[1] x) => (float[40000] y) { p = Add(x, a) q = Add(p, b) y = Add(q, c) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(arrays["a"], ""))
    for name in "abc":
        model.graph.initializer.append(numpy_helper.from_array(arrays[name], name))
    onnx.save(model, tmp_path / "m.onnx")
    found = load(tmp_path / "m.onnx").graph.initializers
    assert all(np.array_equal(found[name].const_value.numpy(), arrays[name]) for name in "abc")


NOT_UTF8 = b"\xe9t\xe9"


def _name_all(model: onnx.ModelProto) -> None:
    model.producer_name = model.doc_string = model.graph.name = model.graph.node[0].name = "MRK"
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "MRK"
    model.graph.initializer[0].name = model.graph.node[0].input[1] = "MRK2"
    model.metadata_props.add(key="k", value="MRK")


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(changed(_name_all).SerializeToString().replace(b"MRK", NOT_UTF8))
    save(load(tmp_path / "m.onnx"), tmp_path / "o.onnx")
    expected, found = (Session(tmp_path / name).run({"x": X})["y"] for name in ("m.onnx", "o.onnx"))
    assert np.array_equal(expected, found)
    assert onnx.load(tmp_path / "o.onnx").producer_name == r"\xe9t\xe9"


def test_the_name_of_an_input_is_never_changed(tmp_path: Path) -> None:
    model = changed(lambda m: setattr(m.graph.input[0], "name", "MRK"))
    model.graph.node[0].input[0] = "MRK"
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString().replace(b"MRK", NOT_UTF8))
    with pytest.raises(InvalidModelError, match=r"UTF-8|must be a string"):
        load(tmp_path / "m.onnx")


MAPS = """<ir_version: 8, opset_import: ["": 13, "ai.onnx.ml": 3]> g (map(int64, float) m, float[b, 2] x)
=> (float[c, 2] d, seq(map(int64, float)) y)
{ d = ai.onnx.ml.DictVectorizer <int64_vocabulary = [3, 5]> (m) n = Neg(x) k = Neg(n) y = ai.onnx.ml.ZipMap <classlabels_int64s = [3, 5]> (k) }"""


def test_inputs_and_outputs_that_are_maps_keep_their_types(tmp_path: Path) -> None:
    model = parser.parse_model(MAPS)
    onnx.save(model, tmp_path / "m.onnx")
    made = ortfuse.optimize(model, output=tmp_path / "o.onnx").model
    for result in (made, onnx.load(tmp_path / "o.onnx")):
        ends = [(value.name, value.type.SerializeToString()) for value in (*result.graph.input, *result.graph.output)]
        assert ends == [(v.name, v.type.SerializeToString()) for v in (*model.graph.input, *model.graph.output)]
    inputs = {"m": {3: 1.0, 5: 2.0}, "x": np.array([[0.25, 0.5]], np.float32)}
    expected, found = (Session(tmp_path / name).run(inputs) for name in ("m.onnx", "o.onnx"))
    assert np.array_equal(expected["d"], found["d"]) and expected["y"] == found["y"]


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("attribute", ["epsion = 0.001", "epsilon = 0.001, __hint = 1"])
def test_attributes_that_the_runtime_lets_pass(attribute: str, opset: int, tmp_path: Path) -> None:
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g (float[2, 3] x) => (float[2, 3] y) <float[3] w = {{1, 2, 3}}>'
        f"{{ a = Neg(x) y = LayerNormalization <axis = -1, {attribute}> (a, w, w) }}"
    )
    onnx.save(model, tmp_path / "m.onnx")
    ortfuse.optimize(model, level="all", output=tmp_path / "o.onnx")
    inputs = {"x": np.array([X, X * 1e-2], np.float32)}
    expected, found = (Session(tmp_path / name, optimise=False).run(inputs)["y"] for name in ("m.onnx", "o.onnx"))
    np.testing.assert_allclose(expected, found, rtol=1e-5)


def test_a_version_of_an_operator_that_a_later_one_replaced(tmp_path: Path) -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[2, 4, 3] x) => (float[2, 4, 3] y) <float[2] w = {1, 2}>'
        "{ a = Neg(x) y = GroupNormalization <num_groups = 2> (a, w, w) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    ortfuse.optimize(model, level="all", output=tmp_path / "o.onnx")
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)}
    expected, found = (Session(tmp_path / name).run(inputs)["y"] for name in ("m.onnx", "o.onnx"))
    np.testing.assert_allclose(expected, found, rtol=1e-5)


def test_an_attribute_that_the_runtime_does_not_let_pass() -> None:
    model = adding()
    model.graph.node[0].attribute.append(helper.make_attribute("epsion", 1.0))
    with pytest.raises(InvalidModelError, match="the attribute 'epsion', which the operator does not have"):
        ortfuse.optimize(model)
