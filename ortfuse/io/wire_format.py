"""The part of the protobuf wire format needed to find the weights in a model file and to write them back.

A model file is nearly all weights, and parsing it as one protobuf message copies every byte. `outline` walks only the
levels of the format that lead to the initializers of the main graph (ModelProto.graph, GraphProto.initializer,
TensorProto.raw_data), records where the large ones are, and returns the file without them: a small message that can be parsed
as usual. Format: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
"""Field numbers of ModelProto.graph, GraphProto.initializer and TensorProto.raw_data (onnx.proto)."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10

Buffer = bytes | mmap.mmap
Extent = tuple[int, int]
"""Offset and length in bytes."""


class WireError(ValueError):
    """The bytes are not valid protobuf, or are truncated."""


@dataclass(frozen=True)
class Outline:
    """A model without its large weights.

    Attributes:
        skeleton: The serialized ModelProto without its large weights.
        weights: For each initializer of the main graph, in order, the location in the file of the bytes that were removed
            from it, or None if none were.
    """

    skeleton: bytes
    weights: list[Extent | None]


def fields(data: Buffer, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Walk the fields of the message at `data[start:end]`.

    Yields:
        Field number, wire type, offset of the tag, offset of the content, end of the content.

    Raises:
        WireError: The bytes are not a protobuf message, or a field reaches beyond `end`.
    """
    at = start
    try:
        while at < end:
            begin = at
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = _varint(data, begin)
            kind = tag & 7
            if kind == _BYTES:
                length = data[at]
                at += 1
                if length >= 0x80:
                    length, at = _varint(data, at - 1)
                body = at
                at += length
            elif kind == _VARINT:
                body = at
                _, at = _varint(data, at)
            elif kind == _FIXED32:
                body, at = at, at + 4
            elif kind == _FIXED64:
                body, at = at, at + 8
            else:
                raise WireError(f"byte {begin:,} is not the start of a protobuf field")
            if at > end:
                raise WireError(
                    f"the field at byte {begin:,} claims to end at byte {at:,}, but its message ends at {end:,}"
                )
            if tag < 8:
                raise WireError(f"byte {begin:,} has the field number 0, which protobuf does not allow")
            yield tag >> 3, kind, begin, body, at
    except IndexError:
        raise WireError(f"the file ends inside a field at byte {len(data):,}") from None


def _varint(data: Buffer, at: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, at + _MAX_VARINT_BYTES):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise WireError(f"the number at byte {at:,} is longer than {_MAX_VARINT_BYTES} bytes")


def outline(data: Buffer, threshold: int) -> Outline:
    """Split a serialized ModelProto from the raw data of those initializers that have at least `threshold` bytes.

    Raises:
        WireError: The bytes are not a protobuf message, or are truncated.
    """
    weights: list[Extent | None] = []
    parts: list[bytes] = []
    kept = 0  # everything before this offset is in `parts`
    for number, kind, begin, body, end in fields(data, 0, len(data)):
        if number == GRAPH and kind == _BYTES:
            graph = _without_weights(data, body, end, threshold, weights)
            if graph is not None:
                parts += (data[kept:begin], header(GRAPH, sum(map(len, graph))), *graph)
                kept = end
    parts.append(data[kept:])
    return Outline(b"".join(parts), weights)


def _without_weights(
    data: Buffer, start: int, stop: int, threshold: int, weights: list[Extent | None]
) -> list[bytes] | None:
    """The GraphProto at `data[start:stop]` without its large weights, in pieces; None if it has none."""
    parts: list[bytes] = []
    kept = start
    for number, kind, begin, body, end in fields(data, start, stop):
        if number != INITIALIZER or kind != _BYTES:
            continue
        raw = _raw_data(data, body, end) if end - body > threshold else None
        if raw is None or raw[2] - raw[1] < threshold:
            weights.append(None)
            continue
        raw_begin, raw_body, raw_end = raw
        weights.append((raw_body, raw_end - raw_body))
        rest = data[body:raw_begin] + data[raw_end:end]
        parts += (data[kept:begin], header(INITIALIZER, len(rest)), rest)
        kept = end
    if not parts:
        return None
    parts.append(data[kept:stop])
    return parts


def _raw_data(data: Buffer, start: int, stop: int) -> tuple[int, int, int] | None:
    """Start of the tag, start and end of the raw data of the TensorProto at `data[start:stop]`, if it has exactly one."""
    found = [
        (begin, body, end)
        for number, kind, begin, body, end in fields(data, start, stop)
        if number == RAW_DATA and kind == _BYTES
    ]
    return found[0] if len(found) == 1 else None


def header(number: int, length: int) -> bytes:
    """The tag and length that precede the content of a bytes or message field."""
    return bytes((number << 3 | _BYTES,)) + encode_varint(length)


def encode_varint(value: int) -> bytes:
    """A non-negative integer in protobuf's variable-length form."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
