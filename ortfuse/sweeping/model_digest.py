"""The files that a row of a sweep depends on besides the model file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx_ir

from ortfuse.errors import OrtfuseError
from ortfuse.io.files import load
from ortfuse.ir.tensors import tensors

_NAMING = ("passes", "patterns", "lists", "target", "inputs", "preprocess", "custom_ops")
"""Options that can be the paths of files or folders."""


def model_files(path: Path) -> list[Path]:
    """The files with the external data of a model; none if it cannot be read, as its row says."""
    try:
        model = load(path)
    except (OrtfuseError, OSError):
        return []
    return sorted(
        {Path(slot.tensor.path) for slot in tensors(model) if isinstance(slot.tensor, onnx_ir.ExternalTensor)}
    )


def named_files(options: Mapping[str, Any]) -> Iterator[Path]:
    """The files that options name, and those in folders that they name."""
    for name in _NAMING:
        value = options.get(name)
        for one in value if isinstance(value, list | tuple) else [value]:
            if not isinstance(one, str) or not one:
                continue
            with suppress(OSError, ValueError):  # a pipeline as text is no path
                place = Path(one)
                if place.is_file():
                    yield place
                elif place.is_dir():
                    inside = sorted(path for path in place.rglob("*") if path.is_file())
                    yield from (path for path in inside if "__pycache__" not in path.parts)
