"""A comparison of index maps with the runtime, on random chains of data movement.

    python -m tests.fuzz.index_maps 50000 [--seed 0]

The runtime executes each chain for several sizes, 0 and 1 among them. The index map of each value, evaluated with NumPy, has to give
the same elements (`ortfuse.analysis.index_maps`).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from ortfuse.analysis.index_maps import IndexMap, Read, evaluated, leaves
from ortfuse.ir.dims import evaluate, only_atom

from .movement_chains import Chain, chain_of

SIZES = ({"b": 2, "s": 3}, {"b": 1, "s": 1}, {"b": 3, "s": 0}, {"b": 1, "s": 6})
"""The sizes that each chain is executed for."""


@dataclass(frozen=True)
class Wrong:
    """A value whose map gives other elements than the runtime."""

    value: str
    found: IndexMap
    sizes: Mapping[str, int]
    reason: str


def differences(chain: Chain, totals: Counter[str]) -> list[Wrong]:
    """Return the values of a chain whose maps are wrong; counts in `totals` what was compared."""
    values = [output for node in chain.graph for output in node.outputs if node.op_type != "Constant"]
    if not values:
        return []
    for value in values:
        value.type = ir.TensorType(chain.facts.dtype(value) or ir.DataType.FLOAT)
    chain.graph.outputs.extend(values)
    proto = ir.to_proto(chain.model)
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    maps = {value: chain.facts.index_map(value) for value in values}
    found = []
    for sizes in SIZES:
        feeds = {str(value.name): elements_of(chain, value, sizes) for value in chain.graph.inputs}
        try:
            results = session.run(None, feeds)
        except Exception:  # the runtime has many classes of errors
            totals["runs refused"] += 1
            continue
        totals["runs"] += 1
        arrays = dict(zip(values, results, strict=True)) | {
            value: feeds[str(value.name)] for value in chain.graph.inputs
        }
        constants = [output for node in chain.graph if node.op_type == "Constant" for output in node.outputs]
        arrays |= {value: chain.facts.const(value) for value in constants}
        for value in values:
            one = maps[value]
            if one is None:
                totals["no map"] += 1
                continue
            wrong = _compared(one, value, arrays, _all_sizes(chain, arrays, sizes), totals)
            found += [] if wrong is None else [Wrong(str(value.name), one, sizes, wrong)]
    return found


def _compared(
    one: IndexMap, value: ir.Value, arrays: Any, sizes: Mapping[str, int], totals: Counter[str]
) -> str | None:
    known = any(isinstance(leaf, Read) and leaf.value is value for leaf in leaves(one.element))
    totals["opaque" if known else "mapped"] += 1
    expected = arrays[value]
    try:
        got = evaluated(one, sizes, arrays, expected.dtype)
    except KeyError:
        totals["of unknown size"] += 1
        return None
    except (IndexError, ZeroDivisionError) as error:
        return str(error)
    if got.shape != expected.shape:
        return f"shape {got.shape} instead of {expected.shape}"
    return None if np.array_equal(got, expected) else f"{got.tolist()} instead of {expected.tolist()}"


def elements_of(chain: Chain, value: ir.Value, sizes: Mapping[str, int]) -> np.ndarray[Any, Any]:
    """Return the elements of an input, all of them different."""
    shape = [evaluate(size, sizes) for size in chain.shape(value)]
    count = int(np.prod(shape))
    return (np.arange(count) + 1 + 10000 * int(str(value.name)[1:])).astype(np.float32).reshape(shape)


def _all_sizes(chain: Chain, arrays: Mapping[ir.Value, Any], sizes: Mapping[str, int]) -> Mapping[str, int]:
    """The sizes, and those that are known to the facts as unknown ones."""
    found = dict(sizes)
    for value, array in arrays.items():
        for size, number in zip(chain.facts.shape(value) or (), array.shape, strict=False):
            atom = only_atom(size)
            if atom is not None and not atom.kind:
                found.setdefault(atom.name, number)
    return found


def main() -> int:
    """Compare many chains; print figures and the first mistakes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, help="how many chains")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first one")
    options = parser.parse_args()
    totals: Counter[str] = Counter()
    wrong = 0
    for seed in range(options.seed, options.seed + options.count):
        found = differences(chain_of(seed), totals)
        wrong += bool(found)
        for one in found[:1]:
            print(f"chain {seed}, {one.value}, {dict(one.sizes)}: {one.reason[:300]}\n  {one.found}"[:1500])
    print(f"{options.count} chains, {wrong} of them wrong; {dict(totals)}")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
