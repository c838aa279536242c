"""Query operator schemas of ONNX and ONNX Runtime: defaults, opset changes, optional outputs."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from importlib import resources
from itertools import pairwise, zip_longest
from typing import Any

import onnx
import onnx_ir as ir

from ortfuse.ir.traits import MICROSOFT


def schema_at(op_type: str, version: int, domain: str = "") -> Any:
    """ONNX's definition of the operator in force at `version` of its domain; `None` if it has none."""
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


@functools.cache
def attribute_default(domain: str, op_type: str, version: int, name: str) -> Any:
    """The default of an attribute by ONNX's schema or else the runtime's; `None` if its absence has a meaning of its own."""
    schema = schema_at(op_type, version, domain)
    if schema is None:
        return _defaults_of(domain, op_type).get(name) if domain in ("", MICROSOFT) else None
    attribute = schema.attributes.get(name)
    return None if attribute is None else _default(attribute.default_value)


def _default(attribute: onnx.AttributeProto) -> Any:
    if not attribute.name:
        return None
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, list):
        return tuple(one.decode() if isinstance(one, bytes) else one for one in value)
    return value.decode() if isinstance(value, bytes) else value


def _defaults_of(domain: str, op_type: str) -> Mapping[str, Any]:
    """The defaults of an operator that ONNX does not define; of one that is not in the table, the installed runtime is asked."""
    known: Mapping[str, Any] | None = _known_defaults().get(f"{domain}::{op_type}")
    return runtime_defaults().get((domain, op_type), {}) if known is None else known


@functools.cache
def _known_defaults() -> Mapping[str, Any]:
    """The table that comes with ortfuse, as importing the runtime is slow: tests hold it to the installed runtime."""
    content = json.loads(resources.files("ortfuse.ir").joinpath("runtime_defaults.json").read_text())
    return {
        name: {key: tuple(value) if isinstance(value, list) else value for key, value in attributes.items()}
        for name, attributes in content["operators"].items()
    }


@functools.cache
def runtime_defaults() -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """The defaults of attributes of operators that ONNX does not define, by domain and name, from the runtime's own schemas."""
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime  # importing the runtime is slow

    return {
        (schema.domain, schema.name): {
            name: _default(onnx.AttributeProto.FromString(attribute._default_value))
            for name, attribute in schema.attributes.items()
        }
        for schema in runtime.get_all_operator_schema()
        if schema.domain == MICROSOFT or not onnx.defs.has(schema.name, schema.domain)
    }


@functools.cache
def needed_opset(op_type: str, attributes: frozenset[str], inputs: int = 0, types: tuple[str, ...] = ()) -> int:
    """The first ai.onnx opset whose operator has these attributes and takes as many inputs; 1 if ONNX does not define it.

    Args:
        op_type: The operator.
        attributes: The names of the attributes.
        inputs: How many inputs there are.
        types: The types of the first inputs, such as `tensor(uint4)`; empty for one that does not matter.
    """
    versions = list(_versions(op_type))
    fitting = [
        schema
        for schema in versions
        if attributes <= schema.attributes.keys() and inputs <= schema.max_input and _takes(schema, types)
    ]
    return min((int(schema.since_version) for schema in fitting or versions), default=1)


def _takes(schema: Any, types: tuple[str, ...]) -> bool:
    """Whether an operator takes first inputs of these types."""
    return all(not kind or kind in formal.types for kind, formal in zip(types, schema.inputs, strict=False))


@functools.cache
def is_input(op_type: str, parameter: str, position: int, opset: int) -> bool:
    """Whether an operator of ai.onnx takes this parameter as the input at `position`, and no attribute, at `opset`."""
    schema = schema_at(op_type, opset)
    return schema is not None and parameter not in schema.attributes and position < schema.max_input


def _versions(op_type: str) -> Iterator[Any]:
    """All definitions of an operator of ai.onnx, the newest first."""
    schema = schema_at(op_type, onnx.defs.onnx_opset_version())
    while schema is not None:
        yield schema
        schema = schema_at(op_type, schema.since_version - 1) if schema.since_version > 1 else None


def accepts(node: ir.Node, version: int) -> bool:
    """Whether the operator at `version` of ai.onnx has the attributes of a node, all that it needs, and takes as many inputs."""
    schema = schema_at(node.op_type, version)
    return (
        schema is not None
        and schema.attributes.keys() >= node.attributes.keys()
        and schema.min_input <= len(node.inputs) <= schema.max_input
        and all(name in node.attributes for name, attribute in schema.attributes.items() if attribute.required)
    )


@functools.cache
def changes(op_type: str, version: int, opset: int) -> bool:
    """Whether the operator's definition at ai.onnx opset `opset` differs from that at `version`, or is gone."""
    old, new = schema_at(op_type, version), schema_at(op_type, opset)
    if old is None:
        return False  # an operator that the runtime itself defines in ONNX's domain: no opset has it
    return new is None or bool(old.since_version != new.since_version)


