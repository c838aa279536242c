"""Cache rounded weights during a search, since every model that it builds needs the same ones.

Outside of a search nothing is kept, so that models larger than memory are written with a peak of a few of their weights.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import onnx_ir as ir

from ortfuse.transforms.cleanup.fold_constant_movement import KeyedTensor, key_of

Array = np.ndarray[Any, Any]

Rounding = Callable[[Array], tuple[Array, ...]]
"""Makes integers, scales and what else there is of a weight; equal ones make the same."""


@runtime_checkable
class HasStandIn(Protocol):
    """A rounding of which the types and shapes are known beforehand, on which alone times depend."""

    def stand_in(self, shape: tuple[int, ...]) -> tuple[Array, ...]:
        """Any numbers of the types and shapes that a weight of this shape is rounded to."""


class Rounded:
    """The latest results of rounding, up to a number of bytes that is 0 at first."""

    def __init__(self) -> None:
        # The weights are kept too: keys have the `id` of those, which must not become another's.
        self._found: OrderedDict[Hashable, tuple[ir.TensorProtocol, tuple[Array, ...]]] = OrderedDict()
        self._most = self._held = 0
        self._is_for_times = False

    def of(self, weight: ir.TensorProtocol, rounding: Rounding) -> tuple[Array, ...]:
        """Return the rounded values of a weight; not to be changed."""
        if self._is_for_times and isinstance(rounding, HasStandIn):
            return rounding.stand_in(tuple(weight.shape.numpy()))
        key = (key_of(weight), rounding)
        found = self._found.pop(key, None)
        if found is None:
            found = (weight, rounding(weight.numpy()))
            self._held += _bytes(found[1])
        self._found[key] = found
        self._shrink()
        return found[1]

    @contextmanager
    def kept(self, most: int) -> Iterator[None]:
        """Keep up to so many bytes of the latest results."""
        before, self._most = self._most, most
        try:
            yield
        finally:
            self._most = before
            self._shrink()

    @contextmanager
    def for_times(self) -> Iterator[None]:
        """Let other numbers stand for those that take long to find: what is read now is only timed."""
        before, self._is_for_times = self._is_for_times, True
        try:
            yield
        finally:
            self._is_for_times = before

    def _shrink(self) -> None:
        while self._held > self._most:
            _, (_, parts) = self._found.popitem(last=False)
            self._held -= _bytes(parts)


def _bytes(parts: tuple[Array, ...]) -> int:
    return sum(part.nbytes for part in parts)


ROUNDED = Rounded()


class RoundedTensor(KeyedTensor):
    """A constant computed of another one, which it keeps: its key says which.

    With a `rounding`, it is computed of what that makes of the other one.
    """

    def __init__(
        self,
        source: ir.TensorProtocol,
        convert: Callable[..., Array],
        dtype: Any,
        shape: tuple[int, ...],
        rounding: Rounding | None = None,
    ) -> None:
        def make() -> ir.Tensor[Array]:
            given = (source.numpy(),) if rounding is None else ROUNDED.of(source, rounding)
            return ir.Tensor(np.ascontiguousarray(convert(*given).astype(dtype, copy=False)))

        super().__init__(make, ir.DataType.from_numpy(np.dtype(dtype)), ir.Shape(shape))
        self.key = (key_of(source), rounding, convert)

    def settle(self) -> None:
        """Compute it once and for all, and let go of what it is computed of."""
        found = ir.Tensor(self.numpy())
        self._func, self.key = lambda: found, ("settled", id(found))


def settle(model: ir.Model) -> None:
    """Compute the constants of a model that are rounded when they are read: by inputs, that takes time and keeps those."""
    with ROUNDED.kept(FOR_A_SEARCH):
        for graph in model.graphs():
            for value in graph.initializers.values():
                if isinstance(value.const_value, RoundedTensor):
                    value.const_value.settle()


FOR_A_SEARCH = 512 << 20
"""How many bytes a search keeps."""
