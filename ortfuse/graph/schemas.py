"""Queries of operator definitions, in ONNX and in ONNX Runtime."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import onnx
import onnx_ir as ir


def schema_at(op_type: str, version: int, domain: str = "") -> Any:
    """ONNX's definition of the operator in force at `version` of its domain; `None` if it has none."""
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


@functools.cache
def attribute_default(domain: str, op_type: str, version: int, name: str) -> Any:
    """The default of an attribute by the operator's schema; `None` if its absence has a meaning of its own."""
    schema = schema_at(op_type, version, domain)
    attribute = None if schema is None else schema.attributes.get(name)
    if attribute is None or not attribute.default_value.name:
        return None
    value = onnx.helper.get_attribute_value(attribute.default_value)
    return value.decode() if isinstance(value, bytes) else tuple(value) if isinstance(value, list) else value


@functools.cache
def needed_opset(op_type: str, attributes: frozenset[str]) -> int:
    """The first ai.onnx opset at which the operator has all these attributes; 1 if ONNX does not define it."""
    versions = list(_versions(op_type))
    fitting = [schema for schema in versions if attributes <= schema.attributes.keys()]
    return min((int(schema.since_version) for schema in fitting or versions), default=1)


def _versions(op_type: str) -> Iterator[Any]:
    """All definitions of an operator of ai.onnx, the newest first."""
    schema = schema_at(op_type, onnx.defs.onnx_opset_version())
    while schema is not None:
        yield schema
        schema = schema_at(op_type, schema.since_version - 1) if schema.since_version > 1 else None


@functools.cache
def changes(op_type: str, version: int, opset: int) -> bool:
    """Whether the operator's definition at ai.onnx opset `opset` differs from that at `version`, or is gone."""
    old, new = schema_at(op_type, version), schema_at(op_type, opset)
    if old is None:
        return False  # an operator that the runtime itself defines in ONNX's domain: no opset has it
    return new is None or bool(old.since_version != new.since_version)


@functools.cache
def optional_outputs(domain: str, op_type: str, version: int) -> frozenset[int]:
    """The positions of the outputs that the operator's schema allows to be left out."""
    if domain not in ("", "ai.onnx.ml"):
        return _optional_of_runtime().get((domain, op_type), frozenset())
    schema = schema_at(op_type, version, domain)
    option = onnx.defs.OpSchema.FormalParameterOption.Optional
    outputs = () if schema is None else schema.outputs
    return frozenset(index for index, output in enumerate(outputs) if output.option == option)


@functools.cache
def _optional_of_runtime() -> dict[tuple[str, str], frozenset[int]]:
    """The positions of the optional outputs of ONNX Runtime's own operators, by domain and operator."""
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    optional = runtime.schemadef.OpSchema.FormalParameterOption.Optional
    return {
        (schema.domain, schema.name): frozenset(
            i for i, output in enumerate(schema.outputs) if output.option == optional
        )
        for schema in runtime.get_all_operator_schema()
        if schema.domain.startswith("com.")
    }


def kept_outputs(node: ir.Node) -> frozenset[int]:
    """The outputs that must be present even if unused.

    Operators of custom domains may need any of theirs; ONNX Runtime's Attention refuses a past (input 4) without the present
    (outputs 1 and 2).
    """
    if node.domain not in ("", "com.microsoft"):
        return frozenset(range(len(node.outputs)))
    if node.op_type == "Attention" and not node.domain and len(node.inputs) > 4 and node.inputs[4] is not None:
        return frozenset((1, 2))
    return frozenset()
