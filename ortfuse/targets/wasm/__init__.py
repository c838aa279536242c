"""WebAssembly: the CPU provider of ONNX Runtime in the npm package onnxruntime-web, for browsers and Node.js."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ortfuse.targets.cpu import TARGET as CPU
from ortfuse.targets.known_bugs import Quirk

# The provider is that of the CPU, compiled for another machine: by trying, it has the same kernels.
TARGET = replace(
    CPU,
    name="wasm",
    provider="wasm",
    folder=Path(__file__).parent,
    is_default=False,
    kernels="stored",
    known_bugs=CPU.known_bugs - {Quirk.UNBLOCKS_RESIDUAL_CONVOLUTIONS},
    machines={},
    slow_denormals=False,
    blocked_layout=None,
    runner="runner.py",
    tuned_settings={},
    accelerator="",
    tried="twelve golden models in Node.js",
)
