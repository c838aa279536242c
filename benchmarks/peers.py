"""The optimisers that ortfuse is compared with, and ortfuse itself, each as a function from file to file.

All are used as their documentation says, for the CPU. The transformers optimizer alone wants to be told about the model:
its heads and hidden size, without which it fuses no attention that it cannot measure in the graph, and its kind.
`TRANSFORMERS_TYPES` are the kinds that come with it for models from PyTorch, one for each class of fusions, but for `phi`,
which raises a TypeError on every model (1.31.1).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results

Peer = Callable[[Path, Path], Any]
"""Reads the model at the first path and writes its result to the second; the answer goes into reports."""

TRANSFORMERS_TYPES = ("bert", "gpt2", "bart", "t5", "clip", "unet", "qwen3")
PACKAGES = (*results.PACKAGES, "onnxscript", "onnxslim", "onnxsim")
COMMON = ("onnx", "onnxruntime", "ortfuse.pipeline", "ortfuse.verification")
"""Modules imported for every tool, to check its results with."""
MODULES = {
    "transformers": "onnxruntime.transformers.optimizer",
    "onnxscript": "onnxscript.rewriter.ort_fusions",
    "onnxslim": "onnxslim",
    "onnxsim": "onnxsim",
}
PROTOBUF_LIMIT = 2 << 30


def ortfuse(source: Path, target: Path) -> dict[str, Any]:
    """`ortfuse optimize SOURCE -o TARGET`; engine seconds and notes.

    Near misses are not asked for: keeping them takes time.
    """
    from ortfuse import optimize

    report = optimize(source, output=target).report
    return {"engine_seconds": report.seconds, "notes": report.notes}


def transformers(kind: str, heads: int, hidden: int, source: Path, target: Path) -> None:
    """`python -m onnxruntime.transformers.optimizer --model_type KIND --num_heads HEADS --hidden_size HIDDEN`.

    A 0 leaves it to the tool to find the number.
    """
    from onnxruntime.transformers.optimizer import optimize_model

    logging.disable(logging.WARNING)
    # Where weights are larger than a protobuf may be, the result needs them beside it.
    optimised = optimize_model(str(source), model_type=kind, num_heads=heads, hidden_size=hidden)
    optimised.save_model_to_file(str(target), use_external_data_format=source.stat().st_size > PROTOBUF_LIMIT)


def transformers_for(kind: str, heads: int = 0, hidden: int = 0) -> Peer:
    """The transformers optimizer for models of a kind and size."""
    return functools.partial(transformers, kind, heads, hidden)


def onnxscript(source: Path, target: Path) -> None:
    """`optimize_for_ort`, which runs onnxscript's optimizer before, between and after its fusions."""
    import onnx_ir as ir
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    model, _ = optimize_for_ort(ir.load(source))
    ir.save(model, target)


def onnxslim(source: Path, target: Path) -> None:
    """`onnxslim SOURCE TARGET`."""
    import onnxslim as package

    package.slim(str(source), str(target))


def onnxsim(source: Path, target: Path) -> None:
    """`onnxsim SOURCE TARGET`, without its own check, which runs the model."""
    import onnx
    import onnxsim as package

    model, _ = package.simplify(onnx.load(source), check_n=0)
    onnx.save(model, target)


def runtime(source: Path, target: Path) -> None:
    """All optimisations that ONNX Runtime's CPU session applies by default, written out."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(target)
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


SINGLE: Mapping[str, Peer] = {
    "ortfuse": ortfuse,
    "onnxscript": onnxscript,
    "onnxslim": onnxslim,
    "onnxsim": onnxsim,
    "runtime": runtime,
}
TOOLS = ("ortfuse", "runtime", "transformers", "onnxscript", "onnxslim", "onnxsim")
"""In the order of reports; `transformers` stands for all its kinds of models."""


def preloaded(tools: Sequence[str]) -> list[str]:
    """The modules to import before these tools are used in processes of their own; all tools if none is named."""
    return ["__main__", *COMMON, *(module for tool, module in MODULES.items() if not tools or tool in tools)]
