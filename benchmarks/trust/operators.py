"""The conformance grid: facts, constant folding and results for single operators, compared with the runtime.

    python -m benchmarks.trust.operators                      # everything
    python -m benchmarks.trust.operators --write              # the same; writes the summary
    python -m benchmarks.trust.operators --one-in 50 --seed 3 # a sample
    python -m benchmarks.trust.operators --most 500           # of each operator about so many cells, from all of its seeds
    python -m benchmarks.trust.operators Clip Reshape         # these operators
    python -m benchmarks.trust.operators --pairs 2000 --seed 1 # operators that take another's result
    python -m benchmarks.trust.operators --cell LABEL         # one cell or pair, with its model

A cell is a model of one operator: every operator of ONNX, and of the runtime's own those in the table of `grid.own_seeds`;
every opset since 7 in which it changed; element types, attributes, inputs and outputs present or absent, special numbers, sizes
0 and 1, some operands known and others not. For each that the runtime runs: facts hold for its results, folded constants have
its bits, and the optimised model computes the same. Departures of the runtime from ONNX are listed in `grid.known`.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import onnx

from benchmarks.results import Results
from benchmarks.trust.grid.building import Cell
from benchmarks.trust.grid.cells import Sample, Single, about, cells
from benchmarks.trust.grid.known import is_known
from benchmarks.trust.grid.pairs import LABEL, pair
from benchmarks.trust.grid.seeds import seeds
from benchmarks.trust.grid.trying import failures

_LIMIT = 20.0
_MEMORY = 12 << 30
_SHOWN = 3
_AT_ONCE = 50

Failed = list[tuple[str, str, str]]
"""Failures of cells: the label, the kind and the details of each."""

Tried = tuple[str, Counter[str], Failed]
"""The name of the tried operators, the numbers of cells, and the failures."""


def try_operator(name: str, one_in: int, most: int, seed: int) -> Tried:
    """Try the cells of an operator: one in so many, or about as many as `most`."""
    return _try(name, about(most, seed, name) if most else cells(Sample(one_in, seed), frozenset((name,))))


def try_pairs(numbers: range, seed: int) -> Tried:
    """Try pairs of operators."""
    return _try(f"{LABEL}s", filter(None, (pair(f"{LABEL}/{seed}/{number}") for number in numbers)))


def _try(name: str, chosen: Iterable[Cell]) -> Tried:
    from ortfuse.runtime import worker

    worker.LIMIT = _LIMIT
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    found = []
    for cell in chosen:
        counts["tried"] += 1
        wrong = failures(cell)
        if wrong is None:
            continue
        counts["cells"] += 1
        for failure in wrong:
            if is_known(cell, failure):
                counts["known to differ"] += 1
            else:
                counts[failure.kind] += 1
                found.append((cell.label, failure.kind, failure.details))
    return name, counts, found


def show(label: str) -> int:
    """Print the model of a cell and what is wrong with it."""
    if label.startswith(f"{LABEL}/"):
        found = [pair(label.partition(" ")[0])]
    else:
        found = [*cells(Single(label=label), frozenset((label.split("/")[0].rpartition("-")[0],)))]
    for cell in filter(None, found):
        print(onnx.printer.to_text(cell.model))
        for feeds, sizes in cell.runs:
            print(sizes, feeds)
        wrong = failures(cell)
        print(
            "the runtime does not run it" if wrong is None else "\n".join(f"{one.kind}: {one.details}" for one in wrong)
        )
    return 0


def brief(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the summary: of each failure the label and the kind, without the details."""
    return {**figures, "failures": [f"{label}: {kind}" for label, kind, *_ in figures["failures"]]}


def main() -> int:
    """Try the cells; the exit code is 1 if something is wrong with one."""
    parser = argparse.ArgumentParser(description="The conformance grid of single operators.")
    parser.add_argument("operators", nargs="*", help="names of operators, with their domain; all by default")
    parser.add_argument("--one-in", type=int, default=1, help="try one of so many cells")
    parser.add_argument("--most", type=int, default=0, help="try about so many cells of each operator")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--pairs", type=int, default=0, help="try so many pairs of operators instead")
    parser.add_argument("--cell", help="show one cell")
    parser.add_argument("--write", action="store_true", help="write the summary, of the operators or of the pairs")
    arguments = parser.parse_args()
    if arguments.write and arguments.operators:
        parser.error("the summary is about all operators; leave out --write or the names")
    if arguments.cell:
        return show(arguments.cell)
    started, total, by_operator = time.monotonic(), Counter[str](), Counter[str]()
    found: defaultdict[str, Failed] = defaultdict(list)
    names = [] if arguments.pairs else arguments.operators or list(seeds())
    parts = [range(first, min(first + _AT_ONCE, arguments.pairs)) for first in range(0, arguments.pairs, _AT_ONCE)]
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("fork")) as pool:
        tasks = [pool.submit(try_operator, name, arguments.one_in, arguments.most, arguments.seed) for name in names]
        tasks += [pool.submit(try_pairs, part, arguments.seed) for part in parts]
        for task in tasks:
            name, counts, wrong = task.result()
            total += counts
            by_operator[name] += counts["cells"]
            found[name] += wrong
            for label, kind, details in wrong[:_SHOWN]:
                print(f"{label} | {kind} | {details[-500:]}", flush=True)
            if wrong:
                print(f"    {name}: {dict(counts)}", flush=True)
    figures = {
        "operators": sum(1 for count in by_operator.values() if count),
        **dict(sorted(total.items())),
        "seconds": round(time.monotonic() - started),
        "failures": [one for wrong in found.values() for one in wrong[:_SHOWN]],
        "without a cell": sorted(name for name, count in by_operator.items() if not count),
    }
    if arguments.write:
        command = " ".join(["python -m benchmarks.trust.operators", *sys.argv[1:]])
        Results("trust.pairs" if arguments.pairs else "trust.operators").store(command, brief(figures), raw=figures)
    print(json.dumps({key: value for key, value in figures.items() if key != "failures"}, indent=1))
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
