"""Read input sets from a calibration data reader of ONNX Runtime (`get_next`)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from ortfuse.errors import OptionError
from ortfuse.runtime.inputs.read_input_files import InputSets

MOST = 1000
"""The most sets that are taken: more are not used."""


class DataReader(Protocol):
    """A source of sets of inputs; its `rewind`, if any, is called first, so that it may be used again."""

    def get_next(self) -> Any:
        """The next set of inputs by name; `None` or an empty one if there is none left."""


def from_reader(reader: DataReader) -> InputSets:
    """All sets that a reader hands out, `MOST` at most.

    Raises:
        OptionError: It hands out something else than arrays by name, or nothing.
    """
    with contextlib.suppress(AttributeError, NotImplementedError):
        reader.rewind()  # type: ignore[attr-defined]
    found: list[dict[str, Any]] = []
    while len(found) < MOST and (given := reader.get_next()):
        if not isinstance(given, Mapping):
            raise OptionError(
                "inputs", f"get_next() has to return arrays by name or None, not a {type(given).__name__}"
            )
        found.append({str(name): one if hasattr(one, "dtype") else np.asarray(one) for name, one in given.items()})
    if not found:
        raise OptionError(
            "inputs", "get_next() returned no set of inputs; a reader that was used before needs a rewind()"
        )
    notes = [f"the first {MOST} sets of inputs were taken from the reader"] if len(found) == MOST else []
    return InputSets(found, notes)
