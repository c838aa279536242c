"""The CPU provider of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

from ortfuse.targets.cpu import blocked_layout
from ortfuse.targets.cpu.constraints import CONSTRAINTS, FORMER_CONSTRAINTS
from ortfuse.targets.cpu.tunable_session_settings import TUNED_SETTINGS
from ortfuse.targets.known_bugs import LACKING, Quirk
from ortfuse.targets.target_spec import TargetSpec

PROVIDER = "CPUExecutionProvider"

TARGET = TargetSpec(
    name="cpu",
    provider=PROVIDER,
    folder=Path(__file__).parent,
    is_default=True,
    constraints=CONSTRAINTS,
    former_constraints=FORMER_CONSTRAINTS,
    known_bugs=frozenset(Quirk) - {*LACKING.values(), Quirk.INTERPOLATES_LAST_AXES},
    # The fast integer kernels of these processors take unsigned activations.
    machines={Quirk.TURNS_SIGNED_PAIRS: frozenset({"x86_64", "amd64", "x86", "i686"})},
    # The kernel of Attention gave NaN for a hidden row before, where fusions take it to give zeros.
    bugs_since={Quirk.ZEROES_MASKED_ROWS: "1.28"},
    bugs_until={Quirk.READS_ABSENT_BIASES: "1.18"},
    lowered_before={"Attention": "1.28"},
    half_in_float32=True,
    fast_transpose_axes=4,
    slow_denormals=True,
    plans_buffers_by_names=True,
    blocked_layout=blocked_layout,
    runs_on=(PROVIDER,),
    tuned_settings=TUNED_SETTINGS,
    accelerator="cpu",
    tried="all golden models on the newest release, and on the wheels of 1.17, 1.20, 1.22 and 1.24",
)
