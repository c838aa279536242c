"""Make a generator of an exported decoder: one model for prompts and steps, whose caches are buffers that stay in place."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np
import onnx_ir as ir

from ortfuse.api.assess_optimization import Progress, silent
from ortfuse.api.effective_options import effective_options
from ortfuse.api.fused_decoder import fused_decoder
from ortfuse.api.optimize import optimize
from ortfuse.api.result import Result
from ortfuse.api.verify_on_targets import members_of
from ortfuse.errors import OptionError, OutputError
from ortfuse.generation.generator_interface import GeneratorInterface
from ortfuse.io.atomic_write import check_folder
from ortfuse.io.convert_model_objects import AnyModel, enter
from ortfuse.io.load_and_save import save
from ortfuse.options import Options, PipelineOptions
from ortfuse.pipeline.manager import PassManager
from ortfuse.serialization import Record, derived, entry
from ortfuse.targets import Target, TargetSpec, default_spec

if TYPE_CHECKING:
    from ortfuse.generation.compare_generations import GenerationComparison
    from ortfuse.generation.genai_config import SpecialTokens
    from ortfuse.generation.generator import Generator
    from ortfuse.generation.interface_names import InterfaceNames
    from ortfuse.generation.plain_loop import InputType, PlainLoop
    from ortfuse.generation.token_embeddings import Embed
    from ortfuse.runtime.session import Session

Arrays: TypeAlias = Mapping[str, np.ndarray[Any, Any]]

MAX_LENGTH = 4096

WEIGHTS_INSIDE = 32 << 20
"""Bytes of weights from which on they lie in a data file."""

VERIFY_STEPS = 200
"""How many tokens are generated after each prompt when generations are compared, unless the buffers hold fewer."""


@dataclass(frozen=True)
class GeneratorResult(Record):
    """A generator, with the report of how it was made and compared.

    Attributes:
        model: The model (an `onnx_ir.Model`).
        interface: Its inputs and outputs.
        decoder: The roles that the inputs and outputs of the decoder have.
        kept: Why a layer keeps a growing cache, by the name of its attention or cache.
        unsampled: Whether masks and positions were compared for every length of the past; otherwise for a choice of lengths.
        one_length: Why the prompts of a batch have one length; "" if they may have several.
        result: The optimisation of the generator.
        once: The model that runs once for each prompt (an `onnx_ir.Model`); `None` if there is none.
        int4: How many matrix products have weights of 4 bits.
        unpacked: How many of these have weights that a session unpacks when it loads the model.
        comparison: How its generations compare with the decoder's; `None` if that was not asked for.
        others: The same on further targets, where several were named.
        not_run: Why it was never run on a target that it was made for, by the name of the target.
        written: The folder that was written.
    """

    model: Any = field(repr=False, metadata=entry(omit=True))
    interface: GeneratorInterface
    decoder: InterfaceNames
    kept: Mapping[str, str]
    unsampled: bool
    one_length: str
    result: Result = field(repr=False, metadata=entry(omit=True))
    once: Any = field(default=None, repr=False, metadata=entry(omit=True))
    int4: int = 0
    unpacked: int = 0
    comparison: GenerationComparison | None = None
    others: Sequence[GenerationComparison] = ()
    not_run: Mapping[str, str] = field(default_factory=dict)
    written: Path | None = None

    @property
    @derived(optional=True)
    def oldest_runtime(self) -> str | None:
        """The oldest release of ONNX Runtime that executes the generator, such as `1.23`; `None` if that is not known."""
        from ortfuse.api.effective_options import target_spec
        from ortfuse.generation.check_target import oldest_release_of

        return oldest_release_of(self.model, target_spec(self.result.options))

    @property
    @derived()
    def ok(self) -> bool:
        """Whether the generations are equal, if they were compared."""
        return all(one is None or one.equal for one in (self.comparison, *self.others))


def generator(
    model: AnyModel,
    output: str | os.PathLike[str] | None = None,
    *,
    max_length: int = MAX_LENGTH,
    last_logits: bool = False,
    shared_prefix: bool = False,
    int4: bool = False,
    int8_caches: bool = False,
    verify: bool = False,
    new_tokens: int = VERIFY_STEPS,
    tokenizer: str | os.PathLike[str] | None = None,
    roles: Mapping[str, str] | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    fixed: Arrays | None = None,
    prompt_model: AnyModel | None = None,
    embeddings: str | os.PathLike[str] | np.ndarray[Any, Any] | None = None,
    progress: Progress | None = None,
    **changes: Unpack[PipelineOptions],
) -> GeneratorResult:
    """Make a generator of a decoder that was exported with its past keys and values. The input model is not changed.

    Attention keeps its keys and values in buffers of `max_length` tokens, which are input and output at once
    (com.microsoft.GroupQueryAttention). Masks and positions follow from `attention_mask` alone. `ortfuse.Generator`,
    onnxruntime-genai and Optimum run the result.

    Args:
        model: A decoder with caches: past keys and values as inputs, present ones as outputs.
        output: A folder for the model and `genai_config.json`.
        max_length: The greatest number of tokens in a sequence. Tables of positions may allow fewer.
        last_logits: Hand out the scores after the last token of each sequence only.
        shared_prefix: Let `ortfuse.Generator` compute the first tokens that all prompts of a batch have in common once.
        int4: Round the weights of matrix products to 4 bits (MatMulNBits), after the generations were compared in the
            decoder's own precision.
        int8_caches: Keep keys and values as 8-bit integers, with scales from generations that follow `prompts`.
        verify: Compare whole generations with those of the decoder. If they differ, nothing is written: see `comparison`.
        new_tokens: How many tokens are generated after each prompt for that, unless the buffers hold fewer.
        tokenizer: A folder with the files of a tokenizer, which are copied; its configuration names the tokens that end a text.
        roles: Names of inputs and outputs by role (`tokens`, `mask`, `positions`, `logits`), where the graph does not tell.
        prompts: Prompts to compare generations on; by default random ones.
        fixed: Arrays for inputs that are the same in all steps, such as an encoder's states; by default random ones.
        prompt_model: The decoder without a past, if the prompt was exported apart (`decoder_model.onnx` beside
            `decoder_with_past_model.onnx`): it computes the keys and values of cross-attention.
        embeddings: For a decoder that takes embeddings, those of token ids: a table [vocabulary, size], or the path of a model
            from ids to embeddings. It is written beside the generator. Without it, random ones are compared.
        progress: Called with short messages about what is going on.
        **changes: Options of `optimize`, such as `target`.

    Raises:
        GenerationError: The model is no decoder with caches, none of its layers can keep its cache in place, or prompts cannot
            share a prefix.
        OptionError: An option has an invalid value.
        OrtfuseError: The model cannot be used; the message says what to do.
    """
    from ortfuse.analysis.facts import Facts
    from ortfuse.generation.check_target import demand_kernels
    from ortfuse.generation.genai_config import SpecialTokens, special_tokens_in, tokenizer_files
    from ortfuse.generation.generator_interface import share_prefixes
    from ortfuse.generation.int8_caches import demand_int8_kernels
    from ortfuse.generation.make_generator import make_generator
    from ortfuse.generation.once_model import split_off_once

    if max_length < 2:
        raise OptionError("max_length", f"is {max_length}; a generator takes at least 2 tokens")
    progress = progress or silent
    options = effective_options(None, **changes)
    target = PassManager(options).target
    folder = None if output is None else _folder(output, model)
    files = [] if tokenizer is None else tokenizer_files(Path(tokenizer))
    special = SpecialTokens() if tokenizer is None else special_tokens_in(Path(tokenizer))
    progress("optimising the decoder")
    decoder = fused_decoder(model, options, max_length, roles, prompt_model)
    inside, names, sources = decoder.model, decoder.names, _Sources(model, prompt_model, embeddings)
    if names.branch or prompt_model is not None:
        progress("comparing the first step")
        if not sources.takes_several_tokens(inside, names, fixed):
            decoder = fused_decoder(model, options, max_length, roles, prompt_model, one_token=True)
            inside, names = decoder.model, decoder.names
    progress("finding masks and positions")
    made = make_generator(
        inside,
        Facts(inside),
        target,
        max_length=decoder.max_length,
        last_logits=last_logits or decoder.last_logits,
        given=decoder.roles,
        left=decoder.joined,
    )
    progress("optimising the generator")
    # Sizes are declared of the decoder; the generator has other names for them.
    declared = replace(options, same={}, fix={}, size_range={})
    result = optimize(inside, declared)
    demand_kernels(result.model, target)
    once, interface = split_off_once(result.model, made.interface)
    if shared_prefix:
        interface = share_prefixes(result.model, interface)
    if once is not None:
        once = optimize(once, declared).model
    done = GeneratorResult(
        result.model, interface, names, made.kept, made.unsampled, made.one_length, result, once=once
    )
    done = replace(done, not_run=_not_run(target))
    if int8_caches:
        demand_int8_kernels(done.model, done.interface, target)
    if verify:
        progress("comparing generations")
        done = _compared(sources, done, target, new_tokens, prompts, fixed)
    if int8_caches and done.ok:
        progress("measuring keys and values")
        done = _with_int8_caches(done, sources, target, new_tokens, prompts, fixed)
    if int4 and done.ok:
        progress("rounding weights")
        done = _rounded(done, declared)
    if folder is None or not done.ok:
        return done
    progress("writing")
    return replace(done, written=_write(folder, done, files, special, embeddings))


@dataclass(frozen=True)
class _Sources:
    """The decoder as it was exported.

    Attributes:
        model: The decoder.
        prompt: The decoder for the prompt, if that is another one.
        embeddings: Embeddings of token ids, a table or the path of a model; `None` for random ones.
    """

    model: AnyModel
    prompt: AnyModel | None
    embeddings: str | os.PathLike[str] | np.ndarray[Any, Any] | None = None

    @functools.cached_property
    def embed(self) -> Embed | None:
        """The function from token ids to embeddings; `None` for random ones."""
        from ortfuse.generation.token_embeddings import ModelEmbeddings, embed_of

        given = self.embeddings
        return ModelEmbeddings(Path(given)) if isinstance(given, str | os.PathLike) else embed_of(given)

    def opened(self, file: Path, interface: GeneratorInterface, length: int, spec: TargetSpec) -> Generator:
        """A generator with the same embeddings and buffers for so many tokens, on a target."""
        from ortfuse.generation.generator import Generator
        from ortfuse.generation.token_embeddings import RandomEmbeddings

        random = RandomEmbeddings(interface.embedding) if interface.embedding else None
        elsewhere = None if spec.is_default else spec
        return Generator(file, max_length=length, embeddings=self.embed or random, target=elsewhere)

    @functools.cached_property
    def types(self) -> Mapping[str, InputType]:
        """The types of the inputs of both."""
        from ortfuse.generation.plain_loop import input_types

        models = [one for one in (self.prompt, self.model) if one is not None]
        return {name: kind for one in models for name, kind in input_types(enter(one, copy=True)[0]).items()}

    def sessions(self, *, optimise: bool = True) -> tuple[Session, Session | None]:
        """Sessions of the decoder, and of the one for the prompt."""
        from ortfuse.runtime.session import Session

        model, prompt = (
            None if one is None else Session(enter(one, copy=True)[0], optimise=optimise)
            for one in (self.model, self.prompt)
        )
        assert model is not None
        return model, prompt

    def loop(self, names: InterfaceNames, *, optimise: bool = True) -> Callable[[], PlainLoop]:
        """Start the decoder anew."""
        from ortfuse.generation.plain_loop import PlainLoop

        model, prompt = self.sessions(optimise=optimise)
        return functools.partial(PlainLoop, model, names, self.types, first=prompt, embed=self.embed)

    def fixed(self, names: InterfaceNames, given: Arrays | None) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays for inputs that stay the same in all steps, by default random ones."""
        random = np.random.default_rng(0)
        return {name: _drawn(self.types[name], random) for name in names.fixed} | dict(given or {})

    def takes_several_tokens(self, inside: ir.Model, names: InterfaceNames, fixed: Arrays | None) -> bool:
        """Whether a step with empty caches is the first step; otherwise it is so token by token."""
        from ortfuse.analysis.facts import Facts
        from ortfuse.generation.prompt_model import takes_several_tokens

        scores = next(value for value in inside.graph.outputs if value.name == names.logits)
        width = (Facts(inside).shape(scores) or (2,))[-1]
        model, prompt = self.sessions()
        vocabulary = width if isinstance(width, int) else 2
        return takes_several_tokens(prompt or model, model, names, self.types, self.fixed(names, fixed), vocabulary)


