"""Random chains of data movement: models of up to twelve operators on tensors of symbolic sizes.

Indices of Gathers and Scatters are constants, or computed from Ranges.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import Dim, DimLike, evaluate

MOST_OPERATORS = 12
_FARTHEST = 2**63 - 1
_LARGEST = 4000


Grown: TypeAlias = "Callable[[Chain, ir.Value], ir.Value]"
"""A function that applies an operator to a value of a chain."""


class RefusedError(Exception):
    """Raised if an operator does not fit the chosen operand."""


class Chain:
    """A model that grows by random operators.

    Attributes:
        model: The model.
        facts: What is known about its values.
        choose: The source of randomness.
        moved: The values that operators may be applied to.
    """

    def __init__(self, seed: int, *shapes: Sequence[str | int]) -> None:
        self.choose = random.Random(seed)
        self.graph = ir.Graph([], [], nodes=[], name="chain", opset_imports={"": 18})
        self.model = ir.Model(self.graph, ir_version=9)
        for number, dims in enumerate(shapes or self._shapes()):
            value = ir.Value(name=f"x{number}", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(list(dims)))
            self.graph.inputs.append(value)
        self.facts = Facts(self.model)
        self.moved = list(self.graph.inputs)
        self._constants = 0

    def _shapes(self) -> list[list[str | int]]:
        return [
            [self.choose.choice(["b", "s", "s", 1, 2, 3, 4, 6]) for _ in range(self.choose.randint(1, 4))]
            for _ in range(self.choose.choice([1, 1, 2]))
        ]

    def grow(self, count: int, operators: Sequence[Grown] | None = None) -> None:
        """Append operators; if they are given, each to the result of the one before."""
        for _ in range(count):
            make = self.choose.choice(OPERATORS if operators is None else operators)
            before = len(self.graph)
            try:
                self.moved.append(make(self, self._some() if operators is None else self.moved[-1]))
            except RefusedError:
                for node in reversed(list(self.graph)[before:]):
                    self.facts.node_removed(node)
                    self.graph.remove(node, safe=True)

    def _some(self) -> ir.Value:
        """A value, the last ones more often."""
        return self.choose.choice(self.moved[-3:] if self.choose.random() < 0.8 else self.moved)

    def shape(self, value: ir.Value) -> tuple[DimLike, ...]:
        """The shape of a value, of no more than six axes and not too many elements."""
        found = self.facts.shape(value)
        if found is None or len(found) > 6:
            raise RefusedError
        most = 1
        for size in found:
            if isinstance(size, Dim) and size.fresh:
                continue
            most *= max(evaluate(size, {"b": 3, "s": 6}), 1)
        if most > _LARGEST:
            raise RefusedError
        return found

    def axis(self, value: ir.Value) -> int:
        """An axis of a value."""
        rank = len(self.shape(value))
        if not rank:
            raise RefusedError
        return self.choose.randrange(rank)

    def node(self, op_type: str, *inputs: ir.Value | None, outputs: int = 1, **attributes: Any) -> Sequence[ir.Value]:
        """Append a node; returns its outputs."""
        made = ir.node(op_type, list(inputs), attributes or None, num_outputs=outputs)
        for output in made.outputs:
            self._constants += 1
            output.name = f"v{self._constants}"
        self.graph.append(made)
        self.facts.node_added(made)
        return made.outputs

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Append a node with one output; returns that."""
        return self.node(op_type, *inputs, **attributes)[0]

    def constant(self, numbers: Any, dtype: Any = np.int64) -> ir.Value:
        """A constant, as a node."""
        array = np.asarray(numbers, dtype)
        return self.op("Constant", value=ir.Tensor(array))

    def size(self, value: ir.Value, axis: int, *, vector: bool = False) -> ir.Value:
        """A size, computed."""
        return self.op("Gather", self.op("Shape", value), self.constant([axis] if vector else axis), axis=0)

    def numbers(self, size: ir.Value) -> ir.Value:
        """0, 1, ... below a size, perhaps moved or turned round, and perhaps beyond it by mistake."""
        zero, one = self.constant(0), self.constant(1)
        counted = self.op("Range", zero, size, one)
        kind = self.choose.choice(["plain", "plain", "turned", "even", "negative", "half", "ones"])
        if kind == "turned":
            return self.op("Sub", self.op("Sub", size, one), counted)
        if kind == "negative":
            return self.op("Sub", counted, size)
        if kind == "half":
            return self.op("Div", counted, self.constant(2))
        if kind == "even":
            return self.op("Range", zero, size, self.constant(2))
        if kind == "ones":
            ones = self.op(
                "ConstantOfShape", self.op("Unsqueeze", size, self.constant([0])), value=ir.Tensor(np.array([1]))
            )
            return self.op("CumSum", ones, self.constant(0), exclusive=1, reverse=self.choose.randrange(2))
        return counted

    def some_indices(self, size: int) -> np.ndarray[Any, Any]:
        """Constant indices into an axis."""
        if size < 1:
            raise RefusedError
        kind = self.choose.choice(["few", "range", "turned", "permuted", "matrix"])
        if kind == "range":
            return np.arange(self.choose.randint(0, size - 1), size)
        if kind == "turned":
            return np.arange(-1, -size - 1, -1)
        if kind == "permuted":
            return np.array(self.choose.sample(range(size), size))
        if kind == "matrix" and size % 2 == 0:
            return np.arange(size).reshape(2, -1).T.copy()
        return np.array([self.choose.randrange(-size, size) for _ in range(self.choose.randint(1, 4))])


