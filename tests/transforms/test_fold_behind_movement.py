"""Factors and offsets of channels go into the weights of the product before them, through what moves the channels."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import operators, run
from onnx import helper, numpy_helper
from small_models import context_of

from ortfuse.io.convert_model_objects import enter
from ortfuse.transforms import ComposeLinearMaps, DeadCodeElimination

RNG = np.random.default_rng(0)
HEADS = "r = Reshape(m, heads) t = Transpose<perm = [0, 2, 1, 3]>(r)"


def _proto(nodes: str, **more: Any) -> onnx.ModelProto:
    """A product of 12 columns, of [batch, length, 5], and what follows."""
    constants = {
        "w": RNG.standard_normal((5, 12)), "wt": RNG.standard_normal((12, 5)), "bias": RNG.standard_normal(12),
        "heads": np.array([0, 0, 3, 4]), "packed": np.array([0, 0, 3, 2, 2]), "rows": np.array([-1, 12]),
        "of_heads": RNG.standard_normal((3, 1, 1)), "of_parts": RNG.standard_normal((3, 4)), "of_channels": RNG.standard_normal(12),
        "of_part": RNG.standard_normal(4), "of_positions": RNG.standard_normal((7, 1)), "two": np.array([4, 8]),
        "zero": np.array(0), "one": np.array(1), "variance": np.linspace(0.5, 2, 12), **more,
    }  # fmt: skip
    proto = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g (float[b, 7, 5] x) => (float[k] y) {{ {nodes} }}'
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    used = {name for node in proto.graph.node for name in node.input}
    for name, array in constants.items():
        if name in used:
            found = np.asarray(array)
            kind = np.int64 if found.dtype.kind == "i" else np.float32
            proto.graph.initializer.append(numpy_helper.from_array(found.astype(kind), name))
    return proto


def _folded(proto: onnx.ModelProto) -> tuple[ir.Model, int]:
    """The model after the pass, which computes the same, and how much was folded."""
    model = enter(proto)[0]
    context = context_of(model)
    count = ComposeLinearMaps(behind_movement=True).run(context)
    DeadCodeElimination().run(context)
    for batch in (1, 3):
        x = np.random.default_rng(batch).standard_normal((batch, 7, 5)).astype(np.float32)
        for one, other in zip(run(proto, {"x": x}), run(model, {"x": x}), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    return model, count


FOLDED = {
    "heads of queries": f"m = MatMul(x, w) {HEADS} y = Mul(t, of_heads)",
    "parts of heads": "m = MatMul(x, w) r = Reshape(m, heads) y = Mul(r, of_parts)",
    "an offset": "m = MatMul(x, w) r = Reshape(m, heads) y = Add(r, of_parts)",
    "a sum before": "s = MatMul(x, w) m = Add(s, bias) r = Reshape(m, heads) y = Sub(of_parts, r)",
    "divided": f"m = MatMul(x, w) {HEADS} y = Div(t, of_heads)",
    "one part of a Split": "m = MatMul(x, w) a, c, d = Split<axis = -1, num_outputs = 3>(m) r = Unsqueeze(c, zero1) "
    "s = Mul(r, of_part) q = Squeeze(s, zero1) y = Concat<axis = -1>(a, q, d)",
    "one index of an axis": "m = MatMul(x, w) r = Reshape(m, packed) t = Transpose<perm = [2, 0, 3, 1, 4]>(r) a = Gather<axis = 0>(t, zero) "
    "c = Gather<axis = 0>(t, one) s = Mul(a, of_two) y = Add(s, c)",
    "BatchNormalization of channels": "m = MatMul(x, w) t = Transpose<perm = [0, 2, 1]>(m) "
    "n = BatchNormalization(t, of_channels, bias, bias, variance) y = Transpose<perm = [0, 2, 1]>(n)",
    "a multiple that is added": f"m = MatMul(x, w) {HEADS} s = Mul(t, of_heads) y = Add(s, t)",
    "a small weight that is used elsewhere": f"m = MatMul(x, w) {HEADS} s = Mul(t, of_heads) n = Neg(w) z = ReduceSum(n) y = Add(s, z)",
    "a Gemm": "f = Reshape(x, flat5) m = Gemm<transB = 1>(f, wt, bias) r = Reshape(m, back) y = Mul(r, of_parts)",
}


@pytest.mark.parametrize("nodes", FOLDED.values(), ids=FOLDED)
def test_channels_are_scaled_in_the_weight(nodes: str) -> None:
    proto = _proto(
        nodes,
        zero1=np.array([0]),
        of_two=RNG.standard_normal((2, 1, 2)),
        flat5=np.array([-1, 5]),
        back=np.array([-1, 7, 3, 4]),
    )
    model, count = _folded(proto)
    assert count == 1
    assert not {"Mul", "Div", "Sub", "BatchNormalization"} & {*operators(model)}


LEFT = {
    "positions": f"m = MatMul(x, w) {HEADS} y = Mul(t, of_positions)",
    "one number": f"m = MatMul(x, w) {HEADS} y = Mul(t, number)",
    "a product that is read elsewhere": f"m = MatMul(x, w) {HEADS} s = Mul(t, of_heads) n = Neg(m) f = Reshape(s, same) y = Add(f, n)",
    "heads that are read elsewhere": f"m = MatMul(x, w) {HEADS} s = Mul(t, of_heads) n = Neg(t) y = Add(s, n)",
    "overlapping parts": "m = MatMul(x, w) r = Reshape(m, packed) t = Transpose<perm = [2, 0, 3, 1, 4]>(r) a = Gather<axis = 0>(t, zero) "
    "c = Slice(t, start, end) s = Mul(a, of_two) u = ReduceSum<keepdims = 0>(c, axis) y = Add(s, u)",
    "positions that a Split parts": "m = MatMul(x, w) a, c = Split<axis = 1>(m, parted) s = Mul(a, of_channels) y = Concat<axis = 1>(s, c)",
    "positions that a second Split parts": "m = MatMul(x, w) a, c, d = Split<axis = 2, num_outputs = 3>(m) e, f = Split<axis = 1>(a, parted) "
    "s = Mul(e, of_part) y = Concat<axis = 1>(s, f, c, d)",
    "columns of which a Split parts one row": "m = MatMul(x, w) r = Reshape(m, flat) a, c = Split<axis = 1>(r, parts84) s = Mul(a, of_part) y = Concat<axis = 1>(s, c)",
    "repeated columns": "m = MatMul(x, w) u = Unsqueeze(m, three) e = Expand(u, sizes) y = Mul(e, of_copies)",
    "a constant with more axes": "m = MatMul(x, w) r = Reshape(m, heads) y = Mul(r, of_batch)",
    "infinite": "m = MatMul(x, w) r = Reshape(m, heads) y = Mul(r, huge)",
}


@pytest.mark.parametrize("nodes", LEFT.values(), ids=LEFT)
def test_what_belongs_to_no_column_alone_is_left(nodes: str) -> None:
    proto = _proto(
        nodes, number=np.array(0.5), same=np.array([0, 7, 12]), of_two=RNG.standard_normal((2, 1, 2)), start=np.array([0]),
        end=np.array([2]), axis=np.array([0]), three=np.array([3]), sizes=np.array([1, 7, 12, 2]), of_copies=np.ones((12, 2)) * [1, 2],
        of_batch=RNG.standard_normal((2, 1, 1, 3, 4)), huge=np.full((3, 4), 3e38),
        parted=np.array([3, 4]), flat=np.array([0, 84]), parts84=np.array([4, 80]),
    )  # fmt: skip
    model = enter(proto)[0]
    assert ComposeLinearMaps(behind_movement=True).run(context_of(model)) == 0


@pytest.mark.parametrize("seed", range(12))
def test_any_chain_of_movement_gives_the_same(seed: int) -> None:
    """Random Reshapes, Transposes and Slices between a product and a constant that broadcasts over some axes."""
    rng = random.Random(seed)
    shape: list[int] = [2, 7, 12]
    nodes, constants, value = (
        [helper.make_node("MatMul", ["x", "w"], ["v0"])],
        {"w": RNG.standard_normal((5, 12))},
        "v0",
    )
    for number in range(1, rng.randint(2, 6)):
        kind, result, name = rng.choice(["Reshape", "Transpose", "Slice"]), f"v{number}", f"c{number}"
        if kind == "Transpose":
            perm = rng.sample(range(len(shape)), len(shape))
            shape = [shape[axis] for axis in perm]
            nodes.append(helper.make_node("Transpose", [value], [result], perm=perm))
        elif kind == "Reshape":
            axis = rng.randrange(len(shape))
            factor = rng.choice([size for size in (1, 2, 3, 4, 6, 7, 12) if shape[axis] % size == 0])
            merges = rng.random() < 0.3 and axis + 1 < len(shape)
            middle = [shape[axis] * shape[axis + 1]] if merges else [shape[axis] // factor, factor]
            shape = [*shape[:axis], *middle, *shape[axis + (2 if merges else 1) :]]
            constants[name] = np.array(shape)
            nodes.append(helper.make_node("Reshape", [value, name], [result]))
        else:
            axis = rng.randrange(len(shape))
            start = rng.randrange(shape[axis])
            constants |= {
                f"{name}s": np.array([start]),
                f"{name}e": np.array([shape[axis]]),
                f"{name}a": np.array([axis]),
            }
            shape[axis] -= start
            nodes.append(helper.make_node("Slice", [value, f"{name}s", f"{name}e", f"{name}a"], [result]))
        value = result
    constants["k"] = RNG.standard_normal([size if rng.random() < 0.5 else 1 for size in shape]) + 3
    nodes.append(helper.make_node(rng.choice(["Mul", "Add", "Div", "Sub"]), [value, "k"], ["y"]))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [2, 7, 5])], [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.asarray(a).astype(np.int64 if np.asarray(a).dtype.kind == "i" else np.float32), n) for n, a in constants.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    model = enter(proto)[0]
    ComposeLinearMaps(behind_movement=True).run(context_of(model))
    x = RNG.standard_normal((2, 7, 5)).astype(np.float32)
    np.testing.assert_allclose(run(proto, {"x": x})[0], run(model, {"x": x})[0], rtol=1e-4, atol=1e-5)
