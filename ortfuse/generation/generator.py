"""Class `Generator`, which runs a generator: caches in place, greedy decoding or sampling, batches, streams, stop tokens."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ortfuse.errors import GenerationError
from ortfuse.generation.buffered_session import BufferedSession, open_buffered
from ortfuse.generation.generation_options import MAX_NEW_TOKENS, GenerationOptions, demand_names
from ortfuse.generation.generator_interface import ROWS_APART, CacheBuffer, GeneratorInterface, interface_of
from ortfuse.generation.prompt_batches import common_prefix, without_padding
from ortfuse.generation.sampling import Chooser
from ortfuse.generation.token_embeddings import (
    EMBEDDINGS_FILE,
    Embed,
    ModelEmbeddings,
    Prompt,
    PromptReader,
    embed_of,
)
from ortfuse.targets import TargetSpec, spec_of

Array = np.ndarray[Any, Any]

MODEL_FILE = "model.onnx"
"""The name of the model in the folder that `ortfuse generator` writes."""

ONCE_FILE = "once.onnx"
"""The name of the model beside it that runs once for each prompt, if there is one."""


_COUNT_FROM_ZERO = ((1, 18), (1, 19))
"""Releases whose kernel hides keys from several new tokens as if nothing stood before them."""

_FROM_ZERO = "this release of ONNX Runtime takes several tokens after others for the first ones of a sequence"


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
        target: str | TargetSpec | None = None,
    ) -> None:
        """Open a generator.

        Args:
            path: The folder that `ortfuse generator` wrote, or the model file in it.
            settings: Session settings by the runtime's names, such as `{"intra_op_num_threads": 4}`.
            max_length: The greatest number of tokens in a sequence, if less than the model allows: buffers are of this size.
            embeddings: For a model that takes embeddings, those of token ids: a table [vocabulary, size], or a function from ids
                [batch, tokens] to [batch, tokens, size]; by default `embed_tokens.onnx` in the folder gives them.
            target: The target whose runtime executes the model, such as `wasm` in Node.js: buffers are copied to it in each
                run. By default they stay in place in the runtime's Python package.

        Raises:
            GenerationError: The model is no generator, or `max_length` is more than it allows.
            ModelFileError: There is no such file.
            TargetError: There is no such target, or models cannot be executed for it here.
            VerificationError: The runtime refuses the model, or the target lacks something to execute it.
        """
        file = Path(path)
        file = file / MODEL_FILE if file.is_dir() else file
        spec = None if target is None else spec_of(target)
        self._session: BufferedSession = open_buffered(file, settings, spec)
        self.interface: GeneratorInterface = interface_of(self._session.metadata, str(file))
        once = file.with_name(ONCE_FILE)
        self._once: BufferedSession | None = open_buffered(once, settings, spec) if self.interface.once else None
        self._reader = PromptReader(self.interface.embedding, embed_of(embeddings) or self._embeddings(file, settings))
        self.max_length = max_length or self.interface.max_length
        if not 1 < self.max_length <= self.interface.max_length:
            raise GenerationError(f"max_length={max_length}: the model takes 2 to {self.interface.max_length} tokens")
        self._inputs = self._session.inputs  # their types are others than stated, once the model was converted
        batch = self._inputs[self.interface.tokens].shape[0]
        self._only_batch: int | None = None if batch < 0 else batch
        self._batch = self._runs = 0
        self._in_place: list[CacheBuffer] = []
        self._grown: list[CacheBuffer] = []
        self._caches: dict[str, Array] = {}
        self._states: dict[str, Array] = {}
        self._fixed: dict[str, Array] = {}
        self._lengths: Array = np.zeros(0, np.int64)

    def _embeddings(self, file: Path, settings: Mapping[str, Any] | None) -> Embed | None:
        """The model beside a generator that gives embeddings of token ids, if there is one."""
        beside = file.with_name(EMBEDDINGS_FILE)
        return ModelEmbeddings(beside, settings) if self.interface.embedding and beside.is_file() else None

    # Whole generations

    def generate(self, prompts: Sequence[Prompt], **options: Unpack[GenerationOptions]) -> list[list[int]]:
        """The tokens that follow each prompt.

        Args:
            prompts: Token ids of each sequence, or embeddings [tokens, size] if the model takes such. They may be of several
                lengths, if `interface.mixed_lengths` says so.
            **options: Those of `GenerationOptions`.

        Raises:
            GenerationError: A prompt is empty, prompts have several lengths where the model does not take them, the mask has
                padding between tokens, or the sequences would become longer than `max_length`.
        """
        results: list[list[int]] = [[] for _ in prompts]
        for chosen in self.stream(prompts, **options):
            for result, token in zip(results, chosen, strict=True):
                if token is not None:
                    result.append(token)
        return results

    def stream(self, prompts: Sequence[Prompt], **options: Unpack[GenerationOptions]) -> Iterator[list[int | None]]:
        """The new token of each sequence after each step, `None` for those that have ended; the rest is as for `generate`."""
        demand_names(options)
        mask, fixed = options.get("attention_mask"), options.get("fixed")
        max_new_tokens, stop_tokens = options.get("max_new_tokens", MAX_NEW_TOKENS), options.get("stop_tokens", ())
        prompts = prompts if mask is None else without_padding(prompts, mask)
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
        chooser = Chooser(options.get("sampling"))
        scores = self.prompt(prompts, fixed=fixed, shared_prefix=options.get("shared_prefix"))
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
        return {buffer.past: self._session.buffer(buffer.past)[:, :, :filled].copy() for buffer in self._in_place}

    def prompt(
        self,
        prompts: Sequence[Prompt],
        *,
        fixed: Mapping[str, Array] | None = None,
        shared_prefix: bool | None = None,
    ) -> Array:
        """Start anew with prompts; the scores after the last token of each, [batch, vocabulary].

        With `shared_prefix`, the first tokens that all have in common are computed once, and the others for one prompt after
        the other. By default the interface tells, but for ONNX Runtime 1.18 and 1.19, which take one token after others.

        Raises:
            GenerationError: There is no prompt, one is empty, too long or has something else than token ids, or they have
                several lengths where the model does not take them; or the runtime cannot share their prefix.
        """
        lengths = self._demand_prompts(prompts)
        embedded = any(self._reader.is_embedded(prompt) for prompt in prompts)
        counts_from_zero = self._session.release in _COUNT_FROM_ZERO
        if shared_prefix is None:
            shared_prefix = self.interface.shared_prefix and not (embedded or counts_from_zero)
        if shared_prefix and len(prompts) > 1:
            if embedded:
                raise GenerationError("a prefix is shared by prompts of token ids; leave shared_prefix out")
            shared = common_prefix(prompts)
            if shared and counts_from_zero and lengths.max() > shared + 1:
                raise GenerationError(f"{_FROM_ZERO}; leave shared_prefix out, or install ONNX Runtime 1.20 or newer")
            if shared:
                return self._prompt_by_rows(shared, prompts, "leave shared_prefix out")
        if not self.interface.mixed_lengths and lengths.min() != lengths.max():
            text = (
                "this model takes prompts of one length in a batch: its tokens, positions or states are not kept apart"
            )
            raise GenerationError(f"{text}; give them one after the other")
        most = self.interface.longest_run
        if most > 1 and lengths.max() > most and len(prompts) > 1:
            text = f"give prompts of up to {most} tokens, or one after the other"
            return self._prompt_by_rows(0, prompts, text)
        self.start(len(prompts), fixed)
        padded = self._reader.padded(prompts)
        if most == 1 or (most and lengths.max() > most):
            return self.step(padded, fixed=fixed)[:, -1]
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

    def _prompt_by_rows(self, shared: int, prompts: Sequence[Prompt], instead: str) -> Array:
        """The scores after prompts that have so many first tokens in common, computed one after the other.

        Raises:
            GenerationError: Not all that a prompt leaves behind is in buffers; the message ends with `instead`.
        """
        if not self.interface.takes_rows_apart:
            raise GenerationError(f"{ROWS_APART}; {instead}")
        scores, rows = [], []
        if shared:
            self.prompt([prompts[0][:shared]])
        else:
            self.start(1)
        for prompt in prompts:
            self._lengths = np.array([shared], np.int64)  # what lies behind is written over
            scores.append(self.step(self._reader.padded([prompt[shared:]]))[:, -1])
            rows.append(self.cached())
        self.start(len(prompts))
        for number, row in enumerate(rows):
            for name, array in row.items():
                self._session.buffer(name)[number, :, : array.shape[2]] = array[0]
        self._lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        return np.concatenate(scores)

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
        self._states = {name: np.zeros_like(array) for name, array in self._states.items()}

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
        most = self.interface.longest_run or tokens.shape[1]
        if self._batch > 1 and most > 1 and tokens.shape[1] > (1 if self._lengths.any() else most):
            raise GenerationError("several tokens after others can be appended to one sequence only, not to a batch")
        given = self._reader.tokens(tokens)
        pieces = [given[:, begin : begin + most] for begin in range(0, given.shape[1], most)]
        after_others = pieces[0 if self._lengths.any() else 1 :]
        if self._session.release in _COUNT_FROM_ZERO and any(piece.shape[1] > 1 for piece in after_others):
            raise GenerationError(f"{_FROM_ZERO}; append one at a time, or install ONNX Runtime 1.20 or newer")
        scores = [self._run(piece, self._lengths + piece.shape[1], fixed) for piece in pieces]
        return scores[-1] if self.interface.last_logits else np.concatenate(scores, axis=1)

    def _run(self, tokens: Array, lengths: Array, fixed: Mapping[str, Array] | None) -> Array:
        total = int(lengths.max())
        if total > self.max_length:
            raise GenerationError(f"{total} tokens are more than the {self.max_length} that the buffers hold")
        interface = self.interface
        given = {**(fixed or {}), **self._fixed}
        feeds = {
            interface.tokens: tokens.astype(self._inputs[interface.tokens].dtype),
            interface.mask: (np.arange(total) < lengths[:, None]).astype(np.int64),
            **{name: _demanded(given, name) for name in interface.fixed},
            **self._caches,
            **self._states,
        }
        grown, states = (
            {one.present: one.past for one in self._grown},
            {one.after: one.before for one in interface.states},
        )
        with _explained(tokens):
            results = self._session.run(feeds, [interface.logits, *grown, *states])
        self._caches = {past: results[present] for present, past in grown.items()}
        self._states = {before: results[after] for after, before in states.items()}
        self._lengths = lengths
        self._runs += 1
        return results[interface.logits]

    def _run_once(self, fixed: Mapping[str, Array]) -> dict[str, Array]:
        assert self._once is not None
        given = {name: _demanded(fixed, name) for name in self.interface.once}
        made = [name for name in self.interface.fixed if name not in given]
        with _explained(None):
            return self._once.run(given, made)

    def _allocate(self, batch: int) -> None:
        if batch < 1:
            raise GenerationError(f"a batch of {batch}: at least one sequence is started")
        if self._only_batch not in (None, batch):
            text = f"the decoder was exported for a batch of {self._only_batch}"
            raise GenerationError(f"a batch of {batch}: {text}; export it with an open axis for more")
        self._batch = batch
        self._in_place = [buffer for buffer in self.interface.caches if buffer.in_place]
        self._grown = [buffer for buffer in self.interface.caches if not buffer.in_place]
        zeros = {
            buffer.past: self._zeros(buffer.past, self._sizes(buffer), buffer.dtype) for buffer in self.interface.caches
        }
        self._caches = {buffer.past: zeros[buffer.past] for buffer in self._grown}
        self._session.allocate(
            {buffer.past: zeros[buffer.past] for buffer in self._in_place},
            {buffer.past: buffer.present for buffer in self._in_place},
        )
        self._states = {
            one.before: self._zeros(one.before, [batch if size < 0 else size for size in one.shape], one.dtype)
            for one in self.interface.states
        }

    def _zeros(self, name: str, sizes: Sequence[int], stated: str) -> Array:
        """Zeros in the type of an input: another than is stated, once the model was converted."""
        return np.zeros(sizes, self._inputs[name].dtype or stated)

    def _sizes(self, buffer: CacheBuffer) -> list[int]:
        sizes = [self._batch if size < 0 else size for size in buffer.shape]
        sizes[buffer.axis] = self.max_length if buffer.in_place else 0
        return sizes


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
