"""Folders that onnxruntime-genai runs, as candidates of `ortfuse.generation.measure`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class GenaiCandidate:
    """A folder with a `genai_config.json`, in onnxruntime-genai's own loop.

    Attributes:
        path: The folder.
        max_length: Tokens of its buffers.
    """

    path: Path
    max_length: int

    def load(self) -> _Running:
        """Create its session."""
        return _Running(self)


class _Running:
    def __init__(self, candidate: GenaiCandidate) -> None:
        import onnxruntime_genai

        self._genai, self._max_length = onnxruntime_genai, candidate.max_length
        config = onnxruntime_genai.Config(str(candidate.path))
        self._model = onnxruntime_genai.Model(config)

    def first(self, tokens: Array) -> Array:
        """Start anew with a prompt, [1, tokens]; the scores after it, [1, vocabulary]."""
        settings = self._genai.GeneratorParams(self._model)
        settings.set_search_options(max_length=self._max_length, batch_size=1, do_sample=False)
        self._generator = self._genai.Generator(self._model, settings)
        return self.next(tokens)

    def next(self, tokens: Array) -> Array:
        """The scores after more tokens, [1, vocabulary]."""
        self._generator.append_tokens(tokens.astype(np.int32))
        scores: Array = np.asarray(self._generator.get_logits())
        return scores.reshape(1, -1, scores.shape[-1])[:, -1]
