"""Models that generate and are measured side by side: what it takes to run each, here or in a process of its own."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ortfuse.errors import GenerationError
from ortfuse.generation.bound_runs import BoundRuns
from ortfuse.generation.generator import Generator
from ortfuse.generation.generator_interface import interface_of
from ortfuse.generation.interface_names import InterfaceNames
from ortfuse.generation.plain_loop import InputType, PlainLoop
from ortfuse.generation.token_embeddings import RandomEmbeddings
from ortfuse.io.load_and_save import metadata
from ortfuse.runtime.session_settings import session

Array = np.ndarray[Any, Any]


class Running(Protocol):
    """Something that generates, one run at a time."""

    def first(self, tokens: Array) -> Array:
        """Start anew with a prompt, [1, tokens]; the scores after it, [1, vocabulary]."""

    def next(self, tokens: Array) -> Array:
        """The scores after one more token, [1, 1]; [1, vocabulary]."""


class Candidate(Protocol):
    """A model that is not loaded yet."""

    def load(self) -> Running:
        """Create its session."""


@dataclass(frozen=True)
class PlainCandidate:
    """A decoder in a plain loop, its caches bound to the runtime's own values.

    Attributes:
        path: Its file.
        names: Its inputs and outputs.
        types: The types of its inputs.
        threads: Threads of its session; 0 leaves the choice to the runtime.
        fixed: Arrays for inputs that stay the same in all steps.
    """

    path: Path
    names: InterfaceNames
    types: Mapping[str, InputType]
    threads: int
    fixed: Mapping[str, Array]

    def load(self) -> Running:
        """Create its session."""
        return _Plain(self)


@dataclass(frozen=True)
class GeneratorCandidate:
    """A generator.

    Attributes:
        path: Its file.
        threads: Threads of its session; 0 leaves the choice to the runtime.
        fixed: Arrays for inputs that stay the same in all steps.
    """

    path: Path
    threads: int
    fixed: Mapping[str, Array]

    def load(self) -> Running:
        """Create its session."""
        return _InPlace(self)


@dataclass(frozen=True)
class GenaiCandidate:
    """A folder that onnxruntime-genai runs, in its own loop.

    Attributes:
        path: The folder, with a `genai_config.json`.
        threads: Threads of its session; 0 leaves the choice to the runtime.
        max_length: Tokens of its buffers.
    """

    path: Path
    threads: int
    max_length: int

    def __post_init__(self) -> None:
        """Raises:
        GenerationError: onnxruntime-genai is not installed.
        """
        if importlib.util.find_spec("onnxruntime_genai") is None:
            text = "is a model for onnxruntime-genai, which is not installed: pip install onnxruntime-genai"
            raise GenerationError(f"{self.path} {text}")

    def load(self) -> Running:
        """Create its session.

        Raises:
            GenerationError: onnxruntime-genai refuses the folder.
        """
        return _Genai(self)


class _Plain:
    def __init__(self, candidate: PlainCandidate) -> None:
        names = candidate.names
        self._names, self._types = names, candidate.types
        self._runs = BoundRuns(session(candidate.path, _settings(candidate.threads)), {names.logits, *names.new_alone})
        self._fixed = {name: array for name, array in candidate.fixed.items() if name in names.fixed}

    def first(self, tokens: Array) -> Array:
        self._loop = PlainLoop(self._runs, self._names, self._types)
        return self._loop.step(tokens, self._fixed)[:, -1]

    def next(self, tokens: Array) -> Array:
        return self._loop.step(tokens, self._fixed)[:, -1]


class _InPlace:
    def __init__(self, candidate: GeneratorCandidate) -> None:
        settings = _settings(candidate.threads)
        size = interface_of(metadata(candidate.path), str(candidate.path)).embedding
        # Those of the plain loop, so that both take the same tokens.
        embeddings = RandomEmbeddings(size) if size else None
        self._generator = Generator(candidate.path, settings=settings, embeddings=embeddings)
        self._fixed = candidate.fixed

    def first(self, tokens: Array) -> Array:
        return self._generator.prompt(tokens.tolist(), fixed=self._fixed)

    def next(self, tokens: Array) -> Array:
        return self._generator.step(tokens, fixed=self._fixed)[:, -1]


class _Genai:
    def __init__(self, candidate: GenaiCandidate) -> None:
        genai: Any = importlib.import_module("onnxruntime_genai")  # an extra

        self._genai, self._max_length = genai, candidate.max_length
        try:
            config = genai.Config(str(candidate.path))
            options = {
                name: value if isinstance(value, int) else str(value)
                for name, value in _settings(candidate.threads).items()
            }
            config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
            self._model = genai.Model(config)
        except Exception as error:  # whatever it raises
            raise GenerationError(f"onnxruntime-genai cannot open {candidate.path}: {error}") from error

    def first(self, tokens: Array) -> Array:
        settings = self._genai.GeneratorParams(self._model)
        settings.set_search_options(max_length=self._max_length, batch_size=1, do_sample=False)
        self._generator = self._genai.Generator(self._model, settings)
        return self.next(tokens)

    def next(self, tokens: Array) -> Array:
        self._generator.append_tokens(tokens.astype(np.int32))
        scores: Array = np.asarray(self._generator.get_logits())
        return scores.reshape(1, -1, scores.shape[-1])[:, -1]


def _settings(threads: int) -> dict[str, Any]:
    # The threads of a session must not wait busily while another model runs.
    found: dict[str, Any] = {"session.force_spinning_stop": "1"}
    return found | ({"intra_op_num_threads": threads} if threads else {})