def _factors(chain: Chain, size: int) -> list[int]:
    found: list[int] = []
    while size > 1 and len(found) < 3 and chain.choose.random() < 0.7:
        divisor = chain.choose.choice([one for one in range(1, size + 1) if size % one == 0])
        found.append(divisor)
        size //= divisor
    return [*found, size]


def reshape(chain: Chain, x: ir.Value) -> ir.Value:
    """Axes split, merged, or turned into a computed shape."""
    shape = chain.shape(x)
    target: list[int] = []
    number, merged = 0, False
    while number < len(shape):
        size, more = shape[number], chain.choose.random()
        if more < 0.3 and number + 1 < len(shape) and not merged:
            merged, number = True, number + chain.choose.randint(2, len(shape) - number)
            target.append(-1)
            continue
        if isinstance(size, int):
            target += _factors(chain, size) if more < 0.7 else [size]
        elif len(target) == number:
            target.append(0)
        elif not merged:
            target.append(-1)
            merged = True
        else:
            raise RefusedError
        number += 1
    if chain.choose.random() < 0.2:
        target.insert(chain.choose.randint(0, len(target)), 1)
        if 0 in target:
            raise RefusedError
    if 0 in [size for size in shape if isinstance(size, int)]:
        raise RefusedError
    return chain.op("Reshape", x, chain.constant(target))


def flat(chain: Chain, x: ir.Value) -> ir.Value:
    """All elements in a row, or a matrix of them."""
    if chain.choose.random() < 0.5:
        return chain.op("Flatten", x, axis=chain.choose.randint(0, len(chain.shape(x))))
    return chain.op("Reshape", x, chain.constant([-1]))


def transpose(chain: Chain, x: ir.Value) -> ir.Value:
    """Another order of axes."""
    perm = list(range(len(chain.shape(x))))
    chain.choose.shuffle(perm)
    return chain.op("Transpose", x, perm=perm)


def squeeze(chain: Chain, x: ir.Value) -> ir.Value:
    """Without an axis of size 1, or with another one."""
    shape = chain.shape(x)
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    if ones and chain.choose.random() < 0.6:
        return chain.op("Squeeze", x, chain.constant([chain.choose.choice(ones)]))
    return chain.op("Unsqueeze", x, chain.constant([chain.choose.randint(-len(shape) - 1, len(shape))]))


def slices(chain: Chain, x: ir.Value) -> ir.Value:
    """Part of one axis or two."""
    axes = list({chain.axis(x), chain.axis(x)})
    starts = [chain.choose.choice([0, 0, 1, -1, -2, 2, 9]) for _ in axes]
    steps = [chain.choose.choice([1, 1, 1, 2, -1, -2, 3]) for _ in axes]
    ends = [
        chain.choose.choice([_FARTHEST, -1, 1, 3, 5]) if step > 0 else chain.choose.choice([-_FARTHEST, 0, -9])
        for step in steps
    ]
    first: ir.Value = chain.constant(starts)
    if len(axes) == 1 and chain.choose.random() < 0.2 and steps[0] > 0:
        half = chain.op("Div", chain.size(x, axes[0], vector=True), chain.constant([2]))
        return chain.op("Slice", x, *chain.choose.choice([(half, chain.constant(ends)), (first, half)]),
                        chain.constant(axes), chain.constant(steps))  # fmt: skip
    return chain.op("Slice", x, first, chain.constant(ends), chain.constant(axes), chain.constant(steps))


