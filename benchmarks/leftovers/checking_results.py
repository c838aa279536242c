"""Checks a result against its original, and counts what the runtime executes of it, in a process of its own."""

from __future__ import annotations

from pathlib import Path


def check(source: Path, target: Path) -> str:
    """Return the reason why a result is wrong; "" if it computes the same."""
    import ortfuse

    verdict = ortfuse.verify(str(source), str(target), reference=False)
    return "" if verdict.ok else verdict.summary()[:600]


def executed(source: Path, targets: list[Path]) -> list[int]:
    """Count the operators that the runtime executes of each result in one run, on the same inputs."""
    from ortfuse.io.load_and_save import load
    from ortfuse.runtime.bench import executed_ops, typical_inputs

    inputs = typical_inputs(load(source))[1]
    return [sum(executed_ops(load(target), inputs).values()) for target in targets]
