"""Sessions on the CUDA provider: what verifies is computed in full float32, what measures leaves the data on the device.

`ortfuse.runtime.session_subprocess.session_class` runs this file; it imports nothing from ortfuse.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

PROVIDER = "CUDAExecutionProvider"

EXACT = {"use_tf32": "0"}
"""Options of the provider under which products of float32 are not rounded to 10 bits."""


def with_options(providers: Sequence[Any], found: Mapping[str, str]) -> list[Any]:
    """Give options to the provider; those that it is named with come first."""
    named = [(one, {}) if isinstance(one, str) else one for one in providers]
    return [(name, {**found, **own}) if name == PROVIDER else (name, own) if own else name for name, own in named]


def session_class(base: Any) -> Any:
    """Return the class of sessions on the device.

    Args:
        base: The class of sessions of the runtime's Python package.
    """

    class OnDevice(base):  # type: ignore[misc]
        """A session whose timed runs take their inputs from the device and leave their outputs there."""

        _exact = False  # of a session that a program opens for itself

        def __init__(self, source: Any, weights: Any, settings: Any) -> None:
            self._exact = not settings.spinning
            super().__init__(source, weights, settings)

        def _create(self, source: Any, options: Any, arguments: Mapping[str, Any]) -> Any:
            providers = with_options(arguments["providers"], EXACT) if self._exact else arguments["providers"]
            return super()._create(source, options, {**arguments, "providers": providers})

        def take(self, inputs: Mapping[str, Any]) -> None:
            super().take(inputs)
            self._binding = None
            if PROVIDER in self._session.get_providers() and not self._beyond_numpy:
                self._binding = bound(self._session, inputs)

        def timed(self, runs: int) -> list[float]:
            if self._binding is None:
                return list(super().timed(runs))
            found = []
            for _ in range(runs):
                started = time.perf_counter()
                self._session.run_with_iobinding(self._binding)
                self._binding.synchronize_outputs()
                found.append(time.perf_counter() - started)
            return found

    return OnDevice


def bound(session: Any, inputs: Mapping[str, Any]) -> Any:
    """Bind arrays on the device as inputs, and all outputs to the device; `None` if an input or output holds no numbers."""
    import numpy as np
    import onnxruntime as ort

    binding = session.io_binding()
    for name in (value.name for value in session.get_inputs()):
        given = inputs.get(name)
        if given is None:
            continue
        if not isinstance(given, np.ndarray) or given.dtype.kind not in "biuf":
            return None
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(given), "cuda", 0))
    if any("string" in value.type or not value.type.startswith("tensor(") for value in session.get_outputs()):
        return None
    for value in session.get_outputs():
        binding.bind_output(value.name, "cuda")
    binding.synchronize_inputs()
    return binding
