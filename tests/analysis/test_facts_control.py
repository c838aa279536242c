"""Facts inside and behind If, Loop, Scan and calls of model functions."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from soundness import judge_model, strict_transfer

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import Dim

pytestmark = pytest.mark.usefixtures(strict_transfer.__name__)

HEADER = '<ir_version: 10, opset_import: ["" : 20, "local" : 1]>'


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEADER} {text}")


def load(text: str) -> tuple[Facts, dict[str, ir.Value]]:
    """The facts of a model and its values by name, those of bodies included."""
    model = ir.from_proto(parse(text))
    return Facts(model), values_by_name(model)


def values_by_name(model: ir.Model) -> dict[str, ir.Value]:
    values = {value.name or "": value for value in model.graph.inputs}
    for owner in (model.graph, *model.functions.values()):
        for value in owner.inputs:
            values[value.name or ""] = value
        for node in owner.all_nodes():
            for value in (*node.outputs, *(v for v in node.inputs if v is not None)):
                values[value.name or ""] = value
        for graph in owner.subgraphs():
            for value in graph.inputs:
                values[value.name or ""] = value
    return values


def shape(facts: Facts, value: ir.Value) -> str:
    dims = facts.shape(value)
    if dims is None:
        return "rank unknown"
    return ", ".join("?" if isinstance(dim, Dim) and dim.fresh else str(dim) for dim in dims)


def hold(text: str, inputs: dict[str, np.ndarray], sizes: dict[str, int]) -> None:
    """Hold the facts of the main graph against a run."""
    proto = parse(text)
    model = ir.from_proto(proto)
    judge = judge_model(proto, Facts(model), model, inputs, sizes)
    assert not judge.wrong, "\n".join(judge.wrong)


def ones(*dims: int) -> np.ndarray:
    return np.ones(dims, dtype=np.float32)


BRANCHES = """
g (bool c, float[b, s] x, float[b, 7] w) => (y, z) {{
    y, z = If (c) <
        then_branch = t () => (p, q) {{ p = Relu({0}) n = Shape(x) q = Identity(n) }},
        else_branch = e () => (u, v) {{ u = Neg({1}) m = Shape(w) v = Identity(m) }}
    >
}}
"""


def test_if_gives_what_both_branches_agree_on() -> None:
    text = BRANCHES.format("x", "w")
    facts, values = load(text)
    assert shape(facts, values["y"]) == "b, ?"
    assert str(facts.ints(values["z"]).elements[0]) == "b"  # type: ignore[union-attr]
    assert facts.ints(values["z"]).elements[1] is None  # type: ignore[union-attr]
    assert shape(facts, values["p"]) == "b, s"
    for condition in (True, False):
        hold(text, {"c": np.array(condition), "x": ones(2, 3), "w": ones(2, 7)}, {"b": 2, "s": 3})


def test_if_with_a_constant_condition_is_the_branch_taken() -> None:
    facts, values = load(
        """
        g (float[b, s] x) => (y) {
            c = Constant <value = bool {1}> ()
            y = If (c) <
                then_branch = t () => (p) { p = Relu(x) },
                else_branch = e () => (u) { u = ReduceSum(x) }
            >
        }
        """
    )
    assert shape(facts, values["y"]) == "b, s"


def test_if_with_branches_of_different_rank_is_unknown() -> None:
    facts, values = load(
        """
        g (float[b, 1] x, bool c) => (y) {
            y = If (c) <
                then_branch = t () => (p) { a = Constant <value = int64[1] {1}> () p = Squeeze(x, a) },
                else_branch = e () => (u) { u = Identity(x) }
            >
        }
        """
    )
    assert facts.dtype(values["y"]) == ir.DataType.FLOAT
    assert facts.shape(values["y"]) is None


LOOP = """
g (float[b, 8] x, float[8, 8] w, int64 n) => (y, k, rows) {
    c = Constant <value = bool {1}> ()
    zero = Constant <value = int64 {0}> ()
    y, k, rows = Loop (n, c, x, zero) <
        body = body (int64 i, bool go, float[o, p] h, int64 j) => (going, h2, j2, row) {
            going = Identity(c)
            h2 = MatMul(h, w)
            one = Constant <value = int64 {1}> ()
            j2 = Add(j, one)
            row = ReduceSum <keepdims = 0> (h2)
        }
    >
}
"""


def test_loop_keeps_what_no_iteration_changes() -> None:
    facts, values = load(LOOP)
    assert shape(facts, values["y"]) == "b, 8"
    assert shape(facts, values["h"]) == "b, 8"
    assert facts.ints(values["j"]).elements == (None,)  # type: ignore[union-attr]
    assert shape(facts, values["i"]) == ""
    for count in (0, 3):
        hold(LOOP, {"x": ones(2, 8), "w": ones(8, 8), "n": np.array(count)}, {"b": 2})


GROWING = """
g (float[b, 1] x, int64 n) => (y, rows) {
    c = Constant <value = bool {1}> ()
    y, rows = Loop (n, c, x) <
        body = body (int64 i, bool go, h) => (going, h2, row) {
            going = Identity(go)
            h2 = Concat <axis = 1> (h, x)
            row = Relu(x)
        }
    >
}
"""


def test_loop_gives_up_a_dimension_that_grows() -> None:
    facts, values = load(GROWING)
    assert shape(facts, values["h"]) == "b, ?"
    assert shape(facts, values["y"]) == "b, ?"
    assert shape(facts, values["rows"]) == "?, ?, ?"
    inner, outer = facts.shape(values["h"]), facts.shape(values["y"])
    assert inner is not None and outer is not None and inner[1] != outer[1]
    assert facts.shape(values["h2"]) == (inner[0], inner[1] + 1)
    for count in (0, 3):
        hold(GROWING, {"x": ones(2, 1), "n": np.array(count)}, {"b": 2})


def test_loop_that_runs_a_known_number_of_times() -> None:
    text = """
    g (float[b, 4] x) => (y, rows) {
        n = Constant <value = int64 {5}> ()
        y, rows = Loop (n, , x) <
            body = body (int64 i, bool go, h) => (going, h2, row) {
                going = Constant <value = bool {1}> ()
                h2 = Relu(h)
                row = Neg(h)
            }
        >
    }
    """
    facts, values = load(text)
    assert shape(facts, values["rows"]) == "5, b, 4"
    hold(text, {"x": ones(2, 4)}, {"b": 2})


def test_loop_whose_rank_changes_ends_and_is_unknown() -> None:
    facts, values = load(
        """
        g (float[b] x, int64 n) => (y) {
            c = Constant <value = bool {1}> ()
            a = Constant <value = int64[1] {0}> ()
            y = Loop (n, c, x) <
                body = body (int64 i, bool go, h) => (going, h2) { going = Identity(go) h2 = Unsqueeze(h, a) }
            >
        }
        """
    )
    assert facts.dtype(values["y"]) == ir.DataType.FLOAT
    assert facts.shape(values["y"]) is None


SCAN = """
g (float[b] x, float[s, b] w) => (y, rows) {
    y, rows = Scan <num_scan_inputs = 1, body = body (h, v) => (h2, row) { h2 = Add(h, v) row = Mul(h, v) }> (x, w)
}
"""


def test_scan_slices_and_stacks() -> None:
    facts, values = load(SCAN)
    assert shape(facts, values["v"]) == "b"
    assert shape(facts, values["y"]) == "b"
    assert shape(facts, values["rows"]) == "s, b"
    hold(SCAN, {"x": ones(2), "w": ones(3, 2)}, {"b": 2, "s": 3})


CALLS = """
g (float[b, s] x, float[b, 8] w) => (y, z) {{
    y = local.twice({0})
    z = local.twice({1})
}}
<domain: "local", opset_import: ["" : 20, "local" : 1]>
twice (a) => (d) {{ e = local.once(a) d = Concat <axis = 1> (e, e) }}
<domain: "local", opset_import: ["" : 20]>
once (p) => (q) {{ n = Shape(p) q = Relu(p) }}
"""


def test_a_call_is_evaluated_for_its_own_arguments() -> None:
    text = CALLS.format("x", "w")
    facts, values = load(text)
    assert shape(facts, values["y"]) == "b, 2*s"
    assert shape(facts, values["z"]) == "b, 16"
    hold(text, {"x": ones(2, 3), "w": ones(2, 8)}, {"b": 2, "s": 3})


def test_the_body_of_a_function_holds_for_every_call() -> None:
    facts, values = load(CALLS.format("x", "w"))
    assert shape(facts, values["a"]) == "b, ?"
    assert shape(facts, values["p"]) == "b, ?"
    assert facts.shape(values["q"]) == facts.shape(values["p"])
    facts, values = load(CALLS.format("x", "x"))
    assert shape(facts, values["p"]) == "b, s"
    assert str(facts.ints(values["n"]).elements[1]) == "s"  # type: ignore[union-attr]


def test_unknown_dimensions_of_calls_are_not_confused() -> None:
    facts, values = load(
        """
        g (float[s] x, float[s] w) => (y, z) { y = local.pick(x) z = local.pick(w) }
        <domain: "local", opset_import: ["" : 20]>
        pick (a) => (d) { d = NonZero(a) }
        """
    )
    y, z = facts.shape(values["y"]), facts.shape(values["z"])
    assert y is not None and z is not None and y[1] != z[1]


def test_function_attributes_that_differ_by_call_are_unknown() -> None:
    facts, values = load(
        """
        g (float[b, s] x) => (y) { y = local.turn <how = 1> (x) }
        <domain: "local", opset_import: ["" : 20]>
        turn <how> (a) => (d) { d = Flatten <axis : int = @how> (a) }
        """
    )
    assert facts.dtype(values["d"]) is None or facts.shape(values["d"]) is None


def test_a_number_that_is_given_by_the_call_has_no_axes() -> None:
    facts, values = load(
        """
        g (float[b, 3] x) => (y) { y = local.scaled <by = 2.0> (x) }
        <domain: "local", opset_import: ["" : 20]>
        scaled <by> (a) => (d) { c = Constant <value_float : float = @by> () d = Mul (c, a) }
        """
    )
    assert shape(facts, values["y"]) == "b, 3"


def test_functions_use_their_own_opset() -> None:
    facts, values = load(
        """
        g (float[b, 1, s] x) => (y) { y = local.drop(x) }
        <domain: "local", opset_import: ["" : 11]>
        drop (a) => (d) { d = Squeeze <axes = [1]> (a) }
        """
    )
    assert shape(facts, values["y"]) == "b, s"


def test_a_function_nobody_calls_has_unknown_inputs() -> None:
    facts, values = load(
        """
        g (float[b] x) => (y) { y = Relu(x) }
        <domain: "local", opset_import: ["" : 20]>
        spare (a) => (d) { n = Shape(a) d = Relu(a) }
        """
    )
    assert facts.shape(values["d"]) is None
    assert facts.dtype(values["n"]) == ir.DataType.INT64


@pytest.mark.parametrize("depth", [4])
def test_nested_bodies_see_outer_values(depth: int) -> None:
    body = "deepest = Relu(x)"
    result = "deepest"
    for level in range(depth):
        then = f"t{level} () => ({result}) {{ {body} }}"
        otherwise = f"e{level} () => (o{level}) {{ o{level} = Neg(x) }}"
        body = f"r{level} = If (c) <then_branch = {then}, else_branch = {otherwise}>"
        result = f"r{level}"
    facts, values = load(f"g (float[b, s] x, bool c) => ({result}) {{ {body} }}")
    assert shape(facts, values["deepest"]) == "b, s"
    assert shape(facts, values[result]) == "b, s"
