"""A scatter over a part of a tensor becomes a Concat of that part with the rest."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

import ortfuse


def optimised(body: str, inputs: str, places: np.ndarray | None = None) -> Counter[str]:
    """The operators of the result, which was compared with the original."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> agraph ({inputs}) => (float[z0, z1, z2] z) {{ {body} }}'
    )
    if places is not None:
        model.graph.initializer.append(onnx.numpy_helper.from_array(places.astype(np.int64), "places"))
    result = ortfuse.optimize(model)
    assert ortfuse.verify(model, result.model).ok
    return Counter(node.op_type for node in result.model.graph.node)


def grid(*windows: tuple[int, ...]) -> np.ndarray:
    return np.stack(np.meshgrid(*(np.arange(*one) for one in windows), indexing="ij"), -1)


def test_an_axis_that_is_moved_to_the_front_and_back() -> None:
    body = "m = Transpose<perm = [2, 1, 0]>(x) n = Transpose<perm = [2, 1, 0]>(y) s = ScatterND(m, places, n) z = Transpose<perm = [2, 1, 0]>(s)"
    inputs = "float[b, s, 8] x, float[b, s, 3] y"
    assert optimised(body, inputs, grid((1, 4))) == Counter({"Slice": 2, "Concat": 1})
    assert optimised(body, inputs, grid((0, 3))) == Counter({"Slice": 1, "Concat": 1})
    assert optimised(body, inputs, grid((-3, 0))) == Counter({"Slice": 1, "Concat": 1})


def test_all_places_in_full() -> None:
    found = optimised("z = ScatterND(x, places, y)", "float[2, 3, 8] x, float[2, 3, 4] y", grid((0, 2), (0, 3), (4, 8)))
    assert found == Counter({"Slice": 1, "Concat": 1})


def test_places_that_are_computed_from_sizes() -> None:
    body = """sizes = Shape(x) b = Gather(sizes, zero) rows = Range(zero, b, one) shape = Constant<value_ints = [-1, 1, 1]>()
        column = Reshape(rows, shape) first = Slice(x, at0, at2, axis) full = Shape(first) w0 = Expand(column, full)
        middle = Constant<value_ints = [0, 1, 2]>() m1 = Unsqueeze(middle, behind) w1 = Expand(m1, full)
        last = Constant<value_ints = [0, 1]>() w2 = Expand(last, full) d0 = Unsqueeze(w0, behind) d1 = Unsqueeze(w1, behind)
        d2 = Unsqueeze(w2, behind) p = Concat<axis = -1>(d0, d1, d2) z = ScatterND(x, p, y)"""
    numbers = "zero = Constant<value_int = 0>() one = Constant<value_int = 1>() at0 = Constant<value_ints = [0]>() at2 = Constant<value_ints = [2]>() "
    numbers += "axis = Constant<value_ints = [2]>() behind = Constant<value_ints = [-1]>() "
    assert optimised(numbers + body, "float[b, 3, 8] x, float[b, 3, 2] y") == Counter({"Slice": 1, "Concat": 1})


@pytest.mark.parametrize(
    ("places", "y", "joined"),
    [
        (grid((0, 8))[..., 0], "float[8, 5, 6] y", Counter({"Identity": 1})),
        (np.arange(2, 6), "float[4, 5, 6] y", Counter({"Slice": 2, "Concat": 1})),
        (np.array([3]), "float[1, 5, 6] y", None),
        (np.array([3, 2]), "float[2, 5, 6] y", None),
        (np.array([2, 4]), "float[2, 5, 6] y", None),
    ],
    ids=["all", "half", "one of eight", "falling", "every second"],
)
@pytest.mark.parametrize("kind", ["tuples", "elements"])
def test_what_is_next_to_each_other_and_enough(
    kind: str, places: np.ndarray, y: str, joined: Counter[str] | None
) -> None:
    operator, inputs = "ScatterND(x, places, y)", f"float[8, 5, 6] x, {y}"
    given = places[:, None]
    if kind == "elements":
        operator = "ScatterElements<axis = 0>(x, places, y)"
        given = np.broadcast_to(places[:, None, None], (len(places), 5, 6))
    found = optimised(f"z = {operator}", inputs, given)
    assert found == (joined if joined is not None else Counter({operator.partition("(")[0].partition("<")[0]: 1}))


def test_a_length_that_is_not_known_may_be_shorter_than_the_places() -> None:
    body = "z = ScatterND(x, places, y)"
    assert optimised(body, "float[s, 5, 6] x, float[2, 5, 6] y", grid((0, 2))) == Counter({"ScatterND": 1})


@pytest.mark.parametrize("odd_first", [False, True])
def test_elements_of_two_tensors_in_turn(odd_first: bool) -> None:
    even, odd = (", ".join(map(str, range(start, 8, 2))) for start in (0, 1))
    first, second = (odd, even) if odd_first else (even, odd)
    column = "Constant<value_ints = [4, 1]>()"
    body = f"""a = Constant<value_ints = [{first}]>() b = Constant<value_ints = [{second}]>() shape = {column}
        p = Reshape(a, shape) q = Reshape(b, shape) full = Shape(w) zero = ConstantOfShape(full)
        m = Transpose<perm = [2, 1, 0]>(zero) n = Transpose<perm = [2, 1, 0]>(x) o = Transpose<perm = [2, 1, 0]>(y)
        s = ScatterND(m, p, n) t = ScatterND(s, q, o) z = Transpose<perm = [2, 1, 0]>(t)"""
    found = optimised(body, "float[b, s, 4] x, float[b, s, 4] y, float[b, s, 8] w")
    assert found == Counter({"Unsqueeze": 2, "Concat": 1, "Reshape": 1})
