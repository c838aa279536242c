"""Prove that tokens of a run meet in attention over caches alone, so that padding reaches no score.

Formula: scores[b, s] = f(tokens[b, s], position of it, results of attention at [b, s]), for each sequence b and new token s.

Then a sequence may be padded on its right, since attention hides what is behind a token, and a prompt may come in pieces. The
marks of padding-free batches (`ortfuse.transforms.padding_free.dependence`) follow which token each element belongs to.

Requires: attention over caches to be com.microsoft.GroupQueryAttention. Sizes of runs are another matter: see `make_generator`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import axis
from ortfuse.analysis.ranges.range import anything
from ortfuse.ir.traits import MICROSOFT
from ortfuse.transforms.padding_free.dependence import Dependence, DependsError, mixed
from ortfuse.transforms.padding_free.element_ranges import Setting
from ortfuse.transforms.padding_free.mixing_operators import MIXING
from ortfuse.transforms.padding_free.row_operators import Batch
from ortfuse.transforms.padding_free.token_marks import Mark, token_of

_QKV = 3
"""The operands of GroupQueryAttention that have a row for each new token."""

_PASTS = (3, 4)
_BIAS = 10


def why_tokens_meet(model: ir.Model, facts: Facts, tokens: ir.Value, positions: ir.Value) -> str:
    """Why the scores after a token may depend on others of its run but by attention over caches; "" if they do not.

    Args:
        model: A generator, in topological order.
        facts: Its facts.
        tokens: The input [batch, new tokens], or their embeddings [batch, new tokens, size].
        positions: The positions of the new tokens, [batch, new tokens].
    """
    shape = facts.shape(tokens)
    dtype = facts.dtype(tokens)
    if shape is None or len(shape) < 2 or dtype is None:
        return "the shape of its tokens is unknown"
    own = token_of(shape, 2, shape[1])
    # Nothing hides a token but attention over caches: the tokens take the place of a mask that may hold anything.
    setting = Setting(tokens, anything(dtype), anything(dtype), frozenset())
    dependence = Dependence(facts, setting, Batch(shape[0], shape[1]), {}, _OPERATORS)
    dependence.marks |= {tokens: frozenset({own}), positions: frozenset({own})}
    try:
        dependence.follow(model.graph)
        for output in model.graph.outputs:
            for mark in dependence.of(output):
                if isinstance(mark.position, int) or (isinstance(mark.sequence, int) and shape[0] != 1):
                    raise mixed(output, f"its elements depend on the {mark} of each run")
    except DependsError as error:
        return f"tokens of a run meet at {error.refusal.subject}: {error.refusal.found}"
    taken = next(iter(dependence.selections), None)
    return "" if taken is None else f"it takes tokens of a run at {taken.at}"


def _attention(dependence: Dependence, node: ir.Node) -> None:
    """Attention over a cache: each token sees what it was given at its own place, and earlier ones of its sequence."""
    shape = dependence.shape(node.inputs[0], node)
    own = token_of(shape, 2, dependence.batch.length)
    for number, value in enumerate(node.inputs):
        if number in _PASTS:
            continue
        wanted = own if number < _QKV else _behind_heads(own) if number == _BIAS else None
        for mark in dependence.of(value):
            if mark != wanted:
                raise mixed(node, f"it reads an operand whose element belongs to the {mark}")
    dependence.set(node.outputs[0], {own})


def _behind_heads(own: Mark) -> Mark:
    """The mark of [batch, heads, tokens, ...]."""
    return Mark(own.sequence, axis(2) if own.position == axis(1) else own.position)


def _rotary(dependence: Dependence, node: ir.Node) -> None:
    """A rotation of the last axis, by the angles of each token."""
    value, *rest = node.inputs
    shape = dependence.shape(value, node)
    rotated = dependence.of(value)
    tokens = (shape[0], shape[2 if len(shape) == 4 else 1])  # whatever the number of heads, which may be 1
    own = token_of(tokens, 2, dependence.batch.length)
    wanted = {_behind_heads(own) if len(shape) == 4 else own}
    if any(mark.mentions(len(shape) - 1) for mark in rotated):
        raise mixed(node, "it mixes tokens")
    if any(dependence.of(one) - {own} for one in rest) or (any(map(dependence.of, rest)) and rotated - wanted):
        raise mixed(node, "it rotates a token by the angles of another")
    dependence.set(node.outputs[0], rotated | (wanted if any(map(dependence.of, rest)) else set()))


_OPERATORS: Mapping[tuple[str, str], Callable[[Dependence, ir.Node], None]] = {
    **MIXING,
    (MICROSOFT, "GroupQueryAttention"): _attention,
    ("", "RotaryEmbedding"): _rotary,
    (MICROSOFT, "RotaryEmbedding"): _rotary,
}
"""The function that follows the marks of each operator."""
