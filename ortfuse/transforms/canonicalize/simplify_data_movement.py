"""Replace a chain of data movement by the shortest one that does the same.

    reshape(slice(reshape(x)))  =  gather(reshape(x))        squeeze(slice(x))  =  gather(x)        reshape(reshape(x))  =  x

A chain of Reshape, Flatten, Squeeze, Unsqueeze, Transpose, Slice, Gather, Expand and Tile is a view of its input. The
shortest chain for that view replaces it if it has fewer nodes and does not copy more often. This comes last: fusions
are found by the spellings of exporters.

Does not handle: nodes whose result is used elsewhere, Gathers of elements that are not evenly spaced, bounds and shapes that are
unknown, opsets before 13. Not made, if there was none before: Transposes of more than four axes, which are several
times as slow, and Tiles, which are slower than Expand. A Transpose that a MatMul absorbs is replaced by a Transpose only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.walk import Scope
from ortfuse.transforms.canonicalize.strided_views import INDEX_MAPS, Shape, View, moved
from ortfuse.transforms.canonicalize.view_to_movement_chain import Step, build_chain, chains
from ortfuse.transforms.context import Context, version_in
from ortfuse.transforms.node_builder import Builder

OLDEST = 13
"""The opset from which on sizes and axes are inputs."""

LONGEST = 8
"""The most nodes of a chain that are looked at."""

_FREE = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_PRODUCTS = frozenset({"MatMul", "Gemm", "FusedMatMul"})


@dataclass(frozen=True)
class SimplifyDataMovement:
    """Replace chains of Reshape, Transpose, Slice, Gather, Concat and the like by shorter ones."""

    name: ClassVar[str] = "simplify_data_movement"

    def run(self, context: Context) -> int:
        """Replace chains; returns how many."""
        return sum(
            _shorten(node, scope, context)
            for scope in context.scopes()
            for node in reversed(list(scope.graph))
            if node.graph is scope.graph and _moves(node) and version_in(scope, node) >= OLDEST
        )


def _moves(node: ir.Node | None) -> bool:
    return node is not None and INDEX_MAPS.of(node) is not None


@dataclass(frozen=True)
class _Shorter:
    """A chain of nodes, the last first, those of them that nothing else needs, and what does the same as all of them."""

    chain: Sequence[ir.Node]
    removed: Sequence[ir.Node]
    steps: Sequence[Step]

    @property
    def source(self) -> ir.Value:
        """The input of the chain."""
        value = self.chain[-1].inputs[0]
        assert value is not None
        return value

    @property
    def worth(self) -> tuple[int, int]:
        """How many nodes fewer it is, and how many of the new ones copy data, as a negative number."""
        return len(self.removed) - len(self.steps), -_copies(op_type for op_type, _ in self.steps)

    def is_better(self, fast_axes: int | None) -> bool:
        """Whether it is fewer nodes, of which no more copy, and none is of the slow kinds unless one was there.

        A Transpose of more than `fast_axes` axes is one, if that is known of the target.
        """
        before = [len(node.outputs[0].shape or ()) for node in self.removed if node.op_type == "Transpose"]
        wide = fast_axes is not None and any(
            len(how) > max([fast_axes, *before]) for op_type, how in self.steps if op_type == "Transpose"
        )
        (saved, copies), copied = self.worth, _copies(node.op_type for node in self.removed)
        tiled = any(op_type == "Tile" for op_type, _ in self.steps)
        return (
            saved > 0
            and -copies <= copied
            and not wide
            and (not tiled or any(one.op_type == "Tile" for one in self.removed))
        )

    def is_read_as_before(self, facts: Facts) -> bool:
        """Whether a product of matrices that reads the result gets a Transpose if it had one, which it reads as it is.

        A product of float16 gets none that it had not: some of them crash the runtime (see `ort.block_matmul_transpose_fusion`).
        """
        last, turned = self.chain[0], bool(self.steps) and self.steps[-1][0] == "Transpose"
        if not any(user.op_type in _PRODUCTS for user in last.outputs[0].consumers()):
            return True
        if last.op_type == "Transpose":
            return turned
        return not turned or facts.dtype(last.outputs[0]) != ir.DataType.FLOAT16


def _shorten(last: ir.Node, scope: Scope, context: Context) -> bool:
    """Replace the chain that ends with a node by the shortest that does the same."""
    whole = _chain_of(last)
    found = [
        one
        for length in range(1, len(whole) + 1)
        for one in _alternatives(whole[:length], context.facts)
        if one.is_better(context.target.spec.fast_transpose_axes)
        and one.is_read_as_before(context.facts)
        and _has_kernels(one, scope, context)
    ]
    # Of two as short, that which begins earlier: other chains may leave what is between, too.
    return bool(found) and _replace(max(found, key=lambda one: (one.worth, len(one.chain))), scope, context)


def _chain_of(last: ir.Node) -> list[ir.Node]:
    """The node and those before it that move data, as far as they follow each other."""
    found, value = [last], last.inputs[0]
    while value is not None and len(found) < LONGEST:
        above = value.producer()
        if above is None or not _moves(above) or above.graph is not last.graph or above.inputs[0] is None:
            break
        found.append(above)
        value = above.inputs[0]
    return found


def _alone(chain: Sequence[ir.Node]) -> list[ir.Node]:
    """The nodes, from the last on, that nothing else needs."""
    found = [chain[0]]
    for node in chain[1:]:
        if len(list(node.outputs[0].uses())) > 1 or node.outputs[0].is_graph_output():
            break
        found.append(node)
    return found


def _alternatives(chain: Sequence[ir.Node], facts: Facts) -> Iterator[_Shorter]:
    """Yield replacements of a chain."""
    shape: Shape | None = facts.shape(chain[-1].inputs[0])
    view = None if shape is None or 0 in shape else View.whole(shape)
    for node in reversed(chain):
        view = None if view is None else moved(view, node, facts)
    if view is not None and shape is not None:
        removed = _alone(chain)
        for steps in chains(view, shape):
            yield _Shorter(chain, removed, steps)


def _copies(op_types: Iterable[str]) -> int:
    """How many of the operators copy data."""
    return sum(op_type not in _FREE for op_type in op_types)


def _has_kernels(one: _Shorter, scope: Scope, context: Context) -> bool:
    dtype = context.facts.dtype(one.source)
    if dtype == ir.DataType.STRING and any(op_type == "Gather" for op_type, _ in one.steps):
        return False  # the kernel leaves strings out
    return all(context.target.supports("", op_type, scope.opset, [dtype]) for op_type, _ in one.steps)


def _replace(one: _Shorter, scope: Scope, context: Context) -> bool:
    last = one.chain[0]
    with context.editor.change(SimplifyDataMovement.name, nodes=one.chain) as change:
        made = build_chain(one.steps, one.source, Builder(scope, context.editor, last))
        context.editor.replace(last.outputs[0], made)
        context.editor.remove(*one.removed)
    return bool(change)
