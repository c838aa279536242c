"""An operator that is described in one file is known to facts, ranges, costs, purity and layout alike."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from small_models import context_of

from ortfuse import describe_operator, inspect, optimize, register_operators
from ortfuse.analysis import costs
from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Element, Moving
from ortfuse.analysis.ranges.queries import Asking
from ortfuse.analysis.ranges.range import Range, between
from ortfuse.analysis.transfer.transfer_function_registry import Op
from ortfuse.analysis.transfer.value_fact import Fact
from ortfuse.errors import OperatorError
from ortfuse.ir import operator_registry, traits
from ortfuse.ir.operator_registry import Facet
from ortfuse.runtime.session import Session
from ortfuse.targets import custom_operators
from ortfuse.transforms import SimplifyDataMovement

BODY = onnx.parser.parse_function('<domain: "toy", opset_import: ["": 18]> Square (a) => (b) { b = Mul(a, a) }')


def same_shape(op: Op) -> Fact:
    return Fact(op.dtype(), op.shape())


def not_negative(op: Asking) -> Range | None:
    return between(0.0, np.inf, nan=op.range_or_anything(0).nan)


def teach() -> None:
    """Everything that ortfuse has to know of the operator."""
    register_operators(bodies=[BODY])
    describe_operator(
        "toy.Square",
        traits="pure elementwise",
        shape=same_shape,
        value_range=not_negative,
        cost=costs.per_result(3),
    )


@pytest.fixture
def taught() -> Iterator[None]:
    before = dict(custom_operators._registered)
    teach()
    yield
    custom_operators._registered.clear()
    custom_operators._registered.update(before)
    for facet in operator_registry._FACETS.values():
        facet.pop(("toy", "Square"), None)
    for names in traits._OPERATORS.values():
        names.discard("toy.Square")
    for derived in traits._DERIVED.values():
        derived.renew("toy.Square")


def model_of(inputs: str, output: str, body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18, "toy": 1]> g ({inputs}) => ({output}) {{ {body} }}'
    )


def operators_of(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in optimize(model).model.graph.node]


SQUARE = model_of("float[n, 3] x", "float[n, 3] y", "y = toy.Square(x)")
TURNED = model_of(
    "float[2, 3, 4] x",
    "float[2, 3, 4] y",
    "t = Transpose<perm = [0, 2, 1]>(x) s = toy.Square(t) y = Transpose<perm = [0, 2, 1]>(s)",
)
CLAMPED = model_of("float[n, 3] x", "float[n, 3] z", "y = toy.Square(x) z = Relu(y)")
TWICE = model_of("float[n, 3] x", "float[n, 3] z", "a = toy.Square(x) b = toy.Square(x) z = Div(a, b)")


def test_its_entry_holds_all_that_was_described(taught: None) -> None:
    info = operator_registry.op_info("toy", "Square")
    assert info.name == "toy.Square"
    assert info.traits == {"pure", "elementwise"}
    assert info.facets["shape"] is same_shape
    assert info.facets["range"] is not_negative


def test_facts_are_inferred_by_its_functions(taught: None) -> None:
    model = ir.from_proto(SQUARE)
    facts = Facts(model)
    (output,) = model.graph.outputs
    assert [str(size) for size in facts.shape(output) or ()] == ["n", "3"]
    found = facts.range(output)
    assert found is not None
    assert found.low == 0


def test_inspection_counts_its_cost(taught: None) -> None:
    custom_operators._registered.pop(("toy", "Square"))  # the nodes of a body would be counted as well
    assert inspect(SQUARE, sizes={"n": 2}).total.flops == 18


def test_layout_moves_transposes_through_it(taught: None) -> None:
    assert operators_of(TURNED) == ["Square"]


def test_equal_nodes_of_a_pure_operator_are_merged(taught: None) -> None:
    assert operators_of(TWICE).count("Square") == 1


def test_an_optimised_model_computes_the_same(taught: None) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 12
    found = optimize(TURNED).model
    np.testing.assert_array_equal(Session(found.SerializeToString()).run({"x": x})["y"], x * x)


def test_nothing_is_assumed_of_an_operator_that_nobody_described() -> None:
    assert operators_of(TURNED) == ["Transpose", "Square", "Transpose"]
    assert operators_of(TWICE).count("Square") == 2


def test_an_unknown_trait_is_an_error() -> None:
    with pytest.raises(ValueError, match="there is no trait sparkling"):
        describe_operator("toy.Square", traits="sparkling")


def test_sets_computed_from_others_grow_with_them(taught: None) -> None:
    union, rest = traits.ELEMENTWISE | {"Other"}, traits.BROADCASTS - traits.ELEMENTWISE
    operator_registry.describe("toy.Cube", traits="elementwise")
    assert {"toy.Square", "toy.Cube", "Other"} <= union
    operator_registry.describe("toy.Both", traits="broadcasts")
    assert "toy.Both" in rest
    operator_registry.describe("toy.Both", traits="elementwise")
    assert "toy.Both" not in rest


def turned(op: Moving) -> Element:
    return op.at(0, op.place[::-1])


def test_chains_of_data_movement_are_shortened_through_its_index_map(taught: None) -> None:
    model = ir.from_proto(
        model_of("float[2, 3] x", "float[3, 2] y", "t = Transpose(x) s = toy.Square(t) y = Transpose(s)")
    )
    describe_operator("toy.Square", shape=lambda op: Fact(op.dtype(), op.known_shape()[::-1]), index_map=turned)
    SimplifyDataMovement().run(context_of(model))
    assert [node.op_type for node in model.graph] == ["Transpose"]


def test_an_operator_that_ortfuse_describes_is_replaced_only_on_request() -> None:
    with pytest.raises(OperatorError, match=r"Relu: ortfuse itself describes its .*`replace=True`"):
        describe_operator("Relu", shape=lambda op: Fact(op.dtype(), op.known_shape()))


def test_a_facet_that_is_registered_twice_names_both_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_registry, "_FACETS", {})
    facet: Facet[object] = Facet("twice", "a facet of this test")

    def first() -> None: ...

    def second() -> None: ...

    facet.register("toy.Once")(first)
    facet.register("toy.Once")(first)
    with pytest.raises(
        OperatorError, match=r"toy\.Once: its facet `twice` is registered by .*first already, and again by .*second"
    ):
        facet.register("toy.Once")(second)
