from __future__ import annotations

import cProfile
import errno
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from crashing import runtime_that
from graphs import operators, run
from onnx import TensorProto
from small_models import apply, context_of, floats, model_of, proto_of

from ortfuse.io.convert_model_objects import enter
from ortfuse.io.stored_tensor import StoredTensor
from ortfuse.runtime import evaluate_constants
from ortfuse.runtime.evaluate_constants import evaluate
from ortfuse.runtime.session import Session
from ortfuse.transforms import ConstantFolding, DeadCodeElimination, LiftConstants
from ortfuse.transforms import spill_constants as spill_module
from ortfuse.transforms.cleanup import constant_folding as fold_module
from ortfuse.transforms.cleanup.fold_constant_movement import MovedTensor


def test_a_chain_of_constants_becomes_one_constant_with_the_bits_of_the_runtime() -> None:
    text = """agraph (float[3] x) => (float[3] y) <float[3] w = {0.1, 2.3, 7.7}> {
        a = Exp(w) \n b = Sqrt(a) \n c = Tanh(b) \n y = Mul(x, c) }"""
    model, counts, context = apply(
        text, ConstantFolding(), DeadCodeElimination(), ConstantFolding(), inputs={"x": floats(3)}
    )
    assert operators(model) == ["Mul"]
    assert counts == [3, 1, 0]
    assert list(model.graph.initializers) == ["c"]
    assert context.facts.is_const(model.graph.initializers["c"])


def test_all_regions_are_evaluated_in_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions: list[Any] = []
    create = evaluate_constants.Session
    monkeypatch.setattr(
        evaluate_constants, "Session", lambda *args, **kwargs: sessions.append(1) or create(*args, **kwargs)
    )
    text = """agraph (float[2] x) => (float[2] y, float[2] z) <float[2] v = {1, 2}, float[2] w = {3, 4}> {
        a = Exp(v) \n y = Mul(x, a) \n b = Sin(w) \n c = Cos(b) \n d = Mul(a, c) \n z = Mul(x, d) }"""
    model = model_of(text)
    ConstantFolding().run(context_of(model))
    assert operators(model) == ["Mul", "Mul"]
    assert len(sessions) == 1


def test_what_facts_know_is_folded_although_inputs_vary() -> None:
    text = """agraph (float[N, 4] x) => (float[K, 2] y) <int64[1] one = {1}, int64[1] zero = {0}, int64 two = {2}> {
        s = Shape(x) \n n = Slice(s, zero, one) \n k = Gather <axis = 0> (s, one) \n h = Div(k, two) \n m = Mul(n, two)
        t = Concat <axis = 0> (m, h) \n y = Reshape(x, t) }"""
    model, _, _ = apply(text, ConstantFolding(), inputs={"x": floats(3, 4)})
    assert operators(model) == ["Shape", "Slice", "Mul", "Concat", "Reshape"]


@pytest.mark.parametrize(
    ("node", "shape"),
    [
        ("Transpose <perm = [1, 0, 2]> (w)", (3, 2, 200)),
        ("Transpose(w)", (200, 3, 2)),
        ("Reshape(w, s)", (6, 200)),
        ("Flatten <axis = 2> (w)", (6, 200)),
        ("Unsqueeze(w, z)", (1, 2, 3, 200)),
    ],
)
@pytest.mark.parametrize("kind", ["float", "float16", "bfloat16"])
def test_elements_are_moved_without_the_runtime(node: str, shape: tuple[int, ...], kind: str, monkeypatch: Any) -> None:
    model = model_of(
        f"agraph ({kind}[2, 3, 200] w) => ({kind}[a, b, c] y) <int64[2] s = {{6, -1}}, int64[1] z = {{0}}> {{ a = {node} \n y = Neg(a) }}"
    )
    value = model.graph.inputs.pop(0)
    dtype = value.dtype.numpy()
    value.const_value = ir.Tensor(np.arange(1200).reshape(2, 3, 200).astype(dtype), name="w")
    model.graph.register_initializer(value)
    expected = {"Transpose <perm": (1, 0, 2), "Transpose(w)": None}
    monkeypatch.delattr(evaluate_constants, "Session")
    assert ConstantFolding().run(context_of(model)) >= 1
    found = model.graph.initializers["a"].const_value.numpy()
    array = value.const_value.numpy()
    if node.startswith("Transpose"):
        array = array.transpose(expected[node[:15] if "perm" in node else "Transpose(w)"])
    np.testing.assert_array_equal(found, array.reshape(shape))
    assert found.shape == shape


