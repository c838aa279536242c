"""Check that a target executes the attention of a generator, and from which release on.

The kernel of GroupQueryAttention takes several tokens behind others for one sequence only, which the interface of a generator
says. So the checks are made for one sequence.
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import GenerationError
from ortfuse.targets import Target, oldest_release
from ortfuse.targets.target_spec import TargetSpec


def demand_kernels(model: ir.Model, target: Target) -> None:
    """Refuse a generator that the target does not execute.

    Raises:
        GenerationError: It has no kernel for an attention of the generator.
    """
    one = _for_one_sequence(model)
    facts = Facts(one)
    for node in one.graph:
        if node.op_type == "GroupQueryAttention":
            refusal = target.check_node(node, one.opset_imports, facts)
            if refusal is not None:
                runtime = f"{target.table.runtime} ({target.provider})"
                raise GenerationError(f"{runtime} does not execute the attention of the generator: {refusal.reason}")


def oldest_release_of(model: ir.Model, spec: TargetSpec) -> str | None:
    """The oldest release, such as `1.23`, that executes a generator; `None` if that is not known."""
    return oldest_release(_for_one_sequence(model), spec)


def _for_one_sequence(model: ir.Model) -> ir.Model:
    copy = model.clone()
    for value in copy.graph.inputs:
        if value.shape is not None and len(value.shape) > 1:
            value.shape = ir.Shape([1, *value.shape[1:]])
    return copy
