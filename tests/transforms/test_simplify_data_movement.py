"""Data movement written anew from index maps."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from benchmarks.movement.__main__ import mistake, with_outputs
from ortfuse.analysis.facts import Facts
from ortfuse.targets import installed, raise_to_newest
from ortfuse.transforms import DeadCodeElimination, SimplifyDataMovement
from ortfuse.transforms.context import Context
from tests.fuzz.index_maps import SIZES, elements_of
from tests.fuzz.movement_chains import chain_of

CONSTANTS = "int64 zero={0}, int64 one={1}, int64[1] at_zero={0}, int64[1] at_one={1}, int64[1] all={9223372036854775807}, int64[2] two={0, 1}"


def _simplified(model: ir.Model) -> ir.Model:
    context = Context(model, Facts(model), installed())
    DeadCodeElimination().run(context)
    while SimplifyDataMovement().run(context):
        pass
    DeadCodeElimination().run(context)
    return model


def _operators(text: str, constants: str = CONSTANTS) -> list[str]:
    head, _, body = text.partition("{")
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]>\n{head}<{constants}> {{{body}')
    return [node.op_type for node in _simplified(ir.from_proto(proto)).graph]


def test_choices_between_pieces_of_tensors_without_elements_stay() -> None:
    text = """g (float[2,3,0,0] x, float[2,3,0,0] z) => (float[2,3,0,0] y) {
        sums = Add(rows, columns)
        mask = Greater(sums, one)
        chosen = Where(mask, x, z)
        y = Neg(chosen) }"""
    constants = f"{CONSTANTS}, int64[2,1,1,1] rows={{0, 1}}, int64[3,1,1] columns={{0, 1, 2}}"
    assert _operators(text, constants) == ["Add", "Greater", "Where", "Neg"]


def test_the_one_element_of_an_axis_is_a_squeeze_before_fusions() -> None:
    """So that Reshapes are hoisted to where it cancels."""
    proto = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
        g (float[b,1,s] x) => (float[b,s] y, float[1,s] z) <int64 zero = {0}> {
        a = Relu(x) y = Gather<axis = -2>(a, zero) z = Gather(x, zero) }""")
    model = ir.from_proto(proto)
    SimplifyDataMovement(indexed=True).run(Context(model, Facts(model), installed()))
    assert [node.op_type for node in model.graph] == ["Relu", "Squeeze", "Gather"]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("b,2,s,8", ["Gather", "Neg"]),
        ("b,2,s", ["Gather", "Neg"]),
        ("b,s,2", ["Unsqueeze", "Expand", "Reshape", "Neg"]),
    ],
)
def test_repeated_rows_are_gathered_at_a_list_of_indices(shape: str, expected: list[str]) -> None:
    """As heads of keys for groups of queries; one element at a time would be slower."""
    axis = shape.split(",").index("2")
    sizes = ["1"] * (shape.count(",") + 2)
    sizes[axis + 1] = "3"
    target = [{"b": "0", "2": "6", "s": "0" if axis == 2 else "-1"}.get(size, size) for size in shape.split(",")]
    constants = f"int64[1] at = {{{axis + 1}}}, int64[{len(sizes)}] three = {{{','.join(sizes)}}}, int64[{len(target)}] to = {{{','.join(target)}}}"
    text = f"g (float[{shape}] x) => (float[{shape.replace('2', '6')}] z) {{ u = Unsqueeze(x, at) e = Expand(u, three) y = Reshape(e, to) z = Neg(y) }}"
    assert _operators(text, constants) == expected


def test_channels_that_are_woven_into_places_are_reshaped_together() -> None:
    """As pixel shuffles are written by Slices with steps."""
    channels = ", ".join(f"int64[1] c{number}={{{number}}}" for number in range(4))
    constants = f"int64[1] axis={{3}}, int64[1] one={{1}}, int64[1] four={{4}}, int64[1] end={{99}}, {channels}"
    parts = " ".join(
        f"s{number} = Slice(x, c{number}, end, one, four) p{number} = Unsqueeze(s{number}, four)" for number in range(4)
    )
    text = f"""g (float[b,8,3,5] x) => (float[b,2,6,10] y) {{ {parts}
        r = Concat<axis = 4>(p0, p1) t = Concat<axis = 4>(p2, p3) rows = Reshape(r, to) others = Reshape(t, to)
        u = Unsqueeze(rows, axis) v = Unsqueeze(others, axis) w = Concat<axis = 3>(u, v) y = Reshape(w, last) }}"""
    constants += ", int64[4] to = {0, 2, 3, 10}, int64[4] last = {0, 2, 6, 10}"
    assert _operators(text, constants) == ["Reshape", "Transpose", "Reshape"]


