"""Loads what the exporters load at their first call; importing this makes exports of forked processes faster."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from pathlib import Path

import benchmarks.exports.varied_vision  # noqa: F401
from benchmarks.exports.varied_functions import RECIPES
from benchmarks.exports.varied_recipes import Variant, export

logging.getLogger("torch.onnx").setLevel(logging.CRITICAL)
logging.getLogger("onnxscript").setLevel(logging.CRITICAL)
with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Exception):
    for exporter, opset in (("ts", 17), ("dynamo", 20), ("dynamo", 18)):
        export(RECIPES["rotary_half"], Variant("rotary_half", exporter, opset, dynamic=True), Path(folder))  # type: ignore[arg-type]
