from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from ortfuse.ir import traits
from ortfuse.ir.schemas import needed_opset

SCHEMAS = {schema.name: schema for schema in onnx.defs.get_all_schemas() if not schema.domain and not schema.deprecated}
ROWS = [row.partition(":") for row in traits._TABLE.splitlines() if row]
STANDARD = [name for operators, _, _ in ROWS if "@ms" not in operators for name in operators.split()]


def test_the_table_has_every_operator_of_onnx_once() -> None:
    assert len(STANDARD) == len(set(STANDARD))
    known = {name for name, schema in SCHEMAS.items() if needed_opset(name, frozenset()) <= 25}
    assert known <= set(STANDARD)
    assert set(STANDARD) - SCHEMAS.keys() == {"SimplifiedLayerNormalization"}, "the runtime's own in ONNX's domain"


def test_what_onnx_calls_random_is_known_to_be() -> None:
    drawn = {name for name, schema in SCHEMAS.items() if str(schema.node_determinism).endswith("NonDeterministic")}
    # Dropout is random in training alone, and AffineGrid is not.
    assert drawn - {"Dropout", "AffineGrid"} <= traits.RANDOM | traits.CONTROL_FLOW


def test_control_flow_is_what_has_graphs_as_attributes() -> None:
    graph = onnx.defs.OpSchema.AttrType.GRAPH
    holding = {name for name, schema in SCHEMAS.items() if any(a.type == graph for a in schema.attributes.values())}
    assert holding == traits.CONTROL_FLOW


@pytest.mark.parametrize(("operator", "parameters"), traits.PARAMETER_INPUTS.items())
def test_parameters_stand_where_the_standard_has_them(operator: str, parameters: dict[str, int]) -> None:
    names = [formal.name for formal in SCHEMAS[operator].inputs]
    spelled = {"k": "K"}
    assert {name: names.index(spelled.get(name, name)) for name in parameters} == parameters


def test_an_operator_of_another_domain_has_the_traits_of_its_own_domain_only() -> None:
    assert traits.has(ir.Node("", "Add", []), traits.COMMUTES)
    assert not traits.has(ir.Node("elsewhere", "Add", []), traits.COMMUTES)
    assert traits.has(ir.Node("com.microsoft", "BiasDropout", []), traits.RANDOM)
