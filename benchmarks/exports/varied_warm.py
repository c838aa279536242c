"""Loads what exports load at their first call; importing this makes exports of forked processes faster.

`ORTFUSE_EXPORTER` names the exporter that is used, `ts` or `dynamo`; without it both are warmed up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path

from benchmarks.exports import varied_shrunk
from benchmarks.exports.varied_functions import RECIPES
from benchmarks.exports.varied_recipes import Variant, export

ONLY = "ORTFUSE_EXPORTER"

for noisy in ("torch.onnx", "onnxscript", "transformers"):
    logging.getLogger(noisy).setLevel(logging.CRITICAL)
with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Exception):
    for exporter, opset in (("ts", 17), ("dynamo", 20), ("dynamo", 18)):
        if os.environ.get(ONLY) in (None, "", exporter):
            variant = Variant("rotary_half", exporter, opset, dynamic=True)  # type: ignore[arg-type]
            export(RECIPES["rotary_half"], variant, Path(folder))
with contextlib.suppress(Exception):
    varied_shrunk.build("albert", ("MODEL",), "eager")
