"""A comparison of composed linear maps with NumPy, on random chains of layers, scales, shifts, movement and means.

    python -m tests.fuzz.linear_chains 50000 [--seed 0]

Each chain is computed in float64 before and after `compose_linear_maps`, by the definitions below. Weights are rounded once, to
float32, so that results agree to a few roundings of the largest intermediate number.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.targets import Target
from ortfuse.transforms import ComposeLinearMaps, DeadCodeElimination
from ortfuse.transforms.context import Context

from .numpy_operators import value_of

LONGEST = 12
TOLERANCE = 3e-5
"""The largest error, as a part of what the result would be if no numbers had cancelled each other."""

Array = np.ndarray[Any, Any]


class Chain:
    """A random chain on images or rows, built node by node with the value that each has."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []
        channels, rank = int(self.random.integers(1, 5)), int(self.random.choice([2, 3, 4, 4, 4]))
        sizes = [2, *(int(size) for size in self.random.integers(3, 7, rank - 1))]
        sizes[1] = channels
        self.x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n", *sizes[1:]]))
        self.arrays: dict[ir.Value, Array] = {self.x: self.random.standard_normal(sizes)}
        self.outputs: list[ir.Value] = []

    def constant(self, array: Any) -> ir.Value:
        found = np.asarray(array)
        kept = found.astype(np.float32 if found.dtype.kind == "f" else np.int64)
        name = f"c{len(self.constants)}"
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(kept.dtype)), shape=ir.Shape(kept.shape))
        value.const_value = ir.Tensor(kept, name=name)
        self.constants.append(value)
        self.arrays[value] = kept.astype(np.float64) if kept.dtype.kind == "f" else kept
        return value

    def numbers(self, *shape: int) -> ir.Value:
        """Constants around 1 in size, of either sign."""
        array = self.random.uniform(0.3, 1.8, shape) * self.random.choice([1, 1, 1, -1], shape)
        return self.constant(array)

    def node(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        made = ir.node(op_type, inputs, attributes or None)
        arrays = [None if value is None else self.arrays[value] for value in inputs]
        result = value_of(op_type, arrays, attributes)
        made.outputs[0].name = f"v{len(self.nodes)}"
        self.nodes.append(made)
        self.arrays[made.outputs[0]] = result
        return made.outputs[0]

    def model(self, *outputs: ir.Value) -> ir.Model:
        for output in outputs:
            output.type = ir.TensorType(ir.DataType.FLOAT)
            output.shape = ir.Shape(
                ["n" if number == 0 else size for number, size in enumerate(self.arrays[output].shape)]
            )
        used = {value for node in self.nodes for value in node.inputs}
        kept = [value for value in self.constants if value in used]
        graph = ir.Graph([self.x], list(outputs), nodes=self.nodes, initializers=kept, opset_imports={"": 17}, name="g")
        return ir.Model(graph, ir_version=8)


def _diagonal(chain: Chain, value: ir.Value) -> ir.Value:
    shape, random = chain.arrays[value].shape, chain.random
    kind = random.choice(["Mul", "Div", "Add", "Sub", "minuend", "Neg", "multiple", "BatchNormalization"])
    if kind == "Neg":
        return chain.node("Neg", value)
    if kind == "BatchNormalization":
        count = shape[1]
        variance = chain.constant(random.uniform(0.3, 2, count))
        return chain.node("BatchNormalization", value, *(chain.numbers(count) for _ in range(3)), variance)
    axis = int(random.choice([1, 1, 1, len(shape) - 1, 0]))
    wide = 3 if shape[axis] == 1 else shape[axis]
    sizes = () if axis == 0 else tuple(wide if number == axis else 1 for number in range(len(shape)))
    sizes = sizes[next((number for number, size in enumerate(sizes) if size != 1), len(sizes)) :]
    number = chain.numbers(*(sizes or random.choice([0, 1]) * (1,)))
    if kind == "multiple":
        return chain.node("Add", value, chain.node("Mul", value, number))
    return chain.node("Sub", number, value) if kind == "minuend" else chain.node(str(kind), value, number)


def _layer(chain: Chain, value: ir.Value) -> ir.Value:
    shape, random = chain.arrays[value].shape, chain.random
    if len(shape) < 3 or random.random() < 0.2:
        return _product(chain, value)
    channels, axes = shape[1], len(shape) - 2
    groups = int(random.choice([group for group in range(1, channels + 1) if channels % group == 0]))
    outputs = groups * int(random.integers(1, 4))
    taps = [int(random.choice([1, 1, min(2, size), min(3, size)])) for size in shape[2:]]
    transposed = random.random() < 0.25
    kernel = (channels, outputs // groups, *taps) if transposed else (outputs, channels // groups, *taps)
    bias = [chain.numbers(outputs)] if random.random() < 0.6 else []
    attributes: dict[str, Any] = {"group": groups, "strides": [int(s) for s in random.choice([1, 1, 2], axes)]}
    padded = random.random() < 0.4 and not transposed
    attributes["pads"] = [int(pad) for pad in random.integers(0, 2, 2 * axes)] if padded else [0] * 2 * axes
    if random.random() < 0.2:
        attributes["pads"] = [tap // 2 for tap in taps] * 2
        attributes["pads"] = [0] * 2 * axes if transposed else attributes["pads"]
    return chain.node("ConvTranspose" if transposed else "Conv", value, chain.numbers(*kernel), *bias, **attributes)


def _product(chain: Chain, value: ir.Value) -> ir.Value:
    shape, random = chain.arrays[value].shape, chain.random
    columns = int(random.integers(1, 5))
    if len(shape) == 2 and random.random() < 0.5:
        turned = bool(random.random() < 0.5)
        weight = chain.numbers(*((columns, shape[-1]) if turned else (shape[-1], columns)))
        bias = [chain.numbers(*random.choice([1, columns], 1))] if random.random() < 0.6 else []
        return chain.node(
            "Gemm", value, weight, *bias, transB=int(turned), alpha=0.5, beta=float(random.choice([1, 2]))
        )
    if len(shape) > 2 and random.random() < 0.25:
        return chain.node("MatMul", chain.numbers(columns, shape[-2]), value)
    made = chain.node("MatMul", value, chain.numbers(shape[-1], columns))
    return chain.node("Add", made, chain.numbers(columns)) if random.random() < 0.5 else made


def _moved(chain: Chain, value: ir.Value) -> ir.Value:
    shape, random = chain.arrays[value].shape, chain.random
    rank = len(shape)
    kind = random.choice(["Transpose", "Slice", "Gather", "flat", "heads", "Pad", "Split", "Relu"])
    axis = int(random.integers(1, rank))
    if kind == "Transpose":
        return chain.node("Transpose", value, perm=[0, *(int(one) for one in 1 + random.permutation(rank - 1))])
    if kind == "Slice" and shape[axis] > 1:
        return chain.node("Slice", value, *(chain.constant([one]) for one in (int(random.integers(0, 2)), 99, axis)))
    if kind == "Gather":
        return chain.node("Gather", value, chain.constant(random.permutation(shape[axis])), axis=axis)
    if kind == "flat":
        return chain.node("Reshape", value, chain.constant([0, shape[1], -1]))
    if kind == "heads" and shape[-1] % 2 == 0 and rank < 5:
        return chain.node("Reshape", value, chain.constant([0] * (rank - 1) + [2, shape[-1] // 2]))
    if kind == "Pad" and rank > 2:
        pads = [0, 0, *(1 for _ in shape[2:]), 0, 0, *(0 for _ in shape[2:])]
        mode = random.choice(["constant", "edge", "reflect"]) if min(shape[2:]) > 1 else "constant"
        return chain.node("Pad", value, chain.constant(pads), mode=str(mode))
    return chain.node("Relu", value) if kind == "Relu" and random.random() < 0.3 else value


def _averaged(chain: Chain, value: ir.Value) -> ir.Value:
    shape, random = chain.arrays[value].shape, chain.random
    if len(shape) < 3:
        return value
    kind = random.choice(["AveragePool", "MaxPool", "GlobalAveragePool", "ReduceMean"])
    if kind == "GlobalAveragePool":
        return chain.node("GlobalAveragePool", value)
    if kind == "ReduceMean":
        return chain.node(
            "ReduceMean", value, axes=[int(random.integers(1, len(shape)))], keepdims=int(random.integers(0, 2))
        )
    taps = [min(2, size) for size in shape[2:]]
    pads = [int(random.integers(0, 2)) if tap > 1 else 0 for tap in taps] * 2
    more = {"count_include_pad": int(random.integers(0, 2))} if kind == "AveragePool" else {}
    return chain.node(str(kind), value, kernel_shape=taps, strides=[1] * len(taps), pads=pads, **more)


def _branched(chain: Chain, value: ir.Value) -> ir.Value:
    """The sum or concatenation of two branches."""
    random = chain.random
    parts = [(_layer if random.random() < 0.7 else _diagonal)(chain, value) for _ in range(2)]
    if random.random() < 0.3:
        parts[1] = value
    one, other = (chain.arrays[part].shape for part in parts)
    if one == other and random.random() < 0.6:
        return chain.node(str(random.choice(["Add", "Sub"])), *parts)
    same = len(one) == len(other) and all(
        a == b for axis, (a, b) in enumerate(zip(one, other, strict=True)) if axis != 1
    )
    return chain.node("Concat", *parts, axis=1) if same and len(one) > 1 else parts[0]


def _projected(chain: Chain, value: ir.Value) -> ir.Value:
    """A layer without taps of the rows of a product, which are moved."""
    moved = _moved(chain, _product(chain, value))
    shape = chain.arrays[moved].shape
    if len(shape) < 3 or chain.random.random() < 0.5:
        return _product(chain, moved)
    outputs = int(chain.random.integers(1, 4))
    return chain.node("Conv", moved, chain.numbers(outputs, shape[1], *(1 for _ in shape[2:])), chain.numbers(outputs))


def chain_of(seed: int) -> tuple[Chain, ir.Model]:
    """Return a random chain and its model."""
    chain = Chain(seed)
    value, random = chain.x, chain.random
    for _ in range(int(random.integers(2, LONGEST))):
        step = random.choice(
            [_diagonal, _diagonal, _diagonal, _layer, _layer, _moved, _averaged, _branched, _projected]
        )
        if chain.arrays[value].size > 20000 or len(chain.arrays[value].shape) > 5:
            break
        value = step(chain, value)
        if random.random() < 0.06 and value is not chain.x:
            chain.outputs.append(value)
    if value is chain.x:
        value = _diagonal(chain, value)
    return chain, chain.model(*dict.fromkeys([value, *chain.outputs]))


def error_of(seed: int, totals: Counter[str]) -> float:
    """Return by how much a chain differs after composition, as a part of the size of its terms."""
    chain, model = chain_of(seed)
    feeds = {"x": chain.arrays[chain.x]}
    before, sizes = results(model, feeds), results(model, feeds, absolute=True)
    totals["operators before"] += sum(1 for _ in model.graph)
    context = Context(model, Facts(model), Target())
    totals["compositions"] += ComposeLinearMaps().run(context)
    DeadCodeElimination().run(context)
    totals["operators after"] += sum(1 for _ in model.graph)
    after, worst = results(model, feeds), 0.0
    for one, other, size in zip(before, after, sizes, strict=True):
        if one.shape != other.shape:
            return np.inf
        scale = np.maximum(size, size.max(initial=0.0) * 1e-3) + 1e-9
        worst = max(worst, float((np.abs(one - other) / scale).max(initial=0.0)))
    return worst


def results(model: ir.Model, feeds: dict[str, Array], *, absolute: bool = False) -> list[Array]:
    """Return the outputs in float64; with `absolute`, what they would be if nothing cancelled."""
    arrays: dict[ir.Value, Array] = {value: feeds[str(value.name)] for value in model.graph.inputs}
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        array = value.const_value.numpy()
        arrays[value] = array.astype(np.float64) if array.dtype.kind == "f" else array
    if absolute:
        arrays = {value: np.abs(array) if array.dtype.kind == "f" else array for value, array in arrays.items()}
    for node in model.graph:
        attributes = {name: one.value for name, one in node.attributes.items()}
        inputs = [None if value is None else arrays[value] for value in node.inputs]
        arrays[node.outputs[0]] = value_of(node.op_type, inputs, attributes, absolute=absolute)
    return [arrays[value] for value in model.graph.outputs]


def main() -> int:
    """Compare many chains; print figures and the first mistakes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, help="how many chains")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first one")
    options = parser.parse_args()
    totals: Counter[str] = Counter()
    wrong = 0
    for seed in range(options.seed, options.seed + options.count):
        error = error_of(seed, totals)
        if not error <= TOLERANCE:
            wrong += 1
            print(f"chain {seed}: off by {error:.3g} of the size of its terms", flush=True)
    print(f"{options.count} chains, {wrong} of them wrong; {dict(totals)}")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
