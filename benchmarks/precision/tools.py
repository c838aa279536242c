"""The runtime's own quantisers, and ortfuse, each as a function from file to file.

The runtime's tools are used as their documentation says: `quantize_static` after `quant_pre_process`, calibrated on the same
inputs that ortfuse is given.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Tool = Callable[[Path, Path, Path], Any]
"""Reads a model and a folder of inputs, and writes what it makes of the model; the answer goes into the report."""

BOUNDS = (1e-3, 1e-2, 5e-2)
"""The bounds that ortfuse is given."""


def dynamic(per_channel: bool, source: Path, inputs: Path, target: Path) -> None:
    """`quantize_dynamic` with signed weights."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, target, per_channel=per_channel, weight_type=QuantType.QInt8)


def static(signed: bool, source: Path, inputs: Path, target: Path) -> None:
    """`quantize_static` to QDQ, with weights per channel."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    logging.disable(logging.WARNING)
    prepared = target.with_suffix(".prepared.onnx")
    quant_pre_process(source, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared, target, _Reader(inputs), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QInt8 if signed else QuantType.QUInt8, weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax,
    )  # fmt: skip
    prepared.unlink()


def nbits(bits: int, source: Path, inputs: Path, target: Path) -> None:
    """`MatMulNBitsQuantizer`: weights in blocks of 32, products in int8 (accuracy level 4)."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    config = DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=True, accuracy_level=4, bits=bits)
    made = MatMulNBitsQuantizer(onnx.load(source), algo_config=config)
    made.process()
    made.model.save_model_to_file(str(target), use_external_data_format=False)


def ortfuse(bound: float, source: Path, inputs: Path, target: Path) -> dict[str, Any]:
    """`ortfuse quantize SOURCE -o TARGET --inputs INPUTS --max-error BOUND`; measurements are kept beside the target."""
    from ortfuse import BoundError, optimize, quantize

    try:
        found = quantize(
            source, max_error=bound, inputs=inputs, output=target, store=target.with_name("measured.sqlite")
        )
    except BoundError as error:
        optimize(source, output=target)
        return {"reason": str(error)}
    outcome = found.outcome
    return {
        "lowered": outcome.lowered, "sites": len(outcome.sites), "error": outcome.error, "held_out": outcome.held_out_error,
        "predicted_speedup": outcome.chosen.predicted_speedup, "over_float32": outcome.speedup, "reason": outcome.reason,
    }  # fmt: skip


def float32(source: Path, inputs: Path, target: Path) -> None:
    """`ortfuse optimize SOURCE -o TARGET`."""
    from ortfuse import optimize

    optimize(source, output=target)


PEERS: Mapping[str, Tool] = {
    "dynamic": functools.partial(dynamic, False),
    "dynamic per channel": functools.partial(dynamic, True),
    "static u8s8": functools.partial(static, False),
    "static s8s8": functools.partial(static, True),
    "8 bit weights": functools.partial(nbits, 8),
    "4 bit weights": functools.partial(nbits, 4),
}

OURS: Mapping[str, Tool] = {
    "float32": float32,
    **{f"ortfuse {bound:g}": functools.partial(ortfuse, bound) for bound in BOUNDS},
}

TOOLS: Mapping[str, Tool] = {**PEERS, **OURS}


class _Reader:
    """The inputs of a folder, one set after the other, as the runtime's calibration asks for them."""

    def __init__(self, folder: Path) -> None:
        self._files = iter(sorted(folder.glob("*.npz")))

    def get_next(self) -> dict[str, Any] | None:
        """The next set, `None` after the last."""
        file = next(self._files, None)
        if file is None:
            return None
        with np.load(file) as content:
            return {name: content[name] for name in content.files}
