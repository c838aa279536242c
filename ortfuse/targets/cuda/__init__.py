"""The CUDA provider of ONNX Runtime."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path

from ortfuse.ir.traits import MICROSOFT
from ortfuse.targets.cuda.constraints import CONSTRAINTS
from ortfuse.targets.known_bugs import Quirk
from ortfuse.targets.target_spec import ProviderOption, TargetSpec

PROVIDER = "CUDAExecutionProvider"
FALLBACK = "CPUExecutionProvider"
"""The provider of nodes without a CUDA kernel, such as those that compute shapes."""


def _runs_here() -> bool:
    """Whether the installed build has the provider, and this machine a driver, by their files: no runtime is loaded."""
    found = importlib.util.find_spec("onnxruntime")
    if found is None or found.origin is None:
        return False
    if not [*Path(found.origin).parent.glob("capi/*onnxruntime_providers_cuda*")]:
        return False
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


TARGET = TargetSpec(
    name="cuda",
    provider=PROVIDER,
    folder=Path(__file__).parent,
    constraints=CONSTRAINTS,
    known_bugs=frozenset(
        {
            # The runtime's own optimisations make these for all of its providers.
            Quirk.MERGES_ZEROS_INTO_MAX_POOL,
            Quirk.ROUNDS_FACTORS_OF_PRODUCTS,
            Quirk.LOSES_TRANSPOSITION_BEFORE_VECTOR,
            Quirk.LOSES_ABSENT_ZERO_POINTS,
            Quirk.MERGES_QUANTISED_PAIRS,
            # Found on an H200.
            Quirk.INTERPOLATES_LAST_AXES,
        }
    ),
    lowered_before={"Attention": "999"},
    runs_on=(PROVIDER, FALLBACK) if _runs_here() else (),
    needs="a GPU of NVIDIA with its driver, and the package onnxruntime-gpu",
    runner="run_on_device.py",
    # Of convolutions, pooling and normalisations of images. On an H200, ResNet-50 in float16 was 1.19 times as fast with it.
    tuned_options={
        "prefer_nhwc": ProviderOption(("0", "1"), frozenset({"Conv", "ConvTranspose", "FusedConv", "NhwcConv"}))
    },
    accelerator="gpu",
    # The kernels of GroupNorm may give NaN for flat images: without this line their rules have to be made `on_request`.
    untried=frozenset(
        {(MICROSOFT, "PackedMultiHeadAttention"), (MICROSOFT, "GroupNorm"), (MICROSOFT, "SkipGroupNorm")}
    ),
    tried="24 golden models in both types and ten of real size on an H200, onnxruntime-gpu 1.30; two mended faults not again",
)
