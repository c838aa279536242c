"""How much memory a model takes: the peak of a process that loads it and runs it once, beyond what the runtime itself takes."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx_ir as ir

from ortfuse.errors import OptionError, VerificationError
from ortfuse.execution import runtime
from ortfuse.execution.inputs import Inputs
from ortfuse.model.io import save
from ortfuse.targets import libraries, with_functions

_PROGRAM = """
import pickle, re, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import onnxruntime
from runtime import Loaded, Settings

def peak():
    status = Path("/proc/self/status")  # what getrusage says begins, on Linux, with the memory of the parent
    if status.exists():
        return int(re.search("VmHWM:\\s+(\\d+)", status.read_text())[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

threads, libraries, inputs = pickle.load(sys.stdin.buffer)
before = peak()
session = Loaded(sys.argv[2], {}, Settings(threads=threads, libraries=libraries))
session.run({name: inputs[name] for name in session.input_names if name in inputs})
print(peak() - before)
"""

LIMIT = 600.0
"""Seconds that loading a model and running it once may take."""


def demand_footprints() -> None:
    """Check that the memory of a process can be asked for here.

    Raises:
        OptionError: It cannot.
    """
    if importlib.util.find_spec("resource") is None:
        raise OptionError("goal", "this system does not tell how much memory a process takes; write size, not memory")


def footprint(model: ir.Model, inputs: Inputs, threads: int = 0) -> int:
    """The bytes of memory that loading a model from a file and running it once take at most.

    Args:
        model: The model.
        inputs: Its inputs.
        threads: Threads of the runtime; 0 leaves the number to it.

    Raises:
        VerificationError: It cannot be loaded or run.
    """
    with tempfile.TemporaryDirectory(prefix="ortfuse") as folder:
        path = Path(folder) / "model.onnx"
        save(with_functions(model), path)
        command = [sys.executable, "-c", _PROGRAM, str(Path(runtime.__file__).parent), str(path)]
        given = pickle.dumps((threads, libraries(), dict(inputs)), 5)
        done = subprocess.run(command, input=given, capture_output=True, timeout=LIMIT, check=False)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise VerificationError(f"the memory that the model takes cannot be measured: {last[0]}")
    return int(done.stdout)
