"""Rewrite a decoder into a generator: one model for prompts and steps, whose caches are buffers that stay in place.

Transforms:

- attention with a growing cache into GroupQueryAttention, which appends to the buffer that the cache is;
- rotary embeddings, by tables of all positions, within GroupQueryAttention where its kernel has them;
- masks and positions of the inputs into lengths, which the sum of attention_mask gives;
- on request, the scores of all tokens into those of the last one.

Requires:

- the mask, positions and angles to be functions of positions alone, when no token is hidden (`length_functions`);
- heads of sizes that the kernel takes.

Does not handle: layers for which this does not hold. They keep a growing cache, and the report says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import GenerationError
from ortfuse.generation.attention_layers import AttentionLayers
from ortfuse.generation.attention_sites import AttentionSite, SiteReader
from ortfuse.generation.check_target import AttentionCheck
from ortfuse.generation.decoder_interface import DecoderInterface
from ortfuse.generation.find_interface import find_interface
from ortfuse.generation.generator_interface import GeneratorInterface, write_interface
from ortfuse.generation.last_logits import keep_last_logits
from ortfuse.generation.length_functions import find_mask_forms, find_row_forms
from ortfuse.generation.length_nodes import LengthNodes
from ortfuse.generation.positional_values import PositionalValues
from ortfuse.generation.replace_attention import AttentionReplacer
from ortfuse.generation.replace_positions import PositionReplacer
from ortfuse.generation.set_signature import BufferPlan, set_signature
from ortfuse.generation.table_rows import rows_allow
from ortfuse.generation.token_independence import why_tokens_meet
from ortfuse.ir.traits import MICROSOFT
from ortfuse.runtime.submodel import upstream
from ortfuse.targets import Target


@dataclass(frozen=True)
class Made:
    """The result of rewriting a decoder.

    Attributes:
        interface: The inputs and outputs of the generator.
        kept: Why a layer keeps a growing cache, by the name of its attention or cache.
        unsampled: Whether masks and positions were compared for every past length, not for a choice of them.
        one_length: Why the prompts of a batch have one length; "" if they may have several.
    """

    interface: GeneratorInterface
    kept: Mapping[str, str]
    unsampled: bool
    one_length: str


def make_generator(
    model: ir.Model,
    facts: Facts,
    target: Target,
    *,
    max_length: int,
    last_logits: bool = False,
    given: Mapping[str, str] | None = None,
    left: Mapping[str, str] | None = None,
) -> Made:
    """Rewrite a decoder in place.

    Args:
        model: A decoder whose attention is fused, in topological order.
        facts: Its facts. They do not hold afterwards.
        target: The target that is to execute the generator.
        max_length: The greatest number of tokens, of the prompt and generated.
        last_logits: Whether only the scores after the last token of each sequence are handed out.
        given: Names of inputs and outputs by role, where the graph does not tell.
        left: Why a cache in another layout is left as it is, by its name.

    Raises:
        GenerationError: The model is no decoder with caches, or no layer can be rewritten.
    """
    interface = find_interface(model, facts, given)
    rewriter = _Rewriter(model, facts, interface, max_length, left or {}, target)
    return rewriter.run(last_logits=last_logits)


class _Rewriter:
    def __init__(
        self,
        model: ir.Model,
        facts: Facts,
        decoder: DecoderInterface,
        max_length: int,
        left: Mapping[str, str],
        target: Target,
    ) -> None:
        self.model, self.facts, self.decoder = model, facts, decoder
        self.values = PositionalValues(model, facts, decoder)
        self.layers = AttentionLayers(model, facts, decoder, self.values, left)
        self.max_length = rows_allow(model, facts, self.values, max_length)
        self.check = AttentionCheck(target, self.max_length)
        self.one_length = ""
        self.renamed: dict[ir.Value, ir.Value] = {}

    def run(self, *, last_logits: bool) -> Made:
        values, graph = self.values, self.model.graph
        layers = self.layers
        operands = layers.operands
        masked = {(node, 3) for node in operands}
        uses = [use for use in values.uses() if use[:2] not in masked]
        rows = dict.fromkeys(value for _, _, value in uses if values.depends_on_past(value))
        mask_forms, masks_complete = find_mask_forms(values, layers.columns, self.max_length)
        row_forms, rows_complete = find_row_forms(values, list(rows), self.max_length)
        reader = SiteReader(self.facts, self.decoder, operands, mask_forms, row_forms)
        sites = layers.sites(reader, self.check)
        rotaries = {node: reader.rotary(node) for node in graph if node.op_type == "RotaryEmbedding"}
        queries = {node: self.facts.shape(node.inputs[0]) for node in graph if values.is_size_query(node)}
        numbers = layers.numbers()
        self.lengths = LengthNodes(graph, self.decoder.tokens)
        self._replace_attention(sites)
        positions = PositionReplacer(
            self.facts, self.decoder, values, row_forms, self.lengths, self.max_length,
            take_over=self._take_over, demand_apart=self._demand_apart,
        )  # fmt: skip
        live = set(upstream(graph.outputs))
        for node, tables in rotaries.items():
            if tables is not None and node in live:
                positions.rotary(node, *tables[:2])
                live.remove(node)
        for node, number, value in uses:
            if node in live:
                positions.use(node, number, value)
        positions.sources(queries, self._buffers(sites))
        self._demand_sizes(sites)
        self.lengths.finish()
        graph.opset_imports.setdefault(MICROSOFT, 1)
        has_one = self._has_one_row()
        self._demand_lengths(has_one)
        if last_logits and not has_one:
            scores = self.renamed.get(self.decoder.logits, self.decoder.logits)
            self.renamed[self.decoder.logits] = keep_last_logits(self.model, self.facts, scores, self.lengths)
        heads = {one.cache.past: (site.groups, site.size) for site in sites for one in (site.keys, site.values)}
        interface = set_signature(
            self.model,
            self.facts,
            self.decoder,
            [BufferPlan(cache, *numbers[cache.past], heads.get(cache.past)) for cache in self.decoder.caches],
            attention_mask=self.lengths.mask,
            renamed=self.renamed,
            max_length=self.max_length,
            last_logits=last_logits or has_one,
            most_tokens=self.check.most_tokens,
            mixed_lengths=not self.one_length,
        )
        write_interface(self.model, interface)
        return Made(interface, layers.kept, masks_complete and rows_complete, self.one_length)

    def _demand_lengths(self, has_one: bool) -> None:
        """Note why the sequences of a batch need one length, if they do; `has_one` if scores are those of one token."""
        self._demand_apart("; ".join(f"{name}: {why}" for name, why in self.layers.kept.items()))
        if (self.facts.shape(self.decoder.tokens) or (None,))[0] == 1:
            self._demand_apart("the decoder was exported for a batch of 1")
        if self.decoder.states:
            self._demand_apart("its states have no place of each token")
        if self.values.takes_one_token:
            self._demand_apart("a run takes one token")
        elif has_one:
            self._demand_apart("its scores are those after the last token of a run")
        if not self.one_length:
            self.model.graph.inputs.append(self.lengths.mask)
            found = why_tokens_meet(self.model, Facts(self.model), self.decoder.tokens, self.lengths.positions)
            self._demand_apart(found)

    def _demand_apart(self, why: str) -> None:
        """Note why the sequences of a batch need one length, if something is given and nothing was noted before."""
        self.one_length = self.one_length or why

    def _has_one_row(self) -> bool:
        """Whether the scores are those after the last new token alone, which padding may be."""
        rows, length = (
            (self.facts.shape(one) or (None, None))[1] for one in (self.decoder.logits, self.decoder.tokens)
        )
        return rows == 1 and length != 1

    def _replace_attention(self, sites: Sequence[AttentionSite]) -> None:
        replacer = AttentionReplacer(self.facts, self.lengths)
        for site in sites:
            for old, new in replacer.replace(site):
                self._take_over(old, new)
            self.model.graph.remove(site.node)

    def _take_over(self, old: ir.Value, new: ir.Value) -> None:
        for use in tuple(old.uses()):
            use.node.replace_input_with(use.idx, new)
        outputs = self.model.graph.outputs
        for number, output in enumerate(list(outputs)):
            if output is old:
                outputs[number] = self.renamed[old] = new

    def _demand_sizes(self, sites: Sequence[AttentionSite]) -> None:
        """Refuse a model in which the length of a cache is still asked for: that of a buffer is another number.

        Raises:
            GenerationError: It is.
        """
        buffers = self._buffers(sites)
        for node in upstream(self.model.graph.outputs):
            if node.op_type != "GroupQueryAttention":
                for value in node.inputs:
                    if value is not None and value in buffers:
                        raise GenerationError(f"the length of {value.name} is used, in a form that is not known")

    def _buffers(self, sites: Sequence[AttentionSite]) -> set[ir.Value | None]:
        caches = [one.cache for site in sites for one in (site.keys, site.values)]
        return {
            value for cache in caches for value in (cache.past, self.renamed.get(cache.present)) if value is not None
        }
