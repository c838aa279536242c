"""Keep folded constants in memory up to a limit, and beyond it in a temporary file.

So folding large parts of a model needs no more memory than a model without anything to fold. An example are Casts of all
weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.io.data_file import ScratchFile
from ortfuse.io.stored_tensor import FileBytes, StoredTensor

IN_MEMORY = 1 << 26
"""Bytes of computed constants that are kept in memory."""

_SMALL = 1 << 16
"""Bytes up to which a constant is kept in memory in any case."""


class Spill:
    """Store the computed constants of one model."""

    def __init__(self) -> None:
        self._left = IN_MEMORY
        self._file: ScratchFile | None = None

    def keep(self, array: np.ndarray[Any, Any]) -> ir.TensorProtocol:
        """The array as a tensor, which no longer refers to the array if it was written to the file.

        Without a folder for temporary files (set TMPDIR), or space in it, everything stays in memory.
        """
        if array.nbytes <= max(self._left, _SMALL):
            self._left -= array.nbytes
            return ir.Tensor(array)
        try:
            if self._file is None:
                self._file = ScratchFile()
            offset = self._file.append(array)
        except OSError:
            return ir.Tensor(array)
        dtype = ir.DataType.from_numpy(array.dtype)
        place = FileBytes(self._file, offset, array.nbytes)
        return StoredTensor(place, dtype, ir.Shape(array.shape), name=None)
