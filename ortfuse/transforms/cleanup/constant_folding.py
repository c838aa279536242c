"""Fold constants: compute at optimisation time the values that are the same in every run.

Transforms, in the main graph, in subgraphs and in functions (constants of an outer graph count in an inner one):
- a node whose outputs the facts know completely, although its inputs may vary (the Shape of a static dimension), and
  integers computed from constants;
- an Identity, Transpose, Reshape, Flatten, Squeeze or Unsqueeze of a constant, without touching its bytes (see
  `fold_constant_movement`);
- any other pure node of constants: all of them are computed in one session of the runtime (see
  `ortfuse.runtime.evaluate_constants`), repeatedly until nothing new is constant. The results have the bits that the
  runtime would compute. If they are large, more sessions are used, and results go into a temporary file (see
  `spill_constants`).

Does not handle:
- operators that draw random numbers, operators of unknown domains, nodes with subgraphs;
- quantisation: DequantizeLinear of a weight, or Cast, Sub and Mul of a matrix of narrow numbers. They keep the weight small
  (see `folding_plan`);
- a node that would make the model grow too much. One bound holds for the whole optimisation (see `constant_growth`): 64 KiB
  and a twentieth of the model's constants, or `max_growth` bytes. Results of up to 256 bytes do not count. Sizes are
  estimated before anything is computed. A node of unknown size is left alone, except for operators whose result cannot be
  large (NonZero, Compress, Unique);
- element types that numpy lacks, unless elements are only moved; strings, sequences, optionals;
- an Identity that gives a value the name of a graph output;
- float16 that the runtime computes in float32, if the result is too large or too small for float16. The runtime does not round
  it between two nodes in float32;
- integer division by a constant that contains 0 or -1, which can end the process;
- nodes whose folding would make an operand of such a division constant. The division may stand in a branch that is never
  taken, but the runtime would compute it when it loads the model;
- nodes that rules made for a newer opset than the model has, unless they move elements of a constant, or the facts know
  the integers;
- nodes that refer to attributes of their function.

A node that fails to evaluate is left alone, with a note, and so is one whose result the context's inspector rejects.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ortfuse.ir.enumerate_tensors import constant_tensor
from ortfuse.ir.purity import Purity
from ortfuse.ir.traits import DEQUANTISES, QUANTISES
from ortfuse.ir.walk import Scope
from ortfuse.runtime.evaluate_constants import NATIVE, Region, evaluate
from ortfuse.transforms.cleanup.fold_constant_movement import moved_constant
from ortfuse.transforms.cleanup.folding_plan import UNCOUNTED_BYTES, Plan
from ortfuse.transforms.constant_growth import Grown
from ortfuse.transforms.context import Context

_LEFT_ALONE = QUANTISES | DEQUANTISES | {"Constant"}

_SMALL_RESULT = frozenset({"NonZero", "Compress", "Unique"})
"""Operators whose result has an unknown shape but at most 8 bytes for every element and axis of the input."""

_BATCH_BYTES = 1 << 28
"""The most bytes of constants computed in one batch; results of a batch are stored before the next one starts."""

_WORKING_BYTES = 1 << 20
_WORKING_FACTOR = 8
"""A node is computed if its result is at most so many bytes, or so many times what its operands take; it need not be kept."""

_MANY_USES = 64
"""A constant with more uses than this is assumed to stay, without checking each use."""


@dataclass(frozen=True)
class ConstantFolding:
    """Fold constants. `max_growth`: bytes that folding may add in the whole optimisation, by decompressed weights too."""

    name: ClassVar[str] = "fold"
    max_growth: int | None = None

    def run(self, context: Context) -> int:
        """Fold until nothing new is constant; returns how many nodes were folded."""
        return _Folder(context, context.growth.bound if self.max_growth is None else self.max_growth).run()


class _Folder:
    def __init__(self, context: Context, bound: int | None) -> None:
        self._context, self._facts = context, context.facts
        self._account = context.growth
        self._account.held_back.clear()
        self._decompresses = bound is not None
        self._allowed = self._account.allowance(context.model, bound)
        self._working_bytes = _WORKING_BYTES + self._account.first
        self._freed: set[ir.Value] = set()
        self._purity = Purity(context.model)
        self._scopes: dict[ir.Graph, Scope] = {}
        self._queue: deque[ir.Node] = deque()
        for scope in context.scopes():
            self._scopes[scope.graph] = scope
            self._queue.extend(scope.graph)
        self._queued = set(self._queue)
        self._folded: set[ir.Node] = set()
        self._region: dict[ir.Node, None] = {}
        self._failed: set[ir.Node] = set()

    def run(self) -> int:
        count = 0
        while self._queue:
            while self._queue:
                node = self._queue.popleft()
                self._queued.discard(node)
                if node not in self._folded and node not in self._region and node not in self._failed:
                    self._visit(node)
            self._evaluate_region()
            count += len(self._folded)
            self._queue = deque(node for node in self._queue if node not in self._folded)
            self._queued = set(self._queue)
            self._folded = set()
        return count

    def _push(self, nodes: Iterable[ir.Node]) -> None:
        for node in nodes:
            if node not in self._queued:
                self._queued.add(node)
                self._queue.append(node)

    def _visit(self, node: ir.Node) -> None:
        if node.op_type in _LEFT_ALONE or _names_an_output(node):
            return
        constant = self._is_constant_node(node)
        if constant and self._is_workable(node) and self._fold_move(node):
            return
        known = self._known_outputs(node)
        is_pending = self._is_pending(node)
        if is_pending and not all(_is_whole(tensor.dtype) for tensor in known.values()):
            return
        if not (known or (constant and not is_pending)):
            return
        if not self._is_workable(node):
            self._hold_back(node, self._result_bytes(node) or 0)
            return
        computed = constant and not is_pending and self._can_evaluate(node)
        if known and not (computed and not all(_is_whole(tensor.dtype) for tensor in known.values())):
            self._finish(node, known)
        elif computed:
            self._region[node] = None
            self._push(user for output in node.outputs for user in _users(output))

    def _fold_move(self, node: ir.Node) -> bool:
        """Fold a node that only moves the elements of a constant, or leaves them in place, without reading them."""
        source, output = node.inputs[0], node.outputs[0]
        if node.op_type == "Identity" and not node.domain and source is not None:
            users = _users(output)
            with self._context.editor.change(ConstantFolding.name, nodes=[node]) as change:
                self._context.editor.replace(output, source)
                self._context.editor.remove(node)
            self._push(users)
            (self._folded if change else self._failed).add(node)
            return True
        moved = moved_constant(node, self._facts)
        if moved is not None:
            self._finish(node, {output: moved})
        return moved is not None

    def _is_pending(self, node: ir.Node) -> bool:
        """Whether a node is of a newer opset than the model is yet, so that it is not executed."""
        return node.version is not None and node.version > self._imports(node).get(node.domain, 1)

    def _imports(self, node: ir.Node) -> dict[str, int]:
        return self._scope(node).root.opset_imports

    def _scope(self, node: ir.Node) -> Scope:
        assert isinstance(node.graph, ir.Graph)
        return self._scopes[node.graph]

    def _known_outputs(self, node: ir.Node) -> dict[ir.Value, ir.TensorProtocol]:
        """The values of all used outputs if the facts know every one of them; otherwise empty."""
        known: dict[ir.Value, ir.TensorProtocol] = {}
        for output in node.outputs:
            if not output.uses() and not output.is_graph_output():
                continue
            array = self._facts.const(output)
            if array is None:
                return {}
            known[output] = ir.Tensor(np.asarray(array), dtype=self._facts.dtype(output))
        return known

    def _finish(self, node: ir.Node, results: dict[ir.Value, ir.TensorProtocol]) -> None:
        if not self._replace(node, results, [node]):
            self._failed.add(node)

    def _replace(self, node: ir.Node, results: Mapping[ir.Value, ir.TensorProtocol], nodes: Sequence[ir.Node]) -> bool:
        """Replace outputs of `node`, which `nodes` compute from constants, by constants; returns whether that was accepted.

        The node is removed, with those that only it needed.
        """
        if any(self._stops_the_process(*result) or self._stops_loading(*result) for result in results.items()):
            return False
        growth = self._growth_by(node, results.values())
        if growth > 0 and growth > self._allowed:
            self._hold_back(node, growth)
            return False
        name = next(iter(results), node.outputs[0]).name or "?"
        editor = self._context.editor
        with editor.change(ConstantFolding.name, nodes=nodes) as change:
            made = [editor.replace_by_constant(output, tensor) for output, tensor in results.items()]
            removed = self._sweep(node)
        if change:
            self._allowed -= growth
            if growth > 0:
                self._account.folded[name] = Grown(name, node.op_type, growth)
            self._folded |= removed
            for gone in removed:
                self._region.pop(gone, None)
            self._push(user for new in made if new is not None for user in _users(new))
        return bool(change)

    def _sweep(self, last: ir.Node) -> set[ir.Node]:
        """Remove a node, and the nodes collected for evaluation, where nothing uses them any more."""
        removed: set[ir.Node] = set()
        pending = [last]
        while pending:
            node = pending.pop()
            if node.graph is None or any(out.uses() or out.is_graph_output() for out in node.outputs):
                continue
            producers = [producer for value in node.inputs if value is not None and (producer := value.producer())]
            self._context.editor.remove(node)
            removed.add(node)
            pending += [producer for producer in producers if producer in self._region]
        return removed

    def _is_constant(self, value: ir.Value) -> bool:
        if value.is_initializer() and not value.is_graph_input():
            return True
        return value.producer() in self._region or self._facts.is_const(value)

    def _is_constant_node(self, node: ir.Node) -> bool:
        """Whether the node has inputs, all of them are constant, and folding it is possible in principle."""
        present = False
        for value in node.inputs:
            if value is not None:
                present = True
                if not self._is_constant(value):
                    return False
        return present and node.op_type not in _LEFT_ALONE and self._purity.is_pure(node)

    def _can_evaluate(self, node: ir.Node) -> bool:
        dtypes = [
            self._facts.dtype(value) for value in (*node.inputs, *node.outputs) if value is not None and value.name
        ]
        if any(dtype not in NATIVE for dtype in dtypes) or any(a.is_ref() for a in node.attributes.values()):
            return False
        return node.op_type not in ("Div", "Mod") or dtypes[0] not in _INTEGERS or self._divides_safely(node)

    def _divides_safely(self, node: ir.Node) -> bool:
        divisor = self._tensor(node.inputs[1]) if node.inputs[1] is not None else None
        return divisor is not None and not _is_risky(divisor)

    def _is_workable(self, node: ir.Node) -> bool:
        """Whether the results of the node take a sensible amount of memory."""
        size = self._result_bytes(node)
        if size is None:
            return False
        operands = sum(self._bytes(value) or 0 for value in node.inputs if value is not None)
        return size <= max(self._working_bytes, _WORKING_FACTOR * operands)

    def _hold_back(self, node: ir.Node, size: int) -> None:
        name = node.outputs[0].name or "?"
        self._account.held_back[name] = Grown(name, node.op_type, size)

    def _growth_by(self, node: ir.Node, results: Iterable[ir.TensorProtocol]) -> int:
        """The bytes of the results, less those of the constants that `node` is computed from and nothing else needs."""
        added = sum(tensor.nbytes for tensor in results)
        if added <= UNCOUNTED_BYTES:
            return 0
        pending = [value for value in node.inputs if value is not None]
        while pending:
            value = pending.pop()
            if value in self._freed or not self._goes(value):
                continue
            self._freed.add(value)
            producer = value.producer()
            if producer in self._region:
                pending += [operand for operand in producer.inputs if operand is not None]
            else:
                added -= self._bytes(value) or 0
        return added

    def _stops_the_process(self, output: ir.Value, tensor: ir.TensorProtocol) -> bool:
        """Whether an integer division by 0 or -1 would have constant operands."""
        if not tensor.dtype.is_integer():
            return False
        divisors = [
            tensor if use.idx == 1 else self._tensor(use.node.inputs[1])  # type: ignore[arg-type]
            for use in output.uses()
            if use.node.op_type in ("Div", "Mod")
        ]
        return any(divisor is not None and _is_risky(divisor) for divisor in divisors)

    def _stops_loading(self, output: ir.Value, tensor: ir.TensorProtocol) -> bool:
        """Whether a Reshape would have to infer a size (-1) of an empty tensor: with a constant target even loading fails."""
        if (
            not tensor.dtype.is_integer()
            or len(tensor.shape) != 1
            or not {0, -1} <= set(sizes := tensor.numpy().tolist())
        ):
            return False
        targets = [use.node for use in output.uses() if use.node.op_type == "Reshape" and use.idx == 1]
        shapes = [self._facts.shape(node.inputs[0]) or () for node in targets if node.inputs[0] is not None]
        return any((0, 0) in zip(sizes, shape, strict=False) for shape in shapes)

    def _goes(self, value: ir.Value) -> bool:
        """Whether a constant is no longer needed once everything foldable has been folded."""
        return self._is_dropped(value, lambda user: user in self._region or self._is_constant_node(user))

    def _is_dropped(self, value: ir.Value, is_gone: Callable[[ir.Node], bool]) -> bool:
        """Whether a constant has only users that are folded or gone."""
        uses = value.uses()
        if value.is_graph_output() or len(uses) > _MANY_USES:
            return False
        return all(user in self._folded or is_gone(user) for user in {use.node for use in uses})

    def _result_bytes(self, node: ir.Node) -> int | None:
        total = 0
        for output in node.outputs:
            size = self._bytes(output) if output.name else 0
            if size is None and node.op_type in _SMALL_RESULT and node.inputs[0] is not None:
                source = node.inputs[0]
                shape = _static(self._facts.shape(source))
                size = None if shape is None else 8 * math.prod(shape) * max(1, len(shape))
            if size is None:
                return None
            total += size
        return total

    def _bytes(self, value: ir.Value) -> int | None:
        shape, dtype = _static(self._facts.shape(value)), self._facts.dtype(value)
        if shape is None or dtype is None or dtype == ir.DataType.STRING:
            return None
        return math.prod(shape) * dtype.bitwidth // 8

    def _tensor(self, value: ir.Value) -> ir.TensorProtocol | None:
        """The tensor of a constant; `None` if it is still to be evaluated."""
        producer = value.producer()
        if value.is_initializer():
            return value.const_value
        if producer is not None and producer.op_type == "Constant" and not producer.domain:
            return constant_tensor(producer)
        array = None if producer in self._region else self._facts.const(value)
        return None if array is None else ir.Tensor(np.asarray(array), dtype=self._facts.dtype(value))

    def _constant(self, value: ir.Value) -> ir.TensorProtocol:
        tensor = self._tensor(value)
        if tensor is None:
            raise ValueError(f"the constant '{value.name}' is not known")
        return tensor

    def _evaluate_region(self) -> None:
        """Compute the collected nodes, with separate sessions for the main graph and for each function."""
        regions: dict[ir.Graph, Region] = {}
        model = self._context.model
        plan = self._planned()
        for node in plan.evaluated():
            root = self._scope(node).root
            if root not in regions:
                regions[root] = Region(root.opset_imports, (), self._constant)
            regions[root].nodes.append(node)
            if model.functions and node.op_identifier() in model.functions:
                regions[root].functions = tuple(model.functions.values())
        for region in regions.values():
            for batch in self._batches(region.nodes):
                region.nodes = [node for node in batch if not self._lacks_input(node)]
                self._evaluate(region, plan)
        # What remains is needed by a node that failed, or whose constant was rejected.
        self._failed |= self._region.keys() - self._folded
        self._region = {}

    def _planned(self) -> Plan:
        plan = Plan(
            list(self._region),
            self._facts,
            self._bytes,
            self._is_dropped,
            allowed=self._allowed,
            decompresses=self._decompresses,
        )
        for node, size in plan.held_back():
            self._hold_back(node, size)
        return plan

    def _batches(self, nodes: Iterable[ir.Node]) -> Iterator[list[ir.Node]]:
        """The nodes in order, in batches that stay within the memory limit, of at least one node each."""
        batch: list[ir.Node] = []
        total = 0
        for node in nodes:
            size = sum(self._bytes(value) or 0 for value in (*node.inputs, *node.outputs) if value is not None)
            if batch and total + size > _BATCH_BYTES:
                yield batch
                batch, total = [], 0
            batch.append(node)
            total += size
        yield batch

    def _lacks_input(self, node: ir.Node) -> bool:
        """Whether an input of the node should have come from a node that failed in an earlier batch."""
        lacks = any(value is not None and value.producer() in self._failed for value in node.inputs)
        if lacks:
            self._failed.add(node)
        return lacks

    def _evaluate(self, region: Region, plan: Plan) -> None:
        wanted = {output for node in region.nodes for output in plan.results(node)}
        results = evaluate(region, wanted)
        for node, reason in results.failures.items():
            self._failed.add(node)
            if reason is not None:
                self._context.note(f"fold: {node.op_type} '{node.name}' is left as it is: {reason}")
        # Other nodes have results too where a node that needs them failed, or is in a later batch.
        found = {
            node: {} if node in plan.computed else self._kept(node, results.values)
            for node in region.nodes
            if node not in results.failures
        }
        self._failed |= plan.computed.keys() & set(region.nodes)
        for node, tensors in found.items():
            if (tensors or not any(output.uses() for output in node.outputs)) and self._is_held(node, tensors):
                self._replace(node, tensors, region.nodes)

    def _is_held(self, node: ir.Node, results: Mapping[ir.Value, ir.TensorProtocol]) -> bool:
        """Whether the type of the results holds their numbers, as far as these are not rounded to it anyway."""
        halves = [tensor for tensor in results.values() if tensor.dtype == ir.DataType.FLOAT16]
        lost = any(exceeds_half(tensor.numpy()) for tensor in halves)
        return not lost or not self._context.target.between_casts(node, self._imports(node), self._facts)

    def _kept(self, node: ir.Node, values: dict[ir.Value, Any]) -> dict[ir.Value, ir.TensorProtocol]:
        """The computed outputs of a node as tensors, spilled to a file if they are large."""
        return {output: self._context.spill.keep(values.pop(output)) for output in node.outputs if output in values}


def exceeds_half(array: np.ndarray[Any, Any]) -> bool:
    """Whether numbers of float16 may be too large or too small for it: not finite, or with fewer digits than others have."""
    sizes = np.abs(array.astype(np.float32))
    return bool(np.any(~np.isfinite(sizes) | ((sizes > 0) & (sizes < float(np.finfo(np.float16).tiny)))))


def _users(value: ir.Value) -> list[ir.Node]:
    return [use.node for use in value.uses()]


def _names_an_output(node: ir.Node) -> bool:
    return node.op_type == "Identity" and not node.domain and node.outputs[0].is_graph_output()


def _is_risky(divisor: ir.TensorProtocol) -> bool:
    return bool(np.isin(divisor.numpy(), (0, -1)).any())


def _is_whole(dtype: ir.DataType) -> bool:
    """Whether numbers are integers or truth values, which everyone computes alike."""
    return dtype == ir.DataType.BOOL or dtype.is_integer()


_INTEGERS = frozenset(dtype for dtype in NATIVE if dtype.is_integer())


def _static(shape: tuple[Any, ...] | None) -> tuple[int, ...] | None:
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        return None
    return shape
