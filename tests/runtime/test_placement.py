"""Placement of nodes on providers: as the runtime tells it, and as partitions of a target."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.runtime.placement import Partition, PlacedNode, Placement, placement

MODEL = """<ir_version: 10, opset_import: ["": 20]> g (float[2, 3] x) => (float[2, 3] y) {
    a = Relu(x)
    y = Exp(a)
}"""


def test_placement_lists_the_nodes_that_the_runtime_executes() -> None:
    found = placement(ir.from_onnx_text(MODEL))
    assert found.provider == "CPUExecutionProvider"
    assert [node.op_type for one in found.partitions for node in one.nodes] == ["Relu", "Exp"]
    assert found.own_partitions == 2
    assert found.off_provider == ()


def test_nodes_of_other_providers_are_off_the_provider() -> None:
    own, other = (PlacedNode("", name, "") for name in ("Relu", "Sequence"))
    found = Placement("A", (Partition("A", (own, own)), Partition("B", (other,)), Partition("A", (own,))))
    assert found.own_partitions == 2
    assert found.off_provider == (other,)