def _with_int8_caches(
    done: GeneratorResult,
    sources: _Sources,
    target: Target,
    new_tokens: int,
    prompts: Sequence[Sequence[int]] | None,
    fixed: Arrays | None,
) -> GeneratorResult:
    """The generator with caches of 8-bit integers."""
    from ortfuse.generation.int8_caches import cache_scales, make_caches_int8

    given = sources.fixed(done.decoder, fixed)
    chosen, room = _prompts(done.interface, new_tokens, prompts)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file, spec = _save(done, Path(folder)), _running(done, target)[0]
        generator = sources.opened(file, done.interface, _length(chosen, room), spec)
        scales = cache_scales(generator, chosen, room, given)
    return replace(done, interface=make_caches_int8(done.model, done.interface, scales))


INT4_SCHEMES = ("weight_int4.block32_level4", "weight_int4")
"""Blocks of 32 rows and products of 8-bit integers: for one token these kernels take 0.6 times as long as those of 16 rows, which
are nearer to the weights, and 0.4 to 0.5 times as long as those in float32 (`python -m benchmarks.generation.blocks`)."""


def _rounded(done: GeneratorResult, options: Options) -> GeneratorResult:
    """The generator with weights of 4 bits, unpacked at load for a target whose kernels are slow with packed ones."""
    from ortfuse.api.effective_options import target_spec
    from ortfuse.api.quantize import lower
    from ortfuse.pipeline.discover_rule_files import DECOMPOSITIONS

    lowered = lower(done.model, INT4_SCHEMES, loaded=False)
    count, model = len(lowered.uniform.choice), lowered.model
    if not target_spec(options).is_default:
        packed = _packed_products(model)
        model = optimize(model, replace(options, passes=DECOMPOSITIONS, loaded=False)).model
        return replace(done, model=model, int4=count, unpacked=packed - _packed_products(model))
    return replace(done, model=model, int4=count)


