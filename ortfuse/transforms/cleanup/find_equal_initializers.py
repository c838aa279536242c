"""Find equal initializers, reading no more of the weights than needed.

Two tensors are equal if they have the same type, shape and bytes. Fingerprints distinguish them.
Each is computed only if all earlier ones agree:

1. type and shape;
2. a few bytes, read in place if the tensor is in a file;
3. a digest of the first mebibyte;
4. a digest of all bytes.

So the only tensor of a type and shape is not read at all, and none is read in full more than once. Strings are never treated
as equal: they are not worth the code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from ortfuse.io.stored_tensor import chunks, in_file
from ortfuse.ir.traits import DEQUANTISES, has
from ortfuse.transforms.cleanup.fold_constant_movement import KeyedTensor

SMALL = 1024
"""Bytes up to which a tensor is compared as a whole."""

_SAMPLE_BYTES = 64
"""Bytes from the middle of a larger tensor that are compared first: its ends are often padding."""

_START_BYTES = 1 << 20
"""Bytes at the beginning that are compared if the samples agree."""


class _Seen:
    """The first initializer with certain fingerprints and, once a second one had the same, where the next one leads."""

    __slots__ = ("further", "value")

    def __init__(self, value: ir.Value) -> None:
        self.value = value
        self.further: dict[Hashable, _Seen] | None = None


class TensorPool:
    """The initializers visible from one graph: its own and those of the graphs around it."""

    def __init__(self, outer: TensorPool | None = None) -> None:
        self._outer = outer
        self._kinds: dict[Hashable, _Seen] = {}

    def first_equal(self, value: ir.Value) -> ir.Value:
        """The first initializer seen that is equal to this one; if there is none, the value itself, which is remembered."""
        outer = self._outer
        while outer is not None:
            found = outer._find(value, remember=False)
            if found is not None:
                return found
            outer = outer._outer
        return self._find(value, remember=True) or value

    def _find(self, value: ir.Value, remember: bool) -> ir.Value | None:
        tensor, branch = _tensor(value), self._kinds
        small = _is_small(tensor)
        for depth, fingerprint in enumerate(_FINGERPRINTS):
            key = fingerprint(tensor)
            seen = branch.get(key)
            if seen is None:
                if remember:
                    branch[key] = _Seen(value)
                return None
            other = _tensor(seen.value)
            if depth == _LAST or other is tensor or (depth > 0 if small else _same_place(other, tensor)):
                return seen.value
            if seen.further is None:
                seen.further = {_FINGERPRINTS[depth + 1](other): _Seen(seen.value)}
            branch = seen.further
        return None


def can_be_shared(value: ir.Value) -> bool:
    """Whether equal initializers may be one: neither graph inputs (callers may override them), nor graph outputs, nor strings.

    Nor scales or zero points of a weight: the runtime makes one node of a product and the DequantizeLinear of its weight
    (MatMulNBits) only where these are used nowhere else.
    """
    tensor = value.const_value
    return (
        tensor is not None
        and not value.is_graph_input()
        and not value.is_graph_output()
        and tensor.dtype != ir.DataType.STRING
        and (tensor.size == 1 or not any(_dequantises_weight(use.node, use.idx) for use in value.uses()))
    )


def _dequantises_weight(node: ir.Node, place: int) -> bool:
    """Whether a node takes scale or zero point of a weight at this place."""
    weight = node.inputs[0]
    return has(node, DEQUANTISES) and place > 0 and weight is not None and weight.is_initializer()


def content_key(tensor: ir.TensorProtocol) -> Hashable:
    """A key that is equal for tensors of equal type, shape and content and, up to SHA-256 collisions, for no others."""
    if isinstance(tensor, ir.StringTensor):
        return tensor.dtype, tuple(tensor.shape), tuple(tensor.string_data())
    if isinstance(tensor, KeyedTensor):
        return tensor.key
    return tensor.dtype, tuple(tensor.shape), tensor.tobytes() if tensor.nbytes <= SMALL else _digest(tensor)


def _digest(tensor: ir.TensorProtocol) -> bytes:
    digest = hashlib.sha256()
    for piece in chunks(tensor):
        digest.update(piece)
    return digest.digest()


def _same_place(one: ir.TensorProtocol, other: ir.TensorProtocol) -> bool:
    """Whether two tensors of one type and shape are the same bytes of the same file."""
    mine, theirs = in_file(one), in_file(other)
    return mine is not None and theirs is not None and mine.file is theirs.file and mine.offset == theirs.offset


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    assert value.const_value is not None
    return value.const_value


Fingerprint = Callable[[ir.TensorProtocol], Hashable]


def _remembered(take: Fingerprint) -> Fingerprint:
    """Cache a fingerprint: tensors do not change, and in a fixpoint each is asked for again and again."""
    known: WeakKeyDictionary[ir.TensorProtocol, Hashable] = WeakKeyDictionary()

    def fingerprint(tensor: ir.TensorProtocol) -> Hashable:
        found = known.get(tensor)
        if found is None:
            found = known[tensor] = tensor.key if isinstance(tensor, KeyedTensor) else take(tensor)
        return found

    return fingerprint


@_remembered
def _kind(tensor: ir.TensorProtocol) -> Hashable:
    return tensor.dtype.value, tensor.nbytes <= SMALL, tuple(tensor.shape)


def _is_small(tensor: ir.TensorProtocol) -> bool:
    """Whether the sample of a tensor is all of it."""
    return not isinstance(tensor, KeyedTensor) and tensor.nbytes <= SMALL


@_remembered
def _sample(tensor: ir.TensorProtocol) -> Hashable:
    """Some of the tensor's bytes; all of them if it is small."""
    length = tensor.nbytes
    if length <= SMALL:
        return tensor.tobytes()
    if (stored := in_file(tensor)) is not None:
        return stored.file.read(stored.offset + length // 2, _SAMPLE_BYTES)
    array = tensor.numpy()
    if tensor.dtype.bitwidth < 8 or not array.flags.c_contiguous:
        return bytes(array[tuple(size // 2 for size in array.shape)].tobytes())
    return array.reshape(-1).view(np.uint8)[length // 2 : length // 2 + _SAMPLE_BYTES].tobytes()


@_remembered
def _start(tensor: ir.TensorProtocol) -> Hashable:
    return b"" if tensor.nbytes <= SMALL else hashlib.sha256(next(chunks(tensor))[:_START_BYTES]).digest()


@_remembered
def _whole(tensor: ir.TensorProtocol) -> Hashable:
    return b"" if tensor.nbytes <= _START_BYTES else _digest(tensor)


_FINGERPRINTS: tuple[Fingerprint, ...] = (_kind, _sample, _start, _whole)
_LAST = len(_FINGERPRINTS) - 1