_OTHER_MEANING = frozenset({("RoiAlign", 16), ("GroupNormalization", 21), ("Attention", 25)})
"""Definitions that mean something else than those before them, or are rounded otherwise by the runtime, although they take the
same nodes (`python -m benchmarks.trust.readings`)."""


@functools.cache
def keeps_meaning(op_type: str, version: int, opset: int) -> bool:
    """Whether a node of the operator that both versions of ai.onnx accept means the same in both.

    It does if the definition is the same, or if each definition since only took on further types, optional inputs and attributes.
    """
    older, newer = sorted((version, opset))
    first, last = schema_at(op_type, older), schema_at(op_type, newer)
    if first is None or last is None:
        return first is last
    since = [schema for schema in _versions(op_type) if first.since_version <= schema.since_version <= newer]
    return all(
        _extends(old, new) and (op_type, new.since_version) not in _OTHER_MEANING for new, old in pairwise(since)
    )


def _extends(old: Any, new: Any) -> bool:
    """Whether a definition takes all nodes that the one before it took, with the same defaults."""
    kept = all(
        name in new.attributes and _same_formal(old.attributes[name], new.attributes[name]) for name in old.attributes
    )
    added = [new.attributes[name] for name in new.attributes.keys() - old.attributes.keys()]
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    ports = zip_longest([port.option for port in old.inputs], [port.option for port in new.inputs], fillvalue=None)
    inputs = all(after in (before, optional) and after is not None for before, after in ports)
    outputs = [port.option for port in old.outputs] == [port.option for port in new.outputs]
    return kept and inputs and outputs and not new.deprecated and not any(attribute.required for attribute in added)


def _same_formal(old: Any, new: Any) -> bool:
    alike = old.type == new.type and (old.required or not new.required)
    return alike and (old.required or old.default_value == new.default_value)


_DROPPABLE: Mapping[tuple[str, str], frozenset[int]] = {
    ("", "Dropout"): frozenset({1}),
    ("", "MaxPool"): frozenset({1}),
    ("", "LayerNormalization"): frozenset({1, 2}),
    ("", "SimplifiedLayerNormalization"): frozenset({1}),
    ("", "Unique"): frozenset({1, 2, 3}),
    ("", "LSTM"): frozenset({0, 1, 2}),
    ("", "GRU"): frozenset({0, 1}),
    ("", "RNN"): frozenset({0, 1}),
    ("", "Attention"): frozenset({1, 2, 3}),
    (MICROSOFT, "Attention"): frozenset({1}),
    (MICROSOFT, "QAttention"): frozenset({1}),
    (MICROSOFT, "SkipLayerNormalization"): frozenset({1, 2, 3}),
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): frozenset({1, 2, 3}),
    (MICROSOFT, "DynamicQuantizeLSTM"): frozenset({0, 1, 2}),
    (MICROSOFT, "EngramGate"): frozenset({1}),
    (MICROSOFT, "LinearAttentionGate"): frozenset({1}),
    (MICROSOFT, "NGramHashMapping"): frozenset({1}),
}
"""The outputs that may be left out, by domain and operator: what is left has the same bits (`benchmarks.trust.outputs`).

An output that the schema calls optional may still be needed: without an unused output the runtime refuses to load some operators
(EmbedLayerNormalization), takes another kernel for others (MultiHeadAttention) and crashes on one
(DecoderMaskedMultiHeadAttention).
"""

_PRESENTS: Mapping[tuple[str, str], tuple[int, frozenset[int]]] = {
    ("", "Attention"): (4, frozenset({1, 2})),
    (MICROSOFT, "Attention"): (4, frozenset({1})),
    (MICROSOFT, "QAttention"): (8, frozenset({1})),
}
"""Operators that refuse a past without a present: the input of the past, and the outputs that it needs."""


def droppable_outputs(node: ir.Node) -> frozenset[int]:
    """The positions of the outputs that may be left out if nothing uses them: trailing ones removed, others without a name."""
    return _DROPPABLE.get((node.domain, node.op_type), frozenset()) - kept_outputs(node)


def kept_outputs(node: ir.Node) -> frozenset[int]:
    """The optional outputs that must be present because of the node's inputs, even if unused."""
    past, presents = _PRESENTS.get((node.domain, node.op_type), (0, frozenset()))
    return presents if past < len(node.inputs) and node.inputs[past] is not None else frozenset()


def used_length(node: ir.Node) -> int:
    """The number of outputs without the trailing ones that have no name and may be left out."""
    droppable, count = droppable_outputs(node), len(node.outputs)
    while count > 1 and node.outputs[count - 1].name == "" and count - 1 in droppable:
        count -= 1
    return count
