"""Start-up time against another commit: from the shell to the written file on a small model, in turns.

    python -m benchmarks.engine.startup COMMIT

The figure is the least of all rounds in processor seconds of the command and the processes that it starts: other work on the
machine adds to them. Modules are compiled before the first round, as `pip install` does; `--no-bytecode` measures without that.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.engine.against import ROOT, checked_out

MODELS = ("super_resolution.ts", "bert.sdpa.ts")
"""Golden models: one for which few rules are tried, and one for which many are."""

WAYS: Mapping[str, Sequence[str]] = {
    "command": ("-m", "ortfuse", "optimize", "{model}", "-o", "{result}"),
    "program": ("-c", "import sys, ortfuse; ortfuse.optimize(sys.argv[1], output=sys.argv[2])", "{model}", "{result}"),
}
"""The same work as a user in a shell asks for it, and as a Python program does."""


def processor_seconds(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Run a command away from any checkout; returns the seconds of it and of the processes that it starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=dict(environment), cwd=tempfile.gettempdir(), check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def environment_of(tree: Path, folder: Path, bytecode: bool) -> dict[str, str]:
    """The environment in which the ortfuse of a checkout runs, laid out in a folder as it is when it is installed."""
    for source, place in ((tree / "ortfuse", "ortfuse"), (tree / "patterns", "ortfuse/patterns")):
        shutil.copytree(source, folder / place, ignore=shutil.ignore_patterns("__pycache__"))
    found = {**os.environ, "PYTHONPATH": str(folder), "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    found["PYTHONDONTWRITEBYTECODE"] = "" if bytecode else "1"
    return found


def main(
    commit: Annotated[str, typer.Argument(help="The commit to compare with.")],
    rounds: Annotated[int, typer.Option(help="How often each commit runs.")] = 7,
    bytecode: Annotated[bool, typer.Option(help="Whether modules are compiled before the first round.")] = True,
) -> None:
    """Print the table."""
    table = Table(title=f"Start-up of this commit against {commit}, processor seconds", title_justify="left")
    for heading in ("what", "this", "other", "ratio"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    with checked_out(commit) as other, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trees = {"this": ROOT, "other": other}
        environments = [environment_of(tree, folder / place, bytecode) for place, tree in trees.items()]
        for model in MODELS:
            places = {"model": str(ROOT / "golden" / "models" / f"{model}.onnx"), "result": str(folder / "result.onnx")}
            for way, words in WAYS.items():
                command = [sys.executable, *(word.format(**places) for word in words)]
                for environment in environments:
                    processor_seconds(command, environment)  # fills caches
                taken = [[processor_seconds(command, one) for one in environments] for _ in range(rounds)]
                mine, theirs = (min(column) for column in zip(*taken, strict=True))
                table.add_row(f"{way}, {model}", f"{mine:.2f}", f"{theirs:.2f}", f"{mine / theirs:.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
