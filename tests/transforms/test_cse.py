from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import operators
from small_models import apply, context_of, floats, model_of

from ortfuse.io.data_file import DataFile
from ortfuse.io.detach_from_source_object import own
from ortfuse.io.load_and_save import load, save
from ortfuse.io.stored_tensor import chunks
from ortfuse.targets import Quirk
from ortfuse.transforms import CommonSubexpressionElimination
from ortfuse.transforms.cleanup import find_equal_initializers as tensor_hash_module


def test_the_same_computation_is_done_once() -> None:
    text = """agraph (float[2, 3] x) => (float[3, 2] y, float[3, 2] z) {
        a = Transpose <perm = [1, 0]> (x) \n b = Transpose <perm = [1, 0]> (x) \n y = Exp(a) \n c = Exp(b) \n z = Neg(c) }"""
    model, counts, _ = apply(
        text, CommonSubexpressionElimination(), CommonSubexpressionElimination(), inputs={"x": floats(2, 3)}
    )
    assert operators(model) == ["Transpose", "Exp", "Neg"]
    assert counts == [2, 0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Transpose <perm = [0, 1]> (x)", "Transpose <perm = [1, 0]> (x)"),
        ("LeakyRelu <alpha = 0.0> (x)", "LeakyRelu <alpha = -0.0> (x)"),
        ("Sub(x, w)", "Sub(w, x)"),
        ("Max(x, w)", "Max(w, x)"),
        ("RandomNormalLike <seed = 1.0> (x)", "RandomNormalLike <seed = 1.0> (x)"),
        ("other.Unknown (x)", "other.Unknown (x)"),
        ("Dropout(x, r, t)", "Dropout(x, r, t)"),
        ("Constant <value = float[2, 2] {1, 2, 3, 4}> ()", "Constant <value = float[2, 2] {1, 2, 3, 5}> ()"),
    ],
)
def test_different_or_unpredictable_computations_stay(one: str, other: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 20, "other" : 1]>
        agraph (float[2, 2] x, float[2, 2] w) => (float[2, 2] y) <float r = {{0.5}}, bool t = {{1}}> {{
        a = {one} \n b = {other} \n y = Mul(a, b) }}"""
    model, counts, _ = apply(text, CommonSubexpressionElimination())
    assert (counts, len(model.graph)) == ([0], 3)


def test_operands_of_commutative_operators_may_be_in_either_order() -> None:
    text = "agraph (float[2] x, float[2] w) => (float[2] y) { a = Add(x, w) \n b = Add(w, x) \n y = Mul(a, b) }"
    model, _, _ = apply(text, CommonSubexpressionElimination(), inputs={"x": floats(2), "w": floats(2)})
    assert operators(model) == ["Add", "Mul"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("ReduceMean(x, last)", "ReduceMean(x, two)", True),
        ("ReduceSum<keepdims = 0>(x, both)", "ReduceSum<keepdims = 0>(x, exchanged)", True),
        ("ReduceMean<keepdims = 0>(x, two)", "ReduceMean(x, two)", False),
        ("ReduceMean(x, last)", "ReduceMean(x, both)", False),
        ("ReduceMean(x)", "ReduceMean(x, two)", False),
        ("Softmax<axis = -1>(x)", "Softmax<axis = 2>(x)", True),
        ("Softmax<axis = 1>(x)", "Softmax<axis = 2>(x)", False),
        ("Unsqueeze(x, last)", "Unsqueeze(x, three)", True),
        ("Unsqueeze(x, last)", "Unsqueeze(x, two)", False),
    ],
)
def test_axes_may_be_counted_from_either_end(one: str, other: str, same: bool) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 20]> agraph (float[N, 3, 4] x) => (float y)
        <int64[1] last = {{-1}}, int64[1] two = {{2}}, int64[1] three = {{3}}, int64[2] both = {{1, -1}},
        int64[2] exchanged = {{2, 1}}> {{ a = {one} \n b = {other} \n c = Exp(a) \n y = Mul(c, b) }}"""
    _, counts, _ = apply(text, CommonSubexpressionElimination())
    assert counts == [int(same)]


def test_graph_outputs_keep_their_names_and_number() -> None:
    text = """agraph (float[N] x) => (float[M] y, float[N] z, float[N] u) {
        a = Neg(x) \n y = Neg(x) \n b = Exp(a) \n z = Exp(y) \n u = Exp(a) }"""
    model, _, _ = apply(text, CommonSubexpressionElimination(), inputs={"x": floats(3)})
    assert [value.name for value in model.graph.outputs] == ["y", "z", "u"]
    assert str(model.graph.outputs[0].shape) == "[M]"
    assert operators(model) == ["Neg", "Exp", "Exp"]


