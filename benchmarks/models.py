"""The models that benchmarks measure: their folders, their sizes, and the choice among them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from benchmarks.jobs import MODELS, ROOT

FULL_SIZE = MODELS
WEB = ROOT / "benchmarks" / ".web"
"""The models that browsers run, which `benchmarks.exports.web` exports."""
GOLDEN = ROOT / "golden" / "models"
FOR_TARGETS = (
    *("bert.sdpa.ts", "llama.sdpa.ts", "llama_cache.sdpa.ts", "gpt2_cache.sdpa.ts", "t5_decoder.sdpa.ts"),
    *("whisper_encoder.sdpa.ts", "swin.sdpa.ts", "vit.sdpa.ts", "yolo.ts", "resnet.ts", "mobilenet3.tsbn", "lstm.ts"),
)  # fmt: skip
"""Golden models that are tried on targets: transformers, vision, convolutions and a recurrent network."""

STEP = {"sequence": 1, "past": 64}
SIZES: Mapping[str, Mapping[str, int]] = {
    "minilm": {"sequence": 16},
    "gpt2_step": STEP,
    "llama_step": STEP,
    "t5_step": {**STEP, "source": 128},
    "whisper_step": {"past": 64},
    "smollm_step": STEP,
    "clip_text": {"sequence": 77},
    "wav2vec2": {"samples": 16000},
    "speech": {"frames": 500},
}
"""Sizes of open dimensions by the model's name; batches are 1, and other dimensions 128."""


def sizes_of(name: str) -> Mapping[str, int]:
    """Return the sizes of a full-size model by the name of its file."""
    return SIZES.get(name.partition(".")[0], {})


@contextmanager
def folder_for(keep: Path | None, models: Path) -> Iterator[Path]:
    """Yield the folder for the results of the tools: the one that keeps them, or a temporary one in that of the models."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
    else:
        with tempfile.TemporaryDirectory(prefix="latency", dir=models) as folder:
            yield Path(folder)


def chosen(folder: Path, names: Sequence[str], known: Mapping[str, Any], fresh: bool) -> list[Path]:
    """Return the model files to measure: those named, else those not measured yet.

    Raises:
        typer.BadParameter: A name fits no file.
    """
    files = {path.name.removesuffix(".onnx"): path for path in sorted(folder.glob("*.onnx"))}
    for name in names:
        if not any(f"{file}.".startswith(f"{name}.") for file in files):
            raise typer.BadParameter(f"no model '{name}' in {folder}; export it with benchmarks.exports.full {name}")
    if names:
        return [path for file, path in files.items() if any(f"{file}.".startswith(f"{name}.") for name in names)]
    return [path for file, path in files.items() if fresh or file not in known]


def one_of_each(paths: Sequence[Path]) -> list[Path]:
    """Return one export of each architecture, the first by name."""
    return list({path.name.removesuffix(".onnx").rpartition(".")[0]: path for path in reversed(paths)}.values())[::-1]
