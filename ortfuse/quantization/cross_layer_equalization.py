"""Equalise channels of activations by powers of two, folded into the adjacent weights, to reduce 8-bit errors.

T(a(G(x)), W) = T(a(G'(x)), W'), where G' makes channel k 1/s_k times as large, and W' has its row k s_k times as large

If single channels are much larger than others, one scale for all of them leaves the others few quantisation steps. Such
factors change no bit of the float32 result; `ortfuse.quantization.find_equalizable_channels` finds the sites for them.
Their sizes are tried: by the largest numbers in each channel, by the weights, or by both (SmoothQuant, arXiv:2211.10438;
cross-layer equalisation, arXiv:1906.04721). The choice with the least predicted error of 8-bit products wins, unless it makes
4-bit weights less exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.quantization.calibration import observed
from ortfuse.quantization.find_equalizable_channels import SMALL, Constant, Link, links
from ortfuse.targets import installed
from ortfuse.transforms import Context, DeadCodeElimination
from ortfuse.transforms.cleanup.fold_constant_movement import KeyedTensor, key_of
from ortfuse.transforms.node_builder import take_over

Array = np.ndarray[Any, Any]

POWERS = ((0.5, 0.0), (0.5, 0.25), (0.5, 0.5), (0.25, 0.25))
"""The powers of what a channel reaches, and of its largest weight, that are tried: s = reach^p / weight^q.

With a p of 1 all channels would end where the range ends, and other inputs, on which some reach further, would be cut off.
"""

MOST = 8
"""The largest exponent of a factor, and the negative of the smallest."""

ENOUGH = 0.25
"""Factors are worth it if the predicted squared error is at most this much of that without: less may be chance."""

BLOCK = 32
"""The rows of a block of 4-bit weights."""

NORMAL = (2.0**-100, 2.0**100)
"""The sizes of numbers that factors may make: products of these are normal numbers, or nearly so."""

LOOKED_AT = 6
"""On how many sets of inputs channels are looked at, at most."""

AT_ONCE = 1 << 22
"""How many weights are looked at in one go."""


@dataclass
class Columns:
    """Statistics of the channels of a value: the largest size of each, and the mean of its squares over all runs."""

    largest: Array
    squares: Array
    runs: int = 1

    def add(self, other: Columns) -> None:
        """Take in another run."""
        self.largest = np.maximum(self.largest, other.largest)
        self.squares, self.runs = (self.squares * self.runs + other.squares) / (self.runs + 1), self.runs + 1


def equalised(model: ir.Model, inputs: Sequence[Mapping[str, Any]]) -> tuple[ir.Model, int]:
    """A copy of a model with its channels equalised, and the number of values that was done for.

    Args:
        model: The model in float32; it is returned itself if there is nothing to be done.
        inputs: What it is run on, to see how large channels are.

    Raises:
        VerificationError: The model cannot be run on the inputs.
    """
    copy = model.clone()
    context = Context(copy, Facts(copy), installed())
    found = {link.value.name or "": link for link in links(copy.graph, context.facts)}
    factors: dict[ir.Node, list[tuple[Constant, Array]]] = defaultdict(list)
    count = 0
    for name, columns in _seen(model, found, inputs).items():
        best = _best(found[name], columns)
        if best is None:
            continue
        count += 1
        for constant, channels in _both_sides(found[name], best):
            factors[constant.node].append((constant, channels))
    for node, constants in factors.items():
        with context.editor.change("precision.equalise"):
            _write(context, node, constants)
    if count:
        DeadCodeElimination().run(context)
    return (copy, count) if count else (model, 0)


def _both_sides(link: Link, factors: Array) -> list[tuple[Constant, Array]]:
    """The constants with what the channels of each are multiplied by."""
    return [*((maker, 1 / factors) for maker in link.makers), *((taker, factors) for taker in link.takers)]


def _seen(model: ir.Model, found: Mapping[str, Link], inputs: Sequence[Mapping[str, Any]]) -> dict[str, Columns]:
    seen: dict[str, Columns] = {}
    for name, array in observed(model, found, inputs[:LOOKED_AT]):
        if not array.size:
            continue
        rows = np.moveaxis(array, found[name].axis, -1).reshape(-1, found[name].channels)
        one = Columns(np.abs(rows).max(axis=0), np.square(rows, dtype=np.float64).mean(axis=0))
        if name in seen:
            seen[name].add(one)
        else:
            seen[name] = one
    return seen


def _best(link: Link, columns: Columns) -> Array | None:
    """The factors that the channels of the products' weights are multiplied by; `None` if nothing is gained."""
    if not np.isfinite(columns.largest).all() or not columns.largest.any():
        return None
    weights = [_Weight.of(taker) for taker in link.takers]
    reach = np.max([weight.reach() for weight in weights], axis=0)
    tried = [np.ones(link.channels, np.float32), *(_powers(columns.largest, reach, *one) for one in POWERS)]
    (plain, plain_blocks), *errors = (_errors(factors, columns, weights) for factors in tried)
    for factors, (error, blocks) in sorted(zip(tried[1:], errors, strict=True), key=lambda one: one[1][0]):
        if error <= ENOUGH * plain and blocks <= plain_blocks and _stays_normal(link, factors):
            return factors
    return None


