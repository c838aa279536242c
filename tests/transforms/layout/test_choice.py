"""The choice of orders is compared with all choices; what is done with it computes the same."""

from __future__ import annotations

import math
import re

import pytest
from graphs import operators
from random_layouts import SIZES, assignments, combinations, random_text
from small_models import apply, context_of, floats, model_of, proto_of

import ortfuse
from ortfuse.transforms import Layout
from ortfuse.transforms.layout import assign_axis_orders
from ortfuse.transforms.layout.find_units import Map
from ortfuse.transforms.layout.transpose_lower_bound import bound

INPUTS = {"x0": floats(2, 3, 4, 5), "x1": floats(2, 3, 4, 5) * 2}
MOST = 5000


@pytest.mark.parametrize("kinds", [2, 3])
@pytest.mark.parametrize("seed", range(25))
def test_no_choice_of_orders_is_cheaper(seed: int, kinds: int) -> None:
    context = context_of(model_of(random_text(seed, nodes=9, kinds=kinds)))
    for region in Map(context.model.graph, context.facts).regions():
        if combinations(region) > MOST:
            continue
        least = min(assign_axis_orders.cost(region, states) for states in assignments(region))
        assert assign_axis_orders.cost(region, assign_axis_orders.best(region)) == least
        assert bound(region) <= assign_axis_orders.transposed(region, assign_axis_orders.best(region))


@pytest.mark.parametrize("seed", range(10))
def test_two_orders_reach_the_bound_however_large_the_graph(seed: int) -> None:
    context = context_of(model_of(random_text(seed, nodes=60)))
    for region in Map(context.model.graph, context.facts).regions():
        assert assign_axis_orders.transposed(region, assign_axis_orders.best(region)) == bound(region)


def test_the_gap_to_the_bound_stands_in_the_report_and_in_explanations() -> None:
    """With three orders; what is said is what is left in the end, not what an earlier round left."""
    text = random_text(20, nodes=14, kinds=3)
    result = ortfuse.optimize(proto_of(text), passes="fixpoint(canonicalize, layout)")
    (note,) = [note for note in result.report.notes if note.startswith("layout: ")]
    left = sum(math.prod(SIZES) for node in result.model.graph.node if node.op_type == "Transpose")
    assert re.fullmatch(
        rf"layout: \d+ nodes around '\w+' transpose {left} elements at usual sizes; at least \d+ have to be", note
    )
    assert note in ortfuse.explain(proto_of(text), passes="fixpoint(canonicalize, layout)").notes


def test_transposes_meet_through_a_thousand_nodes() -> None:
    chain = " ".join(f"v{index} = Relu(v{index - 1})" for index in range(1, 1000))
    body = f"v0 = Transpose<perm = [1, 0]>(x) {chain} y = Transpose<perm = [1, 0]>(v999)"
    model, counts, _ = apply(f"agraph (float[2, 3] x) => (float[2, 3] y) {{ {body} }}", Layout())
    assert counts == [1]
    assert "Transpose" not in operators(model)


def test_parts_of_a_graph_that_do_not_meet_are_chosen_one_by_one() -> None:
    """LayerNormalization keeps what comes before it apart from what comes behind it, however many Transposes there are."""
    layers, last = "", "x"
    for index in range(8):
        layers += f"a{index} = Transpose<perm = [1, 0]>({last}) b{index} = Relu(a{index}) c{index} = Transpose<perm = [1, 0]>(b{index}) "
        layers += f"d{index} = LayerNormalization(c{index}, scale) "
        last = f"d{index}"
    text = f'<ir_version: 8, opset_import: ["": 20]> agraph (float[n, 2] x) => (float[n, 2] {last}) <float[2] scale = {{1.0, 2.0}}> {{ {layers} }}'
    context = context_of(model_of(text))
    assert len(list(Map(context.model.graph, context.facts).regions())) == 8
    model, counts, _ = apply(text, Layout(), inputs={"x": floats(3, 2)})
    assert counts == [8]
    assert "Transpose" not in operators(model)


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_compute_the_same_with_less_to_transpose(seed: int) -> None:
    text = random_text(seed, kinds=2 + seed % 2)
    before = operators(model_of(text)).count("Transpose")
    model, counts, _ = apply(text, Layout(), Layout(), inputs=INPUTS)
    assert operators(model).count("Transpose") <= before
    assert counts[1] == 0 or counts[0] > 0
