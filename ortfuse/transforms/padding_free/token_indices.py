"""Build the indices of packed tokens.

    packed  = visible, and the tokens that are taken one by one, and all tokens of a sequence without a visible one
    rows    = nonzero(flatten(packed))                                    the packed tokens, in order
    row_of  = first row of the sequence + max(cumsum(packed) - 1, 0)      a packed token of the same sequence, for each token
    sizes   = [batch, sequence] if all tokens are packed, else [1, tokens]
    ends    = concat(0, cumsum(number of packed tokens of each sequence))
    slots   = the number of each packed token in a batch of [batch, most] without holes, then the numbers that are left

A hidden token so is a copy of a packed one of its own sequence: finite wherever that is, and no sequence reads another one.

Packed values have as many axes of tokens as those of the model. If all tokens are packed, they are those of the model, and
attention reads them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce

import numpy as np
import onnx_ir as ir

from ortfuse.ir.hidden_tokens import HIDDEN_SCORE
from ortfuse.transforms.node_builder import Builder
from ortfuse.transforms.padding_free.dependence import Selection
from ortfuse.transforms.padding_free.plan import Plan

_BOOL, _INT32, _INT64, _FLOAT = ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT

_END = 2**62
"""An end behind that of any axis."""


class TokenIndices:
    """Build the indices of packed tokens, each when it is first needed."""

    def __init__(self, plan: Plan, build: Builder) -> None:
        self._plan, self._build = plan, build
        self._cut: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}

    def _node(self, op_type: str, *inputs: ir.Value, **attributes: object) -> ir.Value:
        return self._build.node(op_type, inputs, attributes)[0]

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        return self._node("Cast", value, to=dtype)

    @cached_property
    def mask(self) -> ir.Value:
        """The mask, of shape [batch, sequence]."""
        value = self._plan.mask.value
        rank = self._plan.dependence.facts.rank(value)
        assert rank is not None
        return self._build.squeeze(value, *range(1, rank - 1))

    @cached_property
    def visible(self) -> ir.Value:
        """Whether the mask shows each token: bool of shape [batch, sequence]."""
        plan, dtype = self._plan.mask, self._plan.dependence.facts.dtype(self._plan.mask.value)
        if plan.is_added:
            numbers = self.mask if dtype == _FLOAT else self._cast(self.mask, _FLOAT)
            least = self._build.constant(ir.Tensor(np.array(HIDDEN_SCORE, np.float32)))
            return self._node("Greater", numbers, least)
        shown = self.mask if dtype == _BOOL else self._cast(self.mask, _BOOL)
        return self._node("Not", shown) if plan.shows_zeros else shown

    @cached_property
    def packed(self) -> ir.Value:
        """Whether each token is packed: bool of shape [batch, sequence]."""
        dependence = self._plan.dependence
        taken = [self._taken(one) for one in dependence.selections]
        whole = self._node("Not", self._any(self.visible))
        if taken and dependence.needs_own_key:
            hidden = self._node("Not", self.visible)
            outside = self._node("And", reduce(lambda a, b: self._node("Or", a, b), taken), hidden)
            taken, whole = [], self._node("Or", whole, self._any(outside))
        return reduce(lambda a, b: self._node("Or", a, b), [self.visible, *taken, whole])

    def _any(self, flags: ir.Value) -> ir.Value:
        """Whether each sequence has a token with a flag: bool of shape [batch, 1]."""
        count = self._build.reduce_sum(self._cast(flags, _INT64), 1)
        return self._node("Greater", self._build.unsqueeze(count, 1), self._build.ints(0))

    def _taken(self, selection: Selection) -> ir.Value:
        """Whether each token is taken: bool that broadcasts to [batch, sequence]."""
        build = self._build
        if not isinstance(selection.at, ir.Value):
            number = selection.at
            assert isinstance(number, int)
            position = build.ints(number)
            if number < 0:
                position = self._node("Add", self.length, position)
            steps = self._node("Range", build.ints(0), self.length, build.ints(1))
            return self._node("Equal", steps, position)
        if selection.kind == "tokens":
            pairs = build.reshape(build.slice(selection.at, -1, 0, 2), [-1, 2])
            ones = self._filled(build.slice(self._node("Shape", pairs), 0, 0, 1), 1)
            flags = self._node("ScatterND", self._filled(self.shape, 0), pairs, ones)
        elif selection.kind == "rows":
            places = build.reshape(selection.at, [0, -1])
            ones = self._filled(self._node("Shape", places), 1)
            flags = self._node("ScatterElements", self._filled(self.shape, 0), places, ones, axis=1)
        else:
            places = build.reshape(selection.at, [-1])
            ones = self._filled(self._node("Shape", places), 1)
            count = build.reshape(self.count, [1]) if selection.kind == "flat" else build.slice(self.shape, 0, 1, 2)
            flags = self._node("ScatterElements", self._filled(count, 0), places, ones, axis=0)
            flags = self._node("Reshape", flags, self.shape, allowzero=1) if selection.kind == "flat" else flags
        return self._cast(flags, _BOOL)

    def _filled(self, shape: ir.Value, number: int) -> ir.Value:
        return self._node("ConstantOfShape", shape, value=ir.Tensor(np.array([number], np.int64)))

    @cached_property
    def shape(self) -> ir.Value:
        """The shape [batch, sequence]."""
        return self._node("Shape", self.mask)

    @cached_property
    def length(self) -> ir.Value:
        """The length of the sequences, a number."""
        return self._build.gather(self.shape, 0, 1)

    @cached_property
    def count(self) -> ir.Value:
        """The number of all tokens."""
        return self._node("Size", self.visible)  # masks have types of which no kernel tells the size, such as FLOAT16

    @cached_property
    def flat_rows(self) -> ir.Value:
        """The packed tokens among all: int64 of shape [tokens]."""
        flat = self._build.reshape(self.packed, [-1])
        return self._build.reshape(self._node("NonZero", flat), [-1])

    @cached_property
    def rows(self) -> ir.Value:
        """The packed tokens among all: int64 of the sizes of packed tokens."""
        return self._node("Reshape", self.flat_rows, self.sizes, allowzero=1)

    @cached_property
    def sizes(self) -> ir.Value:
        """The sizes of the axes of packed tokens: [batch, sequence] if they are all, else [1, tokens]."""
        in_one = self._build.concat([self._build.ints([1]), self._node("Shape", self.flat_rows)], 0)
        return self._node("Where", self.are_all, self.shape, in_one)

    @cached_property
    def row_of(self) -> ir.Value:
        """The packed token that stands for each token: int64 of shape [batch, sequence]."""
        build, flags = self._build, self._cast(self.packed, _INT64)
        first = self._node("CumSum", build.reduce_sum(flags, 1), build.ints(0), exclusive=1)
        before = self._node("Sub", self._node("CumSum", flags, build.ints(1)), build.ints(1))
        within = self._node("Max", before, build.ints(0))
        return self._node("Add", build.unsqueeze(first, 1), within)

    @cached_property
    def row_of_flat(self) -> ir.Value:
        """The packed token that stands for each token: int64 of shape [batch*sequence]."""
        return self._build.reshape(self.row_of, [-1])

    @cached_property
    def positions(self) -> ir.Value:
        """The position of each packed token: int64 of the sizes of packed tokens."""
        return self._node("Mod", self.rows, self._divisor)

    @cached_property
    def sequences(self) -> ir.Value:
        """The sequence of each packed token: int64 of the sizes of packed tokens."""
        return self._node("Div", self.rows, self._divisor)

    @cached_property
    def _divisor(self) -> ir.Value:
        """The length of the sequences; 1 if they are empty, for kernels divide by no 0 even if there is nothing to divide."""
        return self._node("Max", self.length, self._build.ints(1))

    @cached_property
    def are_all(self) -> ir.Value:
        """Whether all tokens are packed: one truth value."""
        return self._node("Equal", self._node("Size", self.flat_rows), self.count)

    @cached_property
    def rows_sizes(self) -> ir.Value:
        """`sizes`, as the shape of the packed rows: values that are reshaped to it are known to have as many rows."""
        return self._node("Shape", self.rows)

    @cached_property
    def are_visible(self) -> ir.Value:
        """Whether the mask shows all packed tokens, and there are some: one truth value."""
        shown = self._node("ReduceSum", self._cast(self.visible, _INT64), keepdims=0)
        least = self._node("Max", self._node("Size", self.flat_rows), self._build.ints(1))
        return self._node("GreaterOrEqual", shown, least)

    @cached_property
    def counts(self) -> ir.Value:
        """The number of packed tokens of each sequence: int64 of shape [batch]."""
        return self._build.reduce_sum(self._cast(self.packed, _INT64), 1)

    @cached_property
    def ends(self) -> ir.Value:
        """The first packed token and, for each sequence, that behind its last one: int64 of shape [batch + 1]."""
        return self._build.concat([self._build.ints([0]), self._node("CumSum", self.counts, self._build.ints(0))], 0)

    @cached_property
    def cumulative_lengths(self) -> ir.Value:
        """`ends` as kernels read it: int32 of shape [batch + 1]."""
        return self._cast(self.ends, _INT32)

    @cached_property
    def slots(self) -> ir.Value:
        """The places of packed tokens in a batch without holes, then the places that are left: int32 of shape [batch, most].

        The tokens of each sequence are at its first places. `most` is the largest number of packed tokens of a sequence.
        """
        build = self._build
        most = self._node("ReduceMax", build.concat([self.counts, build.ints([0])], 0), keepdims=1)
        sizes = build.concat([self._node("Shape", self.counts), most], 0)
        count = build.reshape(self._node("Mul", most, self._node("Size", self.counts)), [])
        numbers = self._node("Range", build.ints(0), count, build.ints(1))
        grid = self._node("Reshape", numbers, sizes, allowzero=1)
        last = self._node("Max", most, build.ints(1))  # no kernel divides by 0, even if there is nothing to divide
        within = self._node("Mod", grid, last)
        first = build.unsqueeze(build.slice(self.ends, 0, 0, -1), 1)
        behind = build.unsqueeze(build.slice(self.ends, 0, 1, _END), 1)
        is_token = self._node("Less", within, build.unsqueeze(self.counts, 1))
        all_tokens = self._node("Size", self.flat_rows)
        left = self._node("Add", self._node("Sub", grid, behind), all_tokens)
        order = self._node("Where", is_token, self._node("Add", first, within), left)
        flat = build.reshape(order, [-1])
        found = self._node("ScatterElements", numbers, flat, numbers, axis=0)
        return self._cast(self._node("Reshape", found, sizes, allowzero=1), _INT32)

    @cached_property
    def longest(self) -> ir.Value:
        """The number of positions up to the last packed one of any sequence: int64 of shape [1]."""
        ends = self._node("Add", self._build.reshape(self.positions, [-1]), self._build.ints(1))
        return self._node("ReduceMax", self._build.concat([ends, self._build.ints([0])], 0), keepdims=1)

    @cached_property
    def cut_row_of(self) -> ir.Value:
        """The packed token that stands for each token, for the positions up to the longest."""
        return self.cut(self.row_of, (1,))

    @cached_property
    def cut_rows(self) -> ir.Value:
        """The packed tokens among those up to the longest: int64 of the sizes of packed tokens."""
        first = self._node("Mul", self.sequences, self._build.reshape(self.longest, []))
        return self._node("Add", first, self.positions)

    def cut(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """A value cut to the longest sequence of packed tokens along some axes."""
        if (value, tuple(axes)) not in self._cut:
            self._cut[value, tuple(axes)] = self._node("Slice", value, *self.cut_bounds(axes))
        return self._cut[value, tuple(axes)]

    def cut_bounds(self, axes: Sequence[int]) -> tuple[ir.Value, ...]:
        """The operands of a Slice along some axes to the longest sequence of packed tokens."""
        ends = self._build.concat([self.longest] * len(axes), 0)
        return self._build.ints([0] * len(axes)), ends, self._build.ints(list(axes))
