"""Computes nodes of constants by the runtime itself, in one throwaway model.

The session runs without graph optimisations, so every node is computed by the kernel that would compute it later, and
the results have the same bits. If the model as a whole fails, its halves are tried, until what fails is one node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

NATIVE = frozenset(
    {
        ir.DataType.BOOL, ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE,
        ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64,
        ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64,
    }
)  # fmt: skip
"""Element types that the runtime exchanges as numpy arrays."""

_EMBEDDED_BYTES = 1024
"""Constants up to this size are initializers of the throwaway model; some kernels insist on it for their parameters."""

_MINIMUM_IR_VERSION = 4
"""The first version in which an initializer need not be an input as well."""

Array = np.ndarray[Any, Any]


@dataclass
class Region:
    """Nodes under one set of opset imports, in topological order, that depend on constants and each other only."""

    imports: Mapping[str, int]
    ir_version: int
    functions: Sequence[ir.Function]
    constant: Callable[[ir.Value], Array]
    nodes: list[ir.Node] = field(default_factory=list)


@dataclass
class Results:
    """What came out.

    Attributes:
        values: The outputs that were asked for or that nodes which failed would have needed.
        failures: For each node without a result the runtime's message, or `None` if an input of it has no value.
    """

    values: dict[ir.Value, Array] = field(default_factory=dict)
    failures: dict[ir.Node, str | None] = field(default_factory=dict)


def evaluate(region: Region, wanted: Collection[ir.Value]) -> Results:
    """Compute the `wanted` outputs of the region's nodes, and what nodes that fail would have needed."""
    results = Results()
    pending = [region.nodes]
    while pending:
        nodes = [node for node in pending.pop() if not _depends_on_failure(node, results)]
        needed = _outputs_needed(nodes, wanted)
        if not needed:
            continue
        try:
            arrays = _run(region, nodes, needed, results.values)
        except Exception as error:
            if len(nodes) == 1:
                results.failures[nodes[0]] = _first_line(error)
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
    """The outputs of these nodes that are wanted, or used by a node that is not among them."""
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
    import onnxruntime as ort  # here, because the import takes longer than most runs

    build = _Model(region, known)
    for node in nodes:
        build.add(node)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    session = ort.InferenceSession(build.finish(outputs), options, providers=["CPUExecutionProvider"])
    return [np.asarray(array) for array in session.run(None, build.feeds)]


class _Model:
    """A model under construction. Values are named anew, for names are unique only within a graph."""

    def __init__(self, region: Region, known: Mapping[ir.Value, Array]) -> None:
        self._region, self._known = region, known
        self._names: dict[ir.Value, str] = {}
        self._graph = onnx.GraphProto(name="fold")
        self.feeds: dict[str, Array] = {}

    def add(self, node: ir.Node) -> None:
        proto = self._graph.node.add(op_type=node.op_type, domain=node.domain, overload=node.overload)
        proto.input.extend("" if value is None else self._input(value) for value in node.inputs)
        proto.output.extend(self._new_name(output) if output.name else "" for output in node.outputs)
        proto.attribute.extend(ir.serde.serialize_attribute(attribute) for attribute in node.attributes.values())

    def finish(self, outputs: Sequence[ir.Value]) -> bytes:
        for output in outputs:
            self._graph.output.add(name=self._names[output])
        region = self._region
        model = onnx.ModelProto(ir_version=max(region.ir_version, _MINIMUM_IR_VERSION), graph=self._graph)
        for domain, version in region.imports.items():
            model.opset_import.add(domain=domain, version=version)
        model.functions.extend(ir.serde.serialize_function(function) for function in region.functions)
        data: bytes = model.SerializeToString()
        return data

    def _new_name(self, value: ir.Value) -> str:
        name = f"v{len(self._names)}"
        self._names[value] = name
        return name

    def _input(self, value: ir.Value) -> str:
        if value in self._names:
            return self._names[value]
        name = self._new_name(value)
        array = self._known[value] if value in self._known else self._region.constant(value)
        if array.nbytes <= _EMBEDDED_BYTES:
            self._graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        else:
            dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            self._graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, array.shape))
            self.feeds[name] = np.ascontiguousarray(array)
        return name


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
