"""Valid uses of operators: those of the standard's own tests, and a table for operators without any.

A seed is written for the newest opset in which its operator is defined; `at` rewrites it for an older one.
"""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from benchmarks.trust.grid.own_seeds import OWN

OLDEST = 7
NEWEST = 26
"""The newest opset of ai.onnx that the grid uses."""

_MOST_ELEMENTS = 4096
_MOST_SEEDS = 16
"""Seeds of an operator; of more, every second, third, ... is taken."""

_RENAMED = {"constant_value": "value", "K": "k"}
"""Inputs that were attributes of another name once."""

TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "stash_type", "softmax_precision", "output_datatype"})
EXCHANGED = frozenset(
    {
        "float16",
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "bool",
        "object",
    }
)
"""The element types that the runtime takes and gives as numpy arrays."""

NARROW = {
    name.lower(): onnx.helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, name))
    for name in ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "UINT4", "INT4")
}
"""Other element types that the runtime has kernels for; models convert them from and to float32."""

ELEMENT_TYPES = frozenset({0, *range(1, 14), *map(onnx.helper.np_dtype_to_tensor_dtype, NARROW.values())})
"""ONNX's numbers for the element types that the grid uses; 0 is for none."""

_KINDS = onnx.AttributeProto.AttributeType


class Held(NamedTuple):
    """The content of an optional (an array, a list, or nothing), and the type of its content."""

    value: Any
    kind: onnx.TypeProto


@dataclass(frozen=True)
class Seed:
    """A use of an operator: its attributes, and values for its inputs (`None`: absent; a list: a sequence; or `Held`)."""

    domain: str
    op_type: str
    version: int
    attributes: Mapping[str, onnx.AttributeProto]
    inputs: tuple[Any, ...]
    outputs: tuple[bool, ...]

    @property
    def name(self) -> str:
        return f"{self.domain}.{self.op_type}" if self.domain else self.op_type

    @property
    def schema(self) -> Any:
        return schema_of(self.domain, self.op_type, self.version)

    def with_input(self, index: int, value: Any) -> Seed:
        """The same use with another value for an input."""
        inputs = list(self.inputs) + [None] * (index + 1 - len(self.inputs))
        inputs[index] = value
        while inputs and inputs[-1] is None:
            inputs.pop()
        return replace(self, inputs=tuple(inputs))

    def with_attribute(self, name: str, value: onnx.AttributeProto | None) -> Seed:
        """The same use with another value for an attribute, or without it."""
        rest = {known: given for known, given in self.attributes.items() if known != name}
        return replace(self, attributes=rest if value is None else {**rest, name: value})


@functools.cache
def schema_of(domain: str, op_type: str, version: int) -> Any:
    """The definition of an operator at an opset: ONNX's, or the runtime's own; `None` if there is none."""
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        found = _of_runtime().get((domain, op_type))
        return found if found is not None and (domain or found.since_version <= version) else None


@functools.cache
def kernel_types(domain: str, op_type: str) -> frozenset[str]:
    """The types that the runtime has a kernel of an operator for, of any of its operands."""
    return _of_kernels().get((domain, op_type), frozenset())


@functools.cache
def _of_kernels() -> dict[tuple[str, str], frozenset[str]]:
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for kernel in runtime.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider":
            found[kernel.domain, kernel.op_name].update(*kernel.type_constraints.values())
    return {name: frozenset(types) for name, types in found.items()}


@functools.cache
def _of_runtime() -> dict[tuple[str, str], Any]:
    return {(schema.domain, schema.name): schema for schema in runtime.get_all_operator_schema()}


def versions(domain: str, op_type: str) -> list[int]:
    """The opsets since 7 at which the operator's definition changed, the oldest first."""
    if domain not in ("", "ai.onnx.ml"):
        return [1]
    oldest, newest = (OLDEST, NEWEST) if not domain else (1, 5)
    found: dict[int, int] = {}
    for version in range(oldest, newest + 1):
        schema = schema_of(domain, op_type, version)
        if schema is not None and not schema.deprecated:
            found.setdefault(schema.since_version, version)
    return sorted(found.values())


