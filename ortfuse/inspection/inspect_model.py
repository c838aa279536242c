"""Inspect a model: its opsets, signature, weights, operators and blocks, and what these cost on this machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.analysis.costs import Cost, cost_of
from ortfuse.analysis.facts import Facts
from ortfuse.inspection.block_assembly import find_blocks
from ortfuse.inspection.paths_between_values import Block
from ortfuse.io.training_mode import training_note
from ortfuse.ir import walk
from ortfuse.ir.dims import Dim, DimLike, evaluate, symbols
from ortfuse.ir.enumerate_tensors import tensors
from ortfuse.ir.schemas import needed_opset
from ortfuse.rewrite import NODES_KEY
from ortfuse.runtime.bench.machine_peaks import Peaks
from ortfuse.serialization import Record, derived
from ortfuse.targets import Target

REST = "everything else"
"""The region of the nodes that belong to no block."""


@dataclass(frozen=True)
class Import:
    """An operator set: the version that is imported and, for ai.onnx, the one that the operators need at least.

    Attributes:
        domain: The domain, `ai.onnx` written out.
        version: The version that the model imports.
        needed: The lowest version that has all operators as they are written; `None` for other domains.
        because: An operator that needs it.
    """

    domain: str
    version: int
    needed: int | None = None
    because: str = ""


@dataclass(frozen=True)
class Port:
    """An input or output: its name, element type and dimensions, of which numbers are static."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None

    @property
    def dynamic(self) -> tuple[str, ...]:
        """The dimensions that are open."""
        return tuple(dim for dim in self.shape or () if isinstance(dim, str))


@dataclass(frozen=True)
class Weights:
    """The constants of one element type."""

    dtype: str
    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class Detour:
    """Nodes of one operator that the runtime has no kernel for.

    Attributes:
        operator: The operator.
        nodes: The names of the nodes.
        reason: What the runtime lacks.
        fallback: What it does instead, empty if it cannot execute them at all.
    """

    operator: str
    nodes: tuple[str, ...]
    reason: str
    fallback: str


@dataclass(frozen=True)
class Region(Record):
    """A part of the model, and its cost at the sizes of the inspection.

    Attributes:
        name: The kind of block, an operator, or `everything else`.
        count: How many there are.
        nodes: The nodes in all of them.
        macs: Multiply-accumulates.
        flops: Operations.
        bytes: Bytes read and written.
        unknown: Nodes whose cost is not known, which are left out.
        bound: `compute` or `memory`, by what takes longer at the peaks of this machine; empty if these are not known.
        seconds: The least time at these peaks, node by node; `None` if they are not known.
    """

    name: str
    count: int
    nodes: int
    macs: int
    flops: int
    bytes: int
    unknown: int = 0
    bound: str = ""
    seconds: float | None = None

    @property
    @derived()
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class FoundBlock:
    """A block: its kind and number, the value that it computes, the original nodes that it consists of, and its cost."""

    name: str
    kind: str
    end: str
    nodes: tuple[str, ...]
    macs: int
    bytes: int


@dataclass(frozen=True)
class Inspection(Record):
    """The contents of a model. Blocks, regions and costs are those of its canonical form (see `ortfuse.inspection.PASSES`).

    Attributes:
        ir_version: The version of the file format.
        imports: The operator sets.
        inputs: The inputs.
        outputs: The outputs, with the shapes that follow from those of the inputs.
        weights: The constants by element type, the most bytes first.
        operators: The nodes by operator, the most frequent first.
        detours: The operators that the runtime has no kernel for.
        blocks: The blocks, in order; some are parts of others.
        regions: The cost of all blocks of a kind (parts of others left out), and of everything else.
        by_operator: The cost of the nodes of each operator, the most operations first.
        total: The cost of the model.
        macs: The multiply-accumulates of the model as a formula of its open dimensions.
        sizes: The sizes of open dimensions that costs are given at.
        peaks: The peaks of this machine; `None` if they were not measured.
        notes: What could not be told.
    """

    ir_version: int
    imports: tuple[Import, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    weights: tuple[Weights, ...]
    operators: Mapping[str, int]
    detours: tuple[Detour, ...]
    blocks: tuple[FoundBlock, ...] = field(repr=False)
    regions: tuple[Region, ...]
    by_operator: tuple[Region, ...] = field(repr=False)
    total: Region
    macs: str
    sizes: Mapping[str, int]
    peaks: Peaks | None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.kinds().items())
        nodes = sum(self.operators.values())
        return f"<{type(self).__name__}: {nodes} nodes, {self.parameters} parameters; blocks: {kinds or 'none'}>"

    @property
    @derived()
    def parameters(self) -> int:
        """The number of weights, floating-point and quantised: elements of constants that are not integers of 32 bits or more."""
        return sum(row.elements for row in self.weights if row.dtype not in _NO_WEIGHTS)

    @derived()
    def kinds(self) -> dict[str, int]:
        """The number of blocks of each kind."""
        return dict(Counter(block.kind for block in self.blocks))


