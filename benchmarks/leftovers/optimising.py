"""Optimise many files by one commit: a process of its interpreter, which is started again when a model ends it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TREE = "ORTFUSE_TREE"
"""The variable of the environment with the folder of the commit."""

WORKER = """
import importlib.util, json, os, sys, time
tree = os.environ.get("ORTFUSE_TREE")
if tree:  # rules lie beside the package, where an installation in place would find those of another commit
    path = os.path.join(tree, "patterns")
    spec = importlib.util.spec_from_file_location("ortfuse.patterns", f"{path}/__init__.py", submodule_search_locations=[path])
    class Rules:
        def find_spec(self, name, *_):
            return spec if name == "ortfuse.patterns" else None
    sys.meta_path.insert(0, Rules())
import ortfuse
for line in sys.stdin:
    source, target = json.loads(line)
    started, error = time.process_time(), ""
    try:
        result = ortfuse.optimize(source, loaded=False)
        ortfuse.save(result.model, target)
    except BaseException as found:
        error = f"{type(found).__name__}: {found}"[:400]
    print("#" + json.dumps([error, round(time.process_time() - started, 3)]), flush=True)
"""


@dataclass(frozen=True)
class Tree:
    """One commit: the interpreter that runs it, and the folder that is put before its packages, if any."""

    python: str
    folder: Path | None = None

    def environment(self) -> Mapping[str, str]:
        """The environment of its process."""
        added = {"PYTHONPATH": str(self.folder), TREE: str(self.folder)} if self.folder else {}
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return {**kept, **added, "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Optimised:
    """One file optimised: the error, empty if there is none, and the processor seconds."""

    source: Path
    error: str
    seconds: float


def optimise(tree: Tree, jobs: Sequence[tuple[Path, Path]], limit: float) -> Iterator[Optimised]:
    """Optimise files one after the other.

    Args:
        tree: The commit.
        jobs: Sources and targets.
        limit: Seconds for one model.
    """
    process = None
    for source, target in jobs:
        if process is None:
            process = _started(tree)
            warm = time.monotonic() + limit
        else:
            warm = time.monotonic()
        assert process.stdin is not None
        process.stdin.write(json.dumps([str(source), str(target)]) + "\n")
        process.stdin.flush()
        answer = _answer(process, max(warm, time.monotonic()) + limit)
        if answer is None:
            over = process.poll() is None
            process.kill()
            code = process.wait()
            process = None
            yield Optimised(source, f"took over {limit:.0f} s" if over else f"crashed, exit code {code}", limit)
        else:
            yield Optimised(source, *answer)
    if process is not None:
        process.kill()
        process.wait()


def _started(tree: Tree) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [tree.python, "-c", WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
        env=tree.environment(),
        cwd=tempfile.gettempdir() if tree.folder else str(Path(tree.python).parent),
    )


def _answer(process: subprocess.Popen[str], until: float) -> tuple[str, float] | None:
    assert process.stdout is not None
    while (left := until - time.monotonic()) > 0:
        if not select.select([process.stdout], [], [], left)[0]:
            return None
        line = process.stdout.readline()
        if not line:
            process.wait()
            return None
        if line.startswith("#"):
            error, seconds = json.loads(line[1:])
            return error, seconds
    return None
