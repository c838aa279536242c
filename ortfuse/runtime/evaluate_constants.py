"""Evaluate nodes of constants with the runtime itself, in a single throwaway model.

The session runs without graph optimisations, so every node is computed by the same kernel as at run time, and the results
are bit-identical. If the model as a whole fails, it is halved until the failing nodes are isolated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import VerificationError
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.session import Session
from ortfuse.runtime.submodel import model_of, taken
from ortfuse.targets import default_spec

NATIVE = frozenset(
    {
        ir.DataType.BOOL, ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE,
        ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64,
        ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64,
    }
)  # fmt: skip
"""Element types that the runtime exchanges as numpy arrays."""

Array = np.ndarray[Any, Any]


@dataclass
class Region:
    """Nodes under one set of opset imports, in topological order, that depend only on constants and on each other."""

    imports: Mapping[str, int]
    functions: Sequence[ir.Function]
    constant: Callable[[ir.Value], ir.TensorProtocol]
    nodes: list[ir.Node] = field(default_factory=list)


@dataclass
class Results:
    """The results of evaluating a region.

    Attributes:
        values: The outputs that were requested, or that failed nodes would have needed as inputs.
        failures: For each node without a result, the runtime's message, or `None` if an input of the node has no value.
    """

    values: dict[ir.Value, Array] = field(default_factory=dict)
    failures: dict[ir.Node, str | None] = field(default_factory=dict)


def evaluate(region: Region, wanted: Collection[ir.Value]) -> Results:
    """Compute the `wanted` outputs of the region's nodes, and the values that failing nodes would have needed."""
    with executing_for(default_spec()):  # constants hold for every target, and are rounded as the default one rounds
        return _evaluated(region, wanted)


def _evaluated(region: Region, wanted: Collection[ir.Value]) -> Results:
    results = Results()
    pending = [region.nodes]
    while pending:
        nodes = [node for node in pending.pop() if not _depends_on_failure(node, results)]
        needed = _outputs_needed(nodes, wanted)
        if not needed:
            continue
        try:
            arrays = _run(region, nodes, needed, results.values)
        except Exception as error:  # whatever is wrong with the node, it is left unchanged
            if len(nodes) == 1:
                results.failures[nodes[0]] = str(error)
            else:
                middle = len(nodes) // 2
                pending += [nodes[middle:], nodes[:middle]]
        else:
            results.values.update(zip(needed, arrays, strict=True))
    return results


def _depends_on_failure(node: ir.Node, results: Results) -> bool:
    if not any(value is not None and value.producer() in results.failures for value in node.inputs):
        return False
    results.failures[node] = None
    return True


def _outputs_needed(nodes: Sequence[ir.Node], wanted: Collection[ir.Value]) -> list[ir.Value]:
    """The outputs of these nodes that are wanted, or used by a node outside of them."""
    members = set(nodes)
    return [
        output
        for node in nodes
        for output in node.outputs
        if output in wanted or any(use.node not in members for use in output.uses())
    ]


def _run(
    region: Region, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], known: Mapping[ir.Value, Array]
) -> list[Array]:
    constants = {value: ir.Tensor(known[value]) if value in known else region.constant(value) for value in taken(nodes)}
    named = [(f"result.{number}", output) for number, output in enumerate(outputs)]
    model = model_of(nodes, {}, named, constants, region.imports, functions=region.functions)
    results = [*Session(model, optimise=False, threads=1, lean=True).run({}).values()]
    if any(not isinstance(result, np.ndarray | np.generic) for result in results):
        raise VerificationError("the runtime leaves a result of a node open")  # as some kernels do at unknown modes
    return [np.asarray(result) for result in results]
