"""Measure how fast decoders and generators write, side by side."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortfuse.api.fused_decoder import fused_decoder
from ortfuse.api.generator import MAX_LENGTH
from ortfuse.errors import GenerationError, ModelFileError, OptionError
from ortfuse.generation.candidates import Candidate, GenaiCandidate, GeneratorCandidate, PlainCandidate
from ortfuse.generation.genai_config import NAME as GENAI_CONFIG
from ortfuse.generation.generator import MODEL_FILE
from ortfuse.generation.generator_interface import METADATA, interface_of
from ortfuse.generation.measure import GenerationLatencies, measure_generations
from ortfuse.generation.plain_loop import input_types
from ortfuse.io.load_and_save import load, metadata
from ortfuse.options import Options

Array = np.ndarray[Any, Any]


def benchmark_generation(
    models: Sequence[str | os.PathLike[str]],
    *,
    new_tokens: int = 256,
    prompt: int = 32,
    rounds: int = 5,
    threads: int = 0,
    seed: int = 0,
    roles: Mapping[str, str] | None = None,
    fixed: Mapping[str, Array] | None = None,
) -> GenerationLatencies:
    """Measure how fast models generate, in interleaved rounds of greedy decoding with a batch of 1.

    Args:
        models: Decoders with caches, which run in a plain loop with their caches bound, folders or files of generators, and
            folders that onnxruntime-genai runs, such as those of its builder. The first one is the baseline.
        new_tokens: How many tokens each generates.
        prompt: How many tokens the prompt has; they are random.
        rounds: How often each generates; one more run before them warms up.
        threads: Threads of a session; 0 leaves the choice to the runtime.
        seed: The seed of the prompt.
        roles: Names of inputs and outputs by role, as for `generator`.
        fixed: Arrays for inputs that stay the same in all steps.

    Raises:
        GenerationError: A model is neither a decoder nor a generator, or its buffers do not hold the tokens.
        OptionError: A number is invalid.
    """
    for name, number in (("new_tokens", new_tokens), ("prompt", prompt), ("rounds", rounds)):
        if number < 1:
            raise OptionError(name, f"is {number}; at least 1 is needed")
    candidates: dict[str, Candidate] = {}
    vocabulary = 0
    for model in models:
        path = Path(model)
        if _is_for_genai(path):
            candidates[str(model)] = GenaiCandidate(path, threads, prompt + new_tokens + 1)
            continue
        file = path / MODEL_FILE if path.is_dir() else path
        vocabulary = vocabulary or _vocabulary(file)
        if _is_generator(file):
            _demand_room(file, prompt + new_tokens)
            candidates[str(model)] = GeneratorCandidate(file, threads, fixed or {})
        else:
            names = fused_decoder(file, Options(), MAX_LENGTH, roles or {}).names
            candidates[str(model)] = PlainCandidate(file, names, input_types(load(file)), threads, fixed or {})
    tokens = np.random.default_rng(seed).integers(0, max(vocabulary, 2), (1, prompt))
    return measure_generations(candidates, tokens, new_tokens, rounds)


def demand_single_runs(models: Sequence[str | os.PathLike[str]]) -> None:
    """Refuse folders that generate: one run of a model says little of them.

    Raises:
        ModelFileError: There is one.
    """
    for path in map(Path, models):
        if path.is_dir() and (
            _is_for_genai(path) or ((path / MODEL_FILE).is_file() and _is_generator(path / MODEL_FILE))
        ):
            raise ModelFileError(
                f"{path}: is the folder of a generator; measure whole generations of it with --generate 256"
            )


def _is_generator(file: Path) -> bool:
    return METADATA in metadata(file)


def _demand_room(file: Path, tokens: int) -> None:
    """Raises:
    GenerationError: The buffers of a generator hold fewer tokens.
    """
    most = interface_of(metadata(file), str(file)).max_length
    if tokens > most:
        text = f"{tokens} tokens, of the prompt and generated, are more than the {most} that its buffers hold"
        raise GenerationError(f"{file}: {text}; generate fewer, or make it with a greater --max-length")


def _is_for_genai(path: Path) -> bool:
    """Whether a folder has a model for onnxruntime-genai that is no generator."""
    if not (path / GENAI_CONFIG).is_file():
        return False
    file = path / MODEL_FILE
    return not (file.is_file() and _is_generator(file))


def _vocabulary(file: Path) -> int:
    """The number of tokens, which is the last size of the scores; 0 if it is open."""
    sizes = [value.shape[-1] for value in load(file).graph.outputs if value.shape is not None and len(value.shape) == 3]
    return next((size for size in sizes if isinstance(size, int)), 0)
