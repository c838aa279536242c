"""OpenVINO's provider of ONNX Runtime, the plugin `onnxruntime-ep-openvino`, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

from ortfuse.targets.openvino.constraints import CONSTRAINTS, OpenVINOBug
from ortfuse.targets.target_spec import TargetSpec

PROVIDER = "OpenVINOExecutionProvider"

CONFIGURATION = {
    # By default, OpenVINO computes float32 models in bfloat16 on processors with AMX.
    "INFERENCE_PRECISION_HINT": "f32",
    # By default, it rounds operands to 8 bits where the weights are quantised.
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    # By default, it generates kernels that are wrong for other sizes (`OpenVINOBug.KEEPS_KERNELS_OF_ONE_KEY`).
    "SNIPPETS_MODE": "DISABLE",
}
"""OpenVINO's own settings by which it computes float32 models in float32, and rightly."""

TARGET = TargetSpec(
    name="openvino",
    provider=PROVIDER,
    folder=Path(__file__).parent,
    kernels="stored",
    constraints=CONSTRAINTS,
    known_bugs=frozenset(OpenVINOBug),
    # By trying, operators of com.microsoft have the bits and the latency of what they are fused from.
    fuses_itself=True,
    # By trying, it fuses a rotary embedding only behind the Transpose of heads, and interpolates images with channels last in a
    # loop. No model was faster with the pass `layout`.
    orders_axes_itself=True,
    # By its runtime's own graph, a Slice of channels is a copy (StridedSlice). A Split whose parts a Concat reads is in place; if
    # nothing reads one of its parts, copies (Reorder) follow.
    splits_channels_in_place=True,
    runs_on=(PROVIDER,),
    runner="plugin_session.py",
    session_settings={"ep.openvinoexecutionprovider.load_config": json.dumps({"CPU": CONFIGURATION})},
    accelerator="cpu",
    tried="golden models on onnxruntime-ep-openvino 1.8.1 with ONNX Runtime 1.32",
)
