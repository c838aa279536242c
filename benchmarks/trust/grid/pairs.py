"""Two operators in a row, drawn at random: a result of one seed is an operand of another.

A fact about a result may be wrong only because of a fact about an operand that no single seed has: sizes that are formulas,
numbers that are sizes, tensors that may be empty. So every axis has a name and is tried with several sizes, and integers are
computed from sizes. If the result can be loop-carried, both nodes are the body of a Loop.
"""

from __future__ import annotations

import functools
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.trust.grid.building import ALLOCATE, Cell, Parts, Run, dtype_of, node_of
from benchmarks.trust.grid.cells import varied
from benchmarks.trust.grid.known import DEPARTING, UNCHECKED
from benchmarks.trust.grid.seeds import Seed, at, seeds
from ortfuse.errors import OrtfuseError
from ortfuse.runtime.session import Session

LABEL = "pair"
_OPSETS = (11, 13, 17, 18, 21, 23, 24, 26)
_SIZES = (0, 1, 3)
_MOST_ELEMENTS = 1024
_MOST_RUNS = 6
_TRIES = 20


def pair(label: str) -> Cell | None:
    """The pair that a label stands for; `None` if nothing was found that the runtime executes."""
    rng = random.Random(label)
    for _ in range(_TRIES):
        opset = rng.choice(_OPSETS)
        first = _drawn(rng, opset)
        results = {} if first is None else _results(first)
        usable = [place for place, result in results.items() if result.ndim > 0 and result.size <= _MOST_ELEMENTS]
        if first is None or not usable:
            continue
        place = rng.choice(usable)
        taker = _taker(rng, opset, results[place])
        if taker is not None:
            return _Chain(rng, label, first, place, *taker).cell()
    return None


def _drawn(rng: random.Random, opset: int) -> Seed | None:
    """A seed at that opset, mostly varied in one way."""
    name = rng.choice(list(seeds()))
    seed = at(found := rng.choice(seeds()[name]), found.version if found.domain else opset)
    if seed is None or not _is_usable(seed):
        return None
    return varied(rng, seed) if rng.random() < 0.6 else seed


def _is_usable(seed: Seed) -> bool:
    of_tensors = all(value is None or isinstance(value, np.ndarray) for value in seed.inputs)
    return of_tensors and seed.op_type not in UNCHECKED


def _results(seed: Seed) -> dict[int, np.ndarray]:
    """Return the runtime's results for a seed, by the index of the output."""
    parts = Parts()
    names = parts.operands(seed, lambda index: True)
    model = parts.model([node_of(seed, names)], _imports(seed))
    try:
        found = Session(model.SerializeToString(), optimise=False, threads=1, lean=True).run(parts.feeds)
    except OrtfuseError:
        return {}
    return {int(name[1:]): one for name, one in found.items() if isinstance(one, np.ndarray) and not parts.is_narrow}


def _imports(*of: Seed) -> dict[str, int]:
    plain = [seed.version for seed in of if not seed.domain]
    return {"": plain[0] if plain else 17, **{seed.domain: seed.version for seed in of}}


def _taker(rng: random.Random, opset: int, result: np.ndarray) -> tuple[Seed, int] | None:
    """A seed with an operand of the type and rank of a result, and the index of the operand."""
    found = _places().get((result.dtype.name, result.ndim), {})
    if not found:
        return None
    seed, index = rng.choice(found[rng.choice(list(found))])
    written = at(seed, seed.version if seed.domain else opset)
    if written is None or index >= len(written.inputs) or not isinstance(written.inputs[index], np.ndarray):
        return None
    return written.with_input(index, result), index


