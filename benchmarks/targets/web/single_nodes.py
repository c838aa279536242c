"""Models of one node for each version and types of an operator, to find out by trying which a runtime has kernels for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from ortfuse.targets.kernel_table import Formal, Kernel, Operator, Schema

Types = Mapping[str, str]
"""The type of each type constraint, such as `tensor(float)`."""

BODIES = ("If", "Loop")
"""Operators that are given bodies."""

MOST = 500
"""Combinations of types up to which all are tried; of more, one type is changed at a time."""

_COMMON = ("float", "float16", "int32", "int64", "uint32", "int8", "uint8", "bool", "int4", "uint4")
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype", "out_dtype", "output_type", "datatype")
_GIVEN: Mapping[str, Any] = {
    "Einsum": {"equation": "i,i->i"},
    "RNN": {"hidden_size": 2},
    "GRU": {"hidden_size": 2},
    "LSTM": {"hidden_size": 2},
    "Split": {},
    "DepthToSpace": {"blocksize": 2},
    "SpaceToDepth": {"blocksize": 2},
    "MatMulNBits": {"K": 32, "N": 16, "bits": 4, "block_size": 32},
    "GatherBlockQuantized": {"block_size": 32},
    "Upsample": {"scales": [1.0]},
}


@dataclass(frozen=True)
class Attribute:
    """An attribute of an operator: its type as in `onnx.AttributeProto`, and whether it is required."""

    name: str
    type: int
    required: bool


def attributes() -> dict[tuple[str, str, int], list[Attribute]]:
    """Return the attributes of all operators of the installed runtime, by domain, name and version."""
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    return {
        (schema.domain, schema.name, schema.since_version): [
            Attribute(name, int(one.type), bool(one.required)) for name, one in schema.attributes.items()
        ]
        for schema in runtime.get_all_operator_schema()
    }


def combinations(schema: Schema, hints: Sequence[Kernel] | None) -> tuple[dict[str, list[str]], Iterator[Types]]:
    """Return the types of each constraint that are worth a try, and all combinations of them.

    Args:
        schema: The version of the operator.
        hints: Kernels that another provider has for this version: no other types are tried; `None` for the common types.
    """
    used = {formal.type for formal in (*schema.inputs, *schema.outputs) if formal.type in schema.types}
    known: dict[str, list[str]] = {}
    for name in sorted(used, key=lambda name: _first_use(schema, name)):
        allowed = schema.types[name]
        if hints is None:
            taken = allowed & {f"tensor({kind})" for kind in _COMMON} or allowed
        else:
            taken = allowed & {kind for kernel in hints for kind in kernel.types.get(name, allowed)}
        known[name] = sorted(taken, key=_rank)
    return known, (dict(zip(known, types, strict=True)) for types in itertools.product(*known.values()))


def count(known: Mapping[str, Sequence[str]]) -> int:
    """The number of combinations."""
    return math.prod(len(types) for types in known.values())


def model(
    domain: str, name: str, schema: Schema, types: Types, known: Sequence[Attribute], opset: int, ir_version: int
) -> bytes:
    """Return a model of one node whose values have any shape.

    Args:
        domain: The domain of its operator.
        name: The operator.
        schema: The version of the operator.
        types: The type of each constraint.
        known: The attributes of the operator.
        opset: The version of ai.onnx.
        ir_version: The IR version.
    """
    required = {formal.type for formal in schema.inputs if not formal.optional}
    inputs = list[tuple[str, str]]()
    for formal in schema.inputs:
        wanted = not formal.optional or (formal.type in schema.types and formal.type not in required)
        copies = (2 if formal.homogeneous and name != "Loop" else 1) if formal.variadic else 1
        for copy in range(copies):
            inputs.append((f"{formal.name}_{copy}" if wanted else "", _type(formal, types)))
    while inputs and not inputs[-1][0]:
        inputs.pop()
    outputs = [(f"out_{formal.name}", _type(formal, types)) for formal in schema.outputs if not formal.optional]
    outputs = outputs or [(f"out_{formal.name}", _type(formal, types)) for formal in schema.outputs[:1]]
    node = onnx.helper.make_node(name, [one for one, _ in inputs], [one for one, _ in outputs], "probe", domain=domain)
    node.attribute.extend(_attribute(name, one, types, schema) for one in known if _is_needed(name, one, schema))
    values = [onnx.helper.make_value_info(one, _proto(kind)) for one, kind in inputs if one]
    results = [onnx.helper.make_value_info(one, _proto(kind)) for one, kind in outputs]
    if name in BODIES:
        node.attribute.extend(_bodies(name, types.get("V", "")))
        values += [onnx.helper.make_value_info("outer", _proto(types.get("V", "")))] if name == "If" else []
    graph = onnx.helper.make_graph([node], "probe", values, results)
    imports = {"": opset, "com.microsoft": 1, **({domain: schema.since} if domain else {})}
    made = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid(*one) for one in imports.items()], ir_version=ir_version
    )
    return bytes(made.SerializeToString())


def _bodies(name: str, kind: str) -> list[Any]:
    """The bodies of control flow that hand a value on."""
    result = onnx.helper.make_value_info("result", _proto(kind))
    if name == "If":
        graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["outer"], ["result"])], "body", [], [result])
        return [onnx.helper.make_attribute(branch, graph) for branch in ("then_branch", "else_branch")]
    given = [("i", "tensor(int64)"), ("c", "tensor(bool)"), ("v", kind)]
    inputs = [onnx.helper.make_value_info(one, _proto(type_)) for one, type_ in given]
    nodes = [onnx.helper.make_node("Identity", [one], [to]) for one, to in (("c", "condition"), ("v", "result"))]
    outputs = [onnx.helper.make_value_info("condition", _proto("tensor(bool)")), result]
    return [onnx.helper.make_attribute("body", onnx.helper.make_graph(nodes, "body", inputs, outputs))]


def kernels(since: int, names: Sequence[str], found: Sequence[Types]) -> list[Kernel]:
    """Return the fewest kernels that take exactly the combinations of types that were found.

    Args:
        since: The version of the operator.
        names: The type constraints.
        found: The combinations.
    """
    return [
        Kernel(since, since, types) for types in _products(list(names), [tuple(one[n] for n in names) for one in found])
    ]


def _products(names: list[str], found: list[tuple[str, ...]]) -> list[dict[str, frozenset[str]]]:
    if not names:
        return [{}] if found else []
    rests: dict[str, frozenset[tuple[str, ...]]] = {}
    for first in dict.fromkeys(one[0] for one in found):
        rests[first] = frozenset(one[1:] for one in found if one[0] == first)
    result = []
    for rest in dict.fromkeys(rests.values()):
        own = frozenset(first for first, one in rests.items() if one == rest)
        result += [{names[0]: own, **others} for others in _products(names[1:], sorted(rest))]
    return result


def serving(operator: Operator, schema: Schema) -> list[Kernel]:
    """Return the kernels of a version."""
    return [kernel for kernel in operator.kernels if kernel.serves(schema.since)]


def _first_use(schema: Schema, constraint: str) -> int:
    formals = [formal.type for formal in (*schema.inputs, *schema.outputs)]
    return formals.index(constraint)


def _rank(kind: str) -> tuple[int, str]:
    short = kind.removeprefix("tensor(").removesuffix(")")
    return (_COMMON.index(short) if short in _COMMON else len(_COMMON), kind)


def _type(formal: Formal, types: Types) -> str:
    return types.get(formal.type, formal.type)


def _is_needed(name: str, attribute: Attribute, schema: Schema) -> bool:
    if attribute.type == onnx.AttributeProto.GRAPH:
        return False
    return attribute.required or attribute.name in _GIVEN.get(name, {}) or _states_type(attribute, schema) is not None


def _states_type(attribute: Attribute, schema: Schema) -> str | None:
    """The constraint of the outputs alone whose type an attribute states."""
    if attribute.name not in _TYPE_ATTRIBUTES or attribute.type != onnx.AttributeProto.INT:
        return None
    inputs = {formal.type for formal in schema.inputs}
    return next((f.type for f in schema.outputs if f.type in schema.types and f.type not in inputs), None)


def _attribute(name: str, attribute: Attribute, types: Types, schema: Schema) -> Any:
    stated = _states_type(attribute, schema)
    given = _GIVEN.get(name, {})
    if attribute.name in given:
        return onnx.helper.make_attribute(attribute.name, given[attribute.name])
    if stated is not None:
        return onnx.helper.make_attribute(attribute.name, _proto(types[stated]).tensor_type.elem_type)
    defaults: dict[int, Any] = {
        onnx.AttributeProto.FLOAT: 1.0,
        onnx.AttributeProto.INT: 1,
        onnx.AttributeProto.STRING: "constant",
        onnx.AttributeProto.FLOATS: [1.0],
        onnx.AttributeProto.INTS: [1],
        onnx.AttributeProto.STRINGS: ["a"],
        onnx.AttributeProto.TENSOR: onnx.helper.make_tensor("t", onnx.TensorProto.FLOAT, [1], [1.0]),
    }
    return onnx.helper.make_attribute(attribute.name, defaults.get(attribute.type, 1))


def _proto(kind: str) -> Any:
    """The type of a value of any shape."""
    if kind.startswith("tensor("):
        name = kind[7:-1]
        number = onnx.TensorProto.DataType.Value({"double": "DOUBLE", "float": "FLOAT"}.get(name, name.upper()))
        return onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=number))
    if kind.startswith("seq("):
        return onnx.helper.make_sequence_type_proto(_proto(kind[4:-1]))
    if kind.startswith("optional("):
        return onnx.helper.make_optional_type_proto(_proto(kind[9:-1]))
    raise ValueError(kind)