def split(chain: Chain, x: ir.Value) -> ir.Value:
    """One of several parts."""
    axis = chain.axis(x)
    size = chain.shape(x)[axis]
    if not isinstance(size, int) or size < 2:
        raise RefusedError
    first = chain.choose.randint(1, size - 1)
    parts = chain.node("Split", x, chain.constant([first, size - first]), outputs=2, axis=axis)
    return chain.choose.choice(list(parts))


def gather(chain: Chain, x: ir.Value) -> ir.Value:
    """Elements along an axis, at constant or computed indices."""
    axis = chain.axis(x)
    size = chain.shape(x)[axis]
    if isinstance(size, int) and chain.choose.random() < 0.7:
        index = chain.some_indices(size)
        if chain.choose.random() < 0.2:
            index = index.reshape(-1)[0]
        return chain.op("Gather", x, chain.constant(index), axis=axis)
    return chain.op("Gather", x, chain.numbers(chain.size(x, axis)), axis=axis)


def gather_elements(chain: Chain, x: ir.Value) -> ir.Value:
    """Elements along an axis, at indices of the shape of the tensor."""
    axis, shape = chain.axis(x), chain.shape(x)
    index = chain.numbers(chain.size(x, axis))
    if len(chain.shape(index)) != 1 or chain.shape(index)[0] != shape[axis]:
        raise RefusedError
    ones = [other for other in range(len(shape)) if other != axis]
    if ones:
        index = chain.op("Unsqueeze", index, chain.constant(ones))
    return chain.op("GatherElements", x, chain.op("Expand", index, chain.op("Shape", x)), axis=axis)


def gather_nd(chain: Chain, x: ir.Value) -> ir.Value:
    """Elements at a grid of rows and columns."""
    if len(chain.shape(x)) < 2:
        raise RefusedError
    rows, columns = (chain.numbers(chain.size(x, axis)) for axis in (0, 1))
    return chain.op("GatherND", x, _grid(chain, rows, columns))


def _grid(chain: Chain, rows: ir.Value, columns: ir.Value) -> ir.Value:
    sizes = chain.op("Concat", *(chain.size(one, 0, vector=True) for one in (rows, columns)), axis=0)
    parts = [
        chain.op("Unsqueeze", chain.op("Expand", chain.op("Unsqueeze", one, chain.constant([axis])), sizes),
                 chain.constant([2]))
        for one, axis in ((rows, 1), (columns, 0))
    ]  # fmt: skip
    return chain.op("Concat", *parts, axis=chain.choose.choice([2, -1]))


def scatter_nd(chain: Chain, x: ir.Value) -> ir.Value:
    """Updates at a grid, or in rows."""
    if len(chain.shape(x)) < 2:
        raise RefusedError
    if chain.choose.random() < 0.5:
        rows, columns = (chain.op("Range", chain.constant(0), chain.size(x, axis), chain.constant(1 + axis))
                         for axis in (0, 1))  # fmt: skip
        index = _grid(chain, rows, columns)
    else:
        counted = chain.op("Range", chain.constant(0), chain.size(x, 0), chain.constant(chain.choose.choice([1, 2])))
        index = chain.op("Unsqueeze", counted, chain.constant([1]))
    updates = chain.op("Neg", chain.op("GatherND", x, index))
    return chain.op("ScatterND", x, index, updates)


def scatter_elements(chain: Chain, x: ir.Value) -> ir.Value:
    """Updates along an axis, all of one number."""
    axis, shape = chain.axis(x), chain.shape(x)
    step = chain.choose.choice([1, 1, 2])
    index = chain.op("Range", chain.constant(chain.choose.choice([0, 0, 1])), chain.size(x, axis), chain.constant(step))
    ones = [other for other in range(len(shape)) if other != axis]
    if ones:
        index = chain.op("Unsqueeze", index, chain.constant(ones))
    sizes = [chain.size(index if number == axis else x, number, vector=True) for number in range(len(shape))]
    index = chain.op("Expand", index, chain.op("Concat", *sizes, axis=0))
    updates = chain.op("Expand", chain.constant(-7.0, np.float32), chain.op("Shape", index))
    return chain.op("ScatterElements", x, index, updates, axis=axis)


def concat(chain: Chain, x: ir.Value) -> ir.Value:
    """The tensor with itself, or with part of it."""
    axis = chain.axis(x)
    part = chain.op("Slice", x, chain.constant([0]), chain.constant([chain.choose.choice([1, 2, -1])]),
                    chain.constant([axis]))  # fmt: skip
    other = chain.choose.choice([x, part, part])
    inputs = [x, other] if chain.choose.random() < 0.5 else [other, x]
    return chain.op("Concat", *inputs, axis=axis)


