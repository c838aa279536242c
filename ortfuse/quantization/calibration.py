"""Observe the ranges of values on given inputs, and derive quantisation ranges from them.

A few runs do not show the full range of a value. In a test, one of ten further runs exceeded the largest number of nine
runs, at every value by itself. Clipping in one run of ten or a hundred makes rare, large errors, often absent from the inputs
that a bound is tried on. So each range is widened by as much as the extremes may grow in other runs.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import PrecisionError
from ortfuse.ir.editor import Editor
from ortfuse.quantization.activation_hessian import FEWEST_RUNS, Moments, Runs, SecondMoments
from ortfuse.quantization.insert_intermediate_qdq import names_between
from ortfuse.quantization.kl_divergence import least_divergent
from ortfuse.runtime.session import Session
from ortfuse.runtime.submodel import forced
from ortfuse.transforms.cleanup.fold_constant_movement import MovedTensor

Array = np.ndarray[Any, Any]
Range = tuple[float, float]

BINS = 4096
"""The bins of a histogram; at least a quarter of them are within the range of what was seen."""

COARSE = 512
"""The bins of a histogram for the method that takes time with the square of their number."""

ENTROPY_LEVELS = 128
"""How many steps that method rounds to."""

GROUP_BYTES = 256 << 20
"""About how many bytes of values are taken from one run."""

FEW = 8
"""So many values are taken at once whatever their sizes are, and stand for the sizes of more."""

BEYOND = 2.0
"""How many standard deviations of the extremes of single runs other runs may reach beyond the farthest."""

MOST_WIDER = 1.5
"""How many times as wide that makes a range at most: steps become as much larger."""

FEW_RUNS = 4
"""With fewer runs nothing is known of how their extremes differ."""

OUTSIDE = {"percentile_999": 1e-3, "percentile_9999": 1e-4, "percentile_99999": 1e-5}
"""The share of the numbers that lies outside of a range, by method."""


@dataclass
class Seen:
    """Statistics of one value: extremes, and a histogram of the numbers between `-reach` and `reach`.

    `lows` and `highs` are the extremes of each run. `columns` has the largest size at each index of the last axis; a single one
    if its length is not always the same. `means` has the mean there in each run; nothing if the length is not always the same.
    """

    low: float = np.inf
    high: float = -np.inf
    reach: float = 2.0**-40
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    counts: Array = field(default_factory=lambda: np.zeros(BINS, np.int64))
    columns: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    means: list[Array] = field(default_factory=list)

    def add(self, array: Array) -> None:
        """Count the numbers of an array, which are all finite."""
        if not array.size:
            return
        low, high = float(array.min()), float(array.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.lows.append(low)
        self.highs.append(high)
        while max(-low, high) > self.reach:
            self.reach *= 2
            self._halve()
        # Bins have powers of two as edges and widths, so that a product tells the bin, rounded down, exactly.
        places = np.floor(array.ravel() * (BINS // 2 / self.reach)).astype(np.int32)
        self.counts += np.bincount(np.minimum(places, BINS // 2 - 1) + BINS // 2, minlength=BINS)
        rows = array.reshape(-1, array.shape[-1] if array.ndim else 1)
        sizes = np.abs(rows).max(axis=0)
        self.means.append(rows.mean(axis=0))
        if self.columns.size and self.columns.shape != sizes.shape:
            self.columns, sizes = self.columns.max(keepdims=True), sizes.max(keepdims=True)
        self.columns = np.maximum(self.columns, sizes) if self.columns.size else sizes

    def _halve(self) -> None:
        """Let each two neighbouring bins be one: there are as many new ones at the sides."""
        middle = self.counts.reshape(-1, 2).sum(axis=1)
        self.counts = np.concatenate([np.zeros(BINS // 4, np.int64), middle, np.zeros(BINS // 4, np.int64)])

    def extremes(self) -> Range:
        """The smallest and the largest number."""
        return self.low, self.high

    def without(self, share: float) -> Range:
        """A range that so large a share of the numbers is outside of, half of it at either end."""
        reached, edges = np.cumsum(self.counts), self._edges(BINS)
        total = reached[-1]
        first = int(np.searchsorted(reached, total * share / 2, side="right"))
        last = int(np.searchsorted(reached, total * (1 - share / 2)))
        return max(self.low, float(edges[first])), min(self.high, float(edges[last + 1]))

    def least_squares(self, levels: int = 255) -> Range:
        """The range in which rounding to equal steps loses least: the sum of squares of what is rounded and cut off."""
        centres = (self._edges(BINS)[1:] + self._edges(BINS)[:-1]) / 2
        present = self.counts > 0
        centres, counts = np.clip(centres[present], self.low, self.high), self.counts[present]
        low, high = min(self.low, 0.0), max(self.high, 0.0)
        if not high > low:
            return self.extremes()
        lows, highs = low * _SHRUNK, high * _SHRUNK
        lost_below, below = _cut_off(lows[:, None] - centres, counts)
        lost_above, above = _cut_off(centres - highs[:, None], counts)
        steps = (highs - lows[:, None]) / levels
        rounded = counts.sum() - below[:, None] - above
        lost = lost_below[:, None] + lost_above + rounded * steps * steps / 12
        best = np.unravel_index(lost.argmin(), lost.shape)
        return float(lows[best[0]]), float(highs[best[1]])

    def entropy(self) -> Range:
        """The range that changes the distribution least (Kullback-Leibler), as the runtime's own calibration has it."""
        counts = self.counts.reshape(COARSE, -1).sum(axis=1)
        edges = self._edges(COARSE).astype(np.float32)
        start, end = least_divergent(counts, ENTROPY_LEVELS)
        low, high = np.float32(self.low), np.float32(self.high)
        return float(max(edges[start], low)), float(min(edges[end], high))

    def in_other_runs(self, found: Range) -> Range:
        """A range that was told from what was seen, made wider by what other runs may have beyond that."""
        below, above = _wider([-low for low in self.lows]), _wider(self.highs)
        return (found[0] * below if found[0] < 0 else found[0]), (found[1] * above if found[1] > 0 else found[1])

    def _edges(self, bins: int) -> Array:
        return np.linspace(-self.reach, self.reach, bins + 1)


