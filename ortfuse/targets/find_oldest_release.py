"""Find the oldest release of the runtime that loads and executes a model."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir import walk
from ortfuse.targets.custom_operators import custom_operator
from ortfuse.targets.release_kernel_tables import Releases, releases_of
from ortfuse.targets.rule_speedups import CostTable
from ortfuse.targets.target import Target
from ortfuse.targets.target_spec import TargetSpec, release_number


def _has_mask(node: ir.Node) -> bool:
    """Whether a node is an ai.onnx Attention with a mask."""
    return node.op_type == "Attention" and not node.domain and len(node.inputs) > 3 and node.inputs[3] is not None


def oldest_release(model: ir.Model, spec: TargetSpec) -> str | None:
    """Return the oldest release, such as `1.20`, from which on each release executes a model by what the tables say of it.

    Opset, IR version, operators, attributes, kernels for the types, and known constraints count. `None` if no release does, if
    the target has no tables of releases, or if an operator is one of the user's own.
    """
    releases = releases_of(spec)
    if releases is None:
        return None
    nodes = [node for node in walk.nodes(model) if (node.domain, node.op_type, node.overload) not in model.functions]
    if any(custom_operator(node.domain, node.op_type) is not None for node in nodes):
        return None
    facts, found = Facts(model), None
    for name in reversed(releases.names):
        if not _executes(releases, name, spec, model, nodes, facts):
            break
        found = name
    return found


def _executes(
    releases: Releases, name: str, spec: TargetSpec, model: ir.Model, nodes: list[ir.Node], facts: Facts
) -> bool:
    table = releases.table(name, only={(node.domain, node.op_type) for node in nodes})
    if model.ir_version > table.max_ir_version or model.opset_imports.get("", 1) > table.max_opset:
        return False
    first = release_number(spec.lowered_before.get("Attention", "0"))
    if table.release < first and any(map(_has_mask, nodes)):
        return False
    target = Target(table=table, costs=CostTable({})).without_lowering()
    imports = model.opset_imports
    return all(
        target.check_node(node, imports, facts) is None or target.instead_of_kernel(node, imports, facts)
        for node in nodes
        if node.op_type != "Constant" or node.domain  # which the runtime makes an initializer of
    )
