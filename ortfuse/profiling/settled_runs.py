"""Run a session under the profiler in its steady state: consecutive runs with warm threads."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import Session

WARMUP = 2
"""Runs that are not counted, however long they take."""

SETTLING = 0.03
"""Seconds of runs until the system has put the threads of a session on processors of their own."""

MOST_SETTLING = 1000
"""The most runs that are made so that threads settle; those of a shorter model have no work for several threads."""

AWAKE: Mapping[str, str] = {"session.force_spinning_stop": "0", "session.intra_op.spin_duration_us": "10000"}
"""Settings with which threads wait busily for the next operator and run, as in a default session, for 10 ms at most.

Threads that sleep are woken in each operator with several threads, which can take longer than the operator itself.
"""

ASLEEP = 0.015
"""Seconds after which threads no longer wait busily."""


def settling_runs(seconds: float) -> int:
    """The runs until threads have settled, if each takes so many seconds."""
    return min(MOST_SETTLING, math.ceil(SETTLING / max(seconds, 1e-9)))


def run_settled(session: Session, inputs: Inputs, rounds: int) -> list[bool]:
    """Run a session until its threads have settled, and then `rounds` times more.

    Returns:
        For each run whether it counts, in their order.

    Raises:
        VerificationError: The runtime cannot execute the model on the inputs.
    """
    settling = settling_runs(min(session.timed(inputs, WARMUP)))
    session.timed(None, settling + rounds)
    return [False] * (WARMUP + settling) + [True] * rounds
