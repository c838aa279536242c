"""Optimise an exported decoder so that its attention is fused, with the sizes that its steps have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from ortfuse.api.optimize import optimize
from ortfuse.api.result import Result
from ortfuse.errors import GenerationError
from ortfuse.generation.generator_interface import METADATA
from ortfuse.generation.interface_names import InterfaceNames
from ortfuse.io.convert_model_objects import AnyModel, enter
from ortfuse.ir.declared_sizes import declared_sizes
from ortfuse.options import Options


@dataclass(frozen=True)
class FusedDecoder:
    """A decoder with its attention fused, in the branch for steps with a past.

    Attributes:
        model: The model.
        names: The roles of its inputs and outputs, which are those of the original.
        max_length: The greatest number of tokens that was asked for, or for which its tables have rows.
        last_logits: Whether the original hands out the scores after the last token alone; `model` does so for all.
        joined: Why a cache in another layout than [batch, heads, length, size] is left as it is, by its name.
        roles: Names of inputs and outputs of `model` by role, of those that were given.
    """

    model: ir.Model
    names: InterfaceNames
    max_length: int
    last_logits: bool
    joined: Mapping[str, str]
    roles: Mapping[str, str]


def fused_decoder(
    model: AnyModel,
    options: Options,
    max_length: int,
    roles: Mapping[str, str] | None,
    prompt_model: AnyModel | None = None,
    *,
    one_token: bool = False,
) -> FusedDecoder:
    """Optimise a decoder so that its attention is fused; `one_token` fixes the number of new tokens to 1.

    Raises:
        GenerationError: The model is no decoder with caches, or cannot be rewritten.
    """
    from ortfuse.analysis.facts import Facts
    from ortfuse.generation.absorb_latents import absorb_latents
    from ortfuse.generation.append_new_tokens import append_new_tokens
    from ortfuse.generation.cached_branch import split_branches
    from ortfuse.generation.find_interface import find_interface
    from ortfuse.generation.grow_buffers import grow_buffers
    from ortfuse.generation.interface_names import names_of
    from ortfuse.generation.narrow_caches import narrow_caches
    from ortfuse.generation.prompt_model import compute_crossed
    from ortfuse.generation.separate_caches import separate_caches
    from ortfuse.generation.shorten_attention import shorten_attention
    from ortfuse.generation.step_sizes import fix_to_one_token

    source: ir.Model = enter(model, copy=True)[0]
    if METADATA in source.metadata_props:
        raise GenerationError("the model is a generator already; make another one of the decoder that was exported")
    prompt = None if prompt_model is None else enter(prompt_model, copy=True)[0]
    branched, branch = split_branches(source), ""
    if branched is not None and prompt is None:
        prompt, source, branch = branched.prompt, branched.step, branched.choice
    narrow_caches(source)
    grown = grow_buffers(source, roles)
    roles = roles if grown is None else grown.roles(roles)
    new_alone = append_new_tokens(source)
    crossed = () if prompt is None else compute_crossed(source, prompt, roles)
    if one_token:
        fix_to_one_token(source, find_interface(source, Facts(source), roles))
    if grown is not None:
        max_length = min(max_length, grown.length)
    length, most, is_last = _declare_steps(source, max_length, roles)
    if grown is not None:
        grown.demand_appended(source, find_interface(source, Facts(source), roles))
    low, high = declared_sizes(source).size_range.get(length, (1, most))
    ranges = ({length: (max(low, 1), min(high, most))} if length else {}) | dict(options.size_range)
    inside = _graph_of(optimize(source, Options(loaded=False, same=options.same, fix=options.fix, size_range=ranges)))
    facts = Facts(inside)
    interface = find_interface(inside, facts, roles)
    names = names_of(interface, facts, branch, crossed, new_alone)
    if grown is not None:
        names = replace(names, counter=grown.counter)
        grown.demand_masks(inside, facts, interface)
        if shorten_attention(inside, facts, interface, grown.length, min(most, grown.length)):
            facts = Facts(inside)
            interface = find_interface(inside, facts, roles)
    absorbed = absorb_latents(inside, facts, interface)
    if absorbed.count:
        facts = Facts(inside)
        interface = find_interface(inside, facts, roles)
    left = {**separate_caches(inside, facts, interface), **absorbed.kept}
    return FusedDecoder(inside, names, most, is_last, left, roles or {})


def _declare_steps(source: ir.Model, max_length: int, roles: Mapping[str, str] | None) -> tuple[str, int, bool]:
    """Prepare a decoder for what steps have in common, in place.

    Returns:
        The name of the number of new tokens, the greatest length, and whether it had the scores after the last token alone.
    """
    from ortfuse.analysis.facts import Facts
    from ortfuse.generation.find_interface import find_interface
    from ortfuse.generation.last_logits import with_all_logits
    from ortfuse.generation.step_sizes import declare_step_sizes
    from ortfuse.generation.table_rows import slices_to_rows

    try:
        interface = find_interface(source, Facts(source), roles)
    except GenerationError:
        return "", max_length, False
    length = declare_step_sizes(source, interface)
    facts = Facts(source)
    is_last = bool(length) and with_all_logits(interface.logits, ir.SymbolicDim(length), facts)
    return length, slices_to_rows(source, Facts(source), interface, max_length), is_last


def _graph_of(result: Result) -> ir.Model:
    if result.unchanged:
        raise GenerationError(f"the decoder cannot be rewritten: {result.unchanged}")
    inside: ir.Model = enter(result.model, copy=True)[0]
    return inside
