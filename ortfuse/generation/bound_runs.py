"""Run a session with values that stay in the runtime: nothing is copied but what is asked for as an array."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np


class BoundRuns:
    """A session whose outputs are handed back as values of the runtime, to be given to the next run as they are."""

    def __init__(self, session: Any, arrays: Collection[str]) -> None:
        """Take a session, and the names of the outputs that are wanted as arrays."""
        self._session, self._arrays = session, arrays
        self._outputs = [value.name for value in session.get_outputs()]
        self._inputs = {value.name for value in session.get_inputs()}

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """All outputs by name. Inputs are arrays, or what an earlier run handed back."""
        binding = self._session.io_binding()
        for name, value in inputs.items():
            if name not in self._inputs:
                continue
            if isinstance(value, np.ndarray):
                binding.bind_cpu_input(name, np.ascontiguousarray(value))
            else:
                binding.bind_ortvalue_input(name, value)
        for name in self._outputs:
            binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        found = dict(zip(self._outputs, binding.get_outputs(), strict=True))
        return {name: value.numpy() if name in self._arrays else value for name, value in found.items()}