def _packed_products(model: ir.Model) -> int:
    """The number of products that read packed weights in each run."""
    return sum(node.op_type == "MatMulNBits" for node in model.graph)


def _save(done: GeneratorResult, folder: Path) -> Path:
    """Write the models of a generator into a folder; the file of the main one."""
    from ortfuse.generation.generator import MODEL_FILE, ONCE_FILE

    if done.once is not None:
        save(done.once, folder / ONCE_FILE)
    # The runtime maps a data file into memory: it opens faster, and rows of tables that no token asks for take no memory.
    size = sum(one.const_value.nbytes for one in done.model.graph.initializers.values() if one.const_value is not None)
    save(done.model, folder / MODEL_FILE, external_data=size > WEIGHTS_INSIDE)
    return folder / MODEL_FILE


def _write(
    folder: Path,
    done: GeneratorResult,
    files: Sequence[Path],
    special: SpecialTokens,
    embeddings: str | os.PathLike[str] | np.ndarray[Any, Any] | None,
) -> Path:
    from ortfuse.generation.genai_config import copy_files, write_genai_config
    from ortfuse.generation.token_embeddings import EMBEDDINGS_FILE, table_model

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made: {error.strerror or error}; give another folder") from error
    _save(done, folder)
    copy_files(files, folder)
    if isinstance(embeddings, np.ndarray):
        save(table_model(embeddings), folder / EMBEDDINGS_FILE)
    elif embeddings is not None:
        save(enter(embeddings, copy=True)[0], folder / EMBEDDINGS_FILE)
    write_genai_config(folder, done.interface, done.model, special)
    return folder