def _wider(ends: Sequence[float]) -> float:
    """How many times as far as the farthest of some runs others may reach; 1 if that is not known."""
    farthest = max(ends)
    if len(ends) < FEW_RUNS or farthest <= 0:
        return 1.0
    return min(1 + BEYOND * statistics.stdev(ends) / farthest, MOST_WIDER)


def _cut_off(beyond: Array, counts: Array) -> tuple[Array, Array]:
    """Return the squared clipping errors and the number of clipped elements, by the distance of each bin beyond each end."""
    beyond = np.maximum(beyond, 0.0)
    return (beyond * beyond) @ counts, (beyond > 0) @ counts


_SHRUNK = np.linspace(1.0, 0.2, 17)
"""The parts of a range that are tried."""

METHODS: Mapping[str, Callable[[Seen], Range]] = {
    "extremes": Seen.extremes,
    **{name: functools.partial(Seen.without, share=share) for name, share in OUTSIDE.items()},
    "least_squares": Seen.least_squares,
    "entropy": Seen.entropy,
}
"""How a range is told, by name."""

COLUMNS, MEANS, MOMENTS = "columns", "means", "moments"
"""The method that stands for the largest size in each column, the mean, or second moments, instead of a range."""


@dataclass
class Calibration:
    """Statistics of the values of a model, by their names.

    Attributes:
        seen: What was seen of each.
        before_products: The values that come into products with a constant matrix of their own.
        again: Runs the model once more, for what takes much memory.
    """

    seen: dict[str, Seen] = field(default_factory=dict)
    before_products: Sequence[str] = ()
    again: Runs | None = field(default=None, repr=False)
    _ranges: dict[tuple[str, str], Range] = field(default_factory=dict, repr=False)

    def columns(self, name: str) -> tuple[float, ...] | None:
        """The largest size of each column of a value; `None` if the value was not observed, or was always empty."""
        found = self.seen.get(name)
        return None if found is None or not found.columns.size else tuple(found.columns.tolist())

    def means(self, name: str) -> tuple[float, ...] | None:
        """The mean of each column of a value, nearer to 0 the less sure it is, as it differs from run to run.

        `None` if the value was not observed more than once, or has not always as many columns.
        """
        found = self.seen.get(name)
        if found is None or len(found.means) < FEWEST_RUNS or len({one.shape for one in found.means}) > 1:
            return None
        runs = np.stack(found.means).astype(np.float64)
        mean, doubt = runs.mean(axis=0), runs.var(axis=0, ddof=1) / len(runs)
        size = np.maximum(np.square(mean), float(np.finfo(np.float32).tiny))
        return tuple((mean * np.maximum(1 - doubt / size, 0)).tolist())

    def moments(self, name: str) -> Moments | None:
        """The second moments of the columns of a value; `None` if its means are not known."""
        return None if self._moments is None else self._moments.of(name)

    @functools.cached_property
    def _moments(self) -> SecondMoments | None:
        return None if self.again is None else SecondMoments(self.before_products, self.means, self.again)

    def range(self, name: str, method: str) -> Range | None:
        """The range of a value in these and other runs, by one of `METHODS`; `None` if it was not observed, or always empty."""
        found = self.seen.get(name)
        if found is None or not found.counts.any():
            return None
        if (name, method) not in self._ranges:
            self._ranges[name, method] = found.in_other_runs(METHODS[method](found))
        return self._ranges[name, method]


