"""Random small graphs of Transposes and operators that are indifferent to the order of axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from ortfuse.transforms.layout import assign_axis_orders
from ortfuse.transforms.layout.layout_unit import start
from ortfuse.transforms.layout.region import Region

HEAD = '<ir_version: 8, opset_import: ["": 20]>\n'
SIZES = (2, 3, 4, 5)


def random_text(seed: int, nodes: int = 14, kinds: int = 2) -> str:
    """A graph of so many nodes whose values have axes of the sizes 2, 3, 4 and 5 in a few orders, which Transposes change."""
    rng = np.random.default_rng(seed)
    perms = [p for p in itertools.permutations(range(4)) if p != (0, 1, 2, 3)]
    orders = [(0, 1, 2, 3), *(perms[index] for index in rng.choice(len(perms), kinds - 1, replace=False))]
    values: list[tuple[str, tuple[int, ...]]] = [("x0", SIZES), ("x1", SIZES)]
    lines: list[str] = []
    while len(lines) < nodes:
        name = f"v{len(lines)}"
        operand, shape = values[rng.integers(len(values))]
        alike = [other for other, its in values if its == shape]
        kind = rng.choice(["Relu", "Add", "Transpose", "Transpose", "ReduceMax", "Max"])
        if kind == "Transpose":
            target = orders[rng.integers(len(orders))]
            wanted = tuple(SIZES[axis] for axis in target)
            perm = [shape.index(size) for size in wanted]
            if 1 in shape or perm == [0, 1, 2, 3]:
                continue
            lines.append(f"{name} = Transpose<perm = {perm}>({operand})")
            shape = wanted
        elif kind in ("Add", "Max"):
            lines.append(f"{name} = {kind}({operand}, {alike[rng.integers(len(alike))]})")
        elif kind == "ReduceMax":
            lines.append(f"r{name} = ReduceMax<keepdims = 1>({operand}, first) {name} = Sub({operand}, r{name})")
        else:
            lines.append(f"{name} = Relu({operand})")
        values.append((name, shape))
    used = {
        operand.strip("rv")
        for line in lines
        for call in line.split("(")[1:]
        for operand in call.split(")")[0].split(", ")
    }
    outputs = [(name, shape) for name, shape in values[2:] if name.strip("v") not in used]
    declared = ", ".join(f"float[{', '.join(map(str, shape))}] {name}" for name, shape in outputs)
    body = "\n".join(lines)
    return f"{HEAD}agraph (float[2,3,4,5] x0, float[2,3,4,5] x1) => ({declared}) <int64[1] first = {{1}}> {{ {body} }}"


def assignments(region: Region) -> Iterator[assign_axis_orders.Assignment]:
    """All assignments of states that some order of the region gives, or in which units are as they are."""
    options = [
        list(dict.fromkeys([start(unit), *(order[unit] for order in region.orders if unit in order)]))
        for unit in region.units
    ]
    for chosen in itertools.product(*options):
        yield dict(zip(region.units, chosen, strict=True))


def combinations(region: Region) -> int:
    """How many assignments there are."""
    return int(np.prod([1 + sum(unit in order for order in region.orders) for unit in region.units], dtype=object))