def test_elements_are_moved_by_nodes_of_an_opset_that_the_model_is_raised_to() -> None:
    text = """<ir_version: 7, opset_import: ["": 13]> g (float[2] x) => (float[2] y) <float[1, 2] w = {1, 2}, int64[1] z = {0}> {
        row = Squeeze(w, z)
        y = Add(x, row) }"""
    model = model_of(text)
    model.graph[0].version = 13
    model.graph.opset_imports[""] = 12
    assert ConstantFolding().run(context_of(model)) == 1
    assert operators(model) == ["Add"]
    np.testing.assert_array_equal(model.graph.initializers["row"].const_value.numpy(), [1, 2])


def test_the_identity_of_a_constant_is_the_constant() -> None:
    text = "agraph (float[2] x) => (float[2] y, float[2] z) <float[2] w = {1, 2}> { a = Identity(w) \n y = Add(x, a) \n z = Identity(w) }"
    model, counts, _ = apply(text, ConstantFolding(), ConstantFolding(), inputs={"x": floats(2)})
    assert counts == [1, 0]
    assert list(model.graph.initializers) == ["w"]
    assert operators(model) == ["Add", "Identity"]


def test_a_large_weight_is_moved_when_it_is_read() -> None:
    model = model_of(
        "agraph (float[1, 300] x, float[200, 300] w) => (float[1, 200] y) { a = Transpose(w) \n y = MatMul(x, a) }"
    )
    value, array = model.graph.inputs.pop(1), floats(200, 300)
    value.const_value = ir.Tensor(array, name="w")
    model.graph.register_initializer(value)
    assert ConstantFolding(max_growth=0).run(context_of(model)) == 1
    moved = model.graph.initializers["a"].const_value
    assert isinstance(moved, MovedTensor)
    np.testing.assert_array_equal(moved.numpy(), array.T)
    x = floats(1, 300)
    np.testing.assert_allclose(run(model, {"x": x})[0], x @ array.T, rtol=1e-4, atol=1e-4)


BOMBS = [
    "ConstantOfShape <value = float[1] {0.0}> (huge)",
    "Expand(w, huge)",
    "Tile(w, many)",
    "RandomNormal <shape = [2, 2]> ()",
    "Range(zero, big, step)",
]


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_and_random_numbers_are_not_evaluated(bomb: str) -> None:
    text = f"""agraph (float[1] x) => (float[a, b] y)
        <int64[2] huge = {{1000000, 1000000}}, int64[2] many = {{1000000, 100000}}, float[1, 1] w = {{1}},
         float zero = {{0}}, float big = {{1e9}}, float step = {{1e-3}}> {{ a = {bomb} \n y = Add(x, a) }}"""
    model, counts, _ = apply(text, ConstantFolding())
    assert counts == [0]
    assert len(model.graph) == 2


def test_growth_is_bounded_and_the_bound_is_an_option() -> None:
    text = "agraph (float[128] x) => (float[128] y) <float w = {1}, int64[1] s = {128}> { a = Expand(w, s) \n y = Add(x, a) }"
    assert apply(text, ConstantFolding(max_growth=64))[1] == [0]
    assert apply(text, ConstantFolding(max_growth=512))[1] == [1]


def test_a_weight_that_stays_in_use_is_not_doubled() -> None:
    text = """agraph (float[2, 64] x, float[2, 4] v) => (float[2, 4] y, float[2, 64] z) <WEIGHT> {
        t = Transpose(w) \n y = MatMul(x, t) \n z = MatMul(v, w) }"""
    weight = "float[4, 64] w = {" + ", ".join(["1"] * 256) + "}"
    assert apply(text.replace("WEIGHT", weight), ConstantFolding(max_growth=512))[1] == [0]
    alone = text.replace("WEIGHT", weight).replace("z = MatMul(v, w)", "z = Identity(x)")
    assert apply(alone, ConstantFolding(max_growth=512))[1] == [1]


def test_quantised_weights_stay_quantised() -> None:
    text = """agraph (float[2] x) => (float[2] y) <int8[2] w = {1, 2}, float s = {0.5}, int8 z = {0}> {
        a = DequantizeLinear(w, s, z) \n y = Add(x, a) }"""
    assert apply(text, ConstantFolding())[1] == [0]