def test_sizes_of_all_axes_with_a_number_at_the_end_are_a_shape() -> None:
    constants = "int64[1] width = {16}"
    text = """g (float[b,s,16] x, float[n,16] z) => (int64[1] n, float[b,s,16] y) {
        first = Shape<start = 0, end = 1>(x) second = Shape<start = 1, end = 2>(x) n = Neg(second)
        to = Concat<axis = 0>(first, second, width) y = Reshape(z, to) }"""
    assert Counter(_operators(text, constants)) == {"Shape": 2, "Neg": 1, "Reshape": 1}


@pytest.mark.parametrize("steps", [5, 16])
def test_a_result_that_is_assigned_step_by_step_is_a_stack(steps: int) -> None:
    """As unrolled recurrences write theirs: every element of the axis by a ScatterND of its own."""
    constants = f"float[2,{steps},3] s0={{{','.join(['0'] * 6 * steps)}}}, int64[1] axis={{1}}"
    constants += "".join(f", int64[2,1,2] at{step}={{0,{step},1,{step}}}" for step in range(steps))
    lines = [
        f"h{step + 1} = Relu(h{step}) u{step} = Unsqueeze(h{step + 1}, axis) s{step + 1} = ScatterND(s{step}, at{step}, u{step})"
        for step in range(steps)
    ]
    text = f"g (float[2,3] h0) => (float[2,{steps},3] y) {{ {' '.join(lines)} y = Neg(s{steps}) }}"
    assert Counter(_operators(text, constants)) == {"Relu": steps, "Unsqueeze": steps, "Concat": 1, "Neg": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # a mask that is read by a grid of rows and columns
        (
            """g (float[b,s] x) => (float[b,1,s] y) {
            shape = Shape(x)
            b_ = Gather(shape, zero)
            s_ = Gather(shape, one)
            rows = Range(zero, b_, one)
            columns = Range(zero, s_, one)
            sizes = Concat <axis=0>(shape)
            r = Unsqueeze(rows, at_one)
            rs = Expand(r, sizes)
            cs = Expand(columns, sizes)
            end = Neg(at_one)
            r1 = Unsqueeze(rs, end)
            c1 = Unsqueeze(cs, end)
            index = Concat <axis=-1>(r1, c1)
            z = GatherND(x, index)
            y = Unsqueeze(z, at_one) }""",
            ["Unsqueeze"],
        ),
        # parts put together again, with something between
        (
            """g (float[b,s] x) => (float[b,s] y) {
            first = Slice(x, at_zero, at_one, at_one)
            last = Slice(x, at_one, all, at_one)
            both = Concat <axis=1>(first, last)
            y = Neg(both) }""",
            ["Neg"],
        ),
        # a size as a matrix
        (
            """g (float[b,s] x, int64[1,1] z) => (int64[1,1] y) {
            size = Shape <start=0, end=1>(x)
            number = Squeeze(size)
            matrix = Unsqueeze(number, two)
            y = Add(matrix, z) }""",
            ["Shape", "Unsqueeze", "Add"],
        ),
        # sizes that a value has in a row, behind one of another value
        (
            """g (float[b,s] x, float[n,c,h,w] z) => (int64[4] y) {
            first = Shape <start=0, end=1>(x)
            third = Shape <start=2, end=3>(z)
            fourth = Shape <start=3, end=4>(z)
            image = Concat <axis=0>(third, fourth)
            y = Concat <axis=0>(first, at_one, image) }""",
            ["Shape", "Shape", "Concat"],
        ),
        # sizes that are all that a value has
        (
            """g (float[3,h] x, float[b,c] z) => (int64[3] y) {
            first = Shape <start=0, end=1>(z)
            second = Shape <start=1, end=2>(z)
            third = Shape <start=1, end=2>(x)
            both = Concat <axis=0>(first, second)
            y = Concat <axis=0>(both, third) }""",
            ["Shape", "Shape", "Concat"],
        ),
        # a slice of a concatenation
        (
            """g (float[b,1] x, float[b,s] z) => (float[b,s] y) {
            both = Concat <axis=1>(x, z)
            part = Slice(both, at_one, all, at_one)
            y = Neg(part) }""",
            ["Neg"],
        ),
        # backwards twice
        (
            """g (float[s] x) => (float[s] y) {
            n = Shape(x)
            k = Squeeze(n)
            r = Range(zero, k, one)
            up = Add(r, one)
            down = Sub(k, up)
            a = Gather(x, down)
            c = Gather(a, down)
            y = Neg(c) }""",
            ["Neg"],
        ),
        # a condition that always holds, and one tensor for both branches
        (
            """g (float[s] x, float[s] z) => (float[s] y) {
            n = Shape(x)
            k = Squeeze(n)
            r = Range(zero, k, one)
            mask = GreaterOrEqual(r, zero)
            a = Where(mask, x, z)
            y = Neg(a) }""",
            ["Neg"],
        ),
    ],
)
def test_what_indices_compute_is_not_computed(text: str, expected: list[str]) -> None:
    assert _operators(text) == expected


