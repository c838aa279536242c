"""Sessions with buffers: inputs that a run writes to, since an output is to be in the same place.

In the runtime's Python package a buffer is a value of the runtime, bound as input and output, so that nothing is copied. A target
that runs models elsewhere, such as in Node.js, is given the buffers as arrays, and hands them back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.session import Session
from ortfuse.runtime.session_settings import session
from ortfuse.targets import TargetSpec

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class InputDescription:
    """An input as the session describes it.

    Attributes:
        dtype: The element type; `None` for one that numpy lacks.
        shape: Sizes, -1 for those that are not fixed.
    """

    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]


class BufferedSession(Protocol):
    """A session with buffers."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of the model."""

    @property
    def inputs(self) -> Mapping[str, InputDescription]:
        """The inputs by name."""

    @property
    def release(self) -> tuple[int, int] | None:
        """The release of the runtime's Python package, such as (1, 20); `None` if something else runs the model."""

    def allocate(self, buffers: Mapping[str, Array], outputs: Mapping[str, str]) -> None:
        """Take the buffers by the name of their input, instead of earlier ones, and the name of the output of each."""

    def buffer(self, name: str) -> Array:
        """The content of a buffer. What is written into the array is in the buffer."""

    def run(self, feeds: Mapping[str, Array], asked: Sequence[str]) -> dict[str, Array]:
        """The outputs that are asked for, by name, once the buffers have been written to."""


class BoundSession:
    """A session of the runtime's Python package."""

    def __init__(self, path: str | os.PathLike[str], settings: Mapping[str, Any] | None) -> None:
        """Open a model file, with settings by the runtime's names."""
        self._session: Any = session(path, settings)
        self._values: dict[str, Any] = {}
        self._outputs: Mapping[str, str] = {}

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of the model."""
        found: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map
        return found

    @property
    def inputs(self) -> Mapping[str, InputDescription]:
        """The inputs by name."""
        return {
            value.name: InputDescription(
                _DTYPES.get(value.type), tuple(size if isinstance(size, int) else -1 for size in value.shape)
            )
            for value in self._session.get_inputs()
        }

    @property
    def release(self) -> tuple[int, int] | None:
        """The release of the runtime."""
        import onnxruntime

        major, minor = onnxruntime.__version__.split(".")[:2]
        return int(major), int(minor)

    def allocate(self, buffers: Mapping[str, Array], outputs: Mapping[str, str]) -> None:
        """Take the buffers, and the names of their outputs."""
        import onnxruntime

        self._values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in buffers.items()}
        self._outputs = outputs

    def buffer(self, name: str) -> Array:
        """The content of a buffer."""
        found: Array = self._values[name].numpy()
        return found

    def run(self, feeds: Mapping[str, Array], asked: Sequence[str]) -> dict[str, Array]:
        """The outputs that are asked for."""
        binding: Any = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name, value in self._values.items():
            binding.bind_ortvalue_input(name, value)
        for name in asked:
            binding.bind_output(name)
        for name, value in self._values.items():
            binding.bind_ortvalue_output(self._outputs[name], value)
        self._session.run_with_iobinding(binding)
        return {name: value.numpy() for name, value in zip(asked, binding.get_outputs(), strict=False)}


class CopyingSession:
    """A session of a target's own runner, in another process."""

    def __init__(self, path: str | os.PathLike[str], settings: Mapping[str, Any] | None, target: TargetSpec) -> None:
        """Open a model file for a target, with settings by the runtime's names.

        Raises:
            TargetError: Models cannot be executed for the target here.
            VerificationError: The runner lacks something, or refuses the model.
        """
        from ortfuse.io.load_and_save import load

        model = load(Path(path))
        self._metadata = dict(model.metadata_props)
        self._inputs = {
            value.name or "": InputDescription(
                None if value.dtype is None else value.dtype.numpy(),
                tuple(size if isinstance(size, int) else -1 for size in value.shape or ()),
            )
            for value in model.graph.inputs
        }
        target.session_providers()  # raises for a target for which another one would stand in
        with executing_for(target):
            self._session = Session(path, settings=settings)
        self._buffers: dict[str, Array] = {}
        self._outputs: Mapping[str, str] = {}

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of the model."""
        return self._metadata

    @property
    def inputs(self) -> Mapping[str, InputDescription]:
        """The inputs by name."""
        return self._inputs

    @property
    def release(self) -> tuple[int, int] | None:
        """Nothing: the target has a runtime of its own."""
        return None

    def allocate(self, buffers: Mapping[str, Array], outputs: Mapping[str, str]) -> None:
        """Take the buffers, and the names of their outputs."""
        self._buffers, self._outputs = dict(buffers), outputs

    def buffer(self, name: str) -> Array:
        """The content of a buffer."""
        return self._buffers[name]

    def run(self, feeds: Mapping[str, Array], asked: Sequence[str]) -> dict[str, Array]:
        """The outputs that are asked for."""
        found = self._session.run({**feeds, **self._buffers}, [*asked, *self._outputs.values()])
        self._buffers = {name: found.pop(present) for name, present in self._outputs.items()}
        return found


def open_buffered(
    path: str | os.PathLike[str], settings: Mapping[str, Any] | None, target: TargetSpec | None
) -> BufferedSession:
    """Open a model file with buffers, for a target; `None` for the provider that its settings name, or the default one.

    Raises:
        ModelFileError: There is no such file.
        TargetError: Models cannot be executed for the target here.
        VerificationError: The runtime refuses the model.
    """
    return BoundSession(path, settings) if target is None else CopyingSession(path, settings, target)


_DTYPES: Mapping[str, np.dtype[Any]] = {
    "tensor(int64)": np.dtype(np.int64), "tensor(int32)": np.dtype(np.int32), "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16), "tensor(int8)": np.dtype(np.int8),
}  # fmt: skip
