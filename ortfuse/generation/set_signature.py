"""Give a generator its inputs and outputs: names, shapes and order, as onnxruntime-genai and Optimum expect them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import GenerationError
from ortfuse.generation.decoder_interface import Cache, DecoderInterface
from ortfuse.generation.generator_interface import (
    EMBEDDINGS,
    LOGITS,
    MASK,
    TOKENS,
    CacheBuffer,
    GeneratorInterface,
    StateBuffer,
)
from ortfuse.ir.declared_sizes import DeclaredSizes

_PAST, _TOTAL = "past_sequence_length", "total_sequence_length"

Sizes = Sequence[int | str | None]


@dataclass(frozen=True)
class BufferPlan:
    """The buffer, or growing input, that becomes of a cache.

    Attributes:
        cache: The cache of the decoder.
        layer: The number of its layer, from 0.
        kind: What it holds.
        heads: Heads and size of the buffer [batch, heads, length, size] that it became; `None` if it grows as before.
    """

    cache: Cache
    layer: int
    kind: Literal["key", "value"]
    heads: tuple[int, int] | None


def set_signature(
    model: ir.Model,
    facts: Facts,
    decoder: DecoderInterface,
    plans: Sequence[BufferPlan],
    *,
    attention_mask: ir.Value,
    renamed: Mapping[ir.Value, ir.Value],
    max_length: int,
    last_logits: bool,
    most_tokens: int,
    mixed_lengths: bool,
) -> GeneratorInterface:
    """Name, type and order the inputs and outputs of a decoder that was rewritten, and return its interface.

    Args:
        model: The model.
        facts: The facts of the decoder.
        decoder: The roles of the decoder's inputs and outputs.
        plans: What became of each cache.
        attention_mask: The input that takes the place of mask and positions.
        renamed: The values that took the place of outputs of the decoder.
        max_length: The greatest number of tokens.
        last_logits: Whether only the scores after the last token are handed out.
        most_tokens: The most new tokens that the attention takes at once.
        mixed_lengths: Whether prompts of several lengths may be in one batch.

    Raises:
        GenerationError: An input that stays has the name of another one of the generator.
    """
    tokens = EMBEDDINGS if decoder.embedding else TOKENS
    for value in (*decoder.fixed, *(state.before for state in decoder.states)):
        if value.name in (tokens, MASK):
            text = "is none of the generator's own, which has this name: give the input another one, such as encoder_"
            raise GenerationError(f"the input {value.name} {text}{value.name}")
    graph, batch = model.graph, _text((facts.shape(decoder.tokens) or (None,))[0])
    ordered = sorted(plans, key=lambda plan: (plan.layer, plan.kind))
    logits = renamed.get(decoder.logits, decoder.logits)
    presents = [renamed.get(plan.cache.present, plan.cache.present) for plan in ordered]
    names = {decoder.tokens: tokens, attention_mask: MASK, logits: LOGITS}
    caches = []
    for plan, present in zip(ordered, presents, strict=True):
        past = plan.cache.past
        names[past], names[present] = (f"{what}.{plan.layer}.{plan.kind}" for what in ("past_key_values", "present"))
        caches.append(_buffer(plan, present, names, facts, batch, max_length))
    scores = facts.shape(decoder.logits) or (None, None, None)
    length = (facts.shape(decoder.tokens) or (None, None))[1]
    longest_run = 1 if length == 1 else most_tokens if most_tokens < max_length else 0
    if longest_run > 1 and (name := _text(length)) is not None and not isinstance(name, int):
        DeclaredSizes(size_range={name: (1, longest_run)}).store(model)
    logits.shape = ir.Shape([_text(scores[0]), 1 if last_logits else _text(scores[1]), _text(scores[2])])
    states = tuple(
        StateBuffer(
            state.before.name or "",
            renamed.get(state.after, state.after).name or "",
            _sizes(facts, state.before),
            _dtype(facts, state.before),
        )
        for state in decoder.states
    )
    defaults = [value for value in graph.inputs if value.name in graph.initializers]
    befores = [state.before for state in decoder.states]
    pasts = [plan.cache.past for plan in ordered]
    graph.inputs[:] = [decoder.tokens, attention_mask, *pasts, *befores, *decoder.fixed, *defaults]
    rest = [value for value in graph.outputs if value is not logits and value not in presents]
    graph.outputs[:] = [logits, *presents, *rest]
    _rename(model, names)
    return GeneratorInterface(
        tokens=tokens,
        mask=MASK,
        caches=tuple(caches),
        states=states,
        fixed=tuple(value.name or "" for value in decoder.fixed),
        logits=LOGITS,
        vocabulary=scores[2] if isinstance(scores[2], int) else 0,
        max_length=max_length,
        last_logits=last_logits,
        mixed_lengths=mixed_lengths,
        longest_run=longest_run,
        embedding=decoder.embedding,
    )


def _buffer(
    plan: BufferPlan,
    present: ir.Value,
    names: Mapping[ir.Value, str],
    facts: Facts,
    batch: int | str | None,
    longest: int,
) -> CacheBuffer:
    past, axis = plan.cache.past, plan.cache.axis
    dims = list(_sizes(facts, past))
    if plan.heads is not None:
        axis, dims = 2, [-1, plan.heads[0], -1, plan.heads[1]]
    for value, length in ((past, _PAST), (present, _TOTAL)):
        sizes: list[int | str | None] = [batch if dim < 0 else dim for dim in dims]
        sizes[axis] = length
        value.shape, value.type = ir.Shape(sizes), past.type
    dims[axis] = longest
    in_place = plan.heads is not None
    return CacheBuffer(
        names[past], names[present], plan.layer, plan.kind, tuple(dims), axis, _dtype(facts, past), in_place
    )


def _sizes(facts: Facts, value: ir.Value) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else -1 for dim in facts.shape(value) or ())


def _dtype(facts: Facts, value: ir.Value) -> str:
    return str((facts.dtype(value) or ir.DataType.FLOAT).numpy())


def _text(dim: object) -> int | str | None:
    return dim if isinstance(dim, int) or dim is None else None if str(dim).startswith("?") else str(dim)


def _rename(model: ir.Model, names: Mapping[ir.Value, str]) -> None:
    """Give values names; another value that has one of them gets another."""
    taken = set(names.values())
    for number, value in enumerate(_values(model)):
        if value.name in taken and value not in names:
            value.name = f"{value.name}_before_{number}"
    for value, name in names.items():
        value.name = f"generator_{name}"
    for value, name in names.items():
        value.name = name


def _values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    yield from list(model.graph.initializers.values())
    for node in model.graph.all_nodes():
        yield from node.outputs
