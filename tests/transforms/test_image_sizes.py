from __future__ import annotations

import numpy as np
import pytest
from graphs import run
from small_models import model_of

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.ir.walk import scopes
from ortfuse.runtime.bench import executed_ops
from ortfuse.transforms.find_values_needing_named_sizes import unlike_sizes


def _weight(name: str, filters: int, channels: int) -> str:
    return (
        f"float[{filters}, {channels}, 3, 3] {name} = {{"
        + ", ".join(["0.01", "-0.02", "0.03"] * (filters * channels * 3))
        + "}, "
    )


WEIGHTS = (
    _weight("w", 16, 16) + _weight("v", 16, 3) + _weight("t", 3, 16) + "float[4] twice = {1, 1, 2, 2}, "
    "int64[4] apart = {-1, 16, 4, 4}"
)
HEAD = '<ir_version: 10, opset_import: ["" : 20]>'
CONV = "Conv<pads=[1, 1, 1, 1]>"
ENLARGED = f"""a = {CONV}(x, w) s = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(a) b = {CONV}(s, w)
    r = Resize<mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric">(b, , twice) c = Add(a, r) y = {CONV}(c, w)"""
FIRST = f"a = {CONV}(x, v) b = Relu(x) c = {CONV}(b, v) d = Add(a, c) y = {CONV}(d, t)"
RESIDUAL = f"a = {CONV}(x, w) b = {CONV}(a, w) c = Add(a, b) y = {CONV}(c, w)"


def _text(body: str, shape: str) -> str:
    return f"{HEAD} g (float[{shape}] x) => (float[{shape}] y) <{WEIGHTS}> {{ {body} }}"


def _named(text: str) -> set[str]:
    model = model_of(text)
    facts = Facts(model)
    (scope,) = scopes(model)
    return {str(value.name) for value in unlike_sizes(scope, facts)}


@pytest.mark.parametrize(
    ("body", "shape", "named"),
    [
        (RESIDUAL, "n, 16, 4, 4", set()),
        (RESIDUAL, "n, 16, h, w", {"a", "b", "x"}),
        (ENLARGED, "n, 16, 4, 4", {"x", "r"}),
        (RESIDUAL.replace("Add(a, b)", "Add(a, f)").replace("c =", "f = Flatten(b) c ="), "n, 16, 4, 4", set()),
        (f"a = {CONV}(x, w) f = Reshape(a, apart) b = {CONV}(f, w) c = Add(a, b) y = {CONV}(c, w)", "n, 16, 4, 4", {"x", "f"}),
    ],
)  # fmt: skip
def test_the_values_whose_names_of_sizes_tell_that_images_have_one_shape(
    body: str, shape: str, named: set[str]
) -> None:
    assert _named(_text(body, shape)) == named


@pytest.mark.parametrize(("body", "shape"), [(ENLARGED, "n, 16, 8, 8"), (FIRST, "n, 3, h, w")])
def test_the_runtime_adds_images_of_one_shape_as_they_are(body: str, shape: str) -> None:
    original = model_of(_text(body, shape))
    result = ortfuse.optimize(original.clone()).model
    channels = int(shape.split(", ")[1])
    inputs = {"x": np.linspace(-1, 1, 2 * channels * 8 * 8, dtype=np.float32).reshape(2, channels, 8, 8)}
    assert "Reshape" in executed_ops(original, inputs)
    assert "Reshape" not in executed_ops(result, inputs)
    np.testing.assert_allclose(run(result, inputs)[0], run(original, inputs)[0], rtol=1e-4, atol=1e-5)


def test_sizes_that_need_not_be_told_are_not_declared() -> None:
    result = ortfuse.optimize(model_of(_text(ENLARGED, "n, 16, 8, 8"))).model
    declared = {str(node.op_type): str(node.outputs[0].shape) for node in result.graph}
    assert (declared["Resize"], declared["MaxPool"]) == ("[n,16,8,8]", "[None,16,4,4]")


def test_sizes_are_named_only_for_targets_that_lose_their_blocked_layout() -> None:
    result = ortfuse.optimize(model_of(_text(ENLARGED, "n, 16, 8, 8")), target="portable").model
    assert not [
        node for node in result.graph if "[n," in str(node.outputs[0].shape) and not node.outputs[0].is_graph_output()
    ]
