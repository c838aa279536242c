"""Random chains of data movement, simplified: are they right, and how much longer than the shortest?

    nice -n 10 python -m benchmarks.movement --count 50000 --small 2000 --write

The chains have symbolic sizes, and Gathers and Scatters with constant and computed indices. The runtime executes them before and
after `simplify_data_movement` for several sizes, 0 and 1 among them. Small chains of one tensor with known sizes are compared
with the shortest that there is.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import Annotated, Any

import numpy as np
import onnx_ir as ir
import typer

from benchmarks.movement.shortest import fewest
from benchmarks.results import Results
from ortfuse.analysis.facts import Facts
from ortfuse.runtime.session import Session
from ortfuse.targets import installed
from ortfuse.transforms import DeadCodeElimination, SimplifyDataMovement
from ortfuse.transforms.context import Context
from tests.fuzz.index_maps import SIZES, elements_of
from tests.fuzz.movement_chains import Chain, chain_of, expand, flat, reshape, slices, squeeze, tile, transpose

SMALL = (reshape, reshape, flat, transpose, transpose, squeeze, squeeze, slices, slices, expand, tile)
"""The operators of small chains."""

MOST_ROUNDS = 4
_DEEPEST = 4
_LARGEST = 48


def simplified(model: ir.Model) -> tuple[ir.Model, ir.Model]:
    """Return a model without dead code, and the same after the pass."""
    found = []
    for rounds in (0, MOST_ROUNDS):
        copy = ir.from_proto(ir.to_proto(model))
        context = Context(copy, Facts(copy), installed())
        DeadCodeElimination().run(context)
        for _ in range(rounds):
            if not SimplifyDataMovement().run(context):
                break
        DeadCodeElimination().run(context)
        found.append(copy)
    return found[0], found[1]


def executed(model: ir.Model) -> int:
    """Return how many nodes of a model are executed."""
    return sum(node.op_type != "Constant" for node in model.graph)


def with_outputs(chain: Chain, *, two: bool) -> bool:
    """Make the last value of a chain an output, and one in its middle; returns whether there is any."""
    data = [
        value
        for node in chain.graph
        for value in node.outputs
        if chain.facts.dtype(value) == ir.DataType.FLOAT and node.op_type != "Constant"
    ]
    chosen = data[-1:] + (data[len(data) // 2 : len(data) // 2 + 1] if two and len(data) > 3 else [])
    for value in dict.fromkeys(chosen):
        value.type = ir.TensorType(ir.DataType.FLOAT)
        chain.graph.outputs.append(value)
    return bool(data)


def mistake(chain: Chain, totals: Counter[str]) -> str | None:
    """Return in words what is wrong with a simplified chain; counts in `totals` what was compared."""
    try:
        before, after = simplified(chain.model)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    totals["operators before"] += executed(before)
    totals["operators after"] += executed(after)
    one, other = (Session(model, optimise=False, threads=1) for model in (before, after))
    for sizes in SIZES:
        feeds = {str(value.name): elements_of(chain, value, sizes) for value in chain.graph.inputs}
        try:
            expected = one.run(feeds)
        except Exception:  # the runtime has many classes of errors
            totals["runs refused"] += 1
            continue
        totals["runs"] += 1
        try:
            got = other.run(feeds)
        except Exception as error:
            return f"{sizes}: {error}"[:300]
        for wanted, found in zip(expected.values(), got.values(), strict=True):
            if wanted.shape != found.shape or wanted.tobytes() != found.tobytes():
                return f"{sizes}: {found.shape} instead of {wanted.shape}, or other elements"
    return None


def small_chain(seed: int) -> Chain:
    """Return a chain of a few operators on one tensor of known sizes."""
    choose = random.Random(seed)
    chain = Chain(seed, [choose.choice([1, 2, 2, 3, 4]) for _ in range(choose.randint(1, 3))])
    chain.grow(choose.randint(2, _DEEPEST), SMALL)
    return chain


def lengths(seed: int) -> tuple[int, int] | None:
    """Return the length of a simplified small chain and of the shortest one; `None` for one that is too large to search."""
    chain = small_chain(seed)
    if not with_outputs(chain, two=False):
        return None
    _, after = simplified(chain.model)
    source: Any = elements_of(chain, chain.graph.inputs[0], {})
    wanted = next(iter(Session(chain.model, optimise=False, threads=1).run({"x0": source}).values()))
    made = executed(after)
    if not wanted.size or max(wanted.size, source.size) > _LARGEST or made > _DEEPEST:
        return None
    if np.array_equal(source, wanted):
        return made, 1  # an output that is an input is an Identity
    best = fewest(source, wanted, made)
    return made, made if best is None else best


def main(
    count: Annotated[int, typer.Option(help="How many chains are compared with the runtime.")] = 2000,
    small: Annotated[int, typer.Option(help="How many small chains are compared with the shortest.")] = 200,
    seed: Annotated[int, typer.Option(help="The number of the first chain.")] = 0,
    write: Annotated[bool, typer.Option("--write", help="Store the result and the summary.")] = False,
) -> None:
    """Compare chains; exit with 1 if one is wrong."""
    totals: Counter[str] = Counter()
    wrong = 0
    for number in range(seed, seed + count):
        chain = chain_of(number)
        if with_outputs(chain, two=number % 3 == 0):
            totals["chains"] += 1
            found = mistake(chain, totals)
            wrong += found is not None
            if found is not None:
                print(f"chain {number}: {found}", flush=True)
    made = best = 0
    for number in range(seed, seed + small):
        pair = lengths(number)
        if pair is not None:
            totals["small chains"] += 1
            made, best = made + pair[0], best + pair[1]
            if pair[0] > pair[1]:
                print(f"small chain {number}: {pair[0]} operators, {pair[1]} at best", flush=True)
    longer = made / best - 1 if best else 0.0
    print(f"{wrong} wrong; {dict(totals)}; small chains are {longer:.1%} longer than the shortest")
    if write:
        result = {**totals, "wrong": wrong, "operators": made, "fewest operators": best}
        Results("movement").store(" ".join(["python -m benchmarks.movement", *sys.argv[1:]]), result)
    raise SystemExit(int(wrong > 0))


if __name__ == "__main__":
    typer.run(main)
