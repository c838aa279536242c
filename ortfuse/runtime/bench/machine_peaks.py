"""Measure the peaks of this machine: operations a second in a matrix product, and bytes a second in a copy.

Measured once, in about a second, and kept in the user's cache folder by processor, number of threads and version of the runtime.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import platformdirs

from ortfuse.runtime.session import Session
from ortfuse.serialization import Record, derived
from ortfuse.targets.measurement_file import keep, kept
from ortfuse.targets.processor import processor_name

SIDE = 1024
"""The side of the square matrices."""

COPIED = 1 << 26
"""The bytes that are copied: more than caches hold."""

SECONDS = 0.4
"""How long each of the two is repeated; the fastest run counts."""

_PRODUCT = """<ir_version: 8, opset_import: ["": 17]> g (float[m, k] x, float[k, n] y) => (float[m, n] z) { z = MatMul(x, y) }"""


@dataclass(frozen=True)
class Peaks(Record):
    """The peaks of a machine.

    Attributes:
        flops: Operations a second, in float32.
        bandwidth: Bytes a second.
        processor: The processor that they were measured on.
        threads: The threads of the runtime; 0 if it chose their number.
    """

    flops: float
    bandwidth: float
    processor: str
    threads: int

    @property
    @derived()
    def ridge(self) -> float:
        """The operations per byte from which on the processor limits, and not the memory."""
        return self.flops / self.bandwidth

    def seconds(self, flops: float, moved: float) -> float:
        """The least time for so many operations and bytes."""
        return max(flops / self.flops, moved / self.bandwidth)


def default_cache() -> Path:
    """The file in the user's cache folder that keeps peaks."""
    return Path(platformdirs.user_cache_dir("ortfuse")) / "peaks.json"


def peaks(threads: int = 0, cache: Path | None = None, *, again: bool = False) -> Peaks:
    """The peaks of this machine: measured now, or when they were first asked for.

    Args:
        threads: Threads of the runtime; 0 leaves the choice to it.
        cache: The file that keeps them.
        again: Whether to measure them although they are known, since what is known was seen to be too low. The higher ones count.
    """
    cache = default_cache() if cache is None else cache
    processor = processor_name()
    key = f"{onnxruntime.__version__} {processor} {os.cpu_count()} processors, {threads} threads"
    known = kept(cache).get(key, {})
    try:
        flops, bandwidth = float(known["flops"]), float(known["bandwidth"])
        if not again:
            return Peaks(flops, bandwidth, processor, threads)
    except (TypeError, KeyError, ValueError):  # not measured yet, or the file is damaged
        flops = bandwidth = 0.0
    found = Peaks(max(flops, _flops(threads)), max(bandwidth, _bandwidth(threads)), processor, threads)
    keep(cache, {key: {"flops": found.flops, "bandwidth": found.bandwidth}})
    return found


def _flops(threads: int) -> float:
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((SIDE, SIDE), np.float32) for name in ("x", "y")}
    session = Session(ir.from_onnx_text(_PRODUCT), threads=threads, isolated=False)
    return 2.0 * SIDE**3 / _fastest(lambda: session.run(inputs))


def _bandwidth(threads: int) -> float:
    """Bytes read and written a second, by as many threads as the runtime would use."""
    source, target = np.ones(COPIED, np.uint8), np.zeros(COPIED, np.uint8)
    count = threads or os.cpu_count() or 1
    parts = list(zip(np.array_split(source, count), np.array_split(target, count), strict=True))
    with ThreadPoolExecutor(count) as pool:
        fastest = _fastest(lambda: list(pool.map(lambda part: np.copyto(part[1], part[0]), parts)))
    return 2.0 * COPIED / fastest


def _fastest(run: Callable[[], object]) -> float:
    """The seconds of the fastest of several runs."""
    run()
    found: list[float] = []
    while sum(found) < SECONDS:
        started = time.perf_counter()
        run()
        found.append(time.perf_counter() - started)
    return min(found)
