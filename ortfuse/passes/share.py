"""Which initializers are equal, found without reading weights that are not.

Two tensors are equal if they have the same type, shape and bytes. A tensor that is the only one of its type and shape
is not read at all. Small ones are compared by all their bytes; large ones by a sample first, which in a file is read in
place, and in full only when the samples agree. Strings are never equal here: they are not worth the code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from ortfuse.ir.storage import ExternalStoredTensor, FileBytes, StoredTensor
from ortfuse.passes.moves import MovedTensor

SMALL = 1024
"""Bytes up to which a tensor is compared as a whole."""

_SAMPLE_BYTES = 64
"""Bytes from the middle of a larger tensor that are compared first: its ends are often padding."""


class TensorPool:
    """The initializers that can be seen from one graph: its own and those of the graphs around it."""

    def __init__(self, outer: TensorPool | None = None) -> None:
        self._outer = outer
        self._alone: dict[Hashable, ir.Value] = {}
        self._kinds: set[Hashable] = set()
        self._sampled: dict[Hashable, list[ir.Value]] = {}

    def first_equal(self, value: ir.Value) -> ir.Value:
        """The first initializer seen that is equal to this one: the value itself, then remembered, if there is none."""
        found = self._find(value)
        if found is None:
            self._add(value)
        return found or value

    def _find(self, value: ir.Value) -> ir.Value | None:
        pool: TensorPool | None = self
        while pool is not None:
            found = pool._find_here(value)
            if found is not None:
                return found
            pool = pool._outer
        return None

    def _find_here(self, value: ir.Value) -> ir.Value | None:
        kind = _kind(value)
        if kind not in self._kinds:
            return None
        if kind in self._alone:
            self._file(self._alone.pop(kind))
        for other in self._sampled.get((kind, _sample(_tensor(value))), ()):
            if _is_equal(_tensor(other), _tensor(value)):
                return other
        return None

    def _add(self, value: ir.Value) -> None:
        kind = _kind(value)
        if kind in self._kinds:
            self._file(value)
        else:
            self._kinds.add(kind)
            self._alone[kind] = value

    def _file(self, value: ir.Value) -> None:
        self._sampled.setdefault((_kind(value), _sample(_tensor(value))), []).append(value)


def can_be_shared(value: ir.Value) -> bool:
    """Whether an initializer is no graph input (a default that callers may override), no graph output and no string."""
    tensor = value.const_value
    return (
        tensor is not None
        and not value.is_graph_input()
        and not value.is_graph_output()
        and tensor.dtype != ir.DataType.STRING
    )


def content_key(tensor: ir.TensorProtocol) -> Hashable:
    """Equal for tensors of equal type, shape and content, and, as far as SHA-256 can tell, for no others."""
    if isinstance(tensor, ir.StringTensor):
        return tensor.dtype, tuple(tensor.shape), tuple(tensor.string_data())
    if isinstance(tensor, MovedTensor):
        return tensor.key
    data = tensor.tobytes()
    return tensor.dtype, tuple(tensor.shape), data if len(data) <= SMALL else hashlib.sha256(data).digest()


def _is_equal(one: ir.TensorProtocol, other: ir.TensorProtocol) -> bool:
    """Whether two tensors of the same type, shape and sample are equal."""
    if isinstance(one, MovedTensor) and isinstance(other, MovedTensor):
        return one.key == other.key
    # Bytes, not numbers: NaN is equal to itself here, and 0.0 is not equal to -0.0.
    return one.nbytes <= SMALL or one.tobytes() == other.tobytes()


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    assert value.const_value is not None
    return value.const_value


def _kind(value: ir.Value) -> Hashable:
    tensor = _tensor(value)
    return tensor.dtype, tuple(tensor.shape)


_known_samples: WeakKeyDictionary[ir.TensorProtocol, Hashable] = WeakKeyDictionary()
"""The samples taken so far. Tensors do not change, and in a fixpoint each is asked for again and again."""


def _sample(tensor: ir.TensorProtocol) -> Hashable:
    """Some of the tensor's bytes; all of them if it is small."""
    if tensor not in _known_samples:
        _known_samples[tensor] = _take_sample(tensor)
    return _known_samples[tensor]


def _take_sample(tensor: ir.TensorProtocol) -> Hashable:
    if isinstance(tensor, MovedTensor):
        return tensor.key
    length = tensor.nbytes
    if length <= SMALL:
        return tensor.tobytes()
    if isinstance(tensor, StoredTensor | ExternalStoredTensor) and isinstance(tensor.data, FileBytes):
        return tensor.data.file.read(tensor.data.offset + length // 2, _SAMPLE_BYTES)
    array = tensor.numpy()
    if tensor.dtype.bitwidth < 8 or not array.flags.c_contiguous:
        return bytes(array[tuple(size // 2 for size in array.shape)].tobytes())
    return array.reshape(-1).view(np.uint8)[length // 2 : length // 2 + _SAMPLE_BYTES].tobytes()
