"""Rewrite row-wise nodes to packed tokens: a Gather of their rows before them, and one with inverse indices behind them.

pack(x)   = gather(reshape(x, [-1, hidden]), rows)            [batch, sequence, hidden] becomes [1, tokens, hidden]
unpack(y) = gather(reshape(y, [-1, hidden]), row_of)

Attention that needs no mask if all packed tokens are visible is computed on these alone, where the target has a kernel for that.

Rationale: ranks stay what they are, for kernels depend on them. ONNX Runtime makes a Gemm of MatMul and Add of rank 2, which is
slower than both with a bias that the next kernel adds, and fuses others of rank 3 alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.ir.editor import Editor
from ortfuse.ir.named_sizes import name_sizes
from ortfuse.ir.traits import ELEMENTWISE, MICROSOFT, has
from ortfuse.transforms.node_builder import Builder
from ortfuse.transforms.padding_free.padded_regions import MASKS, PACKED, PaddedRegion, cut_axes, padded_regions
from ortfuse.transforms.padding_free.plan import Plan
from ortfuse.transforms.padding_free.row_operators import RowNode
from ortfuse.transforms.padding_free.token_indices import TokenIndices

Attends = Callable[[PaddedRegion], bool]
"""Whether a region is attention that is computed on packed tokens."""


class PackRows:
    """Rewrite the row-wise nodes of a plan, as part of the open change."""

    def __init__(
        self,
        plan: Plan,
        facts: Facts,
        editor: Editor,
        build: Builder,
        stem: str,
        attends: Attends = lambda region: False,
    ) -> None:
        """Prepare the rewrite.

        Args:
            plan: The nodes to rewrite.
            facts: What is known about the values.
            editor: Makes the changes.
            build: Makes nodes before all that are rewritten.
            stem: The start of the names of packed sizes, with which no other name of the model starts.
            attends: Whether a region is attention that is computed on packed tokens, by `PACKED`.
        """
        self._attends = attends
        self._plan, self._facts, self._editor, self._build = plan, facts, editor, build
        self.indices = TokenIndices(plan, build)
        self._packed: dict[ir.Value, ir.Value] = {}
        self._stem, self._named = stem, 0
        self._regions: dict[ir.Value, PaddedRegion] = {}
        self.copies: set[ir.Node] = set()
        """The nodes in branches that are copies of nodes of the model, on other numbers of tokens."""

    def run(self, graph: ir.Graph) -> None:
        """Rewrite all of them, which are in a graph."""
        rows = self._plan.rows
        regions = list(padded_regions(graph, self._plan, self._facts))
        self._regions = {value: region for region in regions for value in region.results}
        for row in rows.values():
            self._rewrite(row)
        gone = {*rows, *(node for region in regions for node in region.nodes)}
        for node in rows:
            for output in node.outputs:
                if output.is_graph_output() or any(use.node not in gone for use in output.uses()):
                    self._editor.replace(output, self._unpack(output))
        self._editor.remove(*reversed([node for node in graph if node in gone]))

    def _rewrite(self, row: RowNode) -> None:
        node = row.node
        operands = [self._operand(row, number) for number in range(len(node.inputs))]
        if row.target is not None:
            made: Sequence[ir.Value] = [self._reshaped(row, _present(operands[0]))]
        else:
            made = self._copy(node, operands)
        for before, after in zip(node.outputs, made, strict=True):
            self._packed[before] = after

    def _reshaped(self, row: RowNode, value: ir.Value) -> ir.Value:
        """A packed value with other axes behind those of the tokens."""
        before, after = self._lead(_present(row.node.inputs[0])), self._lead(row.node.outputs[0])
        behind = row.target or ()
        if before == after:
            return self._build.reshape(value, [*[0] * after, *behind])
        if after == 1:
            return self._build.reshape(value, [-1, *behind])
        sizes = self._build.concat([self.indices.sizes, self._build.ints(behind)], 0)
        return self._build.node("Reshape", [value, sizes], {"allowzero": 1})[0]

    def _copy(self, node: ir.Node, operands: list[ir.Value | None]) -> Sequence[ir.Value]:
        outputs = [ir.Value(name="" if output.name == "" else None) for output in node.outputs]
        attributes = list(node.attributes.values())
        made = ir.Node(node.domain, node.op_type, operands, attributes, outputs=outputs, version=node.version)
        self._build.insert(made)
        value = node.inputs[0] if len(node.inputs) == 1 and has(node, ELEMENTWISE) else None
        if value is not None and len(value.uses()) == 1 and not value.is_graph_output():
            self._name_sizes(_present(operands[0]), made.outputs[0], self._lead(value))
        return made.outputs

    def _name_sizes(self, before: ir.Value, after: ir.Value, lead: int) -> None:
        """Name the sizes of an operand and a result, so that the runtime computes one in the buffer of the other.

        Rationale: otherwise Relu takes 1.6 times as long in T5. If all packed values had these names, the runtime would make
        SkipLayerNormalization of Add and LayerNormalization, which takes 4 times as long as these in MiniLM.
        """
        self._named += 1
        names = [f"{self._stem}_{self._named}_{axis}" for axis in range(lead)]
        for value in (before, after):
            name_sizes(value, names)

    def _operand(self, row: RowNode, number: int) -> ir.Value | None:
        value = row.node.inputs[number]
        role = row.roles[number] if number < len(row.roles) else "whole"
        if value is None or (row.target is not None and number):
            return None
        if role == "rows":
            return self._pack(value)
        if role == "positions":
            return self._build.node("Gather", [self._without_sequences(value, row), self.indices.positions])[0]
        if role == "sequences":
            return self._build.node("Gather", [self._build.squeeze(value, 1), self.indices.sequences])[0]
        return value

    def _without_sequences(self, value: ir.Value, row: RowNode) -> ir.Value:
        """An operand of positions without the axis of sequences, of size 1, if it has one."""
        has_sequences = self._facts.rank(value) == self._facts.rank(row.node.outputs[0])
        return self._build.squeeze(value, 0) if has_sequences else value

    def _pack(self, value: ir.Value) -> ir.Value:
        """The rows of packed tokens."""
        if value in self._packed:
            return self._packed[value]
        if value in self._regions:
            self._rewrite_region(self._regions[value])
            return self._packed[value]
        if self._lead(value) == 2:
            found = self._build.node("Gather", [self._flattened(value, value), self.indices.rows])[0]
        else:
            found = self._build.node("Gather", [value, self.indices.flat_rows])[0]
        self._packed[value] = found
        return found

    def _flattened(self, value: ir.Value, like: ir.Value) -> ir.Value:
        """A value with one axis for the tokens, which has the shape of another one behind them."""
        shape = self._facts.shape(like)
        assert shape is not None
        behind = [dim for dim in shape[2:] if isinstance(dim, int)]
        if len(behind) == len(shape) - 2:
            return self._build.reshape(value, [-1, *behind])
        sizes = self._build.node("Shape", [value], {"start": 2})[0]
        return self._build.node("Reshape", [value, self._build.concat([self._build.ints([-1]), sizes], 0)])[0]

    def _unpack(self, value: ir.Value) -> ir.Value:
        """A row for each token, from its packed rows."""
        packed = self._packed[value]
        if self._lead(value) == 1:
            return self._build.node("Gather", [packed, self.indices.row_of_flat])[0]
        return self._build.node("Gather", [self._flattened(packed, value), self.indices.row_of])[0]

    def _rewrite_region(self, region: PaddedRegion) -> None:
        """Compute a region of padded nodes in the branches of an If."""
        branches = {
            "then_branch": self._branch(region, are_all=True),
            "else_branch": self._branch(region, are_all=False),
        }
        if self._attends(region):
            padded = Body()
            padded.results += padded.add_all("If", [self.indices.are_all], branches, len(region.results))
            packed = self._attention(region.nodes[0])
            branches = {"then_branch": packed, "else_branch": padded.graph("padded_tokens")}
            made = self._build.node("If", [self.indices.are_visible], branches, len(region.results))
        else:
            made = self._build.node("If", [self.indices.are_all], branches, len(region.results))
        self._packed.update(zip(region.results, made, strict=True))

    def _attention(self, node: ir.Node) -> ir.Graph:
        """Attention of packed tokens, all of which are visible: no mask, and nothing is padded."""
        indices, build, body = self.indices, self._build, Body()
        shapes = [self._facts.shape(value) or () for value in node.inputs[:3]]
        operands: list[ir.Value | None] = [
            body.add("Reshape", [self._packed[_present(value)], build.ints([-1, _number(shape[2])])])
            for value, shape in zip(node.inputs[:3], shapes, strict=True)
        ]
        bias = node.inputs[3] if len(node.inputs) > 3 else None
        operands += [bias, indices.slots, indices.cumulative_lengths]
        kept = [one for one in node.attributes.values() if one.name in ("num_heads", "scale")]
        found = body.insert(ir.Node(MICROSOFT, PACKED, operands, kept))
        sizes = build.concat([indices.rows_sizes, build.ints([_number(shapes[2][2])])], 0)
        body.results.append(body.add("Reshape", [found, sizes], {"allowzero": 1}))
        return body.graph("visible_tokens")

    def _branch(self, region: PaddedRegion, *, are_all: bool) -> ir.Graph:
        """The region on values as they are, or between a Gather for each input and each result."""
        indices, build = self.indices, self._build
        is_cut = region.is_cut and not are_all
        body = Body()
        for value in region.inputs:
            packed = self._packed[value]
            if are_all:
                body.values[value] = packed
            elif self._lead(value) == 1:
                body.values[value] = body.add("Gather", [packed, indices.row_of_flat])
            else:
                found = body.add("Gather", [packed, indices.cut_row_of if is_cut else indices.row_of], {"axis": 1})
                body.values[value] = body.add("Squeeze", [found, build.ints([0])])
        for node in region.nodes:
            self.copies.add(body.copy(node, self._cut_masks(node, body) if is_cut else {}))
        for value in region.results:
            found = body.values[value]
            if are_all:
                body.results.append(found)
            elif self._lead(value) == 1:
                body.results.append(body.add("Gather", [found, indices.flat_rows]))
            else:
                sizes = build.concat([build.ints([-1]), self._sizes_behind(value)], 0)
                flat = body.add("Reshape", [found, sizes])
                body.results.append(body.add("Gather", [flat, indices.cut_rows if is_cut else indices.rows]))
        return body.graph("all_tokens" if are_all else "packed_tokens")

    def _lead(self, value: ir.Value) -> int:
        return self._plan.mask.batch.lead(self._facts.shape(value))

    def _sizes_behind(self, value: ir.Value) -> ir.Value:
        """The sizes behind the axes of tokens."""
        shape = self._facts.shape(value)
        assert shape is not None
        return self._build.ints([dim for dim in shape[2:] if isinstance(dim, int)])

    def _cut_masks(self, node: ir.Node, body: Body) -> dict[int, ir.Value]:
        """The masks of attention, cut to the longest sequence of packed tokens: in the branch, unless others read them, too."""
        found = {}
        for number, candidates in MASKS[node.domain, node.op_type].items():
            value = node.inputs[number] if number < len(node.inputs) else None
            axes = (
                None if value is None else cut_axes(self._facts.shape(value), candidates, self._plan.mask.batch.length)
            )
            if value is None or not axes:
                continue
            if len(value.uses()) == 1:
                found[number] = body.add("Slice", [value, *self.indices.cut_bounds(axes)])
            else:
                found[number] = self.indices.cut(value, axes)
        return found


def _number(dim: DimLike) -> int:
    assert isinstance(dim, int)
    return dim


def _present(value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value


class Body:
    """Build a branch of an If, whose nodes may read values around it."""

    def __init__(self) -> None:
        self._nodes: list[ir.Node] = []
        self.values: dict[ir.Value, ir.Value] = {}
        self.results: list[ir.Value] = []

    def add(self, op_type: str, inputs: list[ir.Value], attributes: Mapping[str, int] | None = None) -> ir.Value:
        """The output of a new node."""
        return self.add_all(op_type, inputs, attributes, 1)[0]

    def add_all(
        self, op_type: str, inputs: list[ir.Value], attributes: Mapping[str, int | ir.Graph] | None, outputs: int
    ) -> Sequence[ir.Value]:
        """The outputs of a new node."""
        made = ir.node(op_type, inputs, attributes, num_outputs=outputs)
        self._nodes.append(made)
        return made.outputs

    def insert(self, node: ir.Node) -> ir.Value:
        """The output of a node that is already made."""
        self._nodes.append(node)
        return node.outputs[0]

    def copy(self, node: ir.Node, instead: Mapping[int, ir.Value]) -> ir.Node:
        """Copy a node, with its operands in this branch, or with others instead; returns the copy."""
        operands = [
            instead.get(number, None if value is None else self.values.get(value, value))
            for number, value in enumerate(node.inputs)
        ]
        outputs = [ir.Value(name="" if output.name == "" else None) for output in node.outputs]
        attributes = list(node.attributes.values())
        made = ir.Node(node.domain, node.op_type, operands, attributes, outputs=outputs, version=node.version)
        self._nodes.append(made)
        self.values.update(zip(node.outputs, made.outputs, strict=True))
        return made

    def graph(self, name: str) -> ir.Graph:
        """The branch."""
        return ir.Graph([], self.results, nodes=self._nodes, name=name)