def pad(chain: Chain, x: ir.Value) -> ir.Value:
    """Numbers or elements around the tensor."""
    rank, shape = len(chain.shape(x)), chain.shape(x)
    mode = chain.choose.choice(["constant", "constant", "edge", "reflect", "wrap"])
    lowest = -1 if mode == "constant" else 0
    pads = [chain.choose.choice([0, 0, 1, lowest, 2]) for _ in range(2 * rank)]
    if mode != "constant":
        for axis, size in enumerate(shape):
            if not isinstance(size, int) or size < 3:
                pads[axis] = pads[axis + rank] = 0
    if not rank or any(not isinstance(size, int) and pads[axis] < 0 for axis, size in enumerate(shape * 2)):
        raise RefusedError
    if any(isinstance(size, int) and size + pads[axis] + pads[axis + rank] < 0 for axis, size in enumerate(shape)):
        raise RefusedError
    number = [chain.constant(5.0, np.float32)] if mode == "constant" and chain.choose.random() < 0.5 else []
    return chain.op("Pad", x, chain.constant(pads), *number, mode=mode)


def expand(chain: Chain, x: ir.Value) -> ir.Value:
    """Axes of size 1 repeated, and further ones before."""
    sizes = [chain.choose.choice([2, 3]) if size == 1 else 1 for size in chain.shape(x)]
    if chain.choose.random() < 0.3:
        sizes.insert(0, 2)
    return chain.op("Expand", x, chain.constant(sizes))


def tile(chain: Chain, x: ir.Value) -> ir.Value:
    """Axes repeated as a whole."""
    return chain.op("Tile", x, chain.constant([chain.choose.choice([1, 1, 2, 3]) for _ in chain.shape(x)]))


def masked(chain: Chain, x: ir.Value) -> ir.Value:
    """One of two tensors where positions compare, or a triangle."""
    shape = chain.shape(x)
    if len(shape) < 2:
        raise RefusedError
    if chain.choose.random() < 0.3:
        return chain.op("Trilu", x, chain.constant(chain.choose.choice([0, 1, -1])), upper=chain.choose.randrange(2))
    rows = chain.op("Unsqueeze", chain.numbers(chain.size(x, len(shape) - 2)), chain.constant([1]))
    columns = chain.op("Range", chain.constant(0), chain.size(x, len(shape) - 1), chain.constant(1))
    if chain.shape(rows)[0] != shape[-2]:
        raise RefusedError
    kind = chain.choose.choice(["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"])
    mask = chain.op(kind, columns, rows)
    if chain.choose.random() < 0.3:
        edge = chain.op("Less", columns, chain.constant(2))
        mask = chain.op(chain.choose.choice(["And", "Or", "Xor"]), mask, chain.op("Not", edge))
    return chain.op("Where", mask, x, chain.constant(-3.0, np.float32))


def blocks(chain: Chain, x: ir.Value) -> ir.Value:
    """Pixels as channels or channels as pixels."""
    shape = chain.shape(x)
    if len(shape) != 4:
        raise RefusedError
    if isinstance(shape[1], int) and shape[1] % 4 == 0:
        return chain.op("DepthToSpace", x, blocksize=2, mode=chain.choose.choice(["DCR", "CRD"]))
    if all(isinstance(size, int) and size % 2 == 0 for size in shape[2:]):
        return chain.op("SpaceToDepth", x, blocksize=2)
    raise RefusedError


def backwards(chain: Chain, x: ir.Value) -> ir.Value:
    """Sequences of some length backwards."""
    if len(chain.shape(x)) < 2:
        raise RefusedError
    lengths = chain.op("Expand", chain.size(x, 0, vector=True), chain.size(x, 1, vector=True))
    return chain.op("ReverseSequence", x, lengths, time_axis=0, batch_axis=1)


OPERATORS: tuple[Grown, ...] = (
    reshape, reshape, reshape, flat, transpose, transpose, squeeze, squeeze, slices, slices, split, gather, gather,
    gather_elements, gather_nd, scatter_nd, scatter_elements, concat, concat, pad, expand, tile, masked, blocks, backwards,
)  # fmt: skip


def chain_of(seed: int) -> Chain:
    """Return a random chain."""
    chain = Chain(seed)
    chain.grow(chain.choose.randint(1, MOST_OPERATORS))
    return chain
