"""User-defined operators in custom domains: their schemas, the library with their kernels, or the functions defining them.

Once registered, an operator is known everywhere in the process: rules may produce it, facts are inferred for its outputs,
and sessions can run it. An operator without a library is given by its body, which is written as a model-local function into
every model that uses it, so that the model runs in any runtime.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ortfuse.analysis.transfer.onnx_shape_inference import infer as infer_by_onnx
from ortfuse.analysis.transfer.transfer_function_registry import TRANSFERS, Op
from ortfuse.analysis.transfer.value_fact import Fact
from ortfuse.errors import TargetError
from ortfuse.ir import walk
from ortfuse.targets.kernel_table import Formal, Kernel, Operator, Schema

Infer = Callable[[Op], "Fact | tuple[Fact, ...]"]
"""Infers the facts of an operator's outputs: a function like those in `ortfuse.analysis.operators`."""

_VERSION = 1
"""The version at which custom domains are imported."""


@dataclass(frozen=True)
class CustomOperator:
    """One operator of a custom domain.

    Attributes:
        operator: Its schemas, and a kernel that takes all types they allow.
        library: The shared library that has the kernel, if any.
        body: Its definition in terms of other operators, if known.
    """

    operator: Operator
    library: str | None
    body: ir.Function | None


_registered: dict[tuple[str, str], CustomOperator] = {}
_libraries: dict[str, None] = {}
"""Libraries of operators that no rule makes, but that models have."""


def use_library(path: str | os.PathLike[str]) -> None:
    """Have all sessions from now on know the kernels of a library.

    Raises:
        TargetError: There is no such file.
    """
    if not Path(path).is_file():
        raise TargetError(f"{path}: no such library of custom operators")
    _libraries[os.fspath(Path(path).absolute())] = None


def register_operators(
    schemas: Sequence[onnx.defs.OpSchema] = (),
    *,
    library: str | os.PathLike[str] | None = None,
    bodies: Sequence[ir.Function | onnx.FunctionProto] = (),
    infer: Mapping[str, Infer] | None = None,
) -> None:
    """Make operators of custom domains known, so that rules may produce them.

    Registering an operator again replaces the earlier one, so that a file can be reloaded.

    Args:
        schemas: The schemas of the operators, of version 1. An operator with a body needs none.
        library: The shared library with kernels for the operators in `schemas`, which sessions register
            (`SessionOptions.register_custom_ops_library`). It is also needed wherever a model with these operators is run.
        bodies: Functions that define operators in terms of others; an operator has the name and domain of its function.
        infer: Functions that infer the facts of the outputs, by operator name; the default is the schema's own inference,
            the body, or the element types that follow from the type constraints.

    Raises:
        TargetError: An operator is in a domain of ONNX, has a version other than 1, has neither a library nor a body, or
            the library does not exist.
    """
    if library is not None and not Path(library).is_file():
        raise TargetError(f"{library}: no such library of custom operators")
    functions = [
        ir.serde.deserialize_function(body) if isinstance(body, onnx.FunctionProto) else body for body in bodies
    ]
    by_name = {(function.domain, function.name): function for function in functions}
    declared = {(schema.domain, schema.name): schema for schema in schemas}
    for domain, name in {**declared, **by_name}:
        schema, body = declared.get((domain, name)), by_name.get((domain, name))
        _check(domain, name, schema, body is not None or library is not None)
        operator = Operator((_of_body(body) if schema is None else _of_schema(schema),), (_KERNEL,))
        own_library = None if library is None or schema is None else os.fspath(Path(library).absolute())
        _registered[domain, name] = CustomOperator(operator, own_library, body)
        TRANSFERS[domain, name] = (infer or {}).get(name) or _transfer(schema, body)


_KERNEL = Kernel(_VERSION, _VERSION, {})
"""A kernel that takes every type the schema allows."""


def custom_operator(domain: str, name: str) -> CustomOperator | None:
    """The operator, if it is registered."""
    return _registered.get((domain, name))


def opset_of_body(node: ir.Node) -> int:
    """The opset of ai.onnx in which the operator of a node is defined, if it is given by its body alone; else 0.

    The runtime reads the nodes of a body by the opset of the model.
    """
    known = _registered.get((node.domain, node.op_type)) if node.domain else None
    return (
        known.body.opset_imports.get("", 0) if known is not None and known.body is not None and not known.library else 0
    )


