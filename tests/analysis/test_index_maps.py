"""Index maps of single operators and of chains, and random chains against the runtime."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Box, Fill, IndexMap, Number, Read, Select, axis
from ortfuse.analysis.index_maps.index_map_query import values_between
from ortfuse.analysis.index_maps.prove_inequalities import is_never_negative
from ortfuse.analysis.index_maps.simplify_formulas import quotient, remainder, simplified
from ortfuse.ir.dims import floor_div, symbol
from tests.fuzz.index_maps import differences
from tests.fuzz.movement_chains import chain_of

b, s = symbol("b"), symbol("s")
i, j, k = axis(0), axis(1), axis(2)


class Graph:
    """The facts of a graph that is given as text, and its values by name."""

    def __init__(self, text: str) -> None:
        proto = onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 18]>\n' + text)
        self.model = ir.from_proto(proto)
        self.facts = Facts(self.model)
        made = [value for node in self.model.graph for value in node.outputs]
        self.values = {str(value.name): value for value in [*self.model.graph.inputs, *made]}

    def map_of(self, name: str, *sources: str) -> IndexMap:
        found = self.facts.index_map(self.values[name], [self.values[source] for source in sources])
        assert found is not None
        return found

    def reads(self, name: str) -> dict[str, tuple[object, ...]]:
        element = self.map_of(name).element
        assert isinstance(element, Read)
        return {str(element.value.name): element.index}


def test_quotients_of_mixed_radix_are_taken_apart() -> None:
    box = Box((0, 0, 0), (b, s, 6))
    assert quotient(6 * i + k, 6, box) == i
    assert quotient(s * i + j, s, box) == i
    assert remainder(s * i + j, s, box) == j
    assert quotient(12 * i + 2 * k, 4, box) == 3 * i + quotient(k, 2, box)
    assert quotient(6 * i + k, 12, box) == floor_div(i, 2)
    assert quotient(6 * s * i + 6 * j + k, 6 * s, box) == i
    assert quotient(11 - 4 * i - j, 4, Box((0, 0), (3, 4))) == 2 - i


def test_remainders_of_remainders_have_one_form() -> None:
    box = Box((0,), (24,))
    inner = remainder(i, 12, box)
    assert quotient(inner, 4, box) == quotient(i, 4, box) - 3 * quotient(i, 12, box)
    assert remainder(inner, 4, box) == remainder(i, 4, box)
    assert 4 * quotient(i, 4, box) + remainder(i, 4, box) == i


def test_a_box_has_positions() -> None:
    box = Box.of_shape((b, s - 1))
    assert is_never_negative(s - 2, box) and is_never_negative(b - 1, box)
    assert not is_never_negative(s - 3, box)
    assert simplified(i + floor_div(i, 7), Box((2,), (3,))) == 2


def test_a_reshape_back_is_the_identity() -> None:
    graph = Graph("""g (float[b,s,12] x) => (float[b,s,12] e) <int64[4] t={0,0,3,4}, int64[3] u={0,0,-1}> {
        a = Reshape(x, t)
        c = Transpose <perm=[0,2,1,3]>(a)
        d = Transpose <perm=[0,2,1,3]>(c)
        e = Reshape(d, u) }""")
    assert graph.reads("c") == {"x": (i, k, 4 * j + axis(3))}
    assert graph.map_of("e").is_identity_of(graph.values["x"], (b, s, 12))
    assert graph.map_of("e", "c").element == Read(
        graph.values["c"], (i, quotient(k, 4, Box.of_shape((b, s, 12))), j, k - 4 * floor_div(k, 4))
    )


def test_parts_put_together_again_are_the_whole() -> None:
    graph = Graph("""g (float[b,s] x) => (float[b,s] y)
        <int64[1] zero={0}, int64[1] one={1}, int64[1] two={2}, int64[1] all={9223372036854775807}> {
        first = Slice(x, zero, two, one)
        last = Slice(x, two, all, one)
        y = Concat <axis=1>(first, last)
        turned = Concat <axis=1>(last, first) }""")
    assert graph.map_of("y").is_identity_of(graph.values["x"], (b, s))
    assert isinstance(graph.map_of("turned").element, Select)


def test_a_gather_of_a_range_backwards_is_a_reversal() -> None:
    graph = Graph("""g (float[b,s] x) => (float[b,s] y) <int64 zero={0}, int64 one={1}> {
        shape = Shape(x)
        n = Gather <axis=0>(shape, one)
        r = Range(zero, n, one)
        up = Add(r, one)
        down = Sub(n, up)
        y = Gather <axis=1>(x, down)
        negative = Neg(up)
        z = Gather <axis=1>(x, negative) }""")
    assert graph.map_of("down").element == Number(s - 1 - i)
    assert graph.reads("y") == graph.reads("z") == {"x": (i, s - 1 - j)}


def test_a_mask_of_compared_ranges_is_a_choice() -> None:
    graph = Graph("""g (float[s,s] x, float[s,s] y) => (float[s,s] z)
        <int64 zero={0}, int64 one={1}, int64[1] at_zero={0}, int64[1] at_one={1}> {
        shape = Shape(x)
        n = Gather <axis=0>(shape, one)
        r = Range(zero, n, one)
        rows = Unsqueeze(r, at_one)
        columns = Unsqueeze(r, at_zero)
        mask = LessOrEqual(columns, rows)
        z = Where(mask, x, y)
        never = Less(rows, zero)
        w = Where(never, x, y) }""")
    element = graph.map_of("z").element
    assert isinstance(element, Select) and element.condition == i - j
    assert graph.map_of("w").is_identity_of(graph.values["y"], (s, s))


def test_scattered_rows_are_pieces() -> None:
    graph = Graph("""g (float[6] x, float[2] u) => (float[6] z) <int64[2,1] at={2,3}, int64[2,1] same={2,2}> {
        z = ScatterND(x, at, u)
        w = ScatterND(x, same, u) }""")
    element = graph.map_of("z").element
    assert isinstance(element, Select) and isinstance(element.then, Select)
    assert element.then.then == Read(graph.values["u"], (i - 2,))
    # Nothing says which of two updates of one element is the last.
    assert graph.reads("w") == {"w": (i,)}


def test_constant_lists_of_indices_are_read_number_by_number() -> None:
    graph = Graph("""g (float[2,5,4] x, float[2,1,4] u) => (float[2,5,4] y, float[2,4] z)
        <int64[2,1,2] at={0,3,1,3}, int64[2,2] last={0,4,1,4}> {
        y = ScatterND(x, at, u)
        z = GatherND(x, last) }""")
    element = graph.map_of("y").element
    assert isinstance(element, Select) and isinstance(element.then, Select)
    assert element.then.then == Read(graph.values["u"], (i, 0, k))
    assert graph.reads("z") == {"x": (i, 4, j)}


def test_signs_of_zeros_count() -> None:
    graph = Graph("""g (float[2] x) => (float[4] y, float[4] z) <int64[2] pads={1,1}, float minus={-0.0}, float plus={0.0}> {
        y = Pad(x, pads, minus)
        z = Pad(x, pads, plus) }""")
    assert graph.map_of("y") != graph.map_of("z")
    element = graph.map_of("y").element
    assert isinstance(element, Select) and isinstance(element.otherwise, Fill)
    assert np.signbit(np.frombuffer(element.otherwise.content, np.float32)[0])


def test_integers_that_may_wrap_around_are_not_followed() -> None:
    graph = Graph("""g (float[s] x) => (int32[s] large, int8[s] narrow)
        <int64 zero={0}, int64 one={1}, int32 factor={100000}> {
        shape = Shape(x)
        at = Squeeze(shape)
        r = Range(zero, at, one)
        short = Cast <to=6>(r)
        large = Mul(short, factor)
        narrow = Cast <to=3>(r) }""")
    assert graph.map_of("short").element == Number(i)
    assert graph.reads("large") == {"large": (i,)}
    assert graph.reads("narrow") == {"narrow": (i,)}


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ("{0,4,1,5,2,6}", floor_div(i, 2) + 4 * (i - 2 * floor_div(i, 2))),
        ("{5,4,3,2,1,0}", 5 - i),
        ("{-1,-2,-3,-4,-5,-6}", 6 - i),
    ],
)
def test_constant_indices_that_rise_evenly_are_formulas(index: str, expected: object) -> None:
    graph = Graph(f"g (float[7] x) => (float[6] y) <int64[6] at={index}> {{ y = Gather(x, at) }}")
    assert graph.reads("y") == {"x": (expected,)}


def test_a_map_may_stop_at_a_given_value() -> None:
    graph = Graph("g (float[s,3] x) => (float[3,s] y) { a = Identity(x)\n y = Transpose(a) }")
    assert graph.reads("y") == {"x": (j, i)}
    assert graph.map_of("y", "a").sources == (graph.values["a"],)


def test_values_that_do_not_depend_on_sources_have_the_map_that_they_have_without() -> None:
    graph = Graph(
        """g (float[4, 6] x) => (float[3] y)
        <int64 zero = {0}, int64 three = {3}, int64 one = {1}, int64[1] all = {-1}> {
            turned = Transpose<perm = [1, 0]>(x)
            row = Reshape(turned, all)
            count = Range(zero, three, one)
            index = Add(count, one)
            y = Gather(row, index)
        }"""
    )
    x, y, row = (graph.values[name] for name in ("x", "y", "row"))
    between = values_between([x], y)
    assert between is not None
    assert {value.name for value in between} == {"x", "turned", "row", "y"}
    assert graph.map_of("y", "row").element == Read(row, (i + 1,))
    assert graph.map_of("y", "x") == graph.map_of("y")


def test_random_chains_have_the_elements_that_their_maps_say() -> None:
    totals: Counter[str] = Counter()
    wrong = {seed: found for seed in range(60) if (found := differences(chain_of(seed), totals))}
    assert not wrong
    assert totals["mapped"] > 10 * totals["opaque"] and totals["runs"] > 10 * totals["runs refused"]
