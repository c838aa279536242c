"""Shapes are read where a value is settled."""

from __future__ import annotations

import pytest
from graphs import operators
from small_models import apply, floats, model_of

import ortfuse
from ortfuse.transforms import CommonSubexpressionElimination

NET = """<ir_version: 8, opset_import: ["" : 17]>
    agraph (float[n, 3, h, w] x, float[8, 3, 3, 3] weight, float[8] g, float[8] b, float[8] m, float[8] v, float[1, 8, 1, 1] k)
        => (float[i, j, p, q] y, int64[s] z) <int64[1] two = {2}> {
        c = Conv <pads = [1, 1, 1, 1]> (x, weight) BODY n = Shape(READ) z = Mul(n, two) }"""
INPUTS = {
    "x": floats(2, 3, 6, 5), "weight": floats(8, 3, 3, 3), **{name: floats(8) for name in "gbm"}, "v": abs(floats(8)),
    "k": floats(1, 8, 1, 1),
}  # fmt: skip
NORMALISED = "a = BatchNormalization(c, g, b, m, v)"


def reads(body: str, read: str) -> list[str | None]:
    text = NET.replace("BODY", body).replace("READ", read)
    model, _, _ = apply(text, CommonSubexpressionElimination(), CommonSubexpressionElimination(), inputs=INPUTS)
    return [node.inputs[0].name for node in model.graph if node.op_type == "Shape"]


@pytest.mark.parametrize("read", ["c", "a", "y"])
def test_what_a_convolution_becomes_tells_its_shape(read: str) -> None:
    assert reads(f"{NORMALISED} y = Relu(a)", read) == ["y"]


@pytest.mark.parametrize(
    "body",
    [
        "e = Sigmoid(c) y = Mul(c, e)",
        "a = Identity(c) y = Concat <axis = 0> (a, a)",
        "a = ReduceMax <axes = [1]> (c) y = Add(a, k)",
    ],
    ids=["two nodes compute with it", "another shape", "a reduction"],
)
def test_what_is_left_alone(body: str) -> None:
    assert reads(body, "c") == ["c"]


def test_an_operand_that_needs_the_shape_is_not_waited_for() -> None:
    assert reads("s = Shape(c) e = Expand(k, s) y = Add(c, e)", "c") == ["c"]


def test_an_operand_that_needs_no_shape_is() -> None:
    assert reads("e = Relu(k) y = Add(c, e)", "c") == ["y"]


def test_a_network_that_reads_sizes_of_what_it_skips_is_merged_all_the_same() -> None:
    """As functions of images of any size are written: small = pool(a); a + resize(small, size of a)."""
    numbers = {"weight": floats(8, 3, 3, 3), "g": floats(8), "b": floats(8), "m": floats(8), "v": abs(floats(8))}
    weights = ", ".join(
        f"float[{', '.join(map(str, array.shape))}] {name} = {{{', '.join(f'{number:.3f}' for number in array.ravel())}}}"
        for name, array in numbers.items()
    )
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[n, 3, h, w] x) => (float[i, j, p, q] y) <{weights}> {{
            c = Conv <pads = [1, 1, 1, 1]> (x, weight) a = BatchNormalization(c, g, b, m, v) r = Relu(a) u = Shape(r)
            d = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r) t = Resize <mode = "nearest"> (d, , , u)
            y = Add(t, r) }}"""
    found = operators(ortfuse.optimize(model_of(text), verify="whole").model)
    assert "BatchNormalization" not in found
    assert "Relu" not in found
