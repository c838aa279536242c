"""Engine time, and time of the whole command, against another commit of this repository, interleaved.

    python -m benchmarks.exports.full bert gpt2 swin
    python -m benchmarks.engine.against COMMIT --models benchmarks/.models

The other commit is checked out beside this one for as long as that takes. Every run has an interpreter of its own; the
commits take turns, so that a machine that gets slower does so for both. The table has the median over the rounds of this
commit's time divided by the other's, and the quartiles of that ratio.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import onnx
import onnx_ir as ir
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.engine.stack import transformer_stack

ROOT = Path(__file__).resolve().parents[2]
FULL = ("bert.sdpa.ts", "bert.sdpa.dynamo", "gpt2.sdpa.ts", "gpt2.sdpa.dynamo", "swin.sdpa.ts", "swin.sdpa.dynamo")
STACK_NODES = 10_000

_ENGINE = """
import gc, json, sys, time
import ortfuse
path = sys.argv[1]
manager = ortfuse.PassManager("auto")
run = getattr(manager, "run_in_place", manager.run)  # as commits before the front door call it
seconds = []
for _ in range(2):
    model = ortfuse.load(path)
    gc.collect()
    started = time.perf_counter()
    run(model)
    seconds.append(time.perf_counter() - started)
print(json.dumps(min(seconds)))
"""

_COMMAND = """
import json, os, subprocess, sys, time
command = [sys.executable, "-c", "from {module} import main; main()"]
started = time.perf_counter()
subprocess.run([*command, "optimize", sys.argv[1], "-o", sys.argv[2]], check=True, stdout=subprocess.DEVNULL)
print(json.dumps(time.perf_counter() - started))
"""


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A folder with the files of `commit`, removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "other"
        subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "--detach", "-q", str(place), commit], check=True)
        try:
            yield place
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(place)], check=True)


def seconds(tree: Path, script: str, *arguments: str) -> float:
    """Run `script` with the ortfuse of `tree`, and return the number that it prints."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    # Away from any checkout, whose folders would be importable too.
    run = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        cwd=tempfile.gettempdir(),
        check=True,
        capture_output=True,
    )
    return float(json.loads(run.stdout.splitlines()[-1]))


def ratios(other: Path, scripts: tuple[str, str], arguments: list[str], rounds: int) -> tuple[list[float], list[float]]:
    """The seconds of both trees, this one first, round by round."""
    mine, theirs = [], []
    seconds(ROOT, scripts[0], *arguments), seconds(other, scripts[1], *arguments)  # fills the file cache
    for number in range(rounds):
        for tree in (ROOT, other) if number % 2 else (other, ROOT):
            if tree is ROOT:
                mine.append(seconds(tree, scripts[0], *arguments))
            else:
                theirs.append(seconds(tree, scripts[1], *arguments))
    return mine, theirs


def _command_script(tree: Path) -> str:
    module = "ortfuse.cli.app" if (tree / "ortfuse" / "cli").is_dir() else "ortfuse.cli"
    return _COMMAND.format(module=module)


def main(
    commit: Annotated[str, typer.Argument(help="The commit to compare with.")],
    models: Annotated[Path, typer.Option(help="Folder with full-size models.")] = ROOT / "benchmarks" / ".models",
    rounds: Annotated[int, typer.Option(help="How often each commit runs.")] = 7,
    small: Annotated[Path, typer.Option(help="Model for the whole command, from shell to written file.")] = ROOT
    / "golden"
    / "models"
    / "bert.sdpa.dynamo.onnx",
) -> None:
    """Print the table."""
    table = Table(title=f"This commit against {commit}, {rounds} rounds", title_justify="left")
    for heading in ("what", "this, s", "other, s", "ratio", "quartiles"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    with checked_out(commit) as other, tempfile.TemporaryDirectory() as folder:
        stack = Path(folder) / "stack.onnx"
        onnx.save(ir.to_proto(transformer_stack(STACK_NODES)), stack)
        jobs = [(path.stem, path) for name in FULL if (path := models / f"{name}.onnx").is_file()]
        for name, path in [*jobs, (f"stack of {STACK_NODES} nodes", stack)]:
            _add(table, name, *ratios(other, (_ENGINE, _ENGINE), [str(path.resolve())], rounds))
        commands = (_command_script(ROOT), _command_script(other))
        result = str(Path(folder) / "result.onnx")
        _add(table, f"optimize {small.stem} -o", *ratios(other, commands, [str(small.resolve()), result], rounds))
    Console().print(table)


def _add(table: Table, name: str, mine: list[float], theirs: list[float]) -> None:
    found = sorted(one / other for one, other in zip(mine, theirs, strict=True))
    low, middle, high = statistics.quantiles(found, n=4) if len(found) > 1 else (found * 3)
    table.add_row(
        name,
        f"{statistics.median(mine):.3f}",
        f"{statistics.median(theirs):.3f}",
        f"{middle:.2f}",
        f"{low:.2f} to {high:.2f}",
    )
    Console(stderr=True).print(f"{name}: {middle:.2f}")


if __name__ == "__main__":
    typer.run(main)