def _folder(output: str | os.PathLike[str], model: AnyModel) -> Path:
    """The folder to write, in which the decoder is not one of the files that are replaced."""
    from ortfuse.generation.generator import MODEL_FILE, ONCE_FILE

    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise OptionError("output", f"{folder} is a file; name a folder, which gets model.onnx and genai_config.json")
    for file in (folder / MODEL_FILE, folder / ONCE_FILE):
        if isinstance(model, str | os.PathLike) and file.exists() and file.samefile(model):
            raise OptionError(
                "output", f"{folder} has the decoder as {file.name}; name another folder, which gets such a file"
            )
    check_folder(folder)
    return folder


def _not_run(target: Target) -> dict[str, str]:
    """Why nothing runs here on a target or one of those that it stands for, by its name."""
    from ortfuse.inspection.describe_targets import problem_of_running

    specs = {one.spec.name: one.spec for one in members_of(target)}
    found = {name: problem_of_running(spec) for name, spec in specs.items() if not spec.is_default}
    return {name: problem for name, problem in found.items() if problem}


def _running(done: GeneratorResult, target: Target) -> list[TargetSpec]:
    """The targets on which generators run: those that a target stands for and that are here, else the default one."""
    specs = {one.spec.name: one.spec for one in members_of(target) if one.spec.name not in done.not_run}
    return list(specs.values()) or [default_spec()]