def test_a_branch_uses_what_was_computed_outside_but_never_the_reverse() -> None:
    text = """agraph (float[2] x, bool c) => (float[2] y, float[2] z) {
        a = Exp(x)
        y = If (c) <then_branch = t () => (float[2] p) { i = Exp(x) \n j = Abs(i) \n p = Neg(j) },
                    else_branch = e () => (float[2] q) { k = Exp(x) \n l = Abs(k) \n q = Exp(l) }>
        m = Abs(a) \n z = Neg(m) }"""
    model, counts, _ = apply(text, CommonSubexpressionElimination(), inputs={"x": floats(2), "c": np.array(False)})
    assert counts == [2]
    assert sorted(operators(model)) == ["Abs", "Abs", "Abs", "Exp", "Exp", "If", "Neg", "Neg"]


def test_the_output_of_a_branch_is_not_replaced_by_an_outer_value() -> None:
    text = """agraph (float[2] x, bool c) => (float[2] y, float[2] z) {
        z = Exp(x)
        y = If (c) <then_branch = t () => (float[2] p) { p = Exp(x) }, else_branch = e () => (float[2] q) { q = Abs(x) }> }"""
    _, counts, _ = apply(text, CommonSubexpressionElimination(), inputs={"x": floats(2), "c": np.array(True)})
    assert counts == [0]


def test_functions_are_visited() -> None:
    text = """agraph (float[2] x) => (float[2] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 20]> f (a) => (b) { c = Exp(a) \n d = Exp(a) \n b = Add(c, d) }"""
    _, counts, _ = apply(text, CommonSubexpressionElimination(), inputs={"x": floats(2)})
    assert counts == [1]


def test_calls_of_a_random_function_stay() -> None:
    text = """agraph (float[2] x) => (float[2] y) { p = local.f(x) \n q = local.f(x) \n y = Sub(p, q) }
        <domain: "local", opset_import: ["" : 20, "local" : 1]> f (a) => (b) { b = local.g(a) }
        <domain: "local", opset_import: ["" : 20]> g (a) => (b) { b = RandomNormalLike(a) }"""
    _, counts, _ = apply(text, CommonSubexpressionElimination())
    assert counts == [0]


def test_a_node_that_a_rule_made_equals_one_that_was_loaded() -> None:
    model = model_of("agraph (float[2] x) => (float[2] y) { a = Exp(x) \n b = Exp(x) \n y = Add(a, b) }")
    model.graph[1].version = 20
    assert CommonSubexpressionElimination().run(context_of(model)) == 1


def test_equal_initializers_are_shared_by_their_bytes() -> None:
    text = """agraph (float[2] x, float[2] d = {1, 0}) => (float[2] y)
        <float[2] p = {1, 0}, float[2] q = {1, 0}, float[2] n = {1, -0.0}, int32[2] i = {1065353216, 0}, float[1, 2] s = {1, 0}> {
        a = Add(x, p) \n b = Add(a, q) \n c = Add(b, n) \n e = Add(c, d) \n j = Cast <to = 1> (i) \n f = Add(e, j)
        g = Squeeze(s) \n y = Add(f, g) }"""
    model, counts, _ = apply(text, CommonSubexpressionElimination())
    assert counts == [1]
    assert sorted(model.graph.initializers) == ["d", "i", "n", "p", "s"]


def test_an_initializer_of_a_branch_gives_way_to_an_equal_outer_one() -> None:
    text = """agraph (float[2] x, bool c) => (float[2] y) <float[2] p = {1, 2}> {
        a = Add(x, p)
        y = If (c) <then_branch = t () => (float[2] u) <float[2] q = {1, 2}> { u = Mul(a, q) },
                    else_branch = e () => (float[2] v) <float[2] r = {1, 3}> { v = Mul(a, r) }> }"""
    model, counts, _ = apply(text, CommonSubexpressionElimination(), inputs={"x": floats(2), "c": np.array(True)})
    assert counts == [1]
    assert list(model.graph[1].attributes["else_branch"].as_graph().initializers) == ["r"]


def _with_weights(path: Path, *weights: object) -> ir.Model:
    """A saved and loaded model whose initializers are these arrays, each used once."""
    lines = "\n".join(f"y{i} = MatMul(x, w{i})" for i in range(len(weights)))
    outputs = ", ".join(f"float[a, b] y{i}" for i in range(len(weights)))
    inputs = ", ".join(["float[1, 64] x", *(f"float[64, 64] w{i}" for i in range(len(weights)))])
    model = model_of(f"agraph ({inputs}) => ({outputs}) {{ {lines} }}")
    for index, array in enumerate(weights):
        value = model.graph.inputs[1]
        model.graph.inputs.pop(1)
        value.const_value = ir.Tensor(np.asarray(array), name=f"w{index}")
        model.graph.register_initializer(value)
    save(model, path)
    return load(path)


