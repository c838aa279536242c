"""Sizes that are computed in different ways are one value."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import onnx_ir as ir
import pytest
from small_models import apply, context_of, model_of, run

from ortfuse.transforms import CommonSubexpressionElimination, DeadCodeElimination, Finalize, SimplifyDataMovement
from ortfuse.transforms.context import Context


def test_the_same_symbolic_sizes_are_merged_and_others_are_not() -> None:
    text = """agraph (float[b, s] x, float[s, b] w) => (int64[1] p, int64[1] q, int64[1] r)
        <int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}> {
            n = Shape(x) m = Shape(w) a = Gather(n, one) k = Shape <start = 0, end = 1> (w) o = Gather(m, one)
            p = Mul(a, two) q = Mul(k, three) r = Neg(o) }"""
    model, counts, _ = apply(text, CommonSubexpressionElimination())
    sizes = {node.outputs[0].name: node.inputs[0] for node in model.graph if node.op_type in ("Neg", "Mul")}
    assert sizes["p"] is sizes["q"] is not sizes["r"]
    assert counts[0] > 0


_READS = {
    "an element of the second input": "m = Shape(w) a = Gather(m, one) p = Neg(a)",
    "the same with an axis": "k = Shape <start = 1, end = 2> (w) q = Neg(k)",
    "an element of the first input": "n = Shape(x) b = Gather(n, one) i = Unsqueeze(b, ax) r = Neg(i)",
}


@pytest.mark.parametrize("order", list(permutations(_READS)))
def test_a_size_is_read_in_one_way_whatever_comes_first(order: tuple[str, ...]) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]> agraph (float[b, s] x, float[b, s] w)
        => (int64 p, int64[1] q, int64[1] r) <int64 one = {{1}}, int64[1] ax = {{0}}> {{ {" ".join(_READS[name] for name in order)} }}"""
    inputs = {name: np.ones((3, 5), np.float32) for name in "xw"}
    model, _, _ = apply(text, CommonSubexpressionElimination(), DeadCodeElimination(), inputs=inputs)
    assert Counter(node.op_type for node in model.graph) == {"Shape": 1, "Squeeze": 1, "Neg": 3}
    assert next(node for node in model.graph if node.op_type == "Shape").inputs[0].name == "x"


def test_several_sizes_are_elements_of_one_shape() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> agraph (float[b, s] x) => (int64 p, int64 q)
        <int64[1] ax = {0}> {
            m = Shape <start = 0, end = 1> (x) a = Squeeze(m, ax) p = Neg(a)
            n = Shape <start = 1, end = 2> (x) b = Squeeze(n, ax) q = Neg(b) }"""
    model, _, _ = apply(
        text, CommonSubexpressionElimination(), DeadCodeElimination(), inputs={"x": np.ones((3, 5), np.float32)}
    )
    assert Counter(node.op_type for node in model.graph) == {"Shape": 1, "Gather": 2, "Neg": 2}


def test_sizes_of_what_lies_between_are_read_from_what_comes_first() -> None:
    text = """agraph (float[b, s, 4] x, float[4, 8] w) => (int64[1] p, int64 q, float[b, s, s] t)
        <int64[1] two = {2}, int64[1] three = {3}, int64 one = {1}> {
            y = MatMul(x, w) z = Transpose <perm = [0, 2, 1]> (y) t = MatMul(y, z)
            n = Shape(t) m = Slice(n, two, three) p = Neg(m) k = Gather(n, one) q = Neg(k) }"""
    model, _, _ = apply(text, CommonSubexpressionElimination(), DeadCodeElimination())
    assert {node.inputs[0].name for node in model.graph if node.op_type == "Shape"} == {"x"}


def test_parts_of_a_shape_stay_where_another_use_of_it_does() -> None:
    text = """agraph (float[b, s, 4] x, float[4, 8] w, float[u] r) => (int64 q, float t)
        <int64 one = {1}> {
            y = MatMul(x, w) z = Transpose <perm = [0, 2, 1]> (y) v = MatMul(y, z)
            n = Shape(v) t = Expand(r, n) k = Gather(n, one) q = Neg(k) }"""
    model, _, _ = apply(text, CommonSubexpressionElimination())
    assert [node.inputs[0].name for node in model.graph if node.op_type == "Shape"] == ["v"]


def test_parts_of_a_shape_stay_where_it_is_an_output() -> None:
    """Read elsewhere, they would be merged with it again, and so on."""
    text = """agraph (float[b, 4] x, float[4] w) => (int64[2] n, int64 q)
        <int64 zero = {0}> { y = Mul(x, w) n = Shape(y) k = Gather(n, zero) q = Neg(k) }"""
    model, counts, _ = apply(text, CommonSubexpressionElimination())
    assert [node.inputs[0].name for node in model.graph if node.op_type == "Shape"] == ["y"]
    assert counts == [0]


@pytest.mark.parametrize("opset", [13, 17])
def test_sizes_beside_numbers_are_read_without_these(opset: int) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
        agraph (float[b, s, 4] x, float[4, 8] w, int64[1] more) => (float[b, 8, s] z, int64[3] p, int64[4] q)
        <int64[1] zero = {{0}}, int64[1] two = {{2}}> {{
            y = MatMul(x, w) z = Transpose <perm = [0, 2, 1]> (y) n = Shape(z) m = Slice(n, zero, two)
            p = Concat <axis = 0> (m, more) q = Concat <axis = 0> (more, m, more) }}"""
    x, w = np.ones((3, 5, 4), np.float32), np.ones((4, 8), np.float32)
    inputs = {"x": x, "w": w, "more": np.array([7])}
    model, _, _ = apply(text, CommonSubexpressionElimination(), DeadCodeElimination(), inputs=inputs)
    assert {node.inputs[0].name for node in model.graph if node.op_type == "Shape"} == {"x"}