def calibrate(model: ir.Model, names: Collection[str], inputs: Sequence[Mapping[str, Any]]) -> Calibration:
    """Run a model and observe values of its main graph.

    Args:
        model: The model; not changed.
        names: The values to observe, with what stands between them. Those that the model does not have, or that are not
            float32, are left out.
        inputs: The inputs of each run by name.

    Raises:
        PrecisionError: A value is infinite or not a number.
        VerificationError: The model cannot be run.
    """
    extended, inner = _with_products(model, names)

    def runs(names: Collection[str]) -> Iterator[tuple[str, Array]]:
        for name in names:
            arrays = (np.asarray(given[name]) for given in inputs if name in given)
            yield from ((name, array) for array in arrays if array.dtype == np.float32)
        yield from observed(extended, names, inputs)

    calibration = Calibration(before_products=_before_products(model), again=runs)
    for name, array in runs(tuple(dict.fromkeys((*names, *inner, *names_between(extended, names))))):
        _add(calibration, name, array)
    return calibration


def _before_products(model: ir.Model) -> tuple[str, ...]:
    """The names of values that are multiplied with a constant matrix, or used beside one otherwise.

    Values next to a matrix with other users, transposed or not, are left out: rounded for one user, it would differ
    from the others.
    """
    users: dict[int, set[ir.Node]] = {}
    for weight in model.graph.initializers.values():
        if weight.const_value is not None:
            users.setdefault(id(_source(weight.const_value)), set()).update(use.node for use in weight.uses())
    found: dict[str, bool] = {}
    for node in model.graph:
        value, other = (*node.inputs, None, None)[:2]
        matrix = None if other is None else other.const_value
        if value is not None and matrix is not None and len(matrix.shape.numpy()) == 2:
            name = value.name or ""
            found[name] = found.get(name, True) and len(users.get(id(_source(matrix)), ())) <= 1
    return tuple(name for name, alone in found.items() if alone)


def _source(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    while isinstance(tensor, MovedTensor):
        tensor = tensor.source
    return tensor


def observed(
    model: ir.Model, names: Collection[str], inputs: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, Array]]:
    """Run a model; yields what values of its main graph are in each run, with their names: those in float32.

    The values are taken from the model a group at a time, so that not all of them are in memory at once.

    Args:
        model: The model; not changed.
        names: The values. Those that the model does not compute are left out.
        inputs: The inputs of each run by name.

    Raises:
        VerificationError: The model cannot be run.
    """
    made = {value.name for node in model.graph for value in node.outputs}
    left = [name for name in dict.fromkeys(names) if name in made]
    size = _at_once(model, left, inputs)
    for start in range(0, len(left), size):
        group = left[start : start + size]
        session = Session(forced(model, {}, "", group), lean=len(inputs) == 1)
        for given in inputs:
            found = session.run(given)
            for name in group:
                array = found[name]
                if isinstance(array, np.ndarray) and array.dtype == np.float32:
                    yield name, array


def _at_once(model: ir.Model, names: Sequence[str], inputs: Sequence[Mapping[str, Any]]) -> int:
    """How many values are taken from a run: by the largest of some that stand for all, on the first inputs."""
    if len(names) <= FEW or not inputs:
        return max(1, len(names))
    some = names[:: len(names) // FEW]
    found = Session(forced(model, {}, "", some), lean=True).run(inputs[0])
    return max(1, GROUP_BYTES // max(1, *(getattr(found[name], "nbytes", 1) for name in some)))


PRODUCT = "/product"
"""Suffix of the name of a value for the convolution that is computed and added to something on the way to it."""


def _with_products(model: ir.Model, names: Collection[str]) -> tuple[ir.Model, list[str]]:
    """A copy that also computes convolutions without what is added to them, and the names of these."""
    names = frozenset(names)
    if not any(_residual(value) for node in model.graph for value in node.outputs if value.name in names):
        return model, []
    copy, found = model.clone(), []
    editor = Editor(copy, Facts(copy))
    for node in list(copy.graph):
        name = node.outputs[0].name if node.outputs else None
        product = _residual(node.outputs[0]) if name in names else None
        if product is not None:
            editor.insert_after(node, product)
            editor.rename(product.outputs[0], f"{name}{PRODUCT}")
            found.append(f"{name}{PRODUCT}")
    return copy, found


def _residual(value: ir.Value) -> ir.Node | None:
    """A further node for the convolution that something is added to on the way to a value; `None` if there is none."""
    node = value.producer()
    if node is not None and node.op_type == "FusedConv" and len(node.inputs) > 3:
        how = [one for one in node.attributes.values() if not one.name.startswith("activation")]
        return ir.Node("", "Conv", node.inputs[:3], how)
    while node is not None and node.op_type == "Relu" and not node.domain and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.op_type != "Add":
        return None
    parts = (part for part in node.inputs if part is not None and len(part.uses()) == 1 and not part.is_graph_output())
    convolved = (part for part in parts if (above := part.producer()) is not None and above.op_type == "Conv")
    first = next(convolved, None)
    return None if first is None else ir.Node("", "Identity", [first])


def _add(calibration: Calibration, name: str, array: Array) -> None:
    if not np.isfinite(array).all():
        raise PrecisionError(
            f"'{name}' is infinite or not a number on some of the inputs; give inputs on which it is not with --inputs"
        )
    calibration.seen.setdefault(name, Seen()).add(array)
