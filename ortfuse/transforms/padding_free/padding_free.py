"""Compute row-wise nodes for the visible tokens of a padded batch alone (padding-free, or packed, batches).

*Transforms:* encoders with a mask of shape [batch, sequence] or [batch, 1, 1, sequence]. Embeddings, projections, normalisations,
feed-forward layers and heads of tokens run on [1, tokens, hidden]. Attention runs on padded batches of rows gathered from these,
or on packed tokens, if the target has a kernel for that.

*Requires:* a proof that no hidden token reaches a visible one (`dependence`). Otherwise nothing is changed, and the report says
where it fails. Outputs hold anything for hidden tokens: a contract that the user agrees to by asking for the pass.

*Does not handle:* masks of other shapes, such as one for each query; batches with the sequence first; bodies of loops and
branches; decoders with caches.

Rationale: the time of an encoder is that of its matrix products, which is proportional to the number of tokens. Packed batches
are described as "effective transformer" (https://github.com/bytedance/effective_transformer) and in arXiv:2210.03052.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.ir.graph_transaction import Change
from ortfuse.ir.hidden_tokens import HIDDEN_SCORE, note_hidden_tokens
from ortfuse.ir.named_sizes import unused_stem
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.traits import MICROSOFT
from ortfuse.ir.walk import Scope, nested_nodes
from ortfuse.transforms.choose_legal_form import LEAVE, names_one
from ortfuse.transforms.context import Context
from ortfuse.transforms.node_builder import Builder
from ortfuse.transforms.padding_free.pack_rows import PackRows
from ortfuse.transforms.padding_free.padded_regions import PACKED, PaddedRegion
from ortfuse.transforms.padding_free.plan import Plan, find_plan, masks_of_queries, sizes_apart

OLDEST_OPSET = 14
"""The oldest opset in whose form the indices are built."""


@dataclass(frozen=True)
class PaddingFree:
    """Compute row-wise nodes for packed tokens alone."""

    name: ClassVar[str] = "padding_free"
    makes: ClassVar[tuple[str, ...]] = (f"{MICROSOFT}.{PACKED}",)
    """The operators that `--force padding_free=...` names."""

    def run(self, context: Context) -> int:
        """Pack the tokens of the main graph; returns how many nodes run on packed tokens."""
        graph = context.model.graph
        if context.editor.scope_of(graph).opset < OLDEST_OPSET:
            found = graph.opset_imports.get("", 1)
            context.note(f"padding is not removed: {refuse('opset', None, found=found, needed=OLDEST_OPSET).reason}")
            return 0
        context.editor.sort(graph)
        plan = find_plan(graph, context.facts)
        if isinstance(plan, Refusal):
            hints = sizes_apart(graph, context.facts) or masks_of_queries(graph, context.facts)
            context.note(f"padding is not removed: {plan.reason}{hints}")
            return 0
        return _packed(plan, context)


def _packed(plan: Plan, context: Context) -> int:
    graph, editor = context.model.graph, context.editor
    place = next(iter(plan.rows))
    scope, hidden = editor.scope_of(graph), plan.hidden_tokens(graph)
    with editor.change(PaddingFree.name) as change:
        build, stem = Builder(scope, editor, place), unused_stem(context.model, "packed")
        attention = _PackedAttention(context)
        packing = PackRows(plan, context.facts, editor, build, stem, attention.takes)
        packing.run(graph)
        editor.sort(graph)
        refused = _refused(change, packing.copies, context, scope)
        if refused is not None:
            change.cancel(refused)
    if not change:
        context.note(f"padding is not removed: {change.refusal}")
        return 0
    note_hidden_tokens(context.model, hidden)
    sense = f"is above {HIDDEN_SCORE:g}" if plan.mask.is_added else "is 0" if plan.mask.shows_zeros else "is not 0"
    context.note(f"{len(plan.rows)} nodes run on the tokens alone at which {plan.mask.value.name} {sense}")
    attention.tell()
    return len(plan.rows)


class _PackedAttention:
    """Decide which attention is computed on packed tokens.

    The target needs a kernel of `PACKED`. If that was never run on a device, a forced choice has to ask for it.
    """

    def __init__(self, context: Context) -> None:
        wanted = context.choices.forced.get(PaddingFree.name)
        self._context, self._wanted = context, wanted
        untried = (MICROSOFT, PACKED) in context.target.spec.untried
        self._is_made = names_one(wanted, PaddingFree.makes) if wanted is not None else not untried
        self._sites: dict[str, str] = {}
        self._held_back = 0

    def takes(self, region: PaddedRegion) -> bool:
        """Whether a region is computed on packed tokens."""
        obstacle = self._lacking_kernel(region) or region.why_padded
        if obstacle or self._is_made:
            self._sites[region.results[0].name or "?"] = obstacle
        else:
            self._held_back += 1
        return self._is_made and not obstacle

    def _lacking_kernel(self, region: PaddedRegion) -> str:
        """Words on the lack of a kernel for the type of a region's tokens; empty if there is one."""
        target, dtype = self._context.target, self._context.facts.dtype(region.inputs[0])
        given = [*[dtype] * 3, "", ir.DataType.INT32, ir.DataType.INT32]
        if target.supports(MICROSOFT, PACKED, 1, given):
            return ""
        return f"{target.spec.name} has no kernel of it for {dtype.name.lower() if dtype else 'an unknown type'}"

    def tell(self) -> None:
        """Tell at which sites attention is computed on packed tokens, or could have been, or was asked for and is not."""
        if self._wanted not in (None, LEAVE):
            for site, obstacle in self._sites.items():
                self._context.log.choose(PaddingFree.name, site, obstacle)
        if self._held_back and self._wanted is None:
            self._context.note(
                f"attention is padded at {self._held_back} sites: {PaddingFree.makes[0]} was never run on "
                f"{self._context.target.spec.name}; --force {PaddingFree.name}={PaddingFree.makes[0]} takes it"
            )


def _refused(change: Change, copies: Collection[ir.Node], context: Context, scope: Scope) -> Refusal | None:
    """Why the target does not execute a new node; `None` if it executes all. It executes copies as it did the originals."""
    nodes = [inner for node in change.added for inner in (node, *nested_nodes(node)) if inner not in copies]
    imports = scope.root.opset_imports
    refusals = (context.target.check_node(node, imports, context.facts) for node in nodes)
    return next((refusal for refusal in refusals if refusal is not None), None)
