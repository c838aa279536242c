"""Damaged model files: bytes changed, and fields of the protobuf changed so that the file still parses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 16, 64, 255, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
_REALS = (0.0, -0.0, 1.0, -1.0, 1e-45, 3.4028235e38, float("inf"), float("-inf"), float("nan"))
_OPERATORS = [
    "Add",
    "If",
    "Loop",
    "Scan",
    "Reshape",
    "Shape",
    "ConstantOfShape",
    "Range",
    "Tile",
    "Expand",
    "Constant",
    "Identity",
    "Cast",
    "Transpose",
    "Concat",
    "Split",
    "Slice",
    "Gather",
    "Conv",
    "Gemm",
    "MatMul",
    "Resize",
    "LSTM",
    "Attention",
    "LayerNormalization",
    "SequenceMap",
    "Optional",
    "NoSuchOperator",
    "f0",
]
_MESSAGE, _STRING, _BYTES = FieldDescriptor.CPPTYPE_MESSAGE, FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES


def mutated_bytes(content: bytes, rng: random.Random) -> bytes:
    """The bytes with a few of them changed, removed, added or copied from elsewhere, or cut off."""
    out = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        if len(out) < 2:
            break
        at = rng.randrange(len(out))
        kind = rng.randrange(7)
        if kind == 0:
            out[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 1:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del out[at : at + rng.randrange(1, 9)]
        elif kind == 3:
            out[at:at] = rng.randbytes(rng.randrange(1, 5))
        elif kind == 4:
            source = rng.randrange(len(out))
            out[at : at + 16] = out[source : source + 16]
        elif kind == 5:
            out[at:at] = out[rng.randrange(len(out)) :][:200]
        elif rng.random() < 0.2:
            del out[at:]
    return bytes(out)


def mutated_structure(content: bytes, rng: random.Random) -> bytes:
    """The model with a few of its fields changed: the file is protobuf, and whether it is ONNX is another matter."""
    model = onnx.load_from_string(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 5])):
        messages = [message for message in _messages(model) if message.ListFields()]
        names = _strings(model)
        _change(rng.choice(messages), rng, names)
    try:
        return bytes(model.SerializeToString())
    except Exception:
        return content


def _messages(message: Message) -> Iterator[Message]:
    waiting = [message]
    while waiting:
        current = waiting.pop()
        yield current
        for field, value in current.ListFields():
            if field.cpp_type == _MESSAGE:
                waiting += list(value) if _repeats(field) else [value]


def _strings(message: Message) -> list[str]:
    found: dict[str, None] = {"": None, "x" * 1000: None, "ai.onnx": None, "com.microsoft": None}
    for current in _messages(message):
        for field, value in current.ListFields():
            if field.type == _STRING:
                found |= dict.fromkeys(value if _repeats(field) else [value])
    return list(found)


def _repeats(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _change(message: Message, rng: random.Random, names: list[str]) -> None:
    field, value = rng.choice(message.ListFields())
    kind = rng.randrange(6)
    if kind == 0:
        message.ClearField(field.name)
    elif _repeats(field):
        _change_list(value, field, kind, rng, names)
    elif field.cpp_type == _MESSAGE:
        others = [m for m in _messages(value) if m is not value and m.DESCRIPTOR is value.DESCRIPTOR]
        if others:
            copy = type(value)()
            copy.CopyFrom(rng.choice(others))
            value.CopyFrom(copy)
    else:
        setattr(message, field.name, _other(field, value, rng, names))


def _change_list(values: Any, field: FieldDescriptor, kind: int, rng: random.Random, names: list[str]) -> None:
    at, source = rng.randrange(len(values)), rng.randrange(len(values))
    if kind == 1:
        del values[at]
    elif field.cpp_type == _MESSAGE:
        copy = type(values[at])()
        copy.CopyFrom(values[source])
        if kind == 2:
            values.append(copy)
        else:
            values[at].CopyFrom(copy)
    elif kind == 2:
        values.extend([values[source]] * rng.choice([1, 1, 2, 50]))
    elif kind == 3:
        values[at] = values[source]
    else:
        values[at] = _other(field, values[at], rng, names)


def _other(field: FieldDescriptor, value: Any, rng: random.Random, names: list[str]) -> Any:
    if field.type == _STRING:
        return rng.choice(_OPERATORS) if field.name == "op_type" else rng.choice([*names, value + "'"])
    if field.type == _BYTES:
        return rng.choice(
            [value[:-1], value + b"\0", b"", bytes(len(value)), b"\xff" * len(value), rng.choice(names).encode()]
        )
    if isinstance(value, float):
        return rng.choice(_REALS)
    number = max(-(2**63), min(rng.choice([*_NUMBERS, value + 1, value - 1]), 2**63 - 1))
    if field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_ENUM):
        number = max(-(2**31), min(number, 2**31 - 1))
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        number = abs(number)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        numbers = [entry.number for entry in field.enum_type.values]
        return rng.choice(numbers)
    return number
