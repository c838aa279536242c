"""The memory of a process that generates: this module measures it, and is the program of that process."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.errors import CrashError, GenerationError, OrtfuseError
from ortfuse.generation.candidates import Candidate
from ortfuse.io.python_subprocess import start
from ortfuse.runtime.current_execution_target import execution_target
from ortfuse.runtime.memory_footprint import ONE_NODE
from ortfuse.runtime.session_subprocess import peak_bytes

Array = np.ndarray[Any, Any]

_RESET = Path("/proc/self/clear_refs")
"""The file to which a process writes 5 to make the system forget the most memory that it held (Linux)."""


def peak_memory(candidate: Candidate, prompt: Array, new_tokens: int) -> int | None:
    """The most bytes that a process holds while it generates, less what it held with a model of one node.

    What loading takes is not counted: the file and the weights that are repacked are in memory at the same time then.

    Args:
        candidate: The model.
        prompt: [1, tokens].
        new_tokens: How many tokens to generate.

    Returns:
        The bytes; `None` if the system does not tell.

    Raises:
        CrashError: The process ends without an answer.
        GenerationError: The model cannot be loaded, or does not generate.
    """
    if not _RESET.exists():
        return None
    with start(["-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        answer, errors = process.communicate(pickle.dumps((candidate, prompt, new_tokens)))
    if process.returncode:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise CrashError(f"a process that generates ended with status {process.returncode}: {''.join(last)}")
    found: dict[str, Any] = json.loads(answer)
    if "error" in found:
        raise GenerationError(found["error"])
    peak: int | None = found["peak"]
    return peak


def _measured(candidate: Candidate, prompt: Array, new_tokens: int) -> int | None:
    from onnxruntime import InferenceSession

    # What the runtime itself holds is not the model's.
    one_node = ir.to_proto(ir.from_onnx_text(ONE_NODE)).SerializeToString()
    smallest = InferenceSession(one_node, providers=list(execution_target().session_providers()))
    smallest.run(None, {"x": np.zeros(1, np.float32)})
    before = _held()
    model = candidate.load()
    try:
        _RESET.write_text("5", encoding="ascii")
    except OSError:
        return None
    scores = model.first(prompt)
    for _ in range(new_tokens):
        scores = model.next(np.argmax(scores[:1], axis=1)[:, None])
    return peak_bytes() - before


def _held() -> int:
    """The bytes that this process holds."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    try:
        found: dict[str, int | str | None] = {"peak": _measured(*pickle.load(sys.stdin.buffer))}
    except OrtfuseError as error:
        found = {"error": str(error)}
    print(json.dumps(found))
