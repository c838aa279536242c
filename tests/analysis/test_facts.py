"""What counts as a fact: contracts, constants, and what is left unknown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

from ortfuse.analysis.facts import Facts, IntTensor
from ortfuse.ir.dims import Dim, symbol


def load(text: str, *, ir_version: int = 10, opset: int = 20) -> tuple[Facts, dict[str, ir.Value]]:
    """The facts of a model and its values by name."""
    model = ir.from_proto(
        onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}, "mine" : 1]> {text}')
    )
    values = {value.name or "": value for value in (*model.graph.inputs, *model.graph.initializers.values())}
    values |= {value.name or "": value for node in model.graph for value in node.outputs}
    return Facts(model), values


def text_of(facts: Facts, value: ir.Value) -> str:
    shape = facts.shape(value)
    return "rank unknown" if shape is None else ", ".join(map(str, shape))


class Unreadable(ir.LazyTensor):
    """A large tensor that must not be read."""

    def __init__(self, shape: Sequence[int]) -> None:
        def fail() -> ir.TensorProtocol:
            raise AssertionError("the tensor was read")

        super().__init__(fail, dtype=ir.DataType.FLOAT, shape=ir.Shape(shape), name="w")


def test_the_names_of_input_dimensions_are_a_contract() -> None:
    facts, values = load('g (float["batch", "past + 1", 3] x, float["batch", "past"] w) => (y) { y = Relu(x) }')
    assert facts.shape(values["y"]) == (symbol("batch"), symbol("past") + 1, 3)
    assert facts.shape(values["w"]) == (symbol("batch"), symbol("past"))


def test_unnamed_input_dimensions_are_all_different() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([None, "?", "?", -1, ""]))
    node = ir.node("Relu", [x])
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 20})
    facts = Facts(ir.Model(graph, ir_version=10))
    shape = facts.shape(x)
    assert shape is not None and len(set(shape)) == 5
    assert all(isinstance(dim, Dim) and dim.fresh for dim in shape)
    assert facts.shape(node.outputs[0]) == shape


def test_declared_shapes_of_intermediates_and_outputs_say_nothing() -> None:
    facts, values = load(
        """
        g (float[b, s] x, int64[k] t) => (float[7, 9] z, float[3, 3] w)
        <float["liar", 5] y, int64["q", 7] u, float[3, 3] v, float[2, 4] r>
        { y = Relu(x) u = mine.Op(x) v = Neg(x) z = Neg(v) r = Reshape(x, t) w = Neg(r) }
        """
    )
    for name in ("y", "v", "z"):
        assert text_of(facts, values[name]) == "b, s"
    assert facts.dtype(values["u"]) == ir.DataType.INT64
    assert [facts.shape(values[name]) for name in ("u", "r", "w")] == [None, None, None]


def test_what_a_function_declares_says_nothing() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20, "mine" : 1]> g (float[b] x) => (float[b] y) { y = mine.f(x) }
        <domain: "mine", opset_import: ["" : 20, "mine" : 1]> f (a) => (c) { u = mine.Op(a) c = Cast<to = 1>(u) }"""
    )
    model.functions[0].value_info.append(onnx.helper.make_tensor_value_info("u", onnx.TensorProto.INT64, [9]))
    read = ir.from_proto(model)
    inner = next(iter(read.functions.values())).graph[0].outputs[0]
    facts = Facts(read)
    assert (inner.dtype, facts.dtype(inner), facts.shape(inner)) == (ir.DataType.INT64, None, None)


@pytest.mark.parametrize("name", ["", "?", "?0", "0", "1", "-1", "2*3", " n", "n ", "None"])
def test_a_name_that_says_nothing_makes_no_sizes_equal(name: str) -> None:
    x, y = (ir.Value(name=n, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([name, "n"])) for n in "xy")
    facts = Facts(ir.Model(ir.Graph([x, y], [], nodes=[], opset_imports={"": 20}), ir_version=10))
    shapes = facts.shape(x), facts.shape(y)
    assert all(shape is not None and isinstance(shape[0], Dim) and shape[0].fresh for shape in shapes)
    assert shapes[0] != shapes[1]


