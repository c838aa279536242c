"""List the files that a row of a sweep depends on: external data, and files that options name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx_ir

from ortfuse.errors import OrtfuseError
from ortfuse.io.load_and_save import load
from ortfuse.ir.enumerate_tensors import tensors
from ortfuse.options import named_paths

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
    for path in named_paths(options):
        with suppress(OSError, ValueError):
            place = Path(path)
            if place.is_file():
                yield place
            elif place.is_dir():
                inside = sorted(one for one in place.rglob("*") if one.is_file())
                yield from (one for one in inside if "__pycache__" not in one.parts)
