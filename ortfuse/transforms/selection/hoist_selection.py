"""Hoist selections of rows above the nodes that compute these rows, so that no others are computed.

    gather(layer_norm(x + f(x)), 0)    =   layer_norm(x0 + f(x0))             x0 = gather(x, 0)
    gather(attention(q, k, v), 0)      =   attention(gather(q, 0), k, v)
    slice(gelu(x w), -1:)              =   gelu(slice(x, -1:) w)
    gather_nd(f(x), (b, argmax ids))   =   f(gather_nd(x, (b, argmax ids)))   a row of each sequence of a batch

The last layer of a classifier that reads the first token, or of a decoder that reads the last one, then computes queries,
attention, feed-forward network and normalisation for that token alone; keys and values are those of all tokens.

*Transforms:* the largest set of nodes above a Gather, Slice or GatherND that compute nothing else than rows of which some are
selected (`ortfuse.analysis.parallel_axes` tells which rows a node needs). `is_causal` becomes a mask of the keys that the rows
see, and none for the last row.

*Requires:* all uses of the value are selections of few rows along one axis. A product, a normalisation or attention is among the
nodes.

*Does not handle:* values that are outputs of the graph or read in bodies; rows whose number is not known; rows of each sequence
if the batch comes after the rows.

Rationale: the pass comes after fusions, which leave few operators, and before operators are lowered for a target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.walk import Scope
from ortfuse.transforms.context import Context, final_opset
from ortfuse.transforms.node_builder import Rounds
from ortfuse.transforms.selection.find_selections import Selection, selection_of
from ortfuse.transforms.selection.region import Region
from ortfuse.transforms.selection.rows import BATCHES_SINCE, RANGES_SINCE
from ortfuse.transforms.selection.write_rows import RowWriter


@dataclass(frozen=True)
class HoistSelection:
    """Compute only the rows that are selected."""

    name: ClassVar[str] = "hoist_selection"

    def run(self, context: Context) -> int:
        """Hoist selections; returns how many."""
        return sum(
            self._hoist(node, output, scope, context)
            for scope in context.scopes()
            if scope.opset >= RANGES_SINCE
            for node in reversed(list(scope.graph))
            if node.graph is scope.graph
            for output in node.outputs
        )

    def _hoist(self, node: ir.Node, output: ir.Value, scope: Scope, context: Context) -> int:
        facts, editor = context.facts, context.editor
        selection = selection_of(output, facts)
        if selection is None or (selection.rows.is_by_batch and scope.opset < BATCHES_SINCE):
            return 0
        region = Region.above(selection, facts)
        if not region.saves_work:
            return 0
        uses = [one for use in selection.uses for one in use.nodes]
        olds = [*reversed(region.nodes), *uses]
        with editor.change(self.name, rule=Rounds(self.name), nodes=olds) as change:
            writer = RowWriter(region, scope, editor, facts, _place(selection))
            taken = writer.write()
            results = [] if taken is None else writer.finish(taken)
            wanted = [facts.shape(use.output) for use in selection.uses]
            objection = _lacking(change.added, scope, context)
            if [facts.shape(result) for result in results] != wanted:
                change.cancel(refuse("shape", output, found=[facts.shape(result) for result in results], needed=wanted))
            elif objection is not None:
                change.cancel(objection)
            else:
                for use, result in zip(selection.uses, results, strict=True):
                    editor.replace(use.output, result)
                for before, after in writer.results.items():
                    if before.is_graph_output():
                        editor.replace(before, after)
                editor.remove(*reversed(olds))
        return int(bool(change))


def _place(selection: Selection) -> ir.Node:
    """The first node at which all that the selection needs is there."""
    ends = [use.nodes[-1] for use in selection.uses]
    if len(ends) == 1 or ends[0].graph is None:
        return ends[0]
    return next(node for node in ends[0].graph if node in ends)


def _lacking(added: dict[ir.Node, None], scope: Scope, context: Context) -> Refusal | None:
    """Why the target does not execute one of the new nodes; `None` if it executes all of them."""
    imports = {**scope.root.opset_imports, "": final_opset(scope, context.target)}
    for node in added:
        found = context.target.check_node(node, imports, context.facts)
        if found is not None:
            return found
    return None
