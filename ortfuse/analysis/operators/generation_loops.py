"""Generation by the runtime: BeamSearch, GreedySearch and Sampling, whose bodies are decoders.

The sizes of a decoder's inputs are those with which the operator calls it (documentation of ONNX Runtime's contrib operators).
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.transfer.transfer_function_registry import Op, transfer
from ortfuse.analysis.transfer.value_fact import UNKNOWN, Fact
from ortfuse.ir.dims import DimLike
from ortfuse.ir.traits import MICROSOFT

_BODIES = ("encoder", "init_decoder", "decoder")

_TOKENS = 3
"""The inputs of a decoder before its caches: token ids, positions and the mask."""


def _generates(op: Op) -> tuple[Fact, ...]:
    for name in _BODIES:
        if name not in op.node.attributes:
            continue
        body = op.graph(name)
        if op.analysis.enter(body, op.node):
            if op.attr_int("model_type", 0) == 0 and _takes_cached_pairs(body):
                _assume_step(op, body)
            op.analysis.run(body)
    return ()


def _takes_cached_pairs(body: ir.Graph) -> bool:
    """Whether a decoder takes ids, positions, a mask, and keys and values of each layer as [2, batch, heads, past, size]."""
    tokens, caches = body.inputs[:_TOKENS], body.inputs[_TOKENS:]
    if len(tokens) < _TOKENS or not caches or len(body.outputs) != 1 + len(caches):
        return False
    if any(value.dtype != ir.DataType.INT32 for value in tokens):
        return False
    shapes = [value.shape for value in caches]
    return all(shape is not None and len(shape) == 5 and shape[0] == 2 and _are_fixed(shape) for shape in shapes)


def _are_fixed(shape: ir.Shape) -> bool:
    return all(isinstance(shape[axis], int) for axis in (2, 4))


def _assume_step(op: Op, body: ir.Graph) -> None:
    """Each step has so many new tokens, and a mask of these and those in the caches."""
    tokens, positions, mask, *caches = body.inputs
    given = op.analysis.assume(tokens, Fact(tokens.dtype, (UNKNOWN, UNKNOWN))).shape
    assert given is not None
    batch, length = given
    op.analysis.assume(positions, Fact(positions.dtype, (batch, length)))
    past: DimLike = UNKNOWN
    for cache in caches:
        assert cache.shape is not None
        heads, size = (cache.shape[axis] for axis in (2, 4))
        assert isinstance(heads, int) and isinstance(size, int)
        found = op.analysis.assume(cache, Fact(cache.dtype, (2, batch, heads, past, size))).shape
        assert found is not None
        past = found[3]
    op.analysis.assume(mask, Fact(mask.dtype, (batch, past + length)))


for _name in ("BeamSearch", "GreedySearch", "Sampling"):
    transfer(_name, domain=MICROSOFT)(_generates)
