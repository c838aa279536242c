"""Cache measured session settings by model structure in the user's cache folder.

They hold for models of the same operators with weights of the same shapes, one build of the runtime, one processor and one number
of threads, which the keys of the file name:

    {"3f2a... onnxruntime 1.31.1, SomeExecutionProvider, 2 processors of ..., 0 threads": {"threads": 0, "settings": [...]}}
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import platformdirs

from ortfuse.ir import walk
from ortfuse.runtime.current_execution_target import execution_target
from ortfuse.runtime.session_settings.config import Setting, from_file
from ortfuse.targets.calibrated_speedups import machine_key
from ortfuse.targets.measurement_file import keep, kept


def settings_file() -> Path:
    """The file in the user's cache folder."""
    return Path(platformdirs.user_cache_dir("ortfuse")) / "sessions.json"


def structure(model: ir.Model) -> str:
    """A digest of the operators of a model, their attributes and the shapes of their weights; names do not matter."""
    imports = sorted(model.graph.opset_imports.items())
    counted = sorted(Counter(_told(node) for node in walk.nodes(model)).items())
    return hashlib.sha256(repr((imports, counted)).encode()).hexdigest()[:16]


def remember(model: ir.Model, threads: int, settings: Sequence[Setting], file: Path | None = None) -> bool:
    """Keep what was measured to be worth setting, which may be nothing; returns whether the file could be written."""
    content = {"threads": threads, "settings": [setting.to_dict() for setting in settings]}
    key = f"{structure(model)} {machine_key(_runtime(), execution_target().provider)}{threads} threads"
    return keep(file or settings_file(), {key: content})


def remembered(model: ir.Model, file: Path | None = None) -> tuple[Setting, ...]:
    """The settings that were measured for models like this one; those for all threads before those for a part of them."""
    known = kept(file or settings_file())
    start = f"{structure(model)} " if known else ""
    found = {key: one for key, one in known.items() if key.startswith(start)}
    if not found:
        return ()
    here = f"{start}{machine_key(_runtime(), execution_target().provider)}"
    rows = [
        (one, settings) for key, one in found.items() if key.startswith(here) and (settings := _read(one)) is not None
    ]
    return max(rows, key=lambda row: row[0]["threads"] or os.cpu_count() or 1)[1] if rows else ()


def _told(node: ir.Node) -> str:
    attributes = [(name, _attribute(one)) for name, one in sorted(node.attributes.items())]
    constants = [value.const_value for value in node.inputs if value is not None and value.const_value is not None]
    weights = [(str(one.dtype), str(one.shape)) for one in constants]
    return repr((node.domain, node.op_type, node.overload, attributes, len(node.inputs), weights))


def _attribute(one: ir.Attr) -> str:
    if one.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return ""  # its nodes are counted like all others
    if one.type == ir.AttributeType.TENSOR:
        return f"{one.value.dtype} {one.value.shape}"
    return repr(one.value)


def _read(content: Any) -> tuple[Setting, ...] | None:
    """Read the settings that `remember` wrote; `None` if they are damaged or on no allow-list: they were measured together."""
    try:
        known = isinstance(content["threads"], int)
        read = [
            from_file(one["name"], one["value"], one["reason"], str(settings_file())) for one in content["settings"]
        ]
    except (KeyError, TypeError):
        return None
    taken = tuple(one for one in read if one is not None)
    return taken if known and len(taken) == len(read) else None


def _runtime() -> str:
    import onnxruntime  # takes longer than most runs, and most models need none of it

    return f"onnxruntime {onnxruntime.__version__}"
