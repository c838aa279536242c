"""Kernel table of the ONNX standard: every version of every operator, as the installed onnx defines it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import onnx

from ortfuse.targets.kernel_table import Formal, Kernel, KernelTable, Operator, Schema

DOMAINS = ("", "ai.onnx.ml")
"""The domains that runtimes other than ONNX Runtime read; `ai.onnx.preview.training` is not among them."""


def standard_operators(provider: str) -> KernelTable:
    """Return the table in which each version of an operator is executed on all types of its definition.

    Args:
        provider: The name of the target.
    """
    schemas = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain in DOMAINS:
            schemas[schema.domain, schema.name].append(_schema(schema))
    return KernelTable(
        runtime=f"onnx {onnx.__version__}",
        provider=provider,
        max_opset=int(onnx.defs.onnx_opset_version()),
        max_ir_version=int(onnx.IR_VERSION),
        operators={key: _operator(versions) for key, versions in schemas.items()},
    )


def _operator(versions: list[Schema]) -> Operator:
    ordered = tuple(sorted(versions, key=lambda schema: schema.since))
    kernels = tuple(Kernel(one.since, one.since, one.types) for one in ordered if not one.deprecated)
    return Operator(ordered, kernels)


def _schema(schema: Any) -> Schema:
    return Schema(
        since=schema.since_version,
        inputs=tuple(map(_formal, schema.inputs)),
        outputs=tuple(map(_formal, schema.outputs)),
        types={one.type_param_str: frozenset(one.allowed_type_strs) for one in schema.type_constraints},
        deprecated=schema.deprecated,
        attributes=frozenset(schema.attributes),
    )


def _formal(formal: Any) -> Formal:
    options = onnx.defs.OpSchema.FormalParameterOption
    return Formal(
        name=formal.name,
        type=formal.type_str,
        optional=formal.option == options.Optional,
        variadic=formal.option == options.Variadic,
        homogeneous=formal.is_homogeneous,
    )
