"""Match the types of a node's inputs and outputs with an operator's definition and with the types that a kernel takes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from ortfuse.targets.kernel_table import Formal, Kernel, Schema

ABSENT = ""
"""The type of an optional input or output that is left out."""

DType = str | ir.DataType | None
"""A type: an `onnx_ir.DataType`, `"float16"`, an ONNX type string such as `"seq(tensor(float))"`, `ABSENT`, or `None`
if it is unknown."""

DTypes = Mapping[str, DType] | Sequence[DType]
"""Types by position, or by the specification's names for inputs, outputs and type constraints."""


class MismatchError(Exception):
    """The arguments do not fit the operator's schema."""


Argument = tuple[Formal, str | None]


def arguments(schema: Schema, inputs: DTypes, outputs: Sequence[DType]) -> Iterator[Argument]:
    """Each argument that is present, with its formal input or output."""
    if not isinstance(inputs, Mapping):
        yield from _positional("inputs", schema.inputs, inputs)
    else:
        for name, kind in inputs.items():
            formals = [formal for formal in (*schema.inputs, *schema.outputs) if name in (formal.name, formal.type)]
            if not formals:
                raise MismatchError(f"has no input, output or type constraint '{name}'")
            yield from ((formal, type_string(kind)) for formal in formals)
    yield from _positional("outputs", schema.outputs, outputs)


def _positional(what: str, formals: Sequence[Formal], kinds: Sequence[DType]) -> Iterator[Argument]:
    repeated = formals[-1:] if formals and formals[-1].variadic else ()
    if len(kinds) > len(formals) and not repeated:
        raise MismatchError(f"takes at most {len(formals)} {what}, not {len(kinds)}")
    for formal, kind in zip(itertools.chain(formals, itertools.cycle(repeated)), kinds, strict=False):
        if kind != ABSENT:
            yield formal, type_string(kind)


def bind(schema: Schema, arguments: Sequence[Argument]) -> list[Argument]:
    """Check the types against the schema; an unknown type is taken from a known argument of the same constraint."""
    known: dict[str, str] = {}
    for formal, kind in arguments:
        if kind is None:
            continue
        if kind not in schema.allowed(formal):
            raise MismatchError(f"does not take {short(kind)} as {formal.name}")
        if formal.homogeneous and known.setdefault(formal.type, kind) != kind:
            raise MismatchError(f"wants one type {formal.type}, not both {short(known[formal.type])} and {short(kind)}")
    return [(formal, known.get(formal.type) if kind is None else kind) for formal, kind in arguments]


def accepts(kernel: Kernel, schema: Schema, bound: Sequence[Argument], optimistic: bool = False) -> bool:
    """Whether the kernel takes these types; if `optimistic`, unknown types are assumed to fit."""
    for formal, kind in bound:
        # A few kernels are registered by the input's name instead of the name of its type constraint.
        for name in {formal.type, formal.name} & kernel.types.keys():
            if kind is None and not optimistic and not schema.allowed(formal) <= kernel.types[name]:
                return False
            if kind is not None and kind not in kernel.types[name]:
                return False
    return True


def by_name(types: Mapping[str, DType]) -> tuple[tuple[str, str | None], ...]:
    """Return types by name in a form that can be a key."""
    return tuple([(name, type_string(kind)) for name, kind in sorted(types.items())])


_SPELLINGS = {"float32": "float", "float64": "double"}


@functools.cache
def type_string(kind: DType) -> str | None:
    """The ONNX type string (`tensor(float16)`); `ABSENT` and `None` are returned unchanged."""
    if kind is None or kind == ABSENT:
        return kind
    name = kind.name.lower() if isinstance(kind, ir.DataType) else kind
    return name if "(" in name else f"tensor({_SPELLINGS.get(name, name)})"


def short(kind: str) -> str:
    """Shorten an ONNX type string: `float` for `tensor(float)`."""
    return kind.removeprefix("tensor(").removesuffix(")") if kind.startswith("tensor(") else kind
