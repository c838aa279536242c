"""Lengths that the exporter recomputes are taken from the tensor that has them."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import operators, run
from small_models import apply, floats, proto_of

from ortfuse.transforms import DeadCodeElimination, RecomputedLengthsToConvDims

# Two convolutions halve the length; the exporter computes it again with divisions that round towards zero.
LENGTH = """
    n = Shape<start=2, end=3>(x) three = Constant<value = int64[1] {3}>() two = Constant<value = int64[1] {2}>()
    one = Constant<value = int64[1] {1}>() a = Sub(n, three) b = Div(a, two) c = Sub(b, two) d = Div(c, two) t = Add(d, one)
"""
CHAIN = """
    f = Conv<strides = [2]>(x, w) g = Conv<strides = [2]>(f, w) y = Transpose<perm = [0, 2, 1]>(g)
"""
SPLIT = """
    batch = Shape<end=1>(x) open = Constant<value = int64[1] {-1}>() size = Constant<value = int64[1] {2}>()
    target = Concat<axis = 0>(batch, t, open, size) h = Reshape<allowzero = 1>(y, target)
"""
HEAD = "g (float[b, 4, s] x, float[4, 4, 3] w) => (float[b, l, 2, 2] out, int64[k] positions) <float[b, l, 2, 2] h> {"
POSITIONS = """
    zero = Constant<value = int64 {0}>() step = Constant<value = int64 {1}>() count = Squeeze(t)
    positions = Range(zero, count, step)
"""


def test_a_length_is_read_off_the_tensor_that_has_it() -> None:
    text = f"{HEAD} {LENGTH} {POSITIONS} {CHAIN} {SPLIT} out = Relu(h) }}"
    inputs = {"x": floats(2, 4, 23), "w": floats(4, 4, 3)}
    model, counts, context = apply(text, RecomputedLengthsToConvDims(), DeadCodeElimination(), inputs=inputs)
    assert counts[0] == 1
    assert "Div" not in operators(model)
    positions = model.graph.outputs[1]
    assert context.facts.shape(positions) == context.facts.shape(model.graph.outputs[0])[1:2]  # type: ignore[index]
    assert RecomputedLengthsToConvDims().run(context) == 0


@pytest.mark.parametrize("declared", ["", "<float[b, l, 2, 2] h>", "<float[b, l, 4, 2] h>"])
def test_what_the_file_declares_makes_no_difference(declared: str) -> None:
    text = f"{HEAD.replace('<float[b, l, 2, 2] h>', declared)} {LENGTH} {POSITIONS} {CHAIN} {SPLIT} out = Relu(h) }}"
    assert apply(text, RecomputedLengthsToConvDims(), inputs={"x": floats(2, 4, 23), "w": floats(4, 4, 3)})[1] == [1]


def test_a_length_that_only_looks_the_same_stays() -> None:
    text = f"{HEAD} {LENGTH.replace('{3}', '{2}')} {POSITIONS} {CHAIN} {SPLIT} out = Relu(h) }}"
    assert apply(text, RecomputedLengthsToConvDims(), inputs={"x": floats(2, 4, 23), "w": floats(4, 4, 3)})[1] == [0]


def test_a_length_that_may_be_0_in_a_run_that_succeeds_stays() -> None:
    chain = "f = MaxPool<kernel_shape = [3], strides = [2]>(x) y = Transpose<perm = [0, 2, 1]>(f)"
    length = LENGTH.replace("c = Sub(b, two) d = Div(c, two) t = Add(d, one)", "t = Add(b, one)")
    text = f"{HEAD} {length} {POSITIONS} {chain} {SPLIT} out = Relu(h) }}"
    assert apply(text, RecomputedLengthsToConvDims(), inputs={"x": floats(2, 4, 23), "w": floats(4, 4, 3)})[1] == [0]
    convolution = chain.replace("MaxPool<kernel_shape = [3], strides = [2]>(x)", "Conv<strides = [2]>(x, w)")
    assert apply(text.replace(chain, convolution), RecomputedLengthsToConvDims())[1] == [1]


def test_a_length_that_the_convolution_itself_depends_on_stays() -> None:
    chain = CHAIN.replace(
        "g = Conv<strides = [2]>(f, w)", "z = Cast<to = 1>(t) v = Mul(f, z) g = Conv<strides = [2]>(v, w)"
    )
    text = f"{HEAD} {LENGTH} {POSITIONS} {chain} {SPLIT} out = Relu(h) }}"
    model, counts, _ = apply(text, RecomputedLengthsToConvDims())
    assert counts == [0]
    assert "Div" in operators(model)


SIZES = """
    n = Shape<start=2, end=3>(x) one = Constant<value = int64[1] {1}>() two = Constant<value = int64[1] {2}>()
    a = Sub(n, one) b = Div(a, two) t = Add(b, one)
