"""Class `Options`: one field per option, from whose declaration checks, flags and documentation follow."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, get_args

from ortfuse.analysis.assumptions import ASSUMPTIONS
from ortfuse.errors import OptionError
from ortfuse.ir.declared_sizes import DeclaredSizes
from ortfuse.options import kinds
from ortfuse.options.declaration import Declaration, declarations_of, former_names, meant, option
from ortfuse.options.files import as_data, as_toml, options_in
from ortfuse.options.former_options import accept_former_names, with_names_of_today
from ortfuse.options.target_in_file_name import TARGET, misspelled_target
from ortfuse.options.type_aliases import (
    FixedLike,
    InputsLike,
    Level,
    PathLike,
    PatternsLike,
    PipelineLike,
    Purpose,
    RangeLike,
    TargetLike,
    Verification,
)
from ortfuse.runtime.verification_time_budget import SECONDS

if TYPE_CHECKING:
    from ortfuse.options.keywords import AllOptions
    from ortfuse.rewrite import Debugging, Rule


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `optimize`, many of which other functions share. The page "Options" lists them with their meanings.

    Raises:
        OptionError: A value is invalid, or options exclude each other.
    """

    output: PathLike | None = option(
        None, kinds.path(), "File to write the result to. Without it, nothing is written.",
        more="Of optimize, `{target}` in its name makes a result for each target and release that are listed.",
        commands="optimize substitute quantize convert tune", group="result", flags="--output -o", of_model=False,
        example='"bert.opt.onnx"',
    )  # fmt: skip
    link: bool = option(
        False, kinds.FLAG, "Make external data of the result hard links to that of the model.",
        commands="optimize substitute quantize tune", group="result", of_model=False, example="true",
    )  # fmt: skip
    external_data: bool = option(
        False, kinds.FLAG, "Write weights into a data file beside the result, which the runtime maps into memory.",
        commands="optimize substitute quantize", group="result", of_model=False, example="true",
        more="Results of models with external data, and those larger than 2 GB, have one in any case.",
    )  # fmt: skip
    loaded: bool = option(
        True, kinds.FLAG,
        "Load the result in the runtime, in a separate process, before it is written (the default).",
        commands="optimize substitute quantize", group="result", flags="--load", of_model=False, example="false",
        more="A result that does not load is made again without the rewrites to blame.",
    )  # fmt: skip
    explain: bool | Sequence[str] = option(
        False, kinds.EXPLAIN, "Report the rule that fused each match site, or the nearest near miss and its reason.",
        commands="optimize", group="result", of_model=False, example='["attention"]',
        more='Names of families (`"attention"`) or rules (`"attention.sdpa"`) select these alone.',
    )  # fmt: skip
    passes: PipelineLike = option(
        "auto", kinds.PIPELINE,
        "Pass list (bert, llama, resnet, ...), level (disabled, basic, extended, all), TOML file, or pipeline such as "
        "'canonicalize, fuse.attention, dce'. By default auto: the operators of the model decide. `ortfuse passes` lists all.",
        commands="optimize substitute quantize tune sweep bisect explain", group="rewriting",
        example='"canonicalize, fuse.attention"', more="In Python also a sequence of texts and passes.",
    )  # fmt: skip
    level: Level | None = option(
        None, kinds.one_of(get_args(Level), "LEVEL"),
        "Level of optimisation in place of `passes`: disabled, basic, extended or all, as the runtime's own levels.",
        commands="optimize bisect explain", group="rewriting", flags="", instead_of="passes", example='"basic"',
        more="On the command line it is a value of `--passes`.",
    )  # fmt: skip
    purpose: Purpose = option(
        "execution", kinds.one_of(get_args(Purpose), "PURPOSE"),
        "Consumer of the result: execution (the default) or quantization. The latter keeps the forms that "
        "quantize_dynamic, quantize_static and quant_pre_process of the runtime read.",
        commands="optimize bisect explain", group="rewriting", flags="--for", instead_of="passes",
        example='"quantization"',
        more="Attention becomes a function, Conv and Relu stay two nodes, GRU and RNN cells stay matrix products.",
    )  # fmt: skip
    patterns: PatternsLike = option(
        (), kinds.RULE_FILES, "File or folder with rules of your own, or the name of a pass of `contrib`.",
        commands="optimize quantize tune sweep bisect explain calibrate passes", group="rewriting",
        example='["my_rules.py"]', more="In Python also rules as objects, which form the pass `fuse.given`.",
    )  # fmt: skip
    lists: PathLike | Sequence[PathLike] = option(
        (), kinds.PASS_LISTS,
        "Pass list of your own (.toml), or a folder of them. auto considers them; they replace lists of the same name.",
        commands="optimize sweep bisect explain passes", group="rewriting", example='["my_lists"]',
    )  # fmt: skip
    target: TargetLike | None = option(
        None, kinds.TARGET,
        "Target that runs the model: a short name (cpu), an execution provider of the installed runtime, the folder of a "
        "target, or the kernel table (.json) of another build. Several with commas: a result for all, measured on the "
        "first and verified on each that runs here. By default the installed runtime on the CPU.",
        commands="optimize substitute verify tune sweep bisect explain inspect bench profile calibrate generator",
        group="rewriting",
        example='"cpu"',
        more="The path of a folder has a slash, and in files ends with one.",
    )  # fmt: skip
    runtime: str | None = option(
        None, kinds.RELEASE.or_none(),
        "Release of ONNX Runtime in which the result must load, such as 1.20, or several: 1.20,1.24. By default the "
        "installed one.",
        commands="optimize substitute tune sweep explain targets generator", group="rewriting", example='"1.20"',
    )  # fmt: skip
    force: Mapping[str, str] = option(
        {}, kinds.OPERATORS,
        "Operator that the match sites of a family or rule become whatever the cost, such as gelu=com.microsoft.Gelu. "
        "layernorm=none leaves them as they are.",
        commands="optimize bisect explain", group="rewriting", former="pins", former_flags="--pin",
        example='{ gelu = "com.microsoft.Gelu" }',
    )  # fmt: skip
    measure: bool = option(
        False, kinds.FLAG,
        "Measure legal alternatives on this machine, at the sizes of --size, instead of reading the cost table. "
        "Measurements are cached.",
        commands="optimize", group="rewriting", example="true",
    )  # fmt: skip
    approximate: bool = option(
        False, kinds.FLAG, "Allow rules that approximate the mathematics, such as tanh for erf.",
        commands="optimize bisect explain", group="rewriting", example="true",
    )  # fmt: skip
    inference: bool = option(
        False, kinds.FLAG,
        "Remove training mode first: Dropout that drops, BatchNormalization that uses the statistics of its batch.",
        commands="optimize", group="rewriting", example="true",
        more="The result is compared with the model without training mode.",
    )  # fmt: skip
    padding_free: bool = option(
        False, kinds.FLAG,
        "Compute only the tokens that the mask shows. Outputs hold anything at hidden tokens. Done where no hidden token "
        "can reach a visible one.",
        commands="optimize explain", group="rewriting", example="true",
        more="The comparison of whole models leaves hidden tokens out, and puts NaN and huge numbers there.",
    )  # fmt: skip
    max_opset: int | None = option(
        None, kinds.whole_number(1).or_none(), "Highest ai.onnx opset that the result may use.",
        commands="optimize substitute quantize tune sweep bisect explain", group="rewriting", example="21",
    )  # fmt: skip
    max_growth: int | None = option(
        None, kinds.BYTES.or_none(),
        "Growth of the file that constant folding may cause, such as 10MB, decompressed weights included. By default "
        "64 KiB and 5 % of the constants, and no weight is decompressed.",
        commands="optimize bisect explain", group="rewriting", example="10_000_000", more="In Python and files, bytes.",
    )  # fmt: skip
    custom_ops: PathLike | Sequence[PathLike] = option(
        (), kinds.LIBRARIES, "Library with kernels of custom operators, which the runtime loads.",
        commands="optimize substitute quantize tune sweep verify bisect explain inspect bench profile", group="rewriting",
        example='["libops.so"]', more="All later sessions of the process know these operators.",
    )  # fmt: skip
    assume: str | Sequence[str] = option(
        (), kinds.ASSUMPTIONS,
        "Assumption about the model that ortfuse cannot prove. "
        + " ".join(f"{name}: {text}." for name, text in ASSUMPTIONS.items()),
        commands="optimize bisect explain", group="model", example='["loops-run"]',
    )  # fmt: skip
    same: Mapping[str, str] = option(
        {}, kinds.EQUAL_DIMS,
        "Two open dimensions that are equal in every execution, such as s54=s84. The right side may be a formula; "
        "x[0] is the first axis of the input x.",
        commands="optimize bisect explain", group="model", example='{ s54 = "s84" }',
    )  # fmt: skip
    size_range: Mapping[str, RangeLike] = option(
        {}, kinds.SIZE_RANGES,
        "Least and largest size of an open dimension in any execution, such as sequence=1:512.",
        commands="optimize bisect explain", group="model", example='{ sequence = "1:512" }',
        more="In Python also `(1, 512)`.",
    )  # fmt: skip
    fix: Mapping[str, FixedLike] = option(
        {}, kinds.FIXED,
        "Size of an open dimension in every execution, such as sequence=128, or shape of an input, such as input_ids=1x128. "
        "The result has fixed shapes.",
        commands="optimize bisect explain", group="model", example='{ batch = 1, input_ids = "1x128" }',
        more="Several stand in one text with commas: `batch=1,sequence=128`. In Python a shape is also `(1, 128)`.",
    )  # fmt: skip
    keep_outputs: str | Sequence[str] = option(
        (), kinds.NAMES, "Output that the result keeps, with the nodes that it needs, or several with commas. By default all.",
        commands="optimize bisect explain", group="model", flags="--outputs", example='["logits"]',
    )  # fmt: skip
    drop_inputs: bool = option(
        False, kinds.FLAG, "Remove inputs of the model that nothing in the result reads.",
        commands="optimize bisect explain", group="model", example="true",
    )  # fmt: skip
    verify: Verification | bool | None = option(
        None, kinds.VERIFICATION,
        "Compare the result with the original, and write nothing if they differ. --verify=sites checks each rewrite on its "
        "own nodes instead, and undoes wrong ones. It suits models too large to be executed twice.",
        commands="optimize substitute", group="verification", of_model=False, example='"sites"',
        more='`"whole"`, or `True`, is `--verify` without a value.',
    )  # fmt: skip
    verify_budget: float = option(
        SECONDS, kinds.SECONDS,
        "Time limit for the comparison of whole models; by default 60s. The verdict says what was left out.",
        commands="optimize verify", group="verification", example="120.0", more="In Python and files, seconds.",
    )  # fmt: skip
    check_user: bool | None = option(
        None, kinds.FLAG.or_none(),
        "Check each rewrite of your own rules and passes on its own nodes, and undo wrong ones. It is the default "
        "without --verify.",
        commands="optimize substitute quantize tune sweep explain", group="verification", example="false",
    )  # fmt: skip
    tolerance: float | None = option(
        None, kinds.ERROR_BOUND.or_none(),
        "Allowed error relative to an output's largest magnitude. By default 1e-4 for float32, 1e-2 for float16.",
        commands="optimize substitute sweep verify diff bisect", group="verification", example="1e-3",
    )  # fmt: skip
    bench: bool = option(
        False, kinds.FLAG, "Measure the latency after each pass, interleaved with the original.",
        commands="optimize substitute", group="measurement", of_model=False, example="true",
    )  # fmt: skip
    fastest: bool = option(
        False, kinds.FLAG,
        "If the result is slower than the original, undo the rewrites that slow it down, or return the original. "
        "Needs --bench.",
        commands="optimize", group="measurement", of_model=False, example="true",
    )  # fmt: skip
    rounds: int = option(
        20, kinds.whole_number(1),
        "Number of runs of each model in a measurement; with --bench-budget, the least number. By default 20.",
        commands="optimize substitute quantize tune sweep bench profile calibrate", group="measurement", example="50",
    )  # fmt: skip
    bench_budget: float | None = option(
        None, kinds.DURATION.or_none(),
        "Time limit for further rounds, until the confidence intervals of the speedups are narrow; by default 10s. "
        "0 allows none.",
        commands="optimize substitute sweep bench", group="measurement",
        flags_of={"bench": "--budget --bench-budget"}, example="30.0", more="In Python and files, seconds.",
    )  # fmt: skip
    threads: int = option(
        0, kinds.THREADS,
        "Threads of the runtime when measuring, at most 64 or four per processor. 0, the default, leaves the choice to it.",
        commands="optimize substitute quantize tune sweep bench profile calibrate inspect", group="measurement", example="2",
    )  # fmt: skip
    inputs: InputsLike | None = option(
        None, kinds.INPUTS,
        "Inputs to run on instead of generated ones: an .npz file, a .npy file or image (one input), or a folder of them or of "
        "test_data_set_N.",
        commands="optimize substitute quantize convert tune verify diff bisect bench profile", group="inputs",
        example='"samples"',
        more="In Python also a sequence of sets of inputs by name, or an object whose `get_next()` returns one set after the "
        "other and at last `None`, as `onnxruntime.quantization.CalibrationDataReader`.",
    )  # fmt: skip
    preprocess: PathLike | None = option(
        None, kinds.path(),
        "TOML file with the preprocessing of images: resize, crop, colours, scale, mean, std, layout. By default "
        "preprocess.toml beside them.",
        commands="optimize substitute quantize convert tune verify diff bisect bench profile", group="inputs",
        example='"preprocess.toml"',
    )  # fmt: skip
    sizes: Mapping[str, int] = option(
        {}, kinds.SIZES,
        "Size of an open dimension of the inputs for measuring and verifying, such as sequence=128.",
        commands="optimize substitute quantize tune sweep verify bench profile calibrate inspect", group="inputs",
        flags="--size", instead_of="inputs", example="{ sequence = 128 }",
    )  # fmt: skip
    fill: float | None = option(
        None, kinds.SHARE.or_none(),
        "Share of tokens that masks show in the generated inputs for measuring, such as 0.3. Lengths differ by up to half of "
        "their mean. Needs --size for batches of several sequences.",
        commands="optimize bench profile", group="inputs", instead_of="inputs", example="0.3",
    )  # fmt: skip
    seed: int = option(
        0, kinds.whole_number(0), "Seed of the generated inputs; by default 0.",
        commands="optimize substitute quantize convert tune sweep verify diff bisect bench profile", group="inputs",
        example="7",
    )  # fmt: skip
    debugging: Debugging | None = option(
        None, kinds.Kind(check=lambda name, value: value),
        "Random order in which sites are visited, and checks after every rewrite; see `ortfuse.rewrite.Debugging`.",
        commands="optimize bisect explain", group="rewriting", flags="", in_files=False,
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name, declared in DECLARATIONS.items():
            object.__setattr__(self, name, declared.kind.check(name, getattr(self, name)))
        if self.level is not None and self.passes != "auto":
            raise OptionError("level", "give either `passes` or `level`, not both")
        if self.purpose != "execution" and (self.level is not None or self.passes != "auto"):
            raise OptionError("purpose", f"{self.purpose} has passes of its own; leave out `passes` and `level`")
        if self.sizes and self.inputs is not None:
            raise OptionError("sizes", "the `inputs` have sizes of their own; leave out one of the two")
        if self.sizes and not (self.bench or self.measure or self.verify == "whole"):
            dim, size = next(iter(self.sizes.items()))
            text = f"{dim}={size} is a size for measuring or verifying; add `bench`, `measure` or `verify`, or leave it out"
            raise OptionError("sizes", text)
        if self.fill is not None and self.inputs is not None:
            raise OptionError("fill", "the `inputs` have masks of their own; leave out one of the two")
        if self.fastest and not self.bench:
            raise OptionError("fastest", "needs measurements; add `bench`")
        if self.padding_free and self.verify == "sites":
            raise OptionError(
                "padding_free", "changes hidden tokens, which checks of single sites compare, too; take verify='whole'"
            )
        if self.output is not None and (place := misspelled_target(self.output)):
            raise OptionError("output", f"{self.output}: {place} is no place for the name of a target; write {TARGET}")
        if self.link and self.output is None:
            raise OptionError("link", "needs a file that is written; name it with `output`")
        if self.external_data and self.output is None:
            raise OptionError("external_data", "needs a file that is written; name it with `output`")

    @classmethod
    def of(cls, options: Options | None, **changes: Unpack[AllOptions]) -> Options:
        """Return options with changes, or new ones if there are none yet.

        Raises:
            OptionError: As for the class.
            TypeError: `options` are something else.
        """
        if not isinstance(options, cls | None):
            found = f"{type(options).__module__}.{type(options).__qualname__}"
            raise TypeError(f"options are an ortfuse.Options, or keywords one by one, not {found}")
        return (cls() if options is None else options).with_(**changes)

    @classmethod
    def load(cls, path: PathLike) -> Options:
        """Read options from a TOML file.

        Raises:
            OptionError: The file cannot be read, or has an unknown option or an invalid value.
        """
        found = options_in(path, DECLARATIONS)
        try:
            return cls(**found)
        except OptionError as error:
            raise OptionError(error.option, f"{error.text} (in {os.fspath(path)})") from None

    def with_(self, **changes: Unpack[AllOptions]) -> Options:
        """Return a copy with some options changed; `passes` replace a `level`, and a `level` replaces `passes`.

        Raises:
            OptionError: As for the class.
        """
        given = with_names_of_today(changes, FORMER)
        if "passes" in given and given.get("level") is None:
            given["level"] = None
        elif given.get("level") is not None and "passes" not in given:
            given["passes"] = "auto"
        for name in given:
            if name not in DECLARATIONS:  # as Python says it of a function, but with what may be meant
                close = meant(name, DECLARATIONS)
                raise TypeError(f"there is no option {name!r}" + (f"; did you mean {close!r}?" if close else ""))
        return dataclasses.replace(self, **given)

    @property
    def pipeline(self) -> PipelineLike:
        """The passes, or the level or those of the purpose if one is given instead."""
        if self.purpose != "execution":
            return self.purpose
        return self.passes if self.level is None else self.level

    @property
    def rules(self) -> tuple[Path | Rule, ...]:
        """The patterns: paths, and rules as they are."""
        one: Any = self.patterns
        return tuple(Path(part) if isinstance(part, str | os.PathLike) else part for part in one)

    @property
    def declared(self) -> DeclaredSizes:
        """The sizes of the model's inputs that are declared."""
        ranges = {name: (int(one[0]), int(one[1])) for name, one in self.size_range.items()}
        shapes = {name: one for name, one in self.fix.items() if isinstance(one, tuple)}
        sizes = {name: one for name, one in self.fix.items() if isinstance(one, int)}
        return DeclaredSizes(self.same, ranges, sizes, shapes)

    @property
    def list_files(self) -> tuple[Path, ...]:
        """The pass lists of the user's own as paths."""
        one: Any = self.lists
        return tuple(map(Path, one))

    @property
    def checks_users(self) -> bool:
        """Whether the changes of the user's own rules and passes, and only these, are checked on their own nodes."""
        return self.verify != "sites" and (self.verify is None if self.check_user is None else self.check_user)

    def to_dict(self) -> dict[str, Any]:
        """The options that are not at their defaults, as data for JSON; objects appear as their `str`."""
        return {name: as_data(value) for name, value in self._changed().items()}

    def to_toml(self) -> str:
        """The options that are not at their defaults, as the text of a file that `load` reads. Paths are written as they are.

        Raises:
            OptionError: An option is an object or holds arrays, which cannot be written as text.
        """
        return "".join(f"{name} = {as_toml(name, value)}\n" for name, value in self._changed().items())

    def _changed(self) -> dict[str, Any]:
        plain = Options()
        values = {name: (getattr(self, name), getattr(plain, name)) for name in DECLARATIONS}
        # Comparing arrays does not give a single bool, so only values of the default's own type are compared with it.
        return {name: one for name, (one, usual) in values.items() if type(one) is not type(usual) or one != usual}


DECLARATIONS: Mapping[str, Declaration] = declarations_of(Options)
"""The declaration of each option by name."""

FORMER: Mapping[str, str] = former_names(DECLARATIONS)
"""The name of today for each former name."""

IN_FILES = tuple(name for name, one in DECLARATIONS.items() if one.in_files)
"""The options that a file can have: all but those for debugging ortfuse itself."""

accept_former_names(Options, FORMER)