def test_a_node_that_fails_is_left_alone_with_a_note_and_the_rest_is_folded() -> None:
    text = """agraph (float[2] x, float[2] u) => (float[2] y, float[K] z) <float[2] w = {1, 2}, int64[1] far = {9}> {
        a = Exp(w) \n b = Gather(a, far) \n c = Neg(b) \n d = Exp(a) \n y = Mul(x, d) \n z = Mul(u, c) }"""
    model, counts, context = apply(text, ConstantFolding())
    assert operators(model) == ["Gather", "Neg", "Mul", "Mul"]
    assert counts == [2]
    assert len(context.notes) == 1
    assert "Gather" in next(iter(context.notes))
    assert sorted(model.graph.initializers) == ["a", "d", "far", "w"]


@pytest.mark.parametrize("divisor", ["0, 1", "-1, 1"])
def test_integer_division_that_can_end_the_process_is_left_alone(divisor: str) -> None:
    text = f"""agraph (int32[2] x) => (int32[2] y) <int32[2] n = {{-2147483648, 5}}, int32[2] d = {{{divisor}}}> {{
        a = Div(n, d) \n y = Add(x, a) }}"""
    model = model_of(text)
    ConstantFolding().run(context_of(model))
    assert [node.op_type for node in model.graph][-1] == "Add"


def test_a_graph_output_is_computed_by_a_constant_node() -> None:
    text = "agraph (float[1] x) => (float[1] y, float[1] z) <float[1] w = {0.3}> { y = Exp(w) \n z = Add(x, y) }"
    model, counts, _ = apply(text, ConstantFolding(), LiftConstants(), ConstantFolding(), inputs={"x": floats(1)})
    assert operators(model) == ["Constant", "Add"]
    assert model.graph.outputs[0].name == "y"
    assert counts == [1, 0, 0]


def test_branches_and_loops_are_folded_with_constants_from_outside() -> None:
    text = """agraph (int64 n, float[2] x) => (float[2] y) <bool go = {1}, float[2] w = {0.1, 0.2}> {
        v = Exp(w)
        y = Loop (n, go, x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t) <float[2] k = {3, 4}> {
            d = Identity(c) \n p = Sin(v) \n q = Mul(p, k) \n t = Mul(s, q) }> }"""
    model, counts, _ = apply(text, ConstantFolding(), inputs={"n": np.array(3), "x": floats(2)})
    assert operators(model) == ["Loop", "Identity", "Mul"]
    assert counts == [3]


def test_functions_are_folded_into_constant_nodes() -> None:
    text = """agraph (float[2] x) => (float[2] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 20]> f (a) => (b) {
            c = Constant <value = float[2] {0.1, 0.2}> () \n d = Exp(c) \n b = Add(a, d) }"""
    model, counts, _ = apply(text, ConstantFolding(), DeadCodeElimination(), inputs={"x": floats(2)})
    assert operators(model) == ["f", "Constant", "Add"]
    assert counts == [1, 1]


def test_calls_of_functions_with_constant_arguments_are_folded() -> None:
    text = """agraph (float[2] x) => (float[2] y) <float[2] w = {0.1, 0.2}> { a = local.f(w) \n y = Add(x, a) }
        <domain: "local", opset_import: ["" : 20]> f (a) => (b) { c = Exp(a) \n b = Sin(c) }"""
    model, counts, _ = apply(text, ConstantFolding(), DeadCodeElimination(), inputs={"x": floats(2)})
    assert operators(model) == ["Add"]
    assert counts[0] == 1


def test_a_default_that_a_caller_may_override_is_no_constant() -> None:
    text = "agraph (float[2] x, float[2] w = {1, 2}) => (float[2] y) { a = Exp(w) \n y = Add(x, a) }"
    assert apply(text, ConstantFolding())[1] == [0]


def test_sizes_that_depend_on_values_are_learned_from_round_to_round() -> None:
    text = """agraph (float[1] x) => (float[a] y) <float[4] w = {0.0, 1.5, 0.0, 2.5}> {
        e = Sin(w) \n i = NonZero(e) \n s = Shape(i) \n f = Cast <to = 1> (s) \n g = Sqrt(f) \n y = Add(x, g) }"""
    model, _, _ = apply(text, ConstantFolding(), inputs={"x": floats(1)})
    assert operators(model) == ["Add"]