def test_large_weights_are_shared_when_equal_and_hardly_read_when_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, late = floats(64, 64), -floats(64, 64), floats(64, 64)
    late[-1, -1] += 1
    read: list[str | None] = []
    monkeypatch.setattr(tensor_hash_module, "chunks", lambda tensor: read.append(tensor.name) or chunks(tensor))
    model = _with_weights(tmp_path / "m.onnx", one, other, late, one.copy())
    assert CommonSubexpressionElimination().run(context_of(model)) == 1
    assert sorted(model.graph.initializers) == ["w0", "w1", "w2"]
    assert sorted(map(str, read)) == ["w0", "w2", "w3"], "those that agree in the sample, each once"


def test_weights_that_agree_at_the_start_and_in_the_middle_are_read_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a file of holes, or with weights that are mostly zeros: not every pair of them is compared."""
    shape = (1 << 19, 1)
    weights = [np.zeros(shape, np.float32) for _ in range(6)]
    for index, weight in enumerate(weights):
        weight[-1, 0] = index // 2
    read: list[int] = []
    into = DataFile._read_into
    monkeypatch.setattr(DataFile, "_read_into", lambda *args: read.append(into(*args)) or read[-1])
    model = _with_weights(tmp_path / "m.onnx", *weights)
    assert CommonSubexpressionElimination().run(context_of(model)) == 3
    assert sorted(model.graph.initializers) == ["w0", "w2", "w4"]
    assert sum(read) == 6 * (weights[0].nbytes + (1 << 20))


def test_one_place_in_a_file_is_one_weight_without_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _with_weights(tmp_path / "m.onnx", floats(256, 128), -floats(256, 128))
    first, second = (value for value in model.graph.initializers.values())
    assert first.const_value is not None
    second.const_value = own(first.const_value)
    monkeypatch.setattr(DataFile, "_pread", None)
    assert CommonSubexpressionElimination().run(context_of(model)) == 1
    assert list(model.graph.initializers) == ["w0"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Shape <start = 1, end = 2> (a)", "x"),
        ("Shape(a)", "x"),
        ("Shape <start = 0, end = 1> (b)", "b"),
        ("Shape(b)", "b"),
    ],
)
def test_sizes_are_read_from_an_input_of_the_model_that_has_them(written: str, read: str) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 20]> agraph (float[M, N] x, float[K] w) => (int64[P] y)
        <int64[4] pads = {{1, 0, 2, 0}}> {{ a = Exp(x) \n b = Pad(x, pads) \n s = {written} \n y = Add(s, s) }}"""
    model, _, _ = apply(text, CommonSubexpressionElimination(), inputs={"x": floats(2, 3), "w": floats(5)})
    (shape,) = [node for node in model.graph if node.op_type == "Shape"]
    assert shape.inputs[0].name == read


@pytest.mark.parametrize(("kind", "turned", "pairs"), [("int8", True, 2), ("int8", False, 1), ("uint8", True, 1)])
def test_a_signed_pair_that_the_runtime_makes_unsigned_keeps_its_one_reader(
    kind: str, turned: bool, pairs: int
) -> None:
    """Of a pair with several readers it does not, and computes these in float32."""
    text = f"""<ir_version: 8, opset_import: ["": 20]> agraph (float[2, 3] x) => (float[2, 3] y, float[2, 3] z)
        <float s = {{0.1}}, {kind} n = {{0}}> {{
        p = QuantizeLinear(x, s, n) a = DequantizeLinear(p, s, n) y = Tanh(a)
        q = QuantizeLinear(x, s, n) b = DequantizeLinear(q, s, n) z = Exp(b) }}"""
    model = model_of(text)
    context = context_of(model)
    context.target.quirks = frozenset({Quirk.TURNS_SIGNED_PAIRS} if turned else ())
    CommonSubexpressionElimination().run(context)
    assert operators(model).count("QuantizeLinear") == operators(model).count("DequantizeLinear") == pairs


@pytest.mark.parametrize("third", [False, True])
def test_equal_weights_of_two_branches_are_one_of_the_main_graph(third: bool) -> None:
    """As of decoders with and without past that are merged as branches of an If; small constants stay."""
    weight = f"{{{', '.join(map(str, range(400)))}}}"
    again = f"""z = If (c) <then_branch = t2 () => (float[400] r) <float[400] n = {weight}> {{ r = Div(a, n) }},
                                else_branch = e2 () => (float[400] s) {{ s = Abs(a) }}>"""
    model, counts, _ = apply(
        f"""g (bool c, float[400] a) => (float[400] y{", float[400] z" * third}) {{
        y = If (c) <then_branch = t () => (float[400] u) <float[400] w = {weight}, float o = {{3}}> {{ l = Mul(a, w) u = Sub(l, o) }},
                    else_branch = e () => (float[400] v) <float[400] q = {weight}, float m = {{3}}> {{ k = Add(a, q) v = Sub(k, m) }}>
        {again * third} }}""",
        CommonSubexpressionElimination(),
        inputs={"c": np.array(True), "a": floats(400) + 5},
    )
    assert counts == [1 + third]
    assert [value.const_value.size for value in model.graph.initializers.values()] == [400]
