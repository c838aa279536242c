"""Measure how fast decoders and generators write, side by side."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortfuse.api.generator import MAX_LENGTH, fused_decoder
from ortfuse.errors import OptionError
from ortfuse.generation.bound_runs import BoundRuns
from ortfuse.generation.decoder_interface import InterfaceNames
from ortfuse.generation.generator import MODEL_FILE, Generator
from ortfuse.generation.generator_interface import METADATA
from ortfuse.generation.measure import GenerationLatencies, Timed, measure_generations
from ortfuse.generation.plain_loop import InputType, PlainLoop, input_types
from ortfuse.options import Options
from ortfuse.runtime.session_settings import session

Array = np.ndarray[Any, Any]


class _Plain:
    """A decoder in a plain loop, its caches bound to the runtime's own values."""

    def __init__(self, path: Path, threads: int, roles: Mapping[str, str], fixed: Mapping[str, Array]) -> None:
        from ortfuse.io.load_and_save import load

        self._names: InterfaceNames = fused_decoder(path, Options(), MAX_LENGTH, roles).names
        self._types: dict[str, InputType] = input_types(load(path))
        self._runs = BoundRuns(session(path, _settings(threads)), {self._names.logits})
        self._fixed = {name: array for name, array in fixed.items() if name in self._names.fixed}

    def first(self, tokens: Array) -> Array:
        """Start anew with a prompt."""
        self._loop = PlainLoop(self._runs, self._names, self._types)
        return self._loop.step(tokens, self._fixed)[:, -1]

    def next(self, tokens: Array) -> Array:
        """Append a token."""
        return self._loop.step(tokens, self._fixed)[:, -1]


class _InPlace:
    """A generator."""

    def __init__(self, path: Path, threads: int, fixed: Mapping[str, Array]) -> None:
        self._generator = Generator(path, settings=_settings(threads))
        self._fixed = fixed

    def first(self, tokens: Array) -> Array:
        """Start anew with a prompt."""
        return self._generator.prompt(tokens.tolist(), fixed=self._fixed)

    def next(self, tokens: Array) -> Array:
        """Append a token."""
        return self._generator.step(tokens, fixed=self._fixed)[:, -1]


def _settings(threads: int) -> dict[str, Any]:
    # The threads of a session must not wait busily while another model runs.
    found: dict[str, Any] = {"session.force_spinning_stop": "1"}
    return found | ({"intra_op_num_threads": threads} if threads else {})


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
        models: Decoders with caches, which run in a plain loop with their caches bound, and folders or files of generators.
            The first one is the baseline.
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
    made: dict[str, Callable[[], Timed]] = {}
    vocabulary = 0
    for model in models:
        path = Path(model)
        file = path / MODEL_FILE if path.is_dir() else path
        vocabulary = vocabulary or _vocabulary(file)
        if _is_generator(file):
            made[str(model)] = functools.partial(_InPlace, file, threads, fixed or {})
        else:
            made[str(model)] = functools.partial(_Plain, file, threads, roles or {}, fixed or {})
    tokens = np.random.default_rng(seed).integers(0, max(vocabulary, 2), (1, prompt))
    return measure_generations(made, tokens, new_tokens, rounds)


def _is_generator(file: Path) -> bool:
    from ortfuse.io.load_and_save import metadata

    return METADATA in metadata(file)


def _vocabulary(file: Path) -> int:
    """The number of tokens, which is the last size of the scores; 0 if it is open."""
    from ortfuse.io.load_and_save import load

    sizes = [value.shape[-1] for value in load(file).graph.outputs if value.shape is not None and len(value.shape) == 3]
    return next((size for size in sizes if isinstance(size, int)), 0)
