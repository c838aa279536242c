"""Executing models in ONNX Runtime, with the settings that a fair and quiet comparison needs."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from ortfuse.errors import OrtfuseError, VerificationError
from ortfuse.model.proto import separate
from ortfuse.targets import libraries, with_functions

Arrays = dict[str, np.ndarray[Any, Any]]

SHARED = 1 << 10
"""Weights of this many bytes or more are handed to the runtime where they are instead of being serialised."""

_SHAREABLE = frozenset(
    {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.INT8, ir.DataType.UINT8,
     ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT32, ir.DataType.UINT32, ir.DataType.INT64,
     ir.DataType.UINT64, ir.DataType.BOOL}
)  # fmt: skip
_BFLOAT16 = "tensor(bfloat16)"
_LONGEST = 400
_BOILERPLATE = (
    (re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : "), ""),
    (
        re.compile(r"Non-zero status code returned while running (\w+) node\. Name:'([^']*)' Status Message:"),
        r"\1 '\2':",
    ),
    (re.compile(r"\S+\.(?:cc|h):\d+ (?:[^()]*::[^()]*\([^()]*\)(?: const)? )?"), ""),
)


class Session:
    """One session; its threads do not spin after a run, so that they do not slow the next session down.

    A model in memory reaches the runtime without its weights being copied or written to a file, whatever their size.
    """

    def __init__(
        self,
        model: ir.Model | str | os.PathLike[str] | bytes,
        *,
        optimise: bool = True,
        threads: int = 0,
        provider: str = "CPUExecutionProvider",
        profile: str | os.PathLike[str] | None = None,
        disabled: Collection[str] = (),
        dump: str | os.PathLike[str] | None = None,
        verbose: bool = False,
    ) -> None:
        """Load `model`.

        Args:
            model: A model, the path of one, or a serialised one.
            optimise: Whether the runtime applies its own optimisations.
            threads: Threads per operator; 0 leaves the choice to the runtime.
            provider: The execution provider.
            profile: The beginning of the path of a file to log every executed node in; see `end_profile`.
            disabled: Names of the runtime's optimisers that are left out.
            dump: Where to write the model as the runtime executes it.
            verbose: Whether the runtime says what it does, on the process's standard error.

        Raises:
            VerificationError: The runtime refuses the model.
        """
        options = ort.SessionOptions()
        options.log_severity_level = 1 if verbose else 4
        options.intra_op_num_threads = threads
        for library in libraries():
            options.register_custom_ops_library(library)
        if isinstance(model, ir.Model):
            model = with_functions(model)
        options.add_session_config_entry("session.force_spinning_stop", "1")
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = os.fspath(profile)
        if dump is not None:
            options.optimized_model_filepath = os.fspath(dump)
        self._weights: list[np.ndarray[Any, Any]] = []  # the runtime reads them where they are: they must stay alive
        try:
            source = self._share(model, options) if isinstance(model, ir.Model) else _source(model)
            self._session = ort.InferenceSession(
                source, options, providers=[provider], disabled_optimizers=list(disabled) or None
            )
        except OrtfuseError:
            raise
        except Exception as error:
            raise VerificationError(f"ONNX Runtime refuses the model: {shortened(error)}") from error
        self.input_names = [value.name for value in self._session.get_inputs()]
        self.output_names = [value.name for value in self._session.get_outputs()]
        ends = (*self._session.get_inputs(), *self._session.get_outputs())
        self._beyond_numpy = any(value.type == _BFLOAT16 for value in ends)

    def run(self, inputs: Mapping[str, Any]) -> Arrays:
        """All outputs by name.

        Args:
            inputs: Arrays (lists of arrays for sequences) by name; those of other names are left out.

        Raises:
            VerificationError: The runtime cannot execute the model on them; the message has the runtime's words.
        """
        given = {name: inputs[name] for name in self.input_names if name in inputs}
        try:
            results = self._run_values(given) if self._beyond_numpy else self._session.run(None, given)
        except Exception as error:
            raise VerificationError(f"ONNX Runtime cannot execute the model: {shortened(error)}") from error
        return dict(zip(self.output_names, results, strict=True))

    def end_profile(self) -> Path:
        """Stop logging, and where the log (JSON of Chrome's trace format) is."""
        return Path(str(self._session.end_profiling()))  # type: ignore[no-untyped-call]

    def _share(self, model: ir.Model, options: Any) -> bytes:
        """The model serialised without its larger weights, which `options` get instead."""
        proto, weights = separate(model, SHARED)
        names, values = [], []
        # The runtime drops what nothing uses before it looks for the weights that it is handed.
        idle = {
            value.name
            for value in model.graph.initializers.values()
            if not (value.uses() or value.is_graph_output() or value.is_graph_input())
        }
        for header, tensor in weights:
            if header.name in idle:
                continue
            initializer = proto.graph.initializer.add()
            initializer.CopyFrom(header)
            if tensor is None:
                continue
            if tensor.dtype not in _SHAREABLE:
                initializer.raw_data = tensor.tobytes()
                continue
            initializer.data_location = onnx.TensorProto.EXTERNAL
            initializer.external_data.add(key="location", value="memory")
            array = np.ascontiguousarray(tensor.numpy()).reshape(tensor.shape.numpy())
            self._weights.append(array)
            names.append(initializer.name)
            values.append(ort.OrtValue.ortvalue_from_numpy(array))
        if names:
            options.add_external_initializers(names, values)
        return bytes(proto.SerializeToString())

    def _run_values(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Run by the runtime's own values: its arrays know no bfloat16."""
        values = {name: _to_value(array) for name, array in inputs.items()}
        return [_from_value(value) for value in self._session.run_with_ort_values(None, values)]


def _source(model: str | os.PathLike[str] | bytes) -> str | bytes:
    return model if isinstance(model, bytes) else str(Path(model))


def _to_value(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.name == "bfloat16":
        bits = np.ascontiguousarray(array).view(np.uint16)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _from_value(value: Any) -> Any:
    if value.data_type() != _BFLOAT16:
        return value.numpy()
    content = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(content, ir.DataType.BFLOAT16.numpy()).reshape(value.shape())


def weight_bytes(model: ir.Model) -> int:
    """The bytes of all initializers."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def shortened(error: BaseException) -> str:
    """What one of the runtime's long messages says, in one line without error codes and places in its source."""
    text = " ".join(str(error).split()) or type(error).__name__
    for boilerplate, rest in _BOILERPLATE:
        text = boilerplate.sub(rest, text)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