def test_a_formula_is_believed_if_its_names_are_sizes_of_inputs() -> None:
    facts, values = load('g (float[n, s] x, float["n + 1", "2*k"] y) => (float[n, s] z) { z = Neg(x) }')
    shape = facts.shape(values["y"])
    assert shape == (symbol("n") + 1, symbol("2*k"))


def test_an_unknown_operator_without_declaration_is_unknown() -> None:
    facts, values = load("g (float[b] x) => (y) { y = mine.Op(x) }")
    value = values["y"]
    assert facts.dtype(value) is None
    assert facts.shape(value) is None
    assert facts.rank(value) is None
    assert facts.ints(value) is None
    assert facts.const(value) is None
    assert facts.scalar(value) is None
    assert not facts.is_const(value)


def test_no_value_has_no_facts() -> None:
    facts, _ = load("g (float[b] x) => (y) { y = Relu(x) }")
    assert (facts.dtype(None), facts.shape(None), facts.rank(None), facts.ints(None)) == (None,) * 4
    assert (facts.const(None), facts.scalar(None), facts.is_const(None)) == (None, None, False)


def test_initializers_are_constants() -> None:
    facts, values = load("g (float[2] x) => (y) <float[2] w = {1, 2}, int64[2] n = {3, 4}> { y = Add(x, w) }")
    assert facts.is_const(values["w"])
    np.testing.assert_array_equal(facts.const(values["w"]), np.array([1, 2], dtype=np.float32))
    assert facts.ints(values["n"]) == IntTensor((3, 4), (2,))
    assert facts.ints(values["w"]) is None


@pytest.mark.parametrize(("ir_version", "constant"), [(3, True), (4, False), (10, False)])
def test_an_initializer_that_is_an_input_can_be_overridden(ir_version: int, constant: bool) -> None:
    opset = 8 if ir_version == 3 else 20
    facts, values = load(
        "g (float[2] x, int64[2] w = {1, 2}) => (y) { y = Reshape(x, w) }", ir_version=ir_version, opset=opset
    )
    assert facts.is_const(values["w"]) is constant
    assert (facts.ints(values["w"]) == IntTensor((1, 2), (2,))) is constant
    assert facts.shape(values["w"]) == (2,)


def test_constants_are_seen_through_identity_and_constant_nodes() -> None:
    facts, values = load(
        """
        g (float[b] x) => (y) <float w = {2.5}> {
            a = Identity(w) c = Constant <value_ints = [1, 2]> () d = Identity(c)
            e = Constant <value_float = 0.5> () y = Mul(x, a)
        }
        """
    )
    assert facts.scalar(values["a"]) == 2.5
    assert facts.ints(values["d"]) == IntTensor((1, 2), (2,))
    assert facts.const(values["e"]) == np.float32(0.5)
    assert not facts.is_const(values["y"])


@pytest.mark.parametrize(
    ("tensor", "number"),
    [
        (ir.tensor([[0.5]]), 0.5),
        (ir.tensor(-7, dtype=ir.DataType.INT32), -7),
        (ir.tensor([True]), True),
        (ir.tensor(0.5, dtype=ir.DataType.FLOAT16), 0.5),
        (ir.tensor(0.5, dtype=ir.DataType.BFLOAT16), 0.5),
        (ir.tensor([1.0, 1.0]), None),
        (ir.StringTensor([b"a"], shape=ir.Shape([1])), None),
    ],
)
def test_scalars_are_python_numbers(tensor: ir.TensorProtocol, number: float | None) -> None:
    node = ir.node("Constant", [], {"value": tensor})
    graph = ir.Graph([], node.outputs, nodes=[node], opset_imports={"": 20})
    scalar = Facts(ir.Model(graph, ir_version=10)).scalar(node.outputs[0])
    assert scalar == number
    assert type(scalar) is type(number)


def test_small_values_are_computed_with_the_runtimes_precision() -> None:
    facts, values = load(
        """
        g (float[b, 4, s, 24] x) => (y) <float one = {1}> {
            n = Shape <start = 3> (x) f = Cast <to = 1> (n) r = Sqrt(f) y = Div(one, r)
        }
        """
    )
    assert facts.const(values["n"]).tolist() == [24]  # type: ignore[union-attr]
    wanted = np.float32(1) / np.sqrt(np.float32(24))
    assert facts.scalar(values["y"]) == float(wanted)
    assert facts.is_const(values["y"])


