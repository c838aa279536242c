"""Executing models in ONNX Runtime, with the settings that a fair and quiet comparison needs."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortfuse.errors import CrashError, OrtfuseError, VerificationError
from ortfuse.execution.runtime import InFile, Loaded, Settings
from ortfuse.execution.worker import WORKER, Remote, UnavailableError
from ortfuse.model.proto import separate
from ortfuse.model.stored_tensor import in_file
from ortfuse.targets import libraries, with_functions

Arrays = dict[str, np.ndarray[Any, Any]]

SHARED = 1 << 10
"""Weights of this many bytes or more are handed to the runtime where they are instead of being serialised."""

LARGEST = 1 << 30
"""Bytes of weights in memory above which a model is not run in another process: the copy would take too much room and time.

Weights in files count nothing, for the other process reads them itself.
"""

_SHAREABLE = frozenset(
    {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.INT8, ir.DataType.UINT8,
     ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT32, ir.DataType.UINT32, ir.DataType.INT64,
     ir.DataType.UINT64, ir.DataType.BOOL}
)  # fmt: skip
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
    """One session, in a process of its own (`ortfuse.execution.worker`) unless that is not wanted.

    A model in memory reaches the runtime without its weights being written to a file, whatever their size; in this process
    without being copied either.
    """

    def __init__(
        self,
        model: ir.Model | str | os.PathLike[str] | bytes,
        *,
        optimise: bool = True,
        threads: int = 0,
        provider: str = "CPUExecutionProvider",
        profile: str | os.PathLike[str] = "",
        disabled: Collection[str] = (),
        dump: str | os.PathLike[str] = "",
        verbose: bool = False,
        lean: bool = False,
        isolated: bool = True,
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
            verbose: Whether the runtime says what it does; see `log`.
            lean: Whether to prepare for a single run, without an arena and without weights rearranged for the kernels.
            isolated: Whether to run it in the worker, so that a crash is an error; latencies are measured without. A model
                with more than `LARGEST` bytes of weights in memory, or without a worker, is run in this process all the same.

        Raises:
            CrashError: The runtime crashes on the model.
            VerificationError: The runtime refuses the model.
        """
        settings = Settings(
            optimise=optimise,
            threads=threads,
            provider=provider,
            disabled=tuple(disabled),
            profile=os.fspath(profile),
            dump=os.fspath(dump),
            verbose=verbose,
            lean=lean,
            libraries=libraries(),
        )
        try:
            source, weights = _separated(with_functions(model)) if isinstance(model, ir.Model) else (_source(model), {})
            self._runs = _opened(source, weights, settings, isolated)
        except OrtfuseError:
            raise
        except Exception as error:
            raise VerificationError(f"ONNX Runtime refuses the model: {shortened(error)}") from error
        self.input_names, self.output_names = self._runs.input_names, self._runs.output_names

    def run(self, inputs: Mapping[str, Any]) -> Arrays:
        """All outputs by name.

        Args:
            inputs: Arrays (lists of arrays for sequences) by name; those of other names are left out.

        Raises:
            CrashError: The runtime crashes when it executes the model on them.
            VerificationError: The runtime cannot execute the model on them; the message has the runtime's words.
        """
        given = {name: inputs[name] for name in self.input_names if name in inputs}
        try:
            results = self._runs.run(given)
        except CrashError:
            raise
        except Exception as error:
            raise VerificationError(f"ONNX Runtime cannot execute the model: {shortened(error)}") from error
        return dict(zip(self.output_names, results, strict=True))

    def end_profile(self) -> Path:
        """Stop logging, and where the log (JSON of Chrome's trace format) is."""
        return Path(self._runs.end_profile())


def _opened(
    source: str | bytes, weights: Mapping[str, ir.TensorProtocol], settings: Settings, isolated: bool
) -> Loaded | Remote:
    if isolated:
        given = {name: _in_file(tensor) or tensor for name, tensor in weights.items()}
        if sum(tensor.nbytes for tensor in given.values() if not isinstance(tensor, InFile)) <= LARGEST:
            try:
                return Remote(
                    source, {n: t if isinstance(t, InFile) else _array(t) for n, t in given.items()}, settings
                )
            except UnavailableError:
                pass
    return Loaded(source, {name: _array(tensor) for name, tensor in weights.items()}, settings)


def _in_file(tensor: ir.TensorProtocol) -> InFile | None:
    """Where another process finds a weight, `None` if it does not."""
    place = in_file(tensor)
    path = None if place is None else place.file.unchanged_path()
    if place is None or path is None:
        return None
    return InFile(path, place.offset, tensor.dtype.numpy().name, tuple(tensor.shape.numpy()))


def _array(tensor: ir.TensorProtocol) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(tensor.numpy()).reshape(tensor.shape.numpy())


def _separated(model: ir.Model) -> tuple[bytes, dict[str, ir.TensorProtocol]]:
    """The model serialised without its larger weights, and these."""
    proto, weights = separate(model, SHARED)
    shared: dict[str, ir.TensorProtocol] = {}
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
        shared[initializer.name] = tensor
    return bytes(proto.SerializeToString()), shared


def log() -> str:
    """What the runtime said of the last session that was loaded with `verbose`."""
    return WORKER.log()


def _source(model: str | os.PathLike[str] | bytes) -> str | bytes:
    return model if isinstance(model, bytes) else str(Path(model).absolute())


def weight_bytes(model: ir.Model) -> int:
    """The bytes of all initializers."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def shortened(error: BaseException) -> str:
    """What one of the runtime's long messages says, in one line without error codes and places in its source."""
    text = " ".join(str(error).split()) or type(error).__name__
    for boilerplate, rest in _BOILERPLATE:
        text = boilerplate.sub(rest, text)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