_NO_WEIGHTS = frozenset({"int32", "int64", "uint32", "uint64", "bool", "string"})


def inspection(
    model: ir.Model,
    normal: ir.Model,
    target: Target,
    sizes: Mapping[str, int],
    peaks: Peaks | None,
    labels: Mapping[str, str] | None = None,
) -> Inspection:
    """Inspect a model.

    Args:
        model: The model as it is.
        normal: The model in its canonical form.
        target: The runtime whose kernels count.
        sizes: Sizes of the open dimensions, by symbol.
        peaks: The peaks of this machine, if they are known.
        labels: What to call symbols of dimensions that have no name.
    """
    labels = labels or {}
    facts, others = Facts(model), Facts(normal)
    blocks = find_blocks(normal, others)
    meter = _Meter(others, sizes, peaks)
    regions = list(_regions(normal, blocks, meter))
    nodes = list(walk.nodes(normal))
    total = meter.region("total", 1, nodes)
    operators = Counter(_operator(node) for node in walk.nodes(model))
    by_operator: dict[str, list[ir.Node]] = {}
    for node in nodes:
        by_operator.setdefault(_operator(node), []).append(node)
    rows = [meter.region(name, len(group), group) for name, group in by_operator.items()]
    return Inspection(
        ir_version=model.ir_version,
        imports=tuple(_imports(model)),
        inputs=tuple(_ports([value for value in model.graph.inputs if value.const_value is None], facts)),
        outputs=tuple(_ports(model.graph.outputs, facts)),
        weights=tuple(_weights(model)),
        operators=dict(operators.most_common()),
        detours=tuple(_detours(model, target, facts)),
        blocks=tuple(_found(block, meter) for block in blocks),
        regions=tuple(regions),
        by_operator=tuple(sorted(rows, key=lambda row: (row.flops, row.bytes), reverse=True)),
        total=total,
        macs=_labelled(meter.formula(nodes), labels),
        sizes={labels.get(symbol, symbol): size for symbol, size in sizes.items()},
        peaks=peaks,
        notes=tuple(_notes(model, normal, total, meter)),
    )