def test_large_constants_are_not_read_for_facts() -> None:
    weight = ir.Value(name="w", const_value=Unreadable((3000, 4096)), type=ir.TensorType(ir.DataType.FLOAT))
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["b", 3000]))
    node = ir.node("MatMul", [x, weight])
    cast = ir.node("Cast", [weight], {"to": 10})
    graph = ir.Graph([x], node.outputs, nodes=[node, cast], initializers=[weight], opset_imports={"": 20}, name="g")
    facts = Facts(ir.Model(graph, ir_version=10))
    assert facts.shape(node.outputs[0]) == (symbol("b"), 4096)
    assert facts.is_const(weight)
    assert facts.scalar(weight) is None
    assert not facts.is_const(cast.outputs[0])


def test_values_and_nodes_need_no_names() -> None:
    x = ir.Value(type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["b"]))
    node = ir.node("Relu", [x])
    other = ir.node("Clip", [node.outputs[0], None, None])
    graph = ir.Graph([x], other.outputs, nodes=[node, other], opset_imports={"": 20})
    for value in (x, *node.outputs, *other.outputs):
        value.name = None
    assert Facts(ir.Model(graph, ir_version=10)).shape(other.outputs[0]) == (symbol("b"),)


def test_the_version_of_a_node_goes_before_that_of_the_graph() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["b", 1]))
    node = ir.node("Squeeze", [x], {"axes": [1]}, version=11)
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 20})
    assert Facts(ir.Model(graph, ir_version=10)).shape(node.outputs[0]) == (symbol("b"),)


def test_nodes_that_break_the_rules_of_their_operator_are_unknown() -> None:
    facts, values = load(
        """
        g (float[b, 4] x, float[3] w) => (y, z, u, v) {
            y = Transpose <perm = [0, 1, 2]> (x) z = MatMul(w) u = Softmax <axis = "a"> () v = Concat <axis = 9> (x, x)
            t = Conv <strides = [1]> (x, w)
        }
        """
    )
    for name in ("y", "z", "v", "t"):
        assert facts.shape(values[name]) is None


def test_negative_and_impossible_dimensions_are_not_believed() -> None:
    facts, values = load("g (float[b, 4] x) => (y) { p = Constant <value = int64[4] {0, -3, 0, -3}> () y = Pad(x, p) }")
    shape = facts.shape(values["y"])
    assert shape is not None and shape[0] == symbol("b") and isinstance(shape[1], Dim)


def test_formulas_that_grow_without_end_are_given_up() -> None:
    names = [f"d{i}" for i in range(100)]
    inputs = ", ".join(f"float[{name}] {name}" for name in names)
    facts, values = load(f"g ({inputs}) => (y) {{ y = Concat <axis = 0> ({', '.join(names)}) z = Relu(y) }}")
    shape = facts.shape(values["y"])
    assert shape is not None and isinstance(shape[0], Dim) and shape[0].size == 2
    assert facts.shape(values["z"]) == shape


def test_sizes_in_detours_through_floats_stay_exact() -> None:
    facts, values = load(
        """
        g (float[b, 3, h, w] x) => (y) {
            n = Shape <start = 2> (x) f = Cast <to = 1> (n) k = Constant <value = float[2] {0.5, 1.5}> ()
            m = Mul(f, k) i = Cast <to = 7> (m) p = Shape <end = 2> (x) s = Concat <axis = 0> (p, i)
            y = Resize(x, , , s)
        }
        """
    )
    assert text_of(facts, values["y"]) == "b, 3, h//2, w + w//2"
    assert facts.ints(values["f"]) is None


def test_sizes_by_factors_that_no_small_fraction_is_are_known_where_no_rounding_decides_them() -> None:
    facts, values = load(
        """
        g (float[b, 3, 3, 10] x, float[b, 3, h, 3] z) => (y, w) {
            k = Constant <value = float[4] {1.0, 1.0, 2.3333335, 0.77}> () y = Resize(x, , k)
            l = Constant <value = float[4] {1.0, 1.0, 2.3333335, 2.3333333}> () w = Resize(z, , l)
        }
        """
    )
    assert text_of(facts, values["y"]) == "b, 3, 7, 7"
    shape = facts.shape(values["w"])
    assert shape is not None and not isinstance(shape[2], int) and not isinstance(shape[3], int)


