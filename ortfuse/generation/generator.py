"""Class `Generator`, which runs a generator: caches in place, greedy decoding or sampling, batches, streams, stop tokens."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortfuse.errors import GenerationError
from ortfuse.generation.generator_interface import CacheBuffer, GeneratorInterface, interface_of
from ortfuse.generation.sampling import Chooser, Sampling
from ortfuse.generation.token_embeddings import (
    EMBEDDINGS_FILE,
    Embed,
    ModelEmbeddings,
    Prompt,
    PromptReader,
    embed_of,
)
from ortfuse.runtime.session_settings import session

Array = np.ndarray[Any, Any]

MODEL_FILE = "model.onnx"
"""The name of the model in the folder that `ortfuse generator` writes."""

ONCE_FILE = "once.onnx"
"""The name of the model beside it that runs once for each prompt, if there is one."""


class Generator:
    """A generator with its session and buffers.

        generator = ortfuse.Generator("folder")
        tokens = generator.generate([[12, 7, 301]], max_new_tokens=64, stop_tokens=[2])

    The buffers are allocated once, for a batch size, and reused. One object is for one thread at a time.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        settings: Mapping[str, Any] | None = None,
        max_length: int | None = None,
        embeddings: Embed | Array | None = None,
    ) -> None:
        """Open a generator.

        Args:
            path: The folder that `ortfuse generator` wrote, or the model file in it.
            settings: Session settings by the runtime's names, such as `{"intra_op_num_threads": 4}`.
            max_length: The greatest number of tokens in a sequence, if less than the model allows: buffers are of this size.
            embeddings: For a model that takes embeddings, those of token ids: a table [vocabulary, size], or a function from ids
                [batch, tokens] to [batch, tokens, size]; by default `embed_tokens.onnx` in the folder gives them.

        Raises:
            GenerationError: The model is no generator, or `max_length` is more than it allows.
            ModelFileError: There is no such file.
            VerificationError: The runtime refuses the model.
        """
        file = Path(path)
        file = file / MODEL_FILE if file.is_dir() else file
        self._session: Any = session(file, settings)
        metadata = self._session.get_modelmeta().custom_metadata_map
        self.interface: GeneratorInterface = interface_of(metadata, str(file))
        self._once: Any = session(file.with_name(ONCE_FILE), settings) if self.interface.once else None
        self._reader = PromptReader(self.interface.embedding, embed_of(embeddings) or self._embeddings(file, settings))
        self.max_length = max_length or self.interface.max_length
        if not 1 < self.max_length <= self.interface.max_length:
            raise GenerationError(f"max_length={max_length}: the model takes 2 to {self.interface.max_length} tokens")
        inputs = {value.name: value for value in self._session.get_inputs()}
        tokens = inputs[self.interface.tokens]
        self._types = {
            name: _DTYPES.get(value.type) for name, value in inputs.items()
        }  # others than stated, once converted
        self._tokens_dtype = _DTYPES[tokens.type]
        self._only_batch: int | None = tokens.shape[0] if isinstance(tokens.shape[0], int) else None
        self._batch = self._runs = 0
        self._grown: list[CacheBuffer] = []
        self._values: dict[str, Any] = {}
        self._fixed: dict[str, Array] = {}
        self._lengths: Array = np.zeros(0, np.int64)

    def _embeddings(self, file: Path, settings: Mapping[str, Any] | None) -> Embed | None:
        """What gives embeddings of token ids beside the model."""
        beside = file.with_name(EMBEDDINGS_FILE)
        return ModelEmbeddings(beside, settings) if self.interface.embedding and beside.is_file() else None

    # Whole generations

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int = 128,
        stop_tokens: Collection[int] = (),
        sampling: Sampling | None = None,
        fixed: Mapping[str, Array] | None = None,
        shared_prefix: bool = False,
    ) -> list[list[int]]:
        """The tokens that follow each prompt.

        Args:
            prompts: Token ids of each sequence, or embeddings [tokens, size] if the model takes such. They may be of several
                lengths, if `interface.mixed_lengths` says so.
            max_new_tokens: The most tokens to generate for each.
            stop_tokens: Tokens that end a sequence. They are the last of its result.
            sampling: How tokens are drawn; by default the best one is taken.
            fixed: Arrays for the inputs of `interface.fixed`, such as an encoder's states.
            shared_prefix: Compute the first tokens that all prompts have in common once.

        Raises:
            GenerationError: A prompt is empty, prompts have several lengths where the model does not take them, or the
                sequences would become longer than `max_length`.
        """
        results: list[list[int]] = [[] for _ in prompts]
        for chosen in self.stream(
            prompts,
            max_new_tokens=max_new_tokens,
            stop_tokens=stop_tokens,
            sampling=sampling,
            fixed=fixed,
            shared_prefix=shared_prefix,
        ):
            for result, token in zip(results, chosen, strict=True):
                if token is not None:
                    result.append(token)
        return results

    def stream(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int = 128,
        stop_tokens: Collection[int] = (),
        sampling: Sampling | None = None,
        fixed: Mapping[str, Array] | None = None,
        shared_prefix: bool = False,
    ) -> Iterator[list[int | None]]:
        """After each step the new token of each sequence, `None` for those that have ended; the rest is as for `generate`."""
        longest = int(self._demand_prompts(prompts).max())
        if longest + max_new_tokens > self.max_length:
            raise GenerationError(
                f"{longest} tokens of a prompt and {max_new_tokens} new ones are more than the {self.max_length} that the "
                "buffers hold; ask for fewer, or make the generator with a greater --max-length"
            )
        if max_new_tokens < 1:
            raise GenerationError(f"max_new_tokens={max_new_tokens}: at least one token is generated")
        if self._reader.needs_embeddings:
            self._reader.tokens(np.zeros((1, 1), np.int64))  # raises what new tokens would
        if not isinstance(stop_tokens, Collection):
            raise GenerationError(f"stop_tokens={stop_tokens}: give a list of tokens, such as [2]")
        chooser = Chooser(sampling)
        scores = self.prompt(prompts, fixed=fixed, shared_prefix=shared_prefix)
        runs = self._runs
        ended = [False] * len(prompts)
        for number in range(max_new_tokens):
            chosen = chooser.choose(scores)
            yield [None if over else int(token) for over, token in zip(ended, chosen, strict=True)]
            ended = [over or int(token) in stop_tokens for over, token in zip(ended, chosen, strict=True)]
            if all(ended) or number + 1 == max_new_tokens:
                return
            if self._runs != runs:
                text = "another generation was started, or a step was run in between"
                raise GenerationError(f"{text}: the buffers of a Generator are for one at a time")
            scores = self.step(chosen[:, None], fixed=fixed)[:, -1]
            runs = self._runs

    # Single runs

    @property
    def lengths(self) -> Array:
        """int64 [batch], how many tokens each sequence has in the caches."""
        return self._lengths.copy()

    def cached(self) -> dict[str, Array]:
        """The filled part of the caches in place, [batch, heads, tokens, size], by the name of their input.

        Sequences that are shorter than others have anything behind their own tokens.
        """
        filled = int(self._lengths.max(initial=0))
        return {name: value.numpy()[:, :, :filled].copy() for name, value in self._values.items()}

    def prompt(
        self,
        prompts: Sequence[Prompt],
        *,
        fixed: Mapping[str, Array] | None = None,
        shared_prefix: bool = False,
    ) -> Array:
        """Start anew with prompts; the scores after the last token of each, [batch, vocabulary].

        With `shared_prefix`, the first tokens that all have in common are computed once, and the others for one prompt after
        the other.

        Raises:
            GenerationError: There is no prompt, one is empty, too long or has something else than token ids, or they have
                several lengths where the model does not take them.
        """
        lengths = self._demand_prompts(prompts)
        if shared_prefix and len(prompts) > 1:
            if any(self._reader.is_embedded(prompt) for prompt in prompts):
                raise GenerationError("a prefix is shared by prompts of token ids; leave shared_prefix out")
            shared = _common_prefix(prompts)
            if shared:
                return self._prompt_behind(shared, prompts)
        if not self.interface.mixed_lengths and lengths.min() != lengths.max():
            text = (
                "this model takes prompts of one length in a batch: its tokens, positions or states are not kept apart"
            )
            raise GenerationError(f"{text}; give them one after the other")
        self.start(len(prompts), fixed)
        padded = self._reader.padded(prompts)
        if self.interface.one_at_a_time:
            return [self.step(padded[:, [place]], fixed=fixed) for place in range(padded.shape[1])][-1][:, -1]
        scores = self._run(padded, lengths, fixed)
        if self.interface.last_logits:
            return scores[:, -1]
        found: Array = scores[np.arange(len(prompts)), lengths - 1]
        return found

    def _demand_prompts(self, prompts: Sequence[Prompt]) -> Array:
        """int64 [prompts], how many tokens each has: at least one.

        Raises:
            GenerationError: There is none, one is empty, or they are no lists of tokens.
        """
        lengths = self._reader.lengths(prompts)
        if not len(lengths) or lengths.min() < 1:
            raise GenerationError("each sequence needs a prompt of at least one token")
        return lengths

    def _prompt_behind(self, shared: int, prompts: Sequence[Prompt]) -> Array:
        """The scores after prompts that have so many first tokens in common."""
        interface = self.interface
        if interface.fixed or interface.states or self._is_growing() or not interface.mixed_lengths:
            text = "a prefix is shared by generators that take prompts of several lengths and have no other inputs"
            raise GenerationError(f"{text}; leave shared_prefix out")
        scores, rows = [], []
        self.prompt([prompts[0][:shared]])
        for prompt in prompts:
            self._lengths = np.array([shared], np.int64)  # what lies behind is written over
            scores.append(self._appended(prompt[shared:]))
            rows.append(self.cached())
        self.start(len(prompts))
        for number, row in enumerate(rows):
            for name, array in row.items():
                self._values[name].numpy()[number, :, : array.shape[2]] = array[0]
        self._lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        return np.concatenate(scores)

    def _appended(self, tokens: Prompt) -> Array:
        """The scores after tokens that are appended to one sequence, [1, vocabulary]."""
        pieces = [[token] for token in tokens] if self.interface.one_at_a_time else [list(tokens)]
        for piece in pieces:
            scores = self.step(np.array([piece]))
        return scores[:, -1]

    def _is_growing(self) -> bool:
        return any(not cache.in_place for cache in self.interface.caches)

    def start(self, batch: int, fixed: Mapping[str, Array] | None = None) -> None:
        """Empty the caches, for a number of sequences; the fixed inputs are taken, if some of them are only used once."""
        if self._once is not None:
            self._fixed = self._run_once(fixed or {})
        if batch != self._batch:
            self._allocate(batch)
        self._runs += 1
        self._lengths = np.zeros(batch, np.int64)
        for buffer in self._grown:
            buffer_of = self._caches[buffer.past]
            sizes = list(buffer_of.shape)
            sizes[buffer.axis] = 0
            self._caches[buffer.past] = np.zeros(sizes, buffer_of.dtype)
        for array in self._states.values():
            array[...] = 0

    def step(self, tokens: Array, *, fixed: Mapping[str, Array] | None = None) -> Array:
        """Append tokens, as many to each sequence; the scores after each, or after the last one with `last_logits`.

        Args:
            tokens: Token ids [batch, new tokens], or embeddings [batch, new tokens, size]. Several new tokens after others
                need a batch of 1.
            fixed: Arrays for the inputs of `interface.fixed`.

        Raises:
            GenerationError: The caches are full, or the tokens do not fit what was started.
        """
        tokens = np.asarray(tokens)
        if tokens.ndim != 2 + self._reader.is_embedded(tokens) or len(tokens) != self._batch or not tokens.size:
            expected = f"[{self._batch}, new tokens] are expected, as was started, of at least one token"
            raise GenerationError(f"tokens {tokens.shape}: {expected}")
        if tokens.shape[1] > 1 and self._batch > 1 and self._lengths.any():
            raise GenerationError("several tokens after others can be appended to one sequence only, not to a batch")
        return self._run(self._reader.tokens(tokens), self._lengths + tokens.shape[1], fixed)

    def _run(self, tokens: Array, lengths: Array, fixed: Mapping[str, Array] | None) -> Array:
        total = int(lengths.max())
        if total > self.max_length:
            raise GenerationError(f"{total} tokens are more than the {self.max_length} that the buffers hold")
        interface = self.interface
        binding: Any = self._session.io_binding()
        mask = (np.arange(total) < lengths[:, None]).astype(np.int64)
        binding.bind_cpu_input(interface.tokens, np.ascontiguousarray(tokens, self._tokens_dtype))
        binding.bind_cpu_input(interface.mask, mask)
        given = {**(fixed or {}), **self._fixed}
        for name in interface.fixed:
            binding.bind_cpu_input(name, np.ascontiguousarray(_demanded(given, name)))
        for name, value in self._values.items():
            binding.bind_ortvalue_input(name, value)
        for buffer in self._grown:
            binding.bind_cpu_input(buffer.past, self._caches[buffer.past])
        for state, array in self._states.items():
            binding.bind_cpu_input(state, array)
        asked = [
            interface.logits,
            *(buffer.present for buffer in self._grown),
            *(one.after for one in interface.states),
        ]
        for name in asked:
            binding.bind_output(name)
        for buffer in interface.caches:
            if buffer.in_place:
                binding.bind_ortvalue_output(buffer.present, self._values[buffer.past])
        with _explained(tokens):
            self._session.run_with_iobinding(binding)
        results = dict(zip(asked, binding.get_outputs(), strict=False))
        for buffer in self._grown:
            self._caches[buffer.past] = results[buffer.present].numpy()
        for one in interface.states:
            self._states[one.before] = results[one.after].numpy()
        self._lengths = lengths
        self._runs += 1
        return np.asarray(results[interface.logits].numpy())

    def _run_once(self, fixed: Mapping[str, Array]) -> dict[str, Array]:
        names = [value.name for value in self._once.get_outputs()]
        given = {name: _demanded(fixed, name) for name in self.interface.once}
        with _explained(None):
            found = self._once.run(names, given)
        return dict(zip(names, found, strict=True))

    def _allocate(self, batch: int) -> None:
        import onnxruntime

        if batch < 1:
            raise GenerationError(f"a batch of {batch}: at least one sequence is started")
        if self._only_batch not in (None, batch):
            text = f"the decoder was exported for a batch of {self._only_batch}"
            raise GenerationError(f"a batch of {batch}: {text}; export it with an open axis for more")
        self._batch = batch
        self._grown = [buffer for buffer in self.interface.caches if not buffer.in_place]
        self._caches = {
            buffer.past: self._zeros(buffer.past, self._sizes(buffer), buffer.dtype) for buffer in self._grown
        }
        self._values = {
            buffer.past: onnxruntime.OrtValue.ortvalue_from_numpy(
                self._zeros(buffer.past, self._sizes(buffer), buffer.dtype)
            )
            for buffer in self.interface.caches
            if buffer.in_place
        }
        self._states = {
            one.before: self._zeros(one.before, [batch if size < 0 else size for size in one.shape], one.dtype)
            for one in self.interface.states
        }

    def _zeros(self, name: str, sizes: Sequence[int], stated: str) -> Array:
        """Zeros in the type of an input: another than is stated, once the model was converted."""
        return np.zeros(sizes, self._types[name] or stated)

    def _sizes(self, buffer: CacheBuffer) -> list[int]:
        sizes = [self._batch if size < 0 else size for size in buffer.shape]
        sizes[buffer.axis] = self.max_length if buffer.in_place else 0
        return sizes


_DTYPES = {
    "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float)": np.float32, "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
}  # fmt: skip


@contextlib.contextmanager
def _explained(tokens: Array | None) -> Iterator[None]:
    """Raise what the runtime raises as an error that tells what was given.

    Raises:
        GenerationError: The runtime refuses it.
    """
    try:
        yield
    except Exception as error:  # what the runtime raises has no class in common
        given = (
            "" if tokens is None or tokens.dtype.kind == "f" else f" for tokens from {tokens.min()} to {tokens.max()}"
        )
        raise GenerationError(f"the runtime cannot run the model on what is given{given}: {error}") from error


def _demanded(fixed: Mapping[str, Array], name: str) -> Array:
    if name not in fixed:
        raise GenerationError(f"the input {name} needs an array: pass fixed={{{name!r}: ...}}")
    return fixed[name]


def _common_prefix(prompts: Sequence[Prompt]) -> int:
    """How many first tokens all prompts have in common, with one more in each."""
    longest = min(len(prompt) for prompt in prompts) - 1
    columns = zip(*(prompt[:longest] for prompt in prompts), strict=True)
    return next((number for number, column in enumerate(columns) if len(set(column)) > 1), longest)
