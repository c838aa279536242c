"""Measure the peak memory of loading and running a model, minus that of the runtime."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

import onnx_ir as ir

from ortfuse.errors import CrashError, OptionError, VerificationError
from ortfuse.io.load_and_save import save
from ortfuse.runtime.current_execution_target import execution_target
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.session import shortened
from ortfuse.runtime.session_subprocess import Settings
from ortfuse.runtime.worker import Worker
from ortfuse.targets import libraries, with_functions
from ortfuse.targets.processor import demand_threads

ONE_NODE = '<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { y = Relu(x) }'
"""A model of one node, in ONNX text: what a process holds with it is what the runtime itself takes."""


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
        CrashError: The runtime crashes or hangs.
        OptionError: There are more threads than ever run.
        VerificationError: It cannot be loaded or run.
    """
    demand_threads(threads)
    with tempfile.TemporaryDirectory(prefix="ortfuse") as folder:
        path = Path(folder) / "model.onnx"
        save(with_functions(model), path)
        worker = Worker()  # of its own: what another model took is not counted
        try:
            target = execution_target()
            settings = Settings(
                target.session_providers(), threads=threads, libraries=libraries(), runner=target.runner_file
            )
            request = (str(path), vars(settings), dict(inputs))
            return int(worker.request("footprint", 0, request, "executes the model"))
        except CrashError:
            raise
        except Exception as error:
            raise VerificationError(
                f"the memory that the model takes cannot be measured: {shortened(error)}"
            ) from error
        finally:
            worker.stop()