def _powers(largest: Array, reach: Array, by_reach: float, by_weight: float) -> Array:
    """Powers of two near these powers of what channels and weights reach, next to the others; 1 where either is 0."""
    live = (largest > 0) & (reach > 0)
    exponents = by_reach * np.log2(largest, where=live, out=np.zeros(largest.shape))
    exponents -= by_weight * np.log2(reach, where=live, out=np.zeros(largest.shape))
    usual = exponents[live].mean() if live.any() else 0.0
    found: Array = np.exp2(np.where(live, np.clip(np.rint(exponents - usual), -MOST, MOST), 0)).astype(np.float32)
    return found


def _errors(factors: Array, columns: Columns, weights: Sequence[_Weight]) -> tuple[float, float]:
    """The squared error that 8 bits make of what comes in and of the weights, and that which 4 bits make of the weights."""
    step = float((columns.largest / factors).max()) / 127
    squares = columns.squares / np.square(factors, dtype=np.float64)
    bytes_, blocks = zip(*(weight.errors(factors, squares) for weight in weights), strict=True)
    coming = sum(weight.of_rounding(factors, step) for weight in weights)
    return coming + sum(bytes_), sum(blocks)


@dataclass(frozen=True)
class _Weight:
    """A weight as [groups, channels in a group, what is computed of these, positions]."""

    array: Array
    squares: Array

    @staticmethod
    def of(taker: Constant) -> _Weight:
        """The weight of a product or convolution."""
        array, groups = taker.value.const_value.numpy(), taker.groups  # type: ignore[union-attr]
        if array.ndim == 2:
            array = (array if taker.axis == -2 else array.T)[None, :, :, None]
        else:
            made, channels = array.shape[:2]
            array = array.reshape(groups, made // groups, channels, -1).transpose(0, 2, 1, 3)
        return _Weight(array, np.einsum("gcnt,gcnt->gc", array, array).reshape(-1))

    def reach(self) -> Array:
        """The largest size of a weight of each channel."""
        found: Array = np.maximum(self.array.max(axis=(2, 3)), -self.array.min(axis=(2, 3))).reshape(-1)
        return found

    def of_rounding(self, factors: Array, step: float) -> float:
        """Return the factor on the error of each input element, if it is rounded to steps."""
        return step * step * float((np.square(factors, dtype=np.float64) * self.squares).sum())

    def errors(self, factors: Array, squares: Array) -> tuple[float, float]:
        """Return the squared errors of 8-bit weights with a scale per column, and of 4-bit weights with a scale per block."""
        groups, channels, count, positions = self.array.shape
        coming = squares.reshape(groups, channels)
        in_blocks = channels % BLOCK == 0 and groups == positions == 1
        bytes_ = blocks = 0.0
        step = max(1, AT_ONCE // (groups * channels * positions))
        for start in range(0, count, step):
            sizes = np.abs(self.array[:, :, start : start + step]).max(axis=3) * factors.reshape(groups, channels, 1)
            largest = np.square(sizes.max(axis=1) / 127, dtype=np.float64)  # [groups, columns]
            bytes_ += float((largest.sum(axis=1) * coming.sum(axis=1)).sum()) * positions
            if in_blocks:
                largest = np.square(sizes.reshape(-1, BLOCK, sizes.shape[2]).max(axis=1) / 7, dtype=np.float64)
                blocks += float((largest.sum(axis=1) * coming.reshape(-1, BLOCK).sum(axis=1)).sum())
        return bytes_, blocks


def _stays_normal(link: Link, factors: Array) -> bool:
    """Whether what constants become are normal numbers, or 0."""
    for constant, channels in _both_sides(link, factors):
        sizes = np.abs(_scaled(constant.value.const_value, [(constant, channels)]))
        if not ((sizes == 0) | ((sizes > NORMAL[0]) & (sizes < NORMAL[1]))).all():
            return False
    return True


def _scaled(tensor: ir.TensorProtocol | None, factors: Sequence[tuple[Constant, Array]]) -> Array:
    assert tensor is not None
    array: Array = tensor.numpy()
    for constant, channels in factors:
        array = array * constant.spread(channels, array.ndim)
    return array


def _write(context: Context, node: ir.Node, factors: Sequence[tuple[Constant, Array]]) -> None:
    """Write a node anew, on constants with their factors; those that nothing else takes leave them their names."""
    inputs = list(node.inputs)
    names: dict[ir.Value, ir.Value] = {}
    for index in dict.fromkeys(constant.index for constant, _ in factors):
        own = [one for one in factors if one[0].index == index]
        old = own[0][0].value
        new = context.editor.add_constant(node, _later(old.const_value, own))
        assert new is not None
        inputs[index] = new
        if len(old.uses()) == 1:
            names[new] = old
    made = ir.Node(
        node.domain, node.op_type, inputs, node.attributes.values(), num_outputs=len(node.outputs),
        version=node.version, name=node.name, metadata_props=dict(node.metadata_props),
    )  # fmt: skip
    context.editor.insert_before(node, made)
    take_over(context.editor, node, made)
    for new, old in names.items():
        name = old.name
        context.editor.drop_initializers(old)
        context.editor.rename(new, name)


def _later(tensor: ir.TensorProtocol | None, factors: Sequence[tuple[Constant, Array]]) -> ir.TensorProtocol:
    """The constant times its factors, as large ones are computed each time that they are read."""
    assert tensor is not None
    if tensor.size <= SMALL:
        return ir.Tensor(_scaled(tensor, factors))
    made = KeyedTensor(lambda: ir.Tensor(_scaled(tensor, factors)), tensor.dtype, ir.Shape(tensor.shape.numpy()))
    made.key = (key_of(tensor), *((one.index, one.axis, channels.tobytes()) for one, channels in factors))
    return made
