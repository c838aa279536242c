"""Prompts and tokens as the input of a decoder takes them: token ids, or their embeddings.

Language models of vision-language models take embeddings, [batch, tokens, size], so that those of an image can stand among those
of words. A table, a function or a model (`embed_tokens.onnx`) gives the embeddings of token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ortfuse.errors import GenerationError
from ortfuse.runtime.session_settings import session

Array = np.ndarray[Any, Any]

EMBEDDINGS_FILE = "embed_tokens.onnx"
"""The name of the model beside a generator that gives embeddings of token ids, if there is one."""

Embed: TypeAlias = Callable[[Array], Array]
"""Embeddings [batch, tokens, size] of token ids [batch, tokens]."""

Prompt: TypeAlias = Sequence[int] | Array
"""Token ids, or embeddings [tokens, size]."""


class RandomEmbeddings:
    """Random embeddings of token ids, always the same; ids of one remainder have the same."""

    def __init__(self, size: int, rows: int = 1021) -> None:
        """Draw a table of so many rows."""
        self._table = np.random.default_rng(3).standard_normal((rows, size)).astype(np.float32)

    def __call__(self, tokens: Array) -> Array:
        """The embeddings."""
        found: Array = self._table[tokens % len(self._table)]
        return found


class ModelEmbeddings:
    """The embeddings that a model of one input and one output gives."""

    def __init__(self, path: Path, settings: Mapping[str, Any] | None = None) -> None:
        """Open the model.

        Raises:
            GenerationError: It has other inputs or outputs.
        """
        self._session: Any = session(path, settings)
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or not outputs or inputs[0].type not in ("tensor(int64)", "tensor(int32)"):
            raise GenerationError(f"{path} is no model of embeddings: it would take token ids [batch, tokens] alone")
        self._input, self._output = inputs[0].name, outputs[0].name
        self._dtype = np.int64 if inputs[0].type == "tensor(int64)" else np.int32

    def __call__(self, tokens: Array) -> Array:
        """The embeddings."""
        found: Array = self._session.run([self._output], {self._input: tokens.astype(self._dtype)})[0]
        return found


def table_model(table: Array) -> ir.Model:
    """A model that reads the embeddings of token ids from a table [vocabulary, size]."""
    tensor = ir.tensor(table, name="table")
    rows = ir.Value(name="table", type=ir.TensorType(tensor.dtype), shape=ir.Shape(table.shape), const_value=tensor)
    tokens = ir.Value(
        name="input_ids", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(["batch_size", "sequence_length"])
    )
    node = ir.node("Gather", [rows, tokens])
    result = node.outputs[0]
    result.name, result.type = "inputs_embeds", ir.TensorType(tensor.dtype)
    result.shape = ir.Shape(["batch_size", "sequence_length", table.shape[1]])
    graph = ir.Graph([tokens], [result], nodes=[node], initializers=[rows], opset_imports={"": 17}, name="embeddings")
    return ir.Model(graph, ir_version=8)


class PromptReader:
    """Reads prompts and tokens for the input of a decoder."""

    def __init__(self, size: int, embed: Embed | None) -> None:
        """Take the size of an embedding, 0 where the input takes token ids, and what gives embeddings of ids."""
        self._size, self._embed = size, embed

    @property
    def needs_embeddings(self) -> bool:
        """Whether embeddings are taken, and nothing gives those of token ids."""
        return bool(self._size) and self._embed is None

    def lengths(self, prompts: Sequence[Prompt]) -> Array:
        """int64 [prompts], how many tokens each has.

        Raises:
            GenerationError: A prompt is neither token ids nor embeddings of the right size.
        """
        if any(np.ndim(prompt) != 1 and not self.is_embedded(prompt) for prompt in prompts):
            also = f", or embeddings [tokens, {self._size}]" if self._size else ""
            raise GenerationError(
                f"prompts are a list with a list of token ids for each sequence{also}, such as [[12, 7, 301]]"
            )
        return np.array([len(prompt) for prompt in prompts], np.int64)

    def is_embedded(self, prompt: Prompt) -> bool:
        """Whether a prompt, or tokens of a batch, are embeddings."""
        shape = np.shape(prompt)
        return bool(self._size) and len(shape) > 1 and shape[-1] == self._size and np.asarray(prompt).dtype.kind == "f"

    def padded(self, prompts: Sequence[Prompt]) -> Array:
        """[prompts, most tokens] or [prompts, most tokens, size], with anything behind the tokens of shorter ones."""
        rows = [np.asarray(prompt) if self.is_embedded(prompt) else _token_ids(prompt) for prompt in prompts]
        if self._size:
            rows = [row if row.ndim == 2 else self._embedded(row[None])[0] for row in rows]
        made = np.zeros((len(rows), max(len(row) for row in rows), *rows[0].shape[1:]), rows[0].dtype)
        for number, row in enumerate(rows):
            made[number, : len(row)] = row
        return made

    def tokens(self, tokens: Array) -> Array:
        """New tokens [batch, new tokens] as the input takes them.

        Raises:
            GenerationError: They are no token ids, or nothing gives their embeddings.
        """
        if self.is_embedded(tokens):
            return tokens
        return self._embedded(_token_ids(tokens)) if self._size else _token_ids(tokens)

    def _embedded(self, tokens: Array) -> Array:
        if self._embed is None:
            raise GenerationError(
                f"the model takes embeddings [batch, tokens, {self._size}], and nothing gives those of token ids: pass "
                "embeddings=TABLE to Generator, or make the generator with --embeddings embed_tokens.onnx"
            )
        found = self._embed(tokens)
        if found.shape != (*tokens.shape, self._size):
            raise GenerationError(
                f"the embeddings of tokens {tokens.shape} are {found.shape}, and the model takes {(*tokens.shape, self._size)}"
            )
        return found


def _token_ids(tokens: Prompt) -> Array:
    """Token ids as they are given, if they are such."""
    found = np.asarray(tokens)
    if found.dtype.kind not in "iu" or found.min() < 0:
        raise GenerationError("tokens are whole numbers from 0 on, the ids that a tokenizer gives")
    return found


def embed_of(given: Embed | Array | None) -> Embed | None:
    """The function that gives embeddings: one that is given, or that of the rows of a table [vocabulary, size]."""
    if isinstance(given, np.ndarray):
        table = given
        return lambda tokens: table[tokens]
    return given
