"""Check that the result of an optimiser computes the same as the original, for all optimisers alike.

The functions go from file to file, so that each can run in a process of its own.
"""

from __future__ import annotations

import pickle
from pathlib import Path


def experiment(source: Path, target: Path) -> list[str]:
    """Run the original on generated inputs, keep inputs and outputs in a file, and return notes on inputs that failed.

    It is evaluated in float64 too: compared with the original's rounded outputs alone, sums over thousands of terms that
    are taken in another order look broken.
    """
    from ortfuse.io.load_and_save import load
    from ortfuse.verification import experiments

    found, notes = experiments(load(source))
    target.write_bytes(pickle.dumps(found))
    return notes


def verdict(experiments: Path, candidate: Path) -> str:
    """Return the reason why a candidate is broken; "" if it is not."""
    from ortfuse.verification import Verdict, judge

    # By its path: the runtime has the say about a file, not ortfuse's own loader.
    trials = judge(pickle.loads(experiments.read_bytes()), candidate)
    result = Verdict(trials)
    return "" if result.ok else result.summary()[:400]
