"""Rewrite row-wise nodes to packed tokens: a Gather of their rows before them, and one with inverse indices behind them.

pack(x)   = gather(reshape(x, [-1, hidden]), rows)
unpack(y) = gather(y, row_of)
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.editor import Editor
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE, has
from ortfuse.transforms.node_builder import Builder
from ortfuse.transforms.padding_free.padded_regions import MASKS, PaddedRegion, cut_axes, padded_regions
from ortfuse.transforms.padding_free.plan import Plan
from ortfuse.transforms.padding_free.row_operators import RowNode
from ortfuse.transforms.padding_free.token_indices import TokenIndices


class PackRows:
    """Rewrite the row-wise nodes of a plan, as part of the open change."""

    def __init__(self, plan: Plan, facts: Facts, editor: Editor, build: Builder) -> None:
        self._plan, self._facts, self._editor, self._build = plan, facts, editor, build
        self.indices = TokenIndices(plan, build)
        self._packed: dict[ir.Value, ir.Value] = {}
        self._regions: dict[ir.Value, PaddedRegion] = {}
        self.copies: set[ir.Node] = set()
        """The nodes in branches that are copies of nodes of the model, on other numbers of tokens."""

    def run(self, graph: ir.Graph) -> None:
        """Rewrite all of them."""
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
            made = self._build.node("Reshape", [operands[0], self._build.ints([0, *row.target])])
        else:
            made = self._copy(row, operands)
        for before, after in zip(node.outputs, made, strict=True):
            self._packed[before] = after

    def _copy(self, row: RowNode, operands: list[ir.Value | None]) -> tuple[ir.Value, ...]:
        node = row.node
        changed = ir.convenience.convert_attributes(dict(row.attributes))
        kept = [attribute for attribute in node.attributes.values() if attribute.name not in row.attributes]
        outputs = [ir.Value(name="" if output.name == "" else None) for output in node.outputs]
        made = ir.Node(node.domain, node.op_type, operands, [*kept, *changed], outputs=outputs, version=node.version)
        self._build.insert(made)
        return tuple(made.outputs)

    def _operand(self, row: RowNode, number: int) -> ir.Value | None:
        value = row.node.inputs[number]
        role = row.roles[number] if number < len(row.roles) else "whole"
        if number in row.parameters:
            return self._build.ints(row.parameters[number])
        if value is None or (row.target is not None and number):
            return None
        if role == "rows":
            return self._pack(value)
        if role == "positions":
            return self._build.node("Gather", [self._dropped(value, row), self.indices.positions])[0]
        if role == "sequences":
            return self._build.node("Gather", [self._build.squeeze(value, 1), self.indices.sequences])[0]
        return self._dropped(value, row) if has(row.node, ELEMENTWISE | BROADCASTS) else value

    def _dropped(self, value: ir.Value, row: RowNode) -> ir.Value:
        """An operand without its first axis, of size 1, if it has both axes of tokens."""
        batch = self._plan.mask.batch
        rank, result = self._facts.rank(value), self._facts.shape(row.node.outputs[0])
        assert rank is not None and result is not None
        has_both = batch.lead(result) == 2 and rank == len(result)
        return self._build.squeeze(value, 0) if has_both else value

    def _pack(self, value: ir.Value) -> ir.Value:
        """The rows of packed tokens."""
        if value in self._packed:
            return self._packed[value]
        if value in self._regions:
            self._rewrite_region(self._regions[value])
            return self._packed[value]
        shape = self._facts.shape(value)
        assert shape is not None
        flat = value
        if self._plan.mask.batch.lead(shape) == 2:
            flat = self._flattened(value, shape)
        self._packed[value] = found = self._build.node("Gather", [flat, self.indices.rows])[0]
        return found

    def _flattened(self, value: ir.Value, shape: tuple[object, ...]) -> ir.Value:
        """The value with one axis for all tokens."""
        behind = [dim for dim in shape[2:] if isinstance(dim, int)]
        if len(behind) == len(shape) - 2:
            return self._build.reshape(value, [-1, *behind])
        sizes = self._build.node("Shape", [value], {"start": 2})[0]
        return self._build.node("Reshape", [value, self._build.concat([self._build.ints([-1]), sizes], 0)])[0]

    def _unpack(self, value: ir.Value) -> ir.Value:
        """A row for each token, from its packed rows."""
        flat = self._plan.mask.batch.lead(self._facts.shape(value)) == 1
        index = self.indices.row_of_flat if flat else self.indices.row_of
        return self._build.node("Gather", [self._packed[value], index])[0]

    def _rewrite_region(self, region: PaddedRegion) -> None:
        """Compute a region of padded nodes in the branches of an If."""
        branches = {
            "then_branch": self._branch(region, are_all=True),
            "else_branch": self._branch(region, are_all=False),
        }
        made = self._build.node("If", [self.indices.are_all], branches, len(region.results))
        self._packed.update(zip(region.results, made, strict=True))

    def _branch(self, region: PaddedRegion, *, are_all: bool) -> ir.Graph:
        """The region on all tokens, or between a Gather for each input and each result."""
        indices, build = self.indices, self._build
        is_cut = region.is_cut and not are_all
        body = Body()
        for value in region.inputs:
            packed, is_flat = self._packed[value], self._lead(value) == 1
            if not are_all:
                index = indices.cut_row_of if is_cut else indices.row_of_flat if is_flat else indices.row_of
                body.values[value] = body.add("Gather", [packed, index])
            elif is_flat:
                body.values[value] = packed
            else:
                sizes = build.concat([indices.shape, self._sizes_behind(value)], 0)
                body.values[value] = body.add("Reshape", [packed, sizes], {"allowzero": 1})
        for node in region.nodes:
            self.copies.add(body.copy(node, self._cut_masks(node) if is_cut else {}))
        for value in region.results:
            found = body.values[value]
            if self._lead(value) == 2:
                sizes = build.concat([build.ints([-1]), self._sizes_behind(value)], 0)
                found = body.add("Reshape", [found, sizes])
            if not are_all:
                found = body.add("Gather", [found, indices.cut_rows if is_cut else indices.rows])
            body.results.append(found)
        return body.graph("all_tokens" if are_all else "packed_tokens")

    def _lead(self, value: ir.Value) -> int:
        return self._plan.mask.batch.lead(self._facts.shape(value))

    def _sizes_behind(self, value: ir.Value) -> ir.Value:
        """The sizes behind the axes of tokens."""
        shape = self._facts.shape(value)
        assert shape is not None
        return self._build.ints([dim for dim in shape[2:] if isinstance(dim, int)])

    def _cut_masks(self, node: ir.Node) -> dict[int, ir.Value]:
        """The masks of attention, cut to the longest sequence of packed tokens."""
        found = {}
        for number, candidates in MASKS[node.domain, node.op_type].items():
            value = node.inputs[number] if number < len(node.inputs) else None
            axes = (
                None if value is None else cut_axes(self._facts.shape(value), candidates, self._plan.mask.batch.length)
            )
            if value is not None and axes is not None:
                found[number] = self.indices.cut(value, axes)
        return found


class Body:
    """Build a branch of an If, whose nodes may read values around it."""

    def __init__(self) -> None:
        self._nodes: list[ir.Node] = []
        self.values: dict[ir.Value, ir.Value] = {}
        self.results: list[ir.Value] = []

    def add(self, op_type: str, inputs: list[ir.Value], attributes: Mapping[str, int] | None = None) -> ir.Value:
        """The output of a new node."""
        made = ir.node(op_type, inputs, attributes)
        self._nodes.append(made)
        return made.outputs[0]

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