def test_work_is_linear_in_the_length_of_a_chain() -> None:
    def calls(length: int) -> int:
        lines = "\n".join(f"v{i + 1} = {'Neg' if i % 2 else 'Exp'}(v{i})" for i in range(length))
        context = context_of(
            model_of(
                f"agraph (float[1] x) => (float[1] y) <float[1] v0 = {{0}}> {{ {lines} \n y = Add(x, v{length}) }}"
            )
        )
        profile = cProfile.Profile()
        assert profile.runcall(ConstantFolding().run, context) == length
        return sum(entry.callcount for entry in profile.getstats())

    calls(10)
    assert calls(2000) < 11 * calls(200)


def test_the_original_is_not_touched() -> None:
    proto = proto_of("agraph (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Exp(w) \n y = Add(x, a) }")
    before = proto.SerializeToString(deterministic=True)
    ConstantFolding().run(context_of(enter(proto)[0]))
    assert proto.SerializeToString(deterministic=True) == before


def _little_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every node is computed by itself, and results go into a file; the list grows with the nodes of every session."""
    sessions: list[int] = []
    monkeypatch.setattr(fold_module, "_BATCH_BYTES", 1)
    monkeypatch.setattr(spill_module, "IN_MEMORY", 0)
    monkeypatch.setattr(spill_module, "_SMALL", 0)
    monkeypatch.setattr(
        fold_module, "evaluate", lambda region, wanted: sessions.append(len(region.nodes)) or evaluate(region, wanted)
    )
    return sessions


@pytest.mark.parametrize("kind", ["float", "float16", "double", "int32"])
def test_what_is_computed_does_not_pile_up_in_memory(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = _little_memory(monkeypatch)
    text = f"""agraph (float[2, 2] x) => (float[2, 2] y, {kind}[4, 2] z) <float[2, 2] p = {{1, 2, 3, 4}}> {{
        a = Exp(p)
        b = Cast <to = {TensorProto.DataType.Value(kind.upper())}> (a)
        c = Sin(a)
        y = Add(x, c)
        k = CastLike(x, b)
        z = Concat <axis = 0> (k, b) }}"""
    model, _, _ = apply(text, ConstantFolding(), inputs={"x": floats(2, 2)})
    assert operators(model) == ["Add", "CastLike", "Concat"]
    assert sessions == [1, 1, 1]
    used = [value.const_value for value in model.graph.initializers.values() if value.uses()]
    assert all(isinstance(tensor, StoredTensor) for tensor in used)


def test_nodes_after_one_that_failed_are_left_alone_in_later_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = _little_memory(monkeypatch)
    text = """agraph (float[2] x) => (float[2] y) <float[2] p = {1, 2}, int64[2] outside = {0, 7}> {
        e = Exp(p)
        g = Gather(e, outside)
        s = Sin(g)
        t = Cos(s)
        y = Add(x, t) }"""
    model, _, context = apply(text, ConstantFolding())
    assert operators(model) == ["Gather", "Sin", "Cos", "Add"]
    assert sessions == [1, 1, 0, 0]
    assert [note.split(":")[0] for note in context.notes] == ["fold"]


def test_without_a_place_for_temporary_files_constants_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    _little_memory(monkeypatch)
    monkeypatch.setattr(spill_module, "ScratchFile", refuse)
    text = "agraph (float[2] x) => (float[2] y) <float[2] p = {1, 2}> { a = Exp(p) y = Add(x, a) }"
    model, _, _ = apply(text, ConstantFolding(), inputs={"x": floats(2)})
    assert operators(model) == ["Add"]


def test_a_node_on_which_the_runtime_crashes_is_left_alone_with_a_note_and_the_rest_is_folded() -> None:
    text = """agraph (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
        a = Exp(w) \n b = Softsign(a) \n c = Neg(b) \n d = Sqrt(a) \n e = Mul(c, d) \n y = Mul(x, e) }"""
    model = model_of(text)
    context = context_of(model)
    with runtime_that("run", "Softsign"):
        ConstantFolding().run(context)
    assert operators(model) == ["Softsign", "Neg", "Mul", "Mul"]
    (note,) = context.notes
    assert "Softsign" in note
    assert "ONNX Runtime crashes when it executes the model (signal 11, SIGSEGV)" in note


def test_all_results_together_may_not_make_the_model_grow_by_more_than_the_limit() -> None:
    each = "\n".join(f"e{n} = Expand(k{n}, s) z{n} = Exp(e{n})" for n in range(8))
    kinds = ", ".join(f"float[1] k{n} = {{{n}.5}}" for n in range(8))
    sums = " ".join(f"y{n + 1} = Add(y{n}, z{n})" for n in range(8))
    text = f"g (float[100] y0) => (float[100] y8) <{kinds}, int64[1] s = {{100}}> {{ {each} {sums} }}"
    model, _, _ = apply(text, ConstantFolding(max_growth=1200), inputs={"y0": floats(100)})
    grown = [value for value in model.graph.initializers.values() if value.const_value.nbytes == 400]
    assert 0 < len(grown) <= 4


@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_a_division_by_zero_in_a_branch_that_is_never_taken_stays_computed(operator: str) -> None:
    text = f"""g (float[2] x, bool c) => (int64 y) <int64 one = {{1}}, int64 two = {{2}}> {{
        n = Size(x)
        y = If (c) <then_branch = t () => (int64 a) {{ o = Sub(two, n) a = {operator}(one, o) }},
                    else_branch = e () => (int64 b) {{ b = Identity(n) }}> }}"""
    model, _, _ = apply(text, ConstantFolding(), inputs={"x": floats(2), "c": np.array(False)})
    assert operator in operators(model) and "Sub" in operators(model)


def test_a_target_that_infers_a_size_of_an_empty_tensor_stays_computed() -> None:
    text = """g (float[0,3,4] x) => (float[a,c,d,e] y) <int64[1] i = {0}, int64[1] h = {2}, int64[1] m = {-1}> {
        n = Shape(x) a = Gather(n, i) t = Concat <axis = 0> (a, h, h, m) y = Reshape(x, t) }"""
    model, _, _ = apply(text, ConstantFolding())
    assert operators(model)[-2:] == ["Concat", "Reshape"]
    Session(model, optimise=False)


def test_text_is_left_alone() -> None:
    text = """g (float[2] x) => (string[2] y, float[2] z) <string[1] s = {"a"}, int64[1] n = {2}> {
        y = Expand(s, n) z = Neg(x) }"""
    model, _, _ = apply(text, ConstantFolding(), inputs={"x": floats(2)})
    assert operators(model) == ["Expand", "Neg"]


def test_floats_are_computed_by_the_runtime() -> None:
    text = """g (float[2] x) => (float16[2] y) <double[2] d = {1.00048828126, 2049.00000001}> {
        h = Cast <to = 10> (d) g = Cast <to = 10> (x) y = Add(h, g) }"""
    model, _, _ = apply(text, ConstantFolding(), inputs={"x": floats(2)})
    assert operators(model) == ["Cast", "Add"]


def test_a_result_that_the_runtime_leaves_open_is_not_folded() -> None:
    text = """<ir_version: 10, opset_import: ["": 23]> g () => (y) <float[1, 1, 2, 2] w = {1, 2, 3, 4}> {
        a, b, c, y = Attention <qk_matmul_output_mode = -1> (w, w, w) }"""
    model = model_of(text)
    ConstantFolding().run(context_of(model))
    assert operators(model) == ["Attention"]


@pytest.mark.parametrize(("number", "stays"), [(642.0, "Mul Mul Mul Add Mul Tanh Cast"), (2.0, "Mul Tanh Cast")])
def test_half_precision_that_the_runtime_computes_in_float32_is_folded_only_if_float16_holds_it(
    number: float, stays: str
) -> None:
    bits = [int(np.float16(one).view(np.uint16)) for one in (number, 0.044)]
    text = f"""agraph (float16[1] x) => (float[1] y) <float16[1] c = {{{bits[0]}}}, float16[1] k = {{{bits[1]}}}> {{
        q = Mul(c, c) \n r = Mul(q, c) \n p = Mul(r, k) \n s = Add(c, p) \n m = Mul(x, s) \n t = Tanh(m)
        y = Cast <to = 1> (t) }}"""
    model, _, _ = apply(text, ConstantFolding(), DeadCodeElimination())
    assert " ".join(operators(model)) == stays
    x = {"x": np.array([1e-4], np.float16)}
    np.testing.assert_allclose(run(model, x)[0], run(proto_of(text), x)[0], rtol=2e-3)
