"""Decode numbers, texts and arrays sent by `ortfuse.runtime.session_subprocess`, without executing code.

They come from a process that has loaded a model. If the model took that process over, it ends there.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Sequence
from typing import Any

_PLAIN = re.compile(
    r"numpy\.(_core|core)\.multiarray:(_reconstruct|scalar|_frombuffer)|numpy\.(_core|core)\.numeric:_frombuffer"
    r"|numpy:(ndarray|dtype)|numpy\.dtypes:\w+DType|ml_dtypes:\w+|_codecs:encode"
)
"""Modules and names that arrays are made with."""


def of_plain_data(content: bytes | bytearray, buffers: Sequence[Any] = ()) -> Any:
    """Make the object that was sent.

    Raises:
        EOFError: It holds something else than plain data, or is damaged.
    """
    try:
        return _PlainData(io.BytesIO(content), buffers=buffers).load()
    except Exception as error:  # of damaged bytes, pickle raises whatever it comes upon
        raise EOFError(str(error)) from error


class _PlainData(pickle.Unpickler):
    """Make objects of nothing but plain data and arrays."""

    def find_class(self, module: str, name: str) -> Any:
        """Called for each name that the data refer to."""
        if not _PLAIN.fullmatch(f"{module}:{name}"):
            raise pickle.UnpicklingError(f"{module}.{name} is no plain data")
        return super().find_class(module, name)