def _operator(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


class _Meter:
    """Add up costs at given sizes."""

    def __init__(self, facts: Facts, sizes: Mapping[str, int], peaks: Peaks | None) -> None:
        self._facts, self._sizes, self._peaks = facts, sizes, peaks
        self._costs: dict[ir.Node, Cost | None] = {}
        self.unknown: dict[str, None] = {}

    def cost(self, node: ir.Node) -> Cost | None:
        if node not in self._costs:
            self._costs[node] = cost_of(node, self._facts)
        return self._costs[node]

    def at_sizes(self, node: ir.Node) -> tuple[int, int, int] | None:
        """Multiply-accumulates, operations and bytes in numbers; `None` if they are not known."""
        found = self.cost(node)
        dims = () if found is None else (found.macs, found.flops, found.bytes)
        if not dims or any(symbols(dim) - self._sizes.keys() for dim in dims):
            self.unknown[_operator(node)] = None
            return None
        macs, flops, moved = (evaluate(dim, self._sizes) for dim in dims)
        return macs, flops, moved

    def region(self, name: str, count: int, nodes: Sequence[ir.Node]) -> Region:
        """The sum over some nodes."""
        known = [found for node in nodes if (found := self.at_sizes(node)) is not None]
        macs, flops, moved = (sum(part) for part in zip(*known, strict=True)) if known else (0, 0, 0)
        bound, seconds = "", None
        if self._peaks is not None and flops + moved:
            bound = "compute" if flops >= moved * self._peaks.ridge else "memory"
            seconds = sum(self._peaks.seconds(one[1], one[2]) for one in known)
        return Region(name, count, len(nodes), macs, flops, moved, len(nodes) - len(known), bound, seconds)

    def formula(self, nodes: Iterable[ir.Node]) -> str:
        """The multiply-accumulates as a formula, without those that are not known."""
        total: DimLike = 0
        for node in nodes:
            found = self.cost(node)
            if found is not None and symbols(found.macs) <= self._sizes.keys():
                total = total + found.macs
        return str(total)


def _labelled(formula: str, labels: Mapping[str, str]) -> str:
    """A formula with labels in the place of symbols without a name."""
    return re.sub(r"\?\d+", lambda found: labels.get(found[0], found[0]), formula)


def _whole(block: Block) -> list[ir.Node]:
    """The nodes of a block with those in their bodies."""
    return [inner for node in block.nodes for inner in (node, *walk.nested_nodes(node))]


def _regions(model: ir.Model, blocks: Sequence[Block], meter: _Meter) -> Iterable[Region]:
    """The cost of each kind of outermost blocks, and of what is in none."""
    owner: dict[ir.Node, Block] = {}
    for block in sorted(blocks, key=lambda block: len(block.nodes), reverse=True):
        for node in _whole(block):
            owner.setdefault(node, block)
    kinds: dict[str, list[ir.Node]] = {}
    rest: list[ir.Node] = []
    for node in walk.nodes(model):
        (kinds.setdefault(owner[node].kind, []) if node in owner else rest).append(node)
    counts = Counter(block.kind for block in dict.fromkeys(owner.values()))
    for kind, nodes in kinds.items():
        yield meter.region(kind, counts[kind], nodes)
    yield meter.region(REST, 1, rest)


def _found(block: Block, meter: _Meter) -> FoundBlock:
    nodes = _whole(block)
    region = meter.region(block.name, 1, nodes)
    names = [
        name for node in nodes for name in (node.metadata_props.get(NODES_KEY) or node.name or "").split(";") if name
    ]
    end = block.end.name or ""
    return FoundBlock(block.name, block.kind, end, tuple(dict.fromkeys(names)), region.macs, region.bytes)


def _imports(model: ir.Model) -> Iterable[Import]:
    newest, because = 1, ""
    for node in walk.nodes(model):
        if node.domain or node.op_identifier() in model.functions:
            continue
        needed = needed_opset(node.op_type, frozenset(node.attributes), len(node.inputs))
        if needed > newest:
            newest, because = needed, node.op_type
    for domain, version in model.graph.opset_imports.items():
        yield Import(domain or "ai.onnx", version, None if domain else newest, "" if domain else because)


def _ports(values: Iterable[ir.Value], facts: Facts) -> Iterable[Port]:
    for value in values:
        dtype, shape = facts.dtype(value), facts.shape(value)
        words = None if shape is None else tuple(dim if isinstance(dim, int) else _dim(dim) for dim in shape)
        yield Port(value.name or "", _word(dtype), words)


def _dim(dim: Dim) -> str:
    return "?" if dim.fresh else str(dim)


def _word(dtype: ir.DataType | None) -> str:
    if dtype is None:
        return "unknown"
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(dtype.name, dtype.name.lower())


def _weights(model: ir.Model) -> list[Weights]:
    groups: dict[str, list[ir.TensorProtocol]] = {}
    for slot in tensors(model):
        groups.setdefault(_word(slot.tensor.dtype), []).append(slot.tensor)
    rows = [
        Weights(name, len(group), sum(int(one.size) for one in group), sum(_bytes(one) for one in group))
        for name, group in groups.items()
    ]
    return sorted(rows, key=lambda row: row.bytes, reverse=True)


def _bytes(tensor: ir.TensorProtocol) -> int:
    return 0 if tensor.dtype == ir.DataType.STRING else int(tensor.nbytes)


def _detours(model: ir.Model, target: Target, facts: Facts) -> Iterable[Detour]:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for scope in walk.scopes(model):
        for node in scope.graph:
            if node.op_type == "Constant" or node.op_identifier() in model.functions:
                continue
            refusal = target.check_node(node, scope.root.opset_imports, facts)
            # A map has no type that is known here; that is no reason to say that the runtime does not load the model.
            if refusal is not None and not target.may_have_kernel(node, scope.root.opset_imports, facts):
                instead = target.instead_of_kernel(node, scope.root.opset_imports, facts)
                name = node.name or node.outputs[0].name or node.op_type
                groups.setdefault((_operator(node), refusal.reason, instead), []).append(name)
    for (operator, reason, instead), names in groups.items():
        yield Detour(operator, tuple(names), reason, instead)


def _notes(given: ir.Model, model: ir.Model, total: Region, meter: _Meter) -> Iterable[str]:
    if (training := training_note(given)) is not None:
        yield training
    if total.unknown:
        yield f"the cost of {total.unknown} nodes is not known, and left out: {', '.join(meter.unknown)}"
    if any(walk.subgraphs(node) for node in walk.nodes(model)):
        yield "bodies of loops and branches are counted once, however often they run"
    if model.functions:
        yield "functions of the model are counted once, however often they are called"
