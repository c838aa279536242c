"""Sessions of the runtime on a device: as users make them, with inputs and outputs bound to the device, and where nodes run."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}
"""The provider by the name of the place; `cpu` stands in where there is no GPU."""

EXACT = {"use_tf32": "0"}


def made(source: str | bytes, place: str, options: Mapping[str, str] | None = None, **settings: Any) -> Any:
    """Return a session on a place.

    Args:
        source: A path or a serialised model.
        place: `cuda` or `cpu`.
        options: Options of the provider of a GPU.
        settings: Attributes of the session's options.
    """
    configured = ort.SessionOptions()
    configured.log_severity_level = 4
    for name, value in settings.items():
        setattr(configured, name, value)
    given: list[Any] = [(PROVIDERS[place], dict(options or {})) if place == "cuda" else PROVIDERS[place]]
    if place != "cpu":
        given.append(PROVIDERS["cpu"])
    session = ort.InferenceSession(source, configured, providers=given)
    if PROVIDERS[place] not in session.get_providers():
        raise RuntimeError(f"{PROVIDERS[place]} does not start")
    return session


def bound(session: Any, inputs: Mapping[str, Any], place: str) -> Any:
    """Bind inputs that lie on the device, and outputs that stay there."""
    binding = session.io_binding()
    for value in session.get_inputs():
        array = np.ascontiguousarray(inputs[value.name])
        if value.type == "tensor(float16)":
            array = array.astype(np.float16)
        binding.bind_ortvalue_input(value.name, ort.OrtValue.ortvalue_from_numpy(array, place, 0))
    for value in session.get_outputs():
        binding.bind_output(value.name, place)
    binding.synchronize_inputs()
    return binding


def once(session: Any, binding: Any) -> float:
    """The milliseconds of one run, until the device has finished."""
    started = time.perf_counter()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    return (time.perf_counter() - started) * 1e3


def placement(source: str | bytes, inputs: Mapping[str, Any], place: str) -> dict[str, Any]:
    """How many nodes run on each provider, how many copies there are between them, and which operators are off the device."""
    with tempfile.TemporaryDirectory() as folder:
        session = made(source, place, enable_profiling=True, profile_file_prefix=str(Path(folder) / "p"))
        run(session, inputs)
        events = json.loads(Path(session.end_profiling()).read_text())
    counts, off = Counter[str](), Counter[str]()
    for event in events:
        arguments = event.get("args", {})
        if event.get("cat") != "Node" or not event.get("name", "").endswith("_kernel_time"):
            continue
        kind, provider = arguments.get("op_name", ""), arguments.get("provider", "")
        if kind.startswith("Memcpy"):
            counts["copies"] += 1
            continue
        counts[provider] += 1
        if provider != PROVIDERS[place]:
            off[kind] += 1
    return {"nodes": dict(counts), "off": dict(off)}


def run(session: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """All outputs by name; inputs of float16 are rounded."""
    names = [value.name for value in session.get_outputs()]
    given = {
        value.name: np.asarray(inputs[value.name], np.float16)
        if value.type == "tensor(float16)"
        else inputs[value.name]
        for value in session.get_inputs()
    }
    return dict(zip(names, session.run(names, given), strict=True))


def apart(expected: Mapping[str, Any], found: Mapping[str, Any]) -> float:
    """The largest distance of an output from what is expected, relative to its norm; infinite where one is not finite alone."""
    worst = 0.0
    for name, wanted in expected.items():
        if isinstance(wanted, list) or wanted.dtype.kind not in "biuf":
            continue
        a, b = np.asarray(wanted, np.float64), np.asarray(found[name], np.float64)
        if a.shape != b.shape or not (np.isfinite(a) == np.isfinite(b)).all():
            return float("inf")
        finite = np.isfinite(a)
        norm = float(np.linalg.norm(a[finite]))
        worst = max(worst, float(np.linalg.norm(a[finite] - b[finite])) / (norm or 1.0))
    return worst


def median(values: Sequence[float]) -> float:
    """The median."""
    return float(np.median(values)) if len(values) else float("nan")