@functools.cache
def seeds() -> Mapping[str, list[Seed]]:
    """The seeds of every operator by its name, no two of them alike in all that can be said without their numbers."""
    found: defaultdict[str, list[Seed]] = defaultdict(list)
    seen = set()
    for seed in (*_of_table(), *_of_standard()):
        if (key := _signature(seed)) not in seen:
            seen.add(key)
            found[seed.name].append(seed)
    return {name: some[:: math.ceil(len(some) / _MOST_SEEDS)] for name, some in sorted(found.items())}


def _signature(seed: Seed) -> object:
    values = tuple(sorted((name, str(one).replace("\n", " ")[:80]) for name, one in seed.attributes.items()))
    return seed.name, values, tuple(map(_kind, seed.inputs)), seed.outputs


def _kind(value: Any) -> object:
    if value is None or isinstance(value, list):
        return value if value is None else (len(value), *map(_kind, value[:1]))
    if isinstance(value, Held):
        return str(value.kind), _kind(value.value)
    is_parameter = value.ndim < 2 and value.dtype == np.int64
    return value.ndim, value.dtype.name, tuple(value.reshape(-1)[:8].tolist()) if is_parameter else ()


def _of_standard() -> Iterator[Seed]:
    from onnx.backend.test.case import node

    with warnings.catch_warnings(), _without_pooling():
        warnings.simplefilter("ignore")
        cases = node.collect_testcases(None)
    for case in cases:
        if case.model is None or len(case.model.graph.node) != 1 or case.model.graph.initializer:
            continue
        names = [value.name for value in case.model.graph.input]
        for arrays, _ in case.data_sets[:1]:
            seed = _seed(case.model, dict(zip(names, arrays, strict=False)))
            if seed is not None:
                yield seed


@contextlib.contextmanager
def _without_pooling() -> Iterator[None]:
    """Have zeros for the results of pooling, which take most of the time for the test cases, and which nobody reads here."""
    from onnx.reference.ops import op_pool_common

    def zeros(padded: Any, x_shape: Any, kernel: Any, strides: Any, out_shape: Any, *_: Any, **__: Any) -> Any:
        return np.zeros([*x_shape[:2], *out_shape], padded.dtype)

    pool, op_pool_common.pool = op_pool_common.pool, zeros
    try:
        yield
    finally:
        op_pool_common.pool = pool


def _of_table() -> Iterator[Seed]:
    rng = np.random.default_rng(0)
    for inputs, given, body in OWN:
        fixed = f"<{given}>" if given else ""
        text = f'<ir_version: 10, opset_import: ["": {NEWEST}, "com.microsoft": 1, "ai.onnx.ml": 5]>'
        model = onnx.parser.parse_model(f"{text} g ({inputs}) => (float y) {fixed} {{ {body} }}")
        values: dict[str, Any] = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
        values |= {value.name: _random(value.type, rng) for value in model.graph.input}
        seed = _seed(model, values)
        if seed is None:
            raise ValueError(f"not a seed: {body}")
        yield seed


def _random(kind: onnx.TypeProto, rng: np.random.Generator) -> Any:
    """Random numbers in a tensor of that type, in each of three that make a sequence, or in an optional."""
    if kind.HasField("sequence_type"):
        return [_random(kind.sequence_type.elem_type, rng) for _ in range(3)]
    if kind.HasField("optional_type"):
        return Held(_random(kind.optional_type.elem_type, rng), kind.optional_type.elem_type)
    shape = [dim.dim_value for dim in kind.tensor_type.shape.dim]
    if kind.tensor_type.elem_type == onnx.TensorProto.STRING:
        return rng.choice(np.array(["a", "b", "c"], object), shape)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
    numbers = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
    return np.asarray(numbers).astype(dtype)


