"""Attention in half precision is computed in float32, wherever the exporter put its Casts and whatever its masks hold."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from example_targets import without_quirks
from graphs import operators, run
from onnx import helper, numpy_helper
from small_models import context_of

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.io.convert_model_objects import enter
from ortfuse.transforms import Context, UpcastAttention

LOWEST = float(np.finfo(np.float32).min)
CASTS = ("none", "before the scale", "before the mask", "before the softmax")


def attention(casts: str, mask: str = "", filler: float = -65504.0, *, split: bool = False) -> onnx.ModelProto:
    """Attention of float16 with the softmax in float32 after Casts at some place, or in float16 without them."""
    constants: dict[str, Any] = {}
    lines = [
        f"{one}r = Reshape({one}, heads) {one}h = Transpose<perm = [0, 2, {'3, 1' if one == 'k' else '1, 3'}]>({one}r)"
        if split
        else f"{one}h = {'Transpose<perm = [0, 1, 3, 2]>' if one == 'k' else 'Identity'}({one})"
        for one in "qkv"
    ]
    if split:
        constants |= {"heads": np.array([0, 0, 2, 4]), "merged": np.array([0, 0, 8])}
    wide = False

    def cast(at: str, name: str) -> str:
        nonlocal wide
        if casts != at:
            return name
        wide = True
        lines.append(f"{name}w = Cast<to = 1>({name})")
        return f"{name}w"

    def number(value: float) -> Any:
        return np.asarray(value).astype(np.float32 if wide else np.float16)

    lines.append("s = MatMul(qh, kh)")
    scores = cast("before the scale", "s")
    constants["scale"] = number(0.5)
    lines.append(f"scaled = Mul({scores}, scale)")
    scores = cast("before the mask", "scaled")
    constants |= {"zero": number(0), "filler": number(filler)}
    if mask == "chosen":
        lines.append(f"masked = Where(keep, {scores}, filler)")
    elif mask == "added":
        lines.append(f"m = Where(keep, zero, filler) masked = Add({scores}, m)")
    elif mask == "converted":
        constants |= {"zero": np.float32(0), "filler": np.float32(LOWEST)}
        lines.append(f"m = Where(keep, zero, filler) n = Cast<to = {1 if wide else 10}>(m) masked = Add({scores}, n)")
    else:
        lines.append(f"masked = Identity({scores})")
    scores = cast("before the softmax", "masked")
    lines.append(f"p = Softmax<axis = -1>({scores})")
    weights = "p"
    if wide:
        lines.append("ph = Cast<to = 10>(p)")
        weights = "ph"
    lines.append(f"o = MatMul({weights}, vh)")
    lines.append("ot = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(ot, merged)" if split else "y = Identity(o)")
    shape = "[b, n, 8]" if split else "[b, 2, n, 4]"
    inputs = ", ".join(f"float16{shape} {one}" for one in "qkv") + (", bool[b, 1, n, n] keep" if mask else "")
    proto = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 17]> g ({inputs}) => (float16{shape} y) {{ {" ".join(lines)} }}'
    )
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items() if n in used)
    return proto


def _agree(before: onnx.ModelProto, after: onnx.ModelProto, size: float) -> None:
    """Compare both on scores of this size; one query sees no key."""
    rng = np.random.default_rng(0)
    inputs: dict[str, Any] = {}
    for value in before.graph.input:
        shape = [dim.dim_value or 5 for dim in value.type.tensor_type.shape.dim]
        if value.name == "keep":
            inputs["keep"] = rng.random(shape) < 0.6
            inputs["keep"][:, :, 1] = False
        else:
            scale = 1.0 if value.name == "v" else size
            inputs[value.name] = (rng.standard_normal(shape) * scale).astype(np.float16)
    (one,), (other,) = run(before, inputs), run(after, inputs)
    np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
    np.testing.assert_allclose(one.astype(np.float32), other.astype(np.float32), atol=4e-3)


@pytest.mark.parametrize("split", [False, True], ids=["heads", "split heads"])
@pytest.mark.parametrize("casts", CASTS)
def test_the_softmax_may_be_in_float32_or_not(casts: str, split: bool) -> None:
    before = attention(casts, split=split)
    after = ortfuse.optimize(before).model
    assert sorted(operators(after)) == ["Attention", "Cast", "Cast", "Cast", "Cast"]
    for size in (1.0, 16.0):
        _agree(before, after, size)


@pytest.mark.parametrize(
    ("casts", "mask", "filler"),
    [
        *itertools.product(CASTS, ("chosen", "added"), (-np.inf, -65504.0)),
        *((casts, "converted", 0.0) for casts in CASTS),
    ],
)
def test_masks_hide_what_they_hide_for_the_runtime(casts: str, mask: str, filler: float) -> None:
    before = attention(casts, mask, filler)
    after = ortfuse.optimize(before).model
    assert "Attention" in operators(after) and "Softmax" not in operators(after)
    for size in (1.0, 5.0):
        _agree(before, after, size)


def test_a_softmax_of_classes_and_attention_of_float32_stay() -> None:
    classes = """<ir_version: 9, opset_import: ["": 17]> g (float16[b, 4] x) => (float16[b, 3] y)
        <float16[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> { l = MatMul(x, w) y = Softmax<axis = -1>(l) }"""
    wide = attention("none")
    for value in (*wide.graph.input, *wide.graph.output):
        value.type.tensor_type.elem_type = 1
    next(t for t in wide.graph.initializer if t.name == "scale").CopyFrom(
        numpy_helper.from_array(np.float32(0.5), "scale")
    )
    for proto in (onnx.parser.parse_model(classes), wide):
        assert UpcastAttention().run(context_of(enter(proto)[0])) == 0


def test_a_target_with_kernels_for_half_precision_keeps_it() -> None:
    model = enter(attention("none"))[0]
    assert UpcastAttention().run(Context(model, Facts(model), without_quirks())) == 0


def test_weights_that_are_an_output_keep_their_type() -> None:
    before = attention("before the softmax")
    before.graph.output.append(helper.make_tensor_value_info("ph", 10, ["b", 2, "n", "n"]))
    model = enter(before)[0]
    assert UpcastAttention().run(context_of(model)) == 1
    assert ortfuse.verify(before, model).ok
    assert [value.dtype.name for value in model.graph.outputs] == ["FLOAT16", "FLOAT16"]