@functools.cache
def _places() -> dict[tuple[str, int], dict[str, list[tuple[Seed, int]]]]:
    """The operands of all seeds, by their type and rank and by the operator; numbers that say how much to allocate left out."""
    found: defaultdict[tuple[str, int], defaultdict[str, list[tuple[Seed, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for name, some in seeds().items():
        for seed in some:
            if not _is_usable(seed):
                continue
            for index, value in enumerate(seed.inputs):
                if value is not None and not (index and seed.op_type in ALLOCATE):
                    found[value.dtype.name, value.ndim][name].append((seed, index))
    return {key: dict(by_name) for key, by_name in found.items()}


@dataclass
class _Chain:
    rng: random.Random
    label: str
    first: Seed
    place: int
    second: Seed
    index: int

    def cell(self) -> Cell | None:
        parts = Parts()
        between = f"m{self.place}"
        nodes = [
            node_of(self.first, self._operands(parts, self.first, "i"), "m"),
            node_of(self.second, self._operands(parts, self.second, "j", self.index, between), "o"),
        ]
        if parts.is_narrow or not parts.inputs:
            return None
        if self.rng.random() < 0.3:
            nodes = self._looped(parts, nodes)
        imports = _imports(self.first, self.second)
        model = parts.model(nodes, imports)
        return Cell(
            f"{self.label} {self.first.name} > {self.second.name}",
            self.second,
            model,
            tuple(self._runs(parts)),
            constant=False,
            before=(self.first,),
        )

    def _operands(self, parts: Parts, seed: Seed, prefix: str, taken: int | None = None, name: str = "") -> list[str]:
        """Add the operands of a node: inputs, constants, and integers that are computed from sizes."""
        names = []
        all_open = self.rng.random() < 0.5
        for index, value in enumerate(seed.inputs):
            names.append("" if value is None else name if index == taken else f"{prefix}{index}")
            if value is None or index == taken:
                continue
            is_parameter = value.dtype in (np.int64, np.int32) and value.ndim < 2 and 0 < value.size < 5
            if is_parameter and index and seed.op_type not in ALLOCATE and self.rng.random() < 0.4:
                parts.count(names[-1], value)
            else:
                is_data = not index and taken is None
                parts.add(names[-1], value, is_data or (not is_parameter and (all_open or self.rng.random() < 0.3)))
        return names

    def _looped(self, parts: Parts, nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """Both nodes as the body of a Loop whose state is the first operand; as they are if the result has another type."""
        states = {value.name: value.type.tensor_type.elem_type for value in parts.inputs}
        state = nodes[0].input[0] if nodes[0].input else ""
        result = next(name for name in nodes[1].output if name)
        if state not in states or dtype_of(self.first.inputs[0]) != dtype_of(self.second.inputs[self.index]):
            return nodes
        kind = states[state]
        for node in nodes:
            node.input[:] = ["state" if name == state else name for name in node.input]
        body = helper.make_graph(
            [*nodes, helper.make_node("Identity", ["on"], ["goes"])],
            "body",
            [
                helper.make_tensor_value_info("number", TensorProto.INT64, []),
                helper.make_tensor_value_info("on", TensorProto.BOOL, []),
                helper.make_tensor_value_info("state", kind, None),
            ],
            [
                helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
                helper.make_tensor_value_info(result, kind, None),
            ],
        )
        parts.add("trips", np.array(self.rng.choice([0, 1, 2, 3])), self.rng.random() < 0.5)
        parts.add("always", np.array(True), False)
        return [helper.make_node("Loop", ["trips", "always", state], ["end"], body=body)]

    def _runs(self, parts: Parts) -> Iterator[Run]:
        """The operands as they are; and with all axes of one size made another."""
        yield parts.feeds, parts.sizes
        operators = {self.first.op_type, self.second.op_type}
        changes = [
            (old, new)
            for old in sorted(set(parts.sizes.values()))
            for new in _SIZES
            if old != new and not (operators & DEPARTING and not new)
        ]
        for old, new in self.rng.sample(changes, min(_MOST_RUNS, len(changes))):
            sizes = {name: new if size == old else size for name, size in parts.sizes.items()}
            feeds = {}
            for value in parts.inputs:
                shape = [sizes[dim.dim_param] for dim in value.type.tensor_type.shape.dim]
                feeds[value.name] = np.resize(parts.feeds[value.name], shape)
            yield feeds, sizes
