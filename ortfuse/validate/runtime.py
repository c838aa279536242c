"""Executing models in ONNX Runtime, with the settings that a fair and quiet comparison needs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from ortfuse.errors import VerificationError
from ortfuse.ir.io import save

Arrays = dict[str, np.ndarray[Any, Any]]

IN_MEMORY = 1 << 30
"""Models with more bytes of weights go to the runtime by way of a file: protobuf stops at 2 GB."""


class Session:
    """One session; its threads do not spin after a run, so that they do not slow the next session down."""

    def __init__(
        self,
        model: ir.Model | str | Path | bytes,
        *,
        optimise: bool = True,
        threads: int = 0,
        provider: str = "CPUExecutionProvider",
        optimised_path: str | Path | None = None,
    ) -> None:
        """Load `model`.

        Args:
            model: A model, the path of one, or a serialised one.
            optimise: Whether the runtime applies its own optimisations.
            threads: Threads per operator; 0 leaves the choice to the runtime.
            provider: The execution provider.
            optimised_path: Where to write the graph that the runtime really executes.

        Raises:
            VerificationError: The runtime refuses the model.
        """
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.force_spinning_stop", "1")
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
        if optimised_path is not None:
            options.optimized_model_filepath = str(optimised_path)
        try:
            self._session = _open(model, options, provider)
        except VerificationError:
            raise
        except Exception as error:
            raise VerificationError(f"ONNX Runtime refuses the model: {first_line(error)}") from error
        self.input_names = [value.name for value in self._session.get_inputs()]
        self.output_names = [value.name for value in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
        """All outputs by name. Raises VerificationError with the runtime's words when it cannot execute the model."""
        try:
            results = self._session.run(None, {name: inputs[name] for name in self.input_names if name in inputs})
        except Exception as error:
            raise VerificationError(f"ONNX Runtime cannot execute the model: {first_line(error)}") from error
        return dict(zip(self.output_names, results, strict=True))


def _open(model: ir.Model | str | Path | bytes, options: Any, provider: str) -> Any:
    if isinstance(model, ir.Model):
        if weight_bytes(model) <= IN_MEMORY:
            return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=[provider])
        with tempfile.TemporaryDirectory(prefix="ortfuse-") as folder:
            path = Path(folder) / "model.onnx"
            save(model, path)
            return ort.InferenceSession(str(path), options, providers=[provider])
    return ort.InferenceSession(model if isinstance(model, bytes) else str(model), options, providers=[provider])


def weight_bytes(model: ir.Model) -> int:
    """The bytes of all initializers."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def first_line(error: BaseException) -> str:
    """The first telling line of one of the runtime's long messages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:400] if lines else type(error).__name__