def libraries() -> tuple[str, ...]:
    """The shared libraries that sessions need, without duplicates."""
    registered = (known.library for known in _registered.values() if known.library is not None)
    return tuple(dict.fromkeys((*registered, *_libraries)))


def missing_functions(model: ir.Model) -> list[ir.Function]:
    """Copies of the functions that define the registered operators without a library used by the model, or by these functions."""
    found: dict[ir.OperatorIdentifier, ir.Function] = {}
    graphs = list(walk.graphs(model)) if _registered else []
    while graphs:
        for node in graphs.pop():
            known = _registered.get((node.domain, node.op_type))
            if known is None or known.library is not None or known.body is None:
                continue
            if node.op_identifier() not in model.functions and node.op_identifier() not in found:
                found[node.op_identifier()] = known.body.clone()
                graphs += walk.nested(known.body.graph)
    return list(found.values())


def with_functions(model: ir.Model) -> ir.Model:
    """The model itself, or a copy with the functions that it needs in order to run."""
    missing = missing_functions(model)
    if not missing:
        return model
    copy = model.clone()
    copy.functions.update({function.identifier(): function for function in missing})
    return copy


def _check(domain: str, name: str, schema: onnx.defs.OpSchema | None, can_run: bool) -> None:
    if not domain or (domain.startswith("ai.onnx.") and schema is not None and onnx.defs.has(name, domain)):
        raise TargetError(f"operator {name}: a custom operator needs a domain of its own")
    if schema is not None and schema.since_version != _VERSION:
        raise TargetError(
            f"{domain}.{name} has version {schema.since_version}; custom domains are imported at version 1"
        )
    if not can_run:
        raise TargetError(f"{domain}.{name}: give the library that has a kernel for it, or a function as its body")


def _of_schema(schema: onnx.defs.OpSchema) -> Schema:
    return Schema(
        since=_VERSION,
        inputs=tuple(_formal(formal) for formal in schema.inputs),
        outputs=tuple(_formal(formal) for formal in schema.outputs),
        types={
            constraint.type_param_str: frozenset(constraint.allowed_type_strs) for constraint in schema.type_constraints
        },
    )


def _formal(formal: Any) -> Formal:
    options = onnx.defs.OpSchema.FormalParameterOption
    optional, variadic = formal.option == options.Optional, formal.option == options.Variadic
    return Formal(formal.name, formal.type_str, optional, variadic, formal.is_homogeneous)


def _of_body(body: ir.Function | None) -> Schema:
    """A schema that accepts whatever the function accepts; the types are checked by the operators in the body."""
    assert body is not None
    inputs = tuple(Formal(value.name or "", f"T{number}", True) for number, value in enumerate(body.inputs))
    outputs = tuple(Formal(value.name or "", f"U{number}", True) for number, value in enumerate(body.outputs))
    return Schema(_VERSION, inputs, outputs, {formal.type: frozenset(_TENSORS) for formal in (*inputs, *outputs)})


_TENSORS = {
    f"tensor({onnx.helper.tensor_dtype_to_string(int(dtype)).removeprefix('TensorProto.').lower()})": dtype
    for dtype in ir.DataType
    if dtype is not ir.DataType.UNDEFINED and dtype.value in onnx.TensorProto.DataType.values()
}
"""Element types by the type strings that ONNX uses for tensors of them."""


def _transfer(schema: onnx.defs.OpSchema | None, body: ir.Function | None) -> Infer:
    if body is not None:
        return lambda op: op.analysis.call(op, body)
    assert schema is not None
    if not schema.has_type_and_shape_inference_function:
        return lambda op: _element_types(op, schema)
    if not onnx.defs.has(schema.name, schema.domain):
        onnx.defs.register_schema(schema)
    return infer_by_onnx


def _element_types(op: Op, schema: onnx.defs.OpSchema) -> tuple[Fact, ...]:
    """The element types that follow from the schema; the shapes are unknown."""
    bound = {formal.type_str: op.dtype(number) for number, formal in enumerate(schema.inputs)}
    return tuple(Fact(bound.get(formal.type_str) or _TENSORS.get(formal.type_str)) for formal in schema.outputs)
