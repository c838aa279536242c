"""Find what reads a cache besides the attention over it, such as another output: its layout cannot change then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir

from ortfuse.generation.decoder_interface import Cache
from ortfuse.ir.walk import used_values


def read_outside(
    outputs: Iterable[ir.Value],
    owners: Mapping[ir.Value, Cache],
    reads: Callable[[ir.Value, ir.Node], Iterable[ir.Value] | None],
) -> set[Cache]:
    """The caches whose elements outputs are computed from.

    Args:
        outputs: The outputs of the model that hand on no cache.
        owners: The cache that a value holds.
        reads: The values from which a node computes a value, where these are others than all that it uses: those of attention
            that is replaced, without its caches, and none for an operator that reads sizes alone.
    """
    pending, seen, found = list(outputs), set[ir.Value](), set[Cache]()
    while pending:
        value = pending.pop()
        if value in owners:
            found.add(owners[value])
        producer = value.producer()
        if producer is None or value in seen:
            continue
        seen.add(value)
        used = reads(value, producer)
        pending += used_values(producer) if used is None else used
    return found
