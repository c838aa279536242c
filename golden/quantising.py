"""Quantises exported models as onnxruntime's static quantizer does."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process

QUANTISED_TOLERANCE = 0.2
"""Of an output's largest magnitude: steps of 8 bits, added up over the layers of a random network."""


class _Inputs(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, inputs: Sequence[dict[str, Any]]) -> None:
        self._inputs = iter(inputs)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._inputs, None)


def quantise(path: Path, inputs: Sequence[dict[str, Any]]) -> None:
    """Put 8-bit weights (for each channel) and activations into a model file, between QuantizeLinear and DequantizeLinear.

    Args:
        path: The model, which is replaced.
        inputs: What ranges of activations are taken from: arrays by name.
    """
    logging.getLogger().setLevel(logging.ERROR)  # the quantizer warns on the root logger
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(str(path), str(prepared), auto_merge=True)
        quantize_static(
            str(prepared),
            str(path),
            _Inputs(inputs),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )


def quantise_weights(path: Path) -> None:
    """Put the weights of matrix products into a model file as 4-bit numbers in blocks of 32, as models for browsers have them.

    Args:
        path: The model, which is replaced.
    """
    config = DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=True, bits=4)
    quantizer = MatMulNBitsQuantizer(onnx.load(path), algo_config=config)
    quantizer.process()
    onnx.save(quantizer.model.model, path)
