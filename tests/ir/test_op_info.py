"""One entry of the registry has all that is known of an operator."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
import pytest

import ortfuse.transforms.layout.layout_interfaces  # noqa: F401 - the facets of all floors
from ortfuse.ir import operator_registry
from ortfuse.ir.operator_registry import Facet, describe, facets, key_of, op_info


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = {name: dict(facet) for name, facet in operator_registry._FACETS.items()}
    yield
    for name in [*operator_registry._FACETS]:
        if name not in before:
            del operator_registry._FACETS[name]
            continue
        operator_registry._FACETS[name].clear()
        operator_registry._FACETS[name].update(before[name])
    operator_registry._WAITING.clear()


def test_an_entry_has_the_traits_and_facets_of_all_floors() -> None:
    info = op_info("", "Gather")
    assert "moves" in info.traits
    assert {"shape", "end_column", "norm", "periodicity", "evaluation", "layout"} <= info.facets.keys()
    assert info.facets.keys() <= facets().keys()


def test_an_operator_is_looked_up_with_its_domain() -> None:
    assert op_info("com.microsoft", "Gelu").name == "com.microsoft.Gelu"
    assert op_info("elsewhere", "Gather").facets == {}
    assert key_of("com.microsoft.Gelu") == ("com.microsoft", "Gelu")


def test_a_facet_may_be_described_before_it_is_declared() -> None:
    describe("toy.Late", color="red")
    facet: Facet[str] = Facet("color", "a facet of a floor that is imported later")
    assert facet.of(ir.Node("toy", "Late", [])) == "red"
    assert op_info("toy", "Late").facets == {"color": "red"}


def test_a_facet_is_declared_once() -> None:
    with pytest.raises(ValueError, match="facet shape is declared twice"):
        Facet("shape", "another one")
