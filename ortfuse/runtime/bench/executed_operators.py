"""Count the operators that the runtime executes after its own optimisations."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import Session
from ortfuse.runtime.unrepresentable_models import Runnable


def executed_ops(model: Runnable, inputs: Inputs) -> Counter[str]:
    """Count the operators executed by one run on `inputs`; each iteration of a loop counts again.

    Raises:
        VerificationError: The runtime refuses the model, or cannot execute it on the inputs.
    """
    return profiled(model, inputs, isolated=True)[0]


def profiled(
    model: Runnable, inputs: Inputs, threads: int = 0, *, isolated: bool = False
) -> tuple[Counter[str], float]:
    """The operators as counted by `executed_ops`, and the time in seconds to create the session."""
    with tempfile.TemporaryDirectory(prefix="ortfuse-") as folder:
        started = time.perf_counter()
        session = Session(model, threads=threads, profile=Path(folder) / "profile", isolated=isolated)
        created = time.perf_counter() - started
        try:
            session.run(inputs)
        finally:
            events = json.loads(session.end_profile().read_text())
    return Counter(event["args"]["op_name"] for event in events if is_execution(event)), created


KERNEL = "_kernel_time"
"""The ending of the names of events that are executions of nodes; the node's name stands before it."""


def is_execution(event: Mapping[str, Any]) -> bool:
    """Whether an event of the runtime's profile is the execution of a node."""
    return event.get("cat") == "Node" and event["name"].endswith(KERNEL)