def test_what_a_float_cannot_hold_exactly_is_not_tracked() -> None:
    facts, values = load(
        """
        g (float[b] x) => (y, z) {
            n = Shape(x) f = Cast <to = 1> (n) k = Constant <value = float[1] {0.1}> ()
            m = Mul(f, k) y = Cast <to = 7> (m) h = Cast <to = 10> (n) z = Cast <to = 7> (h)
        }
        """
    )
    for name in ("y", "z"):
        ints = facts.ints(values[name])
        assert ints is None or ints.elements == (None,)


def test_a_symbol_that_may_be_zero_or_one_decides_nothing() -> None:
    facts, values = load(
        """
        g (float[b, s] x, float[b, t] w) => (y, z) {
            y = Add(x, w) n = Shape(x) o = Constant <value = int64[1] {1}> () z = Equal(n, o) q = Squeeze(x)
        }
        """
    )
    assert text_of(facts, values["y"]) == "b, broadcast(s, t)"
    assert facts.ints(values["z"]) == IntTensor((None, None), (2,))
    assert facts.shape(values["q"]) is None


def test_deep_chains_are_followed_without_recursion() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["b", 4]))
    nodes = [ir.node("Relu", [x])]
    for _ in range(100_000):
        nodes.append(ir.node("Add", [nodes[-1].outputs[0], x]))
    graph = ir.Graph([x], nodes[-1].outputs, nodes=nodes, opset_imports={"": 20})
    assert Facts(ir.Model(graph, ir_version=10)).shape(nodes[-1].outputs[0]) == (symbol("b"), 4)


@pytest.mark.parametrize(
    "numbers",
    [(0.5, 4.0, 1.0), (0.0, 1.0, 0.1), (0.0, 0.3, 0.1), (3.0, -1.0, -0.7), (1.0, 0.0, 1.0), (0.0, 16777217.0, 1e6)],
)
def test_steps_between_float_constants_are_counted_as_the_runtime_counts_them(numbers: tuple[float, ...]) -> None:
    start, limit, delta = numbers
    text = f"""g () => (float[n] y) <float start = {{{start}}}, float limit = {{{limit}}}, float delta = {{{delta}}}>
        {{ y = Range(start, limit, delta) }}"""
    facts, values = load(text)
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}')
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    assert facts.shape(values["y"]) == session.run(None, {})[0].shape


def test_the_last_s_elements_of_an_axis_of_s_are_all_even_if_there_are_none() -> None:
    facts, values = load(
        """g (float[b,s] x, float[b,p,s] past) => (float[b,n] y, float[b,p,m] z)
        <int64[1] axis = {1}, int64[1] two = {2}, int64[1] end = {9223372036854775807}> {
        n = Shape<start = 1, end = 2>(x) start = Neg(n) y = Slice(x, start, end, axis)
        other = Shape<start = 1, end = 2>(past) before = Neg(other) z = Slice(past, before, end, two) }"""
    )
    assert text_of(facts, values["y"]) == "b, s"
    assert text_of(facts, values["z"]) == "b, p, ?0"


def test_the_runtime_knows_fewer_sizes() -> None:
    text = """g (float["b", "s", 8] x, float[?, 4, 8] w) => (d) {
        a = Relu(x)
        perm = Transpose<perm = [1, 0, 2]>(a)
        flat_shape = Constant<value_ints = [-1, 8]>()
        flat = Reshape(x, flat_shape)
        full = Shape(x)
        c = Reshape(flat, full)
        d = Add(c, a)
        e = Sigmoid(w)
        s = Softmax(c)
    }"""
    facts, values = load(text)
    b, s = symbol("b"), symbol("s")
    found = {name: facts.inferred_shape(values[name]) for name in ("a", "perm", "c", "d", "e", "s")}
    assert found["a"] == (b, s, 8)
    assert found["perm"] == (s, b, 8)
    assert facts.shape(values["c"]) == (b, s, 8)  # by arithmetic on sizes, which ONNX's inference does not do
    assert found["c"] is None or found["c"][:2] == (None, None)
    assert found["d"] is None or found["d"][:2] == (None, None)
    assert found["e"] == (None, 4, 8)  # a size without a name is not known to be equal to itself
    assert found["s"] == found["c"]