class _AsOfALaterOpset:
    """Reads the first size as rules do that need a later opset than the model has."""

    name = "as_of_a_later_opset"

    def run(self, context: Context) -> int:
        (shape,) = [node for node in context.model.graph if node.op_type == "Shape"]
        (gather,) = shape.outputs[0].consumers()
        made = ir.node("Shape", shape.inputs, {"start": 0, "end": 1}, version=15)
        with context.editor.change(self.name):
            context.editor.insert_before(shape, made)
            context.editor.replace(gather.outputs[0], made.outputs[0])
            context.editor.remove(gather, shape)
        return 1


def test_sizes_that_rules_read_at_a_later_opset_are_read_earlier_too() -> None:
    text = """<ir_version: 8, opset_import: ["" : 13]>
        agraph (float[b, s, 4] x) => (float[b, s, 4] y, int64[1] q) <int64[1] zero = {0}> {
            y = Relu(x) n = Shape(y) k = Gather(n, zero) q = Neg(k) }"""
    x = np.ones((3, 5, 4), np.float32)
    model, _, _ = apply(
        text, _AsOfALaterOpset(), CommonSubexpressionElimination(), DeadCodeElimination(), Finalize(), inputs={"x": x}
    )
    assert {node.inputs[0].name for node in model.graph if node.op_type == "Shape"} == {"x"}
    assert model.graph.opset_imports[""] == 15


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("known", [True, False])
def test_sizes_that_are_chosen_are_read_where_it_is_known_which(opset: int, known: bool) -> None:
    """expand(batch, -1, -1), as PyTorch writes it: -1 stands for the size that is there, and no batch is -1."""
    compared = "wanted, none" if known else "wanted, some"
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]> agraph (float[b, s, 4] x, float[1, 1, 4] c) => (float[n0, n1, 4] y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[2] rest = {{-1, -1}}, int64[3] ones = {{1, 1, 1}},
         int64[3] none = {{-1, -1, -1}}, int64[3] some = {{3, -1, -1}}> {{
            n = Shape(x) batch = Slice(n, zero, one) wanted = Concat <axis = 0> (batch, rest) kept = Equal({compared})
            shape = Where(kept, ones, wanted) y = Expand(c, shape) }}"""
    inputs = {"x": np.ones((3, 5, 4), np.float32), "c": np.ones((1, 1, 4), np.float32)}
    model, _, _ = apply(text, CommonSubexpressionElimination(), DeadCodeElimination(), inputs=inputs)
    assert ("Where" not in {node.op_type for node in model.graph}) is known


@pytest.mark.parametrize(("behind", "sums"), [("", 0), ("r = Neg(i) t = Neg(g)", 1)])
def test_a_sum_of_sizes_that_an_input_has_is_read_if_that_saves_nodes(behind: str, sums: int) -> None:
    """The second model needs both sizes besides, so that reading the sum would save nothing."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[b, s] x, float[b, p] k, float[b, whole] m) => (int64 q{", int64 r, int64 t" if behind else ""})
        <int64 one = {{1}}> {{
            a = Shape(x) i = Gather(a, one) c = Shape(k) g = Gather(c, one) n = Add(g, i) q = Neg(n) {behind} }}"""
    model = model_of(text)
    sizes = model.graph.inputs[2]
    sizes.shape = ir.Shape(["b", "p + s"])
    for made in (CommonSubexpressionElimination(), DeadCodeElimination()):
        made.run(context_of(model))
    assert [node.op_type for node in model.graph].count("Add") == sums
    inputs = {"x": np.ones((2, 3), np.float32), "k": np.ones((2, 4), np.float32), "m": np.ones((2, 7), np.float32)}
    assert run(model, inputs)[0] == -7


def test_a_size_of_another_type_is_not_read_as_it_is() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> agraph (float[b, s] x) => (int32[n] y, int64[m] z)
        <int64 one = {1}, int32 start = {0}, int32 step = {1}, int64 zero = {0}, int64[1] at = {0}> {
            a = Shape(x) i = Gather(a, one) c = Cast<to = 6>(i) r = Range(start, c, step) y = Neg(r)
            u = Unsqueeze(c, at) v = Cast<to = 7>(u) w = Squeeze(v, at) q = Range(zero, w, one) z = Neg(q) }"""
    model, _, _ = apply(text, SimplifyDataMovement(), inputs={"x": np.ones((2, 5), np.float32)})
    assert [node.op_type for node in model.graph].count("Cast") >= 1