def _seed(model: onnx.ModelProto, values: Mapping[str, Any]) -> Seed | None:
    """The use of an operator in a model of one node, at the newest opset; `None` if the grid cannot write it down."""
    (node,) = model.graph.node
    domain = "" if node.domain == "ai.onnx" else node.domain
    types = {value.name: value.type for value in model.graph.input}
    inputs = []
    for name in node.input:
        value = _plain(values.get(name))
        if name in types and types[name].HasField("optional_type") and not isinstance(value, Held):
            value = Held(value, types[name].optional_type.elem_type)
        if name and not _is_usable(value):
            return None
        inputs.append(value if name else None)
    version = next((one.version for one in model.opset_import if one.domain in (node.domain, domain)), 1)
    version = min(version, NEWEST) if not domain else version
    if schema_of(domain, node.op_type, version) is None:
        return None
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if any(one.i not in ELEMENT_TYPES for name, one in attributes.items() if name in TYPE_ATTRIBUTES):
        return None
    return Seed(domain, node.op_type, version, attributes, tuple(inputs), tuple(map(bool, node.output)))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic | int | float) else value


def _is_usable(value: Any) -> bool:
    if isinstance(value, Held):
        return value.value is None or _is_usable(value.value)
    if isinstance(value, list):
        return all(isinstance(one, np.ndarray) and _is_usable(one) for one in value)
    if not isinstance(value, np.ndarray) or value.size > _MOST_ELEMENTS:
        return False
    return value.dtype.name in EXCHANGED or value.dtype in NARROW.values()


def at(seed: Seed, version: int) -> Seed | None:
    """The seed as an older (or newer) opset writes it: inputs that were attributes become attributes.

    What that opset has no place for is left out; whether the rest is valid, the runtime decides.
    """
    if version == seed.version:
        return seed
    new, old = seed.schema, schema_of(seed.domain, seed.op_type, version)
    if old is None:
        return None
    places = {one.name: index for index, one in enumerate(old.inputs)}
    attributes = {name: one for name, one in seed.attributes.items() if name in old.attributes}
    inputs: list[Any] = [None] * len(old.inputs)
    for index, value in enumerate(seed.inputs):
        name = new.inputs[min(index, len(new.inputs) - 1)].name
        if value is None:
            continue
        if index >= len(new.inputs) - 1 and _is_variadic(new) and _is_variadic(old):
            inputs.append(value) if index >= len(inputs) else inputs.__setitem__(index, value)
        elif name in places or index == 0:
            inputs[places.get(name, index)] = value
        elif (former := _RENAMED.get(name, name)) in old.attributes and isinstance(value, np.ndarray):
            attributes[former] = attribute_of(former, old.attributes[former].type, value)
    while inputs and inputs[-1] is None:
        inputs.pop()
    outputs = seed.outputs if _is_variadic_end(old.outputs) else seed.outputs[: len(old.outputs)]
    return replace(seed, version=version, attributes=attributes, inputs=tuple(inputs), outputs=outputs)


def _is_variadic(schema: Any) -> bool:
    return _is_variadic_end(schema.inputs)


def _is_variadic_end(parameters: Any) -> bool:
    return bool(parameters) and "Variadic" in str(parameters[-1].option)


def attribute_of(name: str, kind: Any, value: np.ndarray) -> onnx.AttributeProto:
    """An attribute with the numbers of an array, in the form that the schema asks for."""
    numbers = value.reshape(-1).tolist()
    floats, many = "FLOAT" in str(kind), str(kind).endswith("S")
    numbers = [float(one) if floats else int(one) for one in numbers]
    return onnx.helper.make_attribute(
        name,
        numbers if many else numbers[0],
        attr_type=_KINDS.FLOATS if floats and many else _KINDS.INTS if many else None,
    )
