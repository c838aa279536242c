"""Tries a variant: what the runtime loads must be optimised and written, load, and compute the same."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import numpy as np

import ortfuse
from ortfuse.errors import OrtfuseError, VerificationError
from ortfuse.runtime.comparison import compare_all
from ortfuse.runtime.session import Session

from .variants import Variant

NOT_LOADED = "the runtime does not load the original"


def tried(variant: Variant, folder: Path) -> str | None:
    """What went wrong with a variant; `None` if nothing did, `NOT_LOADED` if it is none of ours."""
    for name, content in variant.files.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(content)
    source, target = folder / "model.onnx", folder / "made" / "result.onnx"
    target.parent.mkdir(exist_ok=True)
    target.unlink(missing_ok=True)
    source.write_bytes(variant.content)
    plain, optimised = _session(source, False), _session(source, True)
    if plain is None and optimised is None:
        return NOT_LOADED
    try:
        result = ortfuse.optimize(source, level="all", output=target)
    except Exception as error:
        if isinstance(error, OrtfuseError):
            return f"refused: {error}"
        return f"exception: {traceback.format_exc()[-1500:]}"
    if result.report.failures:
        return f"exception: {result.report.failures}"
    if result.written is None or not target.exists():
        return "nothing was written"
    if optimised is not None and (problem := _problem(target, True)):
        return f"does not load: {problem}"
    original = plain or optimised
    try:
        result_session = Session(target, optimise=plain is None, threads=1)
    except VerificationError as error:
        return f"does not load unoptimised: {error}"
    return _difference(original, result_session, source)


def _session(path: Path, optimise: bool) -> Session | None:
    try:
        return Session(path, optimise=optimise, threads=1)
    except VerificationError:
        return None


def _problem(path: Path, optimise: bool) -> str:
    try:
        Session(path, optimise=optimise, threads=1)
    except VerificationError as error:
        return str(error)
    return ""


def _difference(original: Session, result: Session, source: Path) -> str | None:
    if (original.input_names, original.output_names) != (result.input_names, result.output_names):
        return (
            f"interface: {original.input_names, original.output_names} became {result.input_names, result.output_names}"
        )
    feeds = feeds_of(source)
    if feeds is None:
        return None
    try:
        expected = original.run(feeds)
    except VerificationError:
        return None
    try:
        found = result.run(feeds)
    except VerificationError as error:
        return f"does not run: {error}"
    for name, before in expected.items():
        if not _same(before, found[name]):
            return f"outputs: {name} was {before!r} and is {found[name]!r}"
    return None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(_same, one, other))
    if not isinstance(one, np.ndarray) or one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    return all(difference.ok for difference in compare_all({"": one}, {"": other}, None, None))


_KIND = re.compile(r"tensor\((\w+)\)")
_SIZES = 3


def feeds_of(path: Path) -> dict[str, Any] | None:
    """Inputs of a model that the runtime loads, by the types that it tells; `None` if there are none that can be made."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(path, options)
    except Exception:
        return None
    rng, feeds = np.random.default_rng(0), {}
    for value in session.get_inputs():
        kind = _KIND.fullmatch(value.type)
        if kind is None:
            return None
        shape = [dim if isinstance(dim, int) else _SIZES for dim in value.shape or []]
        feeds[value.name] = _numbers(kind[1], shape, rng)
    return feeds


def _numbers(kind: str, shape: list[int], rng: np.random.Generator) -> Any:
    if kind == "string":
        return rng.choice(np.array(["a", "B", "c"], object), shape)
    if kind == "bool":
        return rng.random(shape) < 0.5
    if kind.startswith(("int", "uint")):
        return rng.integers(0, 2, shape).astype(kind)
    return rng.standard_normal(shape).astype({"float": "float32", "double": "float64"}.get(kind, kind))
