"""WebAssembly: the CPU provider of ONNX Runtime in the npm package onnxruntime-web, for browsers and Node.js."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ortfuse.targets.cpu import TARGET as CPU
from ortfuse.targets.known_bugs import Quirk

_NOT_THERE = frozenset(
    {
        Quirk.UNBLOCKS_RESIDUAL_CONVOLUTIONS,  # it has no blocked layout
        Quirk.FUSES_SUMS_BEFORE_NORMALISATION,  # the fused kernel is as fast as the two
        Quirk.CRASHES_ON_MOVED_BATCH_AXIS,  # models that end a process elsewhere load there, and their results are right
        Quirk.READS_ABSENT_BIASES,  # no release for which there is a table
    }
)
"""Known bugs of the CPU provider that were not found; the others are shown by `tests/targets/test_wasm_bugs.py`."""

# The provider is that of the CPU, compiled for another machine: by trying, it has the same kernels.
TARGET = replace(
    CPU,
    name="wasm",
    provider="wasm",
    folder=Path(__file__).parent,
    is_default=False,
    kernels="stored",
    known_bugs=CPU.known_bugs - _NOT_THERE,
    machines={},
    slow_denormals=False,
    blocked_layout=None,
    runner="runner.py",
    tuned_settings={},
    accelerator="",
    tried="twelve golden models and ten of real sizes in Node.js, one in Chromium; known bugs one by one",
)
