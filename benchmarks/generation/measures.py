"""Measure one decoder, in a process of its own."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import ortfuse
from ortfuse.api.benchmark_generation import benchmark_generation
from ortfuse.api.generator import generator
from ortfuse.generation.generator import MODEL_FILE
from ortfuse.generation.generator_interface import interface_of
from ortfuse.generation.token_embeddings import RandomEmbeddings

STEPS = 16
PROMPTS = ([5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8, 9], [11])


def equal(path: Path, max_length: int) -> dict[str, Any]:
    """Make a generator of a decoder; which layers it has in place, and whether its generations are equal."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            done = generator(path, folder, max_length=max_length, last_logits=True, verify=True)
            assert done.comparison is not None
            found: dict[str, Any] = {
                "equal": done.comparison.equal,
                "error": float(f"{done.comparison.largest_error:.2g}"),
                "steps": done.comparison.steps,
                "ties": done.comparison.near_ties,
                "growing": len(done.kept),
                "in_place": sum(cache.in_place for cache in done.interface.caches),
            }
            if done.interface.mixed_lengths and not done.interface.fixed:
                size = done.interface.embedding
                model = ortfuse.Generator(folder, embeddings=RandomEmbeddings(size) if size else None)
                room = min(30, model.max_length - 10)
                batch = model.generate(PROMPTS, max_new_tokens=room)
                found["batch"] = batch == [model.generate([one], max_new_tokens=room)[0] for one in PROMPTS]
            return found
    except ortfuse.OrtfuseError as error:
        return {"refused": str(error)[:300]}


VARIANTS: Mapping[str, Mapping[str, bool]] = {
    "generator": {},
    "int8_caches": {"int8_caches": True},
    "int4": {"int4": True},
    "int4_int8_caches": {"int4": True, "int8_caches": True},
}
"""The generators that are measured beside the export, and their options."""


def speed(path: Path, rounds: int, marks: tuple[int, ...], variants: tuple[str, ...]) -> dict[str, Any]:
    """Milliseconds of the prompt and of a step of the export and the generator, and megabytes, by the number of tokens before."""
    longest = max(marks) + STEPS + 1
    with tempfile.TemporaryDirectory() as folder:
        models = [path]
        for name in variants:
            generator(path, Path(folder) / name, max_length=longest, last_logits=True, new_tokens=40, **VARIANTS[name])
            models.append(Path(folder) / name)
        found: dict[str, Any] = {"files_and_buffers_mb": {}}
        for name, made in zip(variants, models[1:], strict=True):
            found["files_and_buffers_mb"][name] = round((_file_bytes(made) + _buffer_bytes(made, longest)) / 1e6)
        for mark in marks:
            measured = benchmark_generation(models, new_tokens=STEPS, prompt=mark, rounds=rounds)
            for name, one in zip(("export", *variants), measured.models, strict=True):
                step = statistics.median(one.steps.values())
                found.setdefault(name, {})[str(mark)] = {
                    "prompt_ms": round(one.first * 1e3, 2),
                    "step_ms": round(step * 1e3, 3),
                    "ratio": round(one.ratio, 3),
                    "ratio_prompt": round(one.ratio_first, 3),
                    "memory_mb": None if one.memory is None else round(one.memory / 1e6),
                }
            found.setdefault("same_tokens", {})[str(mark)] = measured.same_tokens
        return found


def _file_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _buffer_bytes(folder: Path, length: int) -> int:
    model = onnx.load(folder / MODEL_FILE, load_external_data=False)
    caches = interface_of({one.key: one.value for one in model.metadata_props}, str(folder)).caches
    sizes = ([length if axis == one.axis else max(size, 1) for axis, size in enumerate(one.shape)] for one in caches)
    return sum(math.prod(size) * np.dtype(one.dtype).itemsize for size, one in zip(sizes, caches, strict=True))
