"""Has the runtime load a model as it will be used, in the background and in a process of its own."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import onnx_ir as ir

from ortfuse.errors import CrashError, OrtfuseError
from ortfuse.execution.runtime import Settings
from ortfuse.execution.session import opened, separated, shortened, weight_bytes, zeros_folder
from ortfuse.targets import libraries, with_functions

_MUCH = 1 << 26
"""Bytes of weights from which on the runtime does not repack them for its kernels, which would be most of the work."""


class UnloadableError(OrtfuseError):
    """The runtime does not load a model."""


class Loading:
    """The runtime loading a model, with all of its optimisations; zeros stand for large weights.

    It starts at once and goes on beside whatever else is done.

    Args:
        model: The model.
    """

    def __init__(self, model: ir.Model) -> None:
        self._problem = ""
        source, weights = separated(with_functions(model), weightless=True)
        settings = Settings(lean=weight_bytes(model) > _MUCH, libraries=libraries(), folder=zeros_folder())
        self._thread = threading.Thread(target=self._load, args=(source, weights, settings), daemon=True)
        self._thread.start()

    def problem(self) -> str:
        """Why the runtime does not load the model, empty if it does; waits until that is known."""
        self._thread.join()
        return self._problem

    def demand(self) -> None:
        """Wait, and raise if the runtime does not load the model.

        Raises:
            UnloadableError: It does not; the message says why.
        """
        if problem := self.problem():
            raise UnloadableError(problem)

    def _load(self, source: bytes, weights: Mapping[str, ir.TensorProtocol], settings: Settings) -> None:
        try:
            opened(source, weights, settings, isolated=True)
        except CrashError as error:
            self._problem = str(error)
        except Exception as error:
            self._problem = f"ONNX Runtime refuses the model: {shortened(error)}"