"""


@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_a_size_for_a_resize_is_read_off_the_convolution(size: int) -> None:
    body = """f = Conv<strides = [2], pads = [1, 1]>(x, w) first = Shape<end=2>(x) target = Concat<axis = 0>(first, t)
        m = ReduceMean(f, two) out = Resize<mode = "linear">(m, , , target)"""
    text = f"g (float[b, 4, s] x, float[4, 4, 3] w) => (float[b, 4, l] out) {{ {SIZES} {body} }}"
    for batch in (1, 2):
        inputs = {"x": floats(batch, 4, size), "w": floats(4, 4, 3)}
        model, counts, _ = apply(text, RecomputedLengthsToConvDims(), DeadCodeElimination(), inputs=inputs)
        assert counts[0] == 1
        assert "Div" not in operators(model)
    model, _, _ = apply(text, RecomputedLengthsToConvDims())
    empty = {"x": floats(1, 4, 0), "w": floats(4, 4, 3)}
    for candidate in (proto_of(text), model):
        with pytest.raises(Exception, match="Invalid input shape"):
            run(candidate, empty)


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("size", [1, 4, 5, 9])
def test_a_size_is_read_off_a_pool_that_a_convolution_proves_not_empty(batch: int, size: int) -> None:
    body = """f = Conv<strides = [2], pads = [1, 1]>(x, w) p = MaxPool<kernel_shape = [3], strides = [2], pads = [1, 1]>(f)
        y = Expand(zero, u) out = Sub(p, y)"""
    halves = "four = Constant<value = int64[1] {4}>() c = Div(a, four) u = Add(c, one)"
    text = f"g (float[b, 4, s] x, float[4, 4, 3] w) => (float[b, 4, l] out) <float[1] zero = {{0}}> {{ {SIZES} {halves} {body} }}"
    inputs = {"x": floats(batch, 4, size), "w": floats(4, 4, 3)}
    model, counts, _ = apply(text, RecomputedLengthsToConvDims(), DeadCodeElimination(), inputs=inputs)
    assert counts[0] == 1
    assert "Div" not in operators(model)
    without = text.replace(
        "Conv<strides = [2], pads = [1, 1]>(x, w)", "MaxPool<kernel_shape = [3], strides = [2], pads = [1, 1]>(x)"
    )
    assert apply(without, RecomputedLengthsToConvDims())[1] == [0]


@pytest.mark.parametrize("size", [8, 9, 23])
def test_a_quotient_that_is_always_a_size_is_read_off_what_has_it(size: int) -> None:
    text = """g (float[b, 4, s] x, float[4, 4, 8] w) => (float[b, 4, l] out) <float[1] zero = {0}> {
        n = Shape<start=2, end=3>(x) eight = Constant<value = int64[1] {8}>() t = Div(n, eight)
        f = Conv<strides = [8]>(x, w) y = Expand(zero, t) out = Sub(f, y) }"""
    model, counts, _ = apply(
        text,
        RecomputedLengthsToConvDims(),
        DeadCodeElimination(),
        inputs={"x": floats(2, 4, size), "w": floats(4, 4, 8)},
    )
    assert counts[0] == 1
    assert "Div" not in operators(model)


def test_a_convolution_that_need_not_run_proves_nothing() -> None:
    spare = "f = Conv<strides = [2], pads = [1, 1]>(x, w) other = Relu(f) out = Expand(x, t)"
    inside = "out = If (c) <then_branch = p () => (o) { f = Conv<strides = [2], pads = [1, 1]>(x, w) o = Shape(f) }, else_branch = q () => (o) { o = Identity(t) }>"
    for body, head in ((spare, ""), (inside, "bool c, ")):
        text = f"g ({head}float[b, 4, s] x, float[4, 4, 3] w) => (out, int64[1] length) {{ {SIZES} {body} length = Neg(t) }}"
        _, counts, _ = apply(text, RecomputedLengthsToConvDims())
        assert counts == [0]


def test_short_inputs_fail_before_and_after() -> None:
    text = f"{HEAD} {LENGTH} {POSITIONS} {CHAIN} {SPLIT} out = Relu(h) }}"
    model, _, _ = apply(text, RecomputedLengthsToConvDims())
    inputs = {"x": floats(1, 4, 5), "w": floats(4, 4, 3)}
    failures = []
    for candidate in (proto_of(text), model):
        try:
            run(candidate, inputs)
        except Exception as error:  # the runtime's exceptions share no base class
            failures.append(type(error).__name__)
    assert len(failures) == 2


def test_an_element_that_may_copy_or_infer_a_size_is_not_that_size() -> None:
    head = "g (float[2, l, 8] x, int64 t) => (float[a, b, c, d] y, int64 z) <float[2, b, 2, 4] h> {"
    length = "one = Constant<value = int64 {1}>() axis = Constant<value = int64[1] {0}>() u = Add(t, one) v = Unsqueeze(u, axis)"
    two, four = "two = Constant<value = int64[1] {2}>()", "four = Constant<value = int64[1] {4}>()"
    for parts in ("two, v, open, four", "two, v, two, four"):
        target = f"{two} {four} open = Constant<value = int64[1] {{-1}}>() target = Concat<axis = 0>({parts})"
        text = f"{head} {length} {target} h = Reshape(x, target) y = Relu(h) z = Neg(u) }}"
        # 0 copies the length, as t = -1 makes it
        _, counts, _ = apply(
            text, RecomputedLengthsToConvDims(), inputs={"x": floats(2, 3, 8), "t": np.array(-1, np.int64)}
        )
        assert counts == [0]