def _length(prompts: Sequence[Sequence[int]], new_tokens: int) -> int:
    """The number of tokens that buffers have to hold."""
    return max(2, max(len(prompt) for prompt in prompts) + new_tokens)


def _compared(
    sources: _Sources,
    done: GeneratorResult,
    target: Target,
    new_tokens: int,
    prompts: Sequence[Sequence[int]] | None,
    fixed: Arrays | None,
) -> GeneratorResult:
    """The generator with its comparisons on each target that runs here, or on the default one if none does."""
    from ortfuse.generation.compare_generations import compare_generations

    interface, names = done.interface, done.decoder
    given = sources.fixed(names, fixed)
    chosen, room = _prompts(interface, new_tokens, prompts)
    in_one_batch = interface.mixed_lengths and not (given or _has_fixed_batch(done.model)) and len(chosen) > 1
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = _save(done, Path(folder))
        loop, unoptimised = sources.loop(names), sources.loop(names, optimise=False)
        found = [
            compare_generations(
                loop,
                unoptimised,
                sources.opened(file, interface, _length(chosen, room), spec),
                chosen,
                new_tokens=room,
                fixed=given,
                one_at_a_time=interface.longest_run == 1,
                in_one_batch=in_one_batch,
                target=spec.name,
            )
            for spec in _running(done, target)
        ]
    return replace(done, comparison=found[0], others=tuple(found[1:]))


def _has_fixed_batch(model: ir.Model) -> bool:
    shape = model.graph.inputs[0].shape
    return shape is None or isinstance(shape[0], int)


def _prompts(
    interface: GeneratorInterface, new_tokens: int, prompts: Sequence[Sequence[int]] | None
) -> tuple[Sequence[Sequence[int]], int]:
    """The prompts, by default random ones; and how many tokens follow each."""
    random = np.random.default_rng(0)
    pieces = 2 * interface.longest_run + 1 if interface.longest_run > 1 else 0
    longest = max(1, min(max(24, pieces), interface.max_length // 3))
    lengths = dict.fromkeys((longest, 1, min(5, longest)))
    drawn = [random.integers(0, interface.vocabulary or 2, length).tolist() for length in lengths]
    if interface.shared_prefix:  # all begin with the same tokens
        drawn = [drawn[0][: longest // 2] + one for one in drawn]
    chosen = prompts or drawn
    return chosen, max(1, min(new_tokens, interface.max_length - max(len(prompt) for prompt in chosen)))


def _drawn(kind: Any, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """An array for an input that stays the same in all steps: ones for masks, numbers for states; open sizes are 1, then 9."""
    sizes = [size if size > 0 else (1 if axis == 0 else 9) for axis, size in enumerate(kind.shape)]
    if kind.dtype.kind == "f":
        return random.standard_normal(sizes).astype(kind.dtype)
    return np.ones(sizes, kind.dtype)