def test_a_stack_that_is_reshaped_is_a_concatenation() -> None:
    text = """g (float[n,3,4] a, float[n,3,4] b) => (float[m,4] y) {
        u = Unsqueeze(a, at_one)
        v = Unsqueeze(b, at_one)
        w = Concat <axis=1>(u, v)
        y = Reshape(w, target) }"""
    assert _operators(text, CONSTANTS + ", int64[2] target={-1,4}") == ["Concat", "Reshape"]


def test_what_something_else_needs_stays() -> None:
    text = """g (float[b,s] x) => (float[s,b] y, float[b,s] z) {
        t = Transpose(x)
        y = Neg(t)
        z = Transpose(t) }"""
    assert sorted(_operators(text)) == ["Identity", "Neg", "Transpose"]


@pytest.mark.parametrize(("newest", "expected"), [(None, 4), (12, 4), (13, 3), (23, 3)])
def test_an_older_opset_does_if_it_is_raised_for_another_node(newest: int | None, expected: int) -> None:
    text = """<ir_version: 7, opset_import: ["": 12]> g (float[2,3] x) => (float[1,1,2,2] y)
        <int64[1] start={0}, int64[1] end={2}, int64[1] axis={2}> {
        one = Unsqueeze <axes=[0]>(x)
        part = Slice(one, start, end, axis)
        two = Unsqueeze <axes=[1]>(part)
        y = Neg(two) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    before = _session(model).run(None, feeds)[0]
    model.graph[-1].version = newest
    _simplified(model)
    assert len([node for node in model.graph if node.op_type != "Constant"]) == expected
    raise_to_newest(model)
    assert _session(model).run(None, feeds)[0].tobytes() == before.tobytes()


def test_a_size_that_may_be_zero_divides_in_no_plan() -> None:
    chain = chain_of(302403)
    assert with_outputs(chain, two=True)
    assert mistake(chain, Counter()) is None


def test_random_chains_give_the_same_elements() -> None:
    totals: Counter[str] = Counter()
    for seed in range(500, 512):
        chain = chain_of(seed)
        made = [value for node in chain.graph for value in node.outputs if node.op_type != "Constant"]
        moved = [value for value in made if chain.facts.dtype(value) is ir.DataType.FLOAT]
        if not moved:
            continue
        moved[-1].type = ir.TensorType(ir.DataType.FLOAT)
        chain.graph.outputs.append(moved[-1])
        model = ir.from_proto(ir.to_proto(chain.model))
        before = _session(model)
        totals["before"] += len(model.graph)
        after = _session(_simplified(model))
        totals["after"] += len(model.graph)
        for sizes in SIZES:
            feeds = {value.name: elements_of(chain, value, sizes) for value in chain.graph.inputs}
            try:
                expected = before.run(None, feeds)[0]
            except Exception:  # the runtime has many classes of errors
                continue
            got = after.run(None, {one.name: feeds[one.name] for one in after.get_inputs()})[0]
            assert got.shape == expected.shape and got.tobytes() == np.asarray(expected).tobytes(), (seed, sizes)
    assert totals["after"] < totals["before"] / 2


def _session(model: ir.Model) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, ["CPUExecutionProvider"])
