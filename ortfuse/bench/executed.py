"""What the runtime really executes once its own optimisations have been at the graph."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

import onnx_ir as ir

from ortfuse.validate.inputs import Inputs
from ortfuse.validate.runtime import Session


def executed_ops(model: ir.Model, inputs: Inputs) -> Counter[str]:
    """The operators that one run on `inputs` executes, and how often each (in every iteration of a loop anew).

    Raises:
        VerificationError: The runtime refuses the model, or cannot execute it on the inputs.
    """
    with tempfile.TemporaryDirectory(prefix="ortfuse-") as folder:
        session = Session(model, profile=Path(folder) / "profile")
        try:
            session.run(inputs)
        finally:
            events = json.loads(session.end_profile().read_text())
    return Counter(event["args"]["op_name"] for event in events if _is_execution(event))


def _is_execution(event: dict[str, str]) -> bool:
    return event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
