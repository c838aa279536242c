"""Every setting of ortfuse besides the model: one set of options, validated once, from Python or from a file.

    options = Options(max_opset=21, verify="whole")
    options.with_(bench=True)
    Options.load("ortfuse.toml")

In a TOML file the keys are the names of the options. Relative paths in it are relative to its folder:

    passes = "canonicalize, fuse.attention"
    patterns = ["my_rules.py"]
    verify = "sites"
    pins = { attention = "com.microsoft.MultiHeadAttention" }
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack, get_args

from ortfuse.analysis.assumptions import ASSUMPTIONS
from ortfuse.errors import OptionError
from ortfuse.errors.printable import brief
from ortfuse.io.small_files import from_toml, read_text
from ortfuse.ir.declared_sizes import DeclaredSizes
from ortfuse.runtime.time_budget import SECONDS
from ortfuse.targets.processor import demand_threads

if TYPE_CHECKING:
    from ortfuse.rewrite import Debugging, Rule
    from ortfuse.runtime.inputs.data_reader import DataReader
    from ortfuse.runtime.inputs.random_inputs import Inputs
    from ortfuse.targets import Target

LARGEST_NUMBER = 2**31 - 1
"""The largest whole number that an option can be."""

LONGEST = 100
"""The most digits of a size in a text: Python reads no number of thousands of digits."""

LARGEST_FLOAT = sys.float_info.max
"""The largest number that is none of an infinite size: whole numbers have no bound in Python and TOML."""

PathLike: TypeAlias = "str | os.PathLike[str]"

PipelineLike: TypeAlias = "str | os.PathLike[str] | Sequence[Any]"
"""A pipeline as text, the path of a TOML pass list, or a sequence of texts and passes: ours, those of onnx_ir, and rules and
sets of rules of onnxscript."""

PatternsLike: TypeAlias = "PathLike | Rule | Sequence[PathLike | Rule]"
"""Files and folders with rules, or rules."""

InputsLike: TypeAlias = "PathLike | Sequence[Inputs] | DataReader"
"""The path of a file or folder of inputs, sets of inputs, or what hands them out one after the other."""

RangeLike: TypeAlias = "str | Sequence[int]"
"""The least and the largest size of a dimension: `"1:512"` or `(1, 512)`."""

Level = Literal["disabled", "basic", "extended", "all"]
Verification = Literal["whole", "sites"]
Purpose = Literal["execution", "quantization"]


class PipelineOptions(TypedDict, total=False):
    """The options that say what is rewritten."""

    passes: PipelineLike
    level: Level | None
    purpose: Purpose
    target: Target | PathLike | None
    max_opset: int | None
    max_growth: int | None
    patterns: PatternsLike
    lists: PathLike | Sequence[PathLike]
    approximate: bool
    assume: str | Sequence[str]
    same: Mapping[str, str]
    size_range: Mapping[str, RangeLike]
    fix: Mapping[str, int]
    pins: Mapping[str, str]
    check_user: bool | None
    custom_ops: PathLike | Sequence[PathLike]
    debugging: Debugging | None


class ComparisonOptions(TypedDict, total=False):
    """The options that say how models are compared."""

    inputs: InputsLike | None
    preprocess: PathLike | None
    seed: int
    sizes: Mapping[str, int]
    tolerance: float | None
    verify_budget: float
    custom_ops: PathLike | Sequence[PathLike]


class BenchOptions(TypedDict, total=False):
    """The options that say how models are measured."""

    inputs: InputsLike | None
    preprocess: PathLike | None
    seed: int
    sizes: Mapping[str, int]
    rounds: int
    bench_budget: float | None
    threads: int
    custom_ops: PathLike | Sequence[PathLike]


class BisectOptions(PipelineOptions, ComparisonOptions, total=False):
    """The options that say what is rewritten, and how the results are compared."""


class AllOptions(BisectOptions, total=False):
    """All options."""

    inference: bool
    explain: bool | Sequence[str]
    measure: bool
    sizes: Mapping[str, int]
    verify: Verification | bool | None
    bench: bool
    fastest: bool
    rounds: int
    bench_budget: float | None
    threads: int
    output: PathLike | None
    link: bool
    loaded: bool


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `optimize`, some of which `verify`, `bisect`, `explain` and `benchmark` share.

    Attributes:
        passes: A pipeline as text, the name or path of a pass list, or a sequence of texts and passes. `"auto"` is the pass
            list that suits the operators of the model.
        level: `"disabled"`, `"basic"`, `"extended"` or `"all"` instead of `passes`; they are meant as the runtime's own levels.
        purpose: `"quantization"` instead of `passes` keeps the forms that onnxruntime.quantization reads: attention as a
            function, convolutions apart from their ReLU, cells of GRU and RNN as products.
        target: The runtime to optimise for: a target, the name of a provider of the installed runtime, or the path of a
            kernel table (`.json`); by default the installed runtime on the CPU.
        max_opset: The highest ai.onnx opset that the result may use.
        max_growth: Bytes by which constant folding may make the model grow, decompressed weights included. By default 64 KiB and
            a twentieth of the model's constants, without decompressing weights that are stored in a narrower type.
        patterns: Files and folders with rules of the user's own, or rules as objects, which are the pass `fuse.given`.
        lists: Files and folders with pass lists of the user's own, which extend those that come with ortfuse and replace those of
            the same name, under `auto` too.
        approximate: Whether rules that replace the mathematics by an approximation may be applied.
        check_user: Whether each change of your own rules and passes (`patterns`, registered passes, those of installed packages)
            is checked on its own nodes, and undone if it is wrong. By default it is, unless `verify` asks for more:
            `"sites"` checks all changes so, and with `"whole"` nothing that is wrong is written.
        inference: Whether training mode is removed first: a Dropout that drops, a BatchNormalization that takes the statistics of
            its batch. The result is compared with the model without it.
        assume: Names of what is declared about the model that ortfuse cannot prove (see
            `ortfuse.analysis.assumptions`): `"fills-hide"` of
            finite numbers that replace scores of attention, `"loops-run"` of Loops over sequences of open length.
        same: Maps open dimensions of the inputs to what they equal in every run, by name: another one (`{"s54": "s84"}`), or a
            formula of others. An axis without a name is called `x[0]`.
        size_range: Maps open dimensions to the least and the largest size that they have in any run: `{"sequence": (1, 512)}`,
            or `"1:512"`.
        fix: Maps open dimensions to the size that they have in every run: `{"sequence": 128}`. The result has fixed shapes.
        custom_ops: Libraries with kernels of operators in domains of the user's own, without which the runtime does not load the
            model. All sessions of the process know them from then on.
        explain: Whether to say for each site what fused it or came nearest, which takes time; names of families
            (`"attention"`) and rules (`"attention.sdpa"`) ask for those alone.
        pins: Maps families or rules to the operator that their sites are to become regardless of cost, such as
            `"com.microsoft.MultiHeadAttention"`, or to `"none"` to leave the sites as they are.
        measure: Whether to measure on this machine, where several operators are legal, instead of consulting the table that
            comes with ortfuse.
        sizes: Sizes of the model's open dimensions, by name, at which to measure and, besides others, to verify.
        verify: `"whole"`, or `True`, compares the result with the original. `"sites"` checks each change at its site, running
            only the nodes it concerns with the real weights and generated inputs, and undoes it if it is wrong.
        verify_budget: Seconds that `verify="whole"` may take; what it does not allow is left out, and the verdict says so.
        bench: Whether to measure the latency after each pass, interleaved with the original.
        fastest: Whether, if the result is slower than the original, the model that was found to be faster is taken instead.
        inputs: Sets of inputs by name, or the path of a file or a folder of inputs (.npz, .npy, images, ONNX's test data),
            instead of generated ones; or an object whose `get_next()` returns one set after the other, and at last `None`, as
            `onnxruntime.quantization.CalibrationDataReader`.
        preprocess: A TOML file that says how images become inputs (docs/quantize.md); by default `preprocess.toml` beside them.
        seed: Seed of the generated inputs.
        tolerance: Allowed error relative to an output's largest magnitude; by default what `ortfuse.runtime.comparison` says.
        rounds: How often each model is run when it is measured; by `benchmark` and `bench` at least.
        bench_budget: Seconds that these may measure: there are more rounds until the bounds of all speedups are narrow, or the
            time is over. By default 10; 0 makes no more than `rounds`.
        threads: Threads of the runtime when measuring, at most 64 or four for each processor; 0 leaves the number to it.
        output: The file that the result is written to.
        link: Whether external data of the output may be hard links (see `ortfuse.save`).
        loaded: Whether the runtime loads the result, with all of its optimisations and in a process of its own, before it is
            written or, for the installed runtime, handed back. If it does not, the result is made again without what is to blame.
        debugging: A random order in which to visit sites, and checks after every rewrite; see `ortfuse.rewrite.Debugging`.

    Raises:
        OptionError: A value is invalid, or options exclude each other.
    """

    passes: PipelineLike = "auto"
    level: Level | None = None
    purpose: Purpose = "execution"
    target: Target | PathLike | None = None
    max_opset: int | None = None
    max_growth: int | None = None
    patterns: PatternsLike = ()
    lists: PathLike | Sequence[PathLike] = ()
    approximate: bool = False
    inference: bool = False
    check_user: bool | None = None
    assume: str | Sequence[str] = ()
    same: Mapping[str, str] = field(default_factory=dict)
    size_range: Mapping[str, RangeLike] = field(default_factory=dict)
    fix: Mapping[str, int] = field(default_factory=dict)
    custom_ops: PathLike | Sequence[PathLike] = ()
    explain: bool | Sequence[str] = False
    pins: Mapping[str, str] = field(default_factory=dict)
    measure: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    verify: Verification | bool | None = None
    verify_budget: float = SECONDS
    bench: bool = False
    fastest: bool = False
    inputs: InputsLike | None = None
    preprocess: PathLike | None = None
    seed: int = 0
    tolerance: float | None = None
    rounds: int = 20
    bench_budget: float | None = None
    threads: int = 0
    output: PathLike | None = None
    link: bool = False
    loaded: bool = True
    debugging: Debugging | None = None

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if self.level is not None and self.passes != "auto":
            raise OptionError("level", "give either `passes` or `level`, not both")
        if self.purpose != "execution" and (self.level is not None or self.passes != "auto"):
            raise OptionError("purpose", f"{self.purpose} has passes of its own; leave out `passes` and `level`")
        if self.sizes and self.inputs is not None:
            raise OptionError("sizes", "the `inputs` have sizes of their own; leave out one of the two")
        if self.sizes and not (self.bench or self.measure or self.verify == "whole"):
            dim, size = next(iter(self.sizes.items()))
            text = f"{dim}={size} is the size that is measured or verified; add `bench`, `measure` or `verify`, or leave it out"
            raise OptionError("sizes", text)
        if self.fastest and not self.bench:
            raise OptionError("fastest", "is about what is measured; add `bench`")
        if self.link and self.output is None:
            raise OptionError("link", "is about the file that is written; name it with `output`")

    @classmethod
    def of(cls, options: Options | None, **changes: Unpack[AllOptions]) -> Options:
        """Options with changes, or new ones if there are none yet.

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
        name = os.fspath(path)
        try:
            data = from_toml(read_text(path))
        except OSError as error:
            raise OptionError("config", f"{name} cannot be read: {error.strerror}") from error
        except ValueError as error:  # not UTF-8, or not TOML
            raise OptionError("config", f"{name} is not TOML: {error}") from error
        for key in data:
            if key not in IN_FILES:
                close = difflib.get_close_matches(key.replace("-", "_"), IN_FILES, n=1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(IN_FILES)}"
                raise OptionError("config", f"{name}: there is no option {key!r}; {hint}")
        try:
            return cls(**from_folder(data, Path(path).parent))
        except OptionError as error:
            raise OptionError(error.option, f"{error.text} (in {name})") from None

    def with_(self, **changes: Unpack[AllOptions]) -> Options:
        """A copy with some options changed; `passes` replace a `level`, and a `level` replaces `passes`.

        Raises:
            OptionError: As for the class.
        """
        if "passes" in changes and changes.get("level") is None:
            changes["level"] = None
        elif changes.get("level") is not None and "passes" not in changes:
            changes["passes"] = "auto"
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:  # as Python says it of a function, but with what may be meant
                close = difflib.get_close_matches(name, known, n=1)
                raise TypeError(f"there is no option {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        return dataclasses.replace(self, **changes)

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
        """What is declared about the sizes of the model's inputs."""
        ranges = {name: (int(one[0]), int(one[1])) for name, one in self.size_range.items()}
        return DeclaredSizes(self.same, ranges, self.fix)

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
        return {name: _as_data(value) for name, value in self._changed().items()}

    def to_toml(self) -> str:
        """The options that are not at their defaults, as the text of a file that `load` reads. Paths are written as they are.

        Raises:
            OptionError: An option is an object or holds arrays, which cannot be written as text.
        """
        return "".join(f"{name} = {_toml(name, value)}\n" for name, value in self._changed().items())

    def _changed(self) -> dict[str, Any]:
        plain = Options()
        values = {name: (getattr(self, name), getattr(plain, name)) for name in (*IN_FILES, "debugging")}
        # Comparing arrays does not give a single bool, so only values of the default's own type are compared with it.
        return {name: one for name, (one, usual) in values.items() if type(one) is not type(usual) or one != usual}


Check: TypeAlias = Callable[[str, Any], Any]
"""Takes the name of an option and its value; returns the value in its canonical form."""


def _number(least: int, most: int = LARGEST_NUMBER) -> Check:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
            raise OptionError(name, f"write a whole number, {least} or more, not {brief(value)}")
        if value.__index__() > most:
            raise OptionError(name, f"write a whole number, {most:,} at most, not {brief(value)}")
        return int(value.__index__())

    return check


def _or_none(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionError(name, f"write true or false, not {brief(value)}")
    return value


def _error_bound(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_FLOAT:
        raise OptionError(name, f"write a number that is 0 or more, such as 1e-3, not {brief(value)}")
    return float(value)


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise OptionError(name, f"write a number of seconds above 0, such as 60, not {brief(value)}")
    return float(value) if value <= LARGEST_FLOAT else math.inf


def _duration(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_FLOAT:
        raise OptionError(name, f"write a number of seconds that is 0 or more, such as 60, not {brief(value)}")
    return float(value)


def _one_of(choices: tuple[str, ...]) -> Check:
    def check(name: str, value: Any) -> str | None:
        if value is not None and value not in choices:
            raise OptionError(name, f"write {' or '.join(map(repr, choices))}, not {brief(value)}")
        return value if value is None else str(value)

    return check


def _path(name: str, value: Any) -> Any:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise OptionError(name, f"write a path, not {brief(value)}")
    return value


def _paths(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str | os.PathLike):
        return (_path(name, value),)
    if isinstance(value, Mapping) or not hasattr(value, "__iter__"):
        raise OptionError(name, f"write the paths of files or folders, not {brief(value)}")
    return tuple(_path(name, one) for one in value)


def _patterns(name: str, value: Any) -> tuple[Any, ...]:
    from ortfuse.rewrite import Rule

    found = (value,) if isinstance(value, Rule) else value
    if isinstance(found, str | os.PathLike | Mapping) or not hasattr(found, "__iter__"):
        return _paths(name, found)
    return tuple(one if isinstance(one, Rule) else _path(name, one) for one in found)


def _passes(name: str, value: Any) -> Any:
    if isinstance(value, str | os.PathLike):
        return value
    if isinstance(value, Mapping) or not hasattr(value, "__iter__"):
        raise OptionError(
            name, f'write a pipeline, such as "canonicalize, fuse.*", or a list of passes, not {brief(value)}'
        )
    return tuple(value)


def _assumptions(name: str, value: Any) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, Sequence) or not all(isinstance(one, str) for one in found):
        raise OptionError(
            name, f"write the names of assumptions, such as {next(iter(ASSUMPTIONS))}, not {brief(value)}"
        )
    for one in found:
        if one not in ASSUMPTIONS:
            raise OptionError(name, f"there is no assumption {one!r}; there are {', '.join(ASSUMPTIONS)}")
    return tuple(dict.fromkeys(found))


def _explain(name: str, value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise OptionError(
            name, f'write true, or a list of families and rules such as ["attention"], not {brief(value)}'
        )
    return tuple(value) or True


def _inputs(name: str, value: Any) -> Any:
    if value is None or isinstance(value, str | os.PathLike):
        return value if value is None else _path(name, value)
    if hasattr(value, "get_next"):
        from ortfuse.runtime.inputs.data_reader import from_reader

        value = from_reader(value)
    if isinstance(value, Mapping) or not isinstance(value, Sequence) or not value:
        raise OptionError(name, "write a path, or a list of sets of inputs: [{'x': array, ...}, ...]")
    for one in value:
        for key, content in one.items() if isinstance(one, Mapping) else [("", one)]:
            # A sequence or a map of tensors is a list or a dictionary of arrays.
            parts = content if isinstance(content, list) else [content]
            if not key or not all(hasattr(part, "dtype") or isinstance(part, Mapping) for part in parts):
                kind = type(content).__name__
                raise OptionError(
                    name, f"write arrays by name, such as {{'x': numpy.asarray(...)}}; {key!r} is a {kind}"
                )
    return value


def _pins(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(
        isinstance(one, str) and one for part in value.items() for one in part
    ):
        raise OptionError(name, f'write operators by family, such as {{attention = "Attention"}}, not {brief(value)}')
    return dict(value)


def _sizes(name: str, value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise OptionError(name, f"write numbers by dimension, such as {{sequence = 128}}, not {brief(value)}")
    least = _number(0)
    return {str(dim): least(f"{name}[{dim}]", size) for dim, size in value.items()}


def _verification(name: str, value: Any) -> str | None:
    """`True` is `"whole"`, and `False` is nothing."""
    if isinstance(value, bool):
        return "whole" if value else None
    if value is not None and value not in get_args(Verification):
        raise OptionError(name, f"write true, {' or '.join(map(repr, get_args(Verification)))}, not {value!r}")
    return value if value is None else str(value)


def _same(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(
        isinstance(one, str) and one.strip() for pair in value.items() for one in pair
    ):
        raise OptionError(name, f'write names by dimension, such as {{s54 = "s84"}}, not {value!r}')
    return {one.strip(): other.strip() for one, other in value.items()}


def _ranges(name: str, value: Any) -> dict[str, tuple[int, int]]:
    if not isinstance(value, Mapping):
        raise OptionError(name, f'write bounds by dimension, such as {{sequence = "1:512"}}, not {value!r}')
    return {str(dim): _range(f"{name}[{dim}]", one) for dim, one in value.items()}


def _range(name: str, value: Any) -> tuple[int, int]:
    ends = value.split(":") if isinstance(value, str) else value
    if not isinstance(ends, Sequence) or len(ends) != 2:
        raise OptionError(name, f"write the least and the largest size, such as 1:512, not {value!r}")
    numbers = [
        int(end) if isinstance(end, str) and end.strip().isdecimal() and len(end) <= LONGEST else end for end in ends
    ]
    low, high = (_number(0)(name, number) for number in numbers)
    if low > high:
        raise OptionError(name, f"{low} is more than {high}; write the least size first")
    return low, high


def _target(name: str, value: Any) -> Any:
    if value is None or hasattr(value, "check_node"):
        return value
    return _path(name, value)


_CHECKS: Mapping[str, Check] = {
    "passes": _passes,
    "level": _one_of(get_args(Level)),
    "purpose": _one_of(get_args(Purpose)),
    "target": _target,
    "max_opset": _or_none(_number(1)),
    "max_growth": _or_none(_number(0)),
    "patterns": _patterns,
    "lists": _paths,
    "approximate": _boolean,
    "inference": _boolean,
    "check_user": _or_none(_boolean),
    "assume": _assumptions,
    "same": _same,
    "size_range": _ranges,
    "fix": _sizes,
    "custom_ops": _paths,
    "explain": _explain,
    "pins": _pins,
    "measure": _boolean,
    "sizes": _sizes,
    "verify": _verification,
    "verify_budget": _seconds,
    "bench": _boolean,
    "fastest": _boolean,
    "inputs": _inputs,
    "preprocess": _or_none(_path),
    "seed": _number(0),
    "tolerance": _or_none(_error_bound),
    "rounds": _number(1),
    "bench_budget": _or_none(_duration),
    "threads": lambda name, value: demand_threads(value, name),
    "output": _or_none(_path),
    "link": _boolean,
    "loaded": _boolean,
}

IN_FILES = tuple(_CHECKS)
"""The options that a file can have: all but those for debugging ortfuse itself."""

TABLE = ".json"
"""The file name extension of a kernel table."""


def from_folder(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Options of a file in `folder`, with their relative paths resolved against it; other keys stay as they are."""

    def within(value: Any) -> Any:
        return str(folder / value) if isinstance(value, str) and value else value

    found = dict(data)
    for name in ("inputs", "output", "preprocess"):
        if name in found:
            found[name] = within(found[name])
    for name in ("patterns", "lists", "custom_ops"):
        if isinstance(paths := found.get(name), str | list):
            found[name] = [within(path) for path in ([paths] if isinstance(paths, str) else paths)]
    for name, ending in (("passes", ".toml"), ("target", TABLE)):
        if isinstance(value := found.get(name), str) and value.endswith(ending):
            found[name] = within(value)
    return found


def _as_data(value: Any) -> Any:
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(key): _as_data(one) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [_as_data(one) for one in value]
    return str(value)


def _toml(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | os.PathLike):
        return json.dumps(os.fspath(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(name, str(key))} = {_toml(name, one)}" for key, one in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_toml(name, one) for one in value) + "]"
    raise OptionError(name, f"{type(value).__name__} objects cannot stand in a file; write a name or a path")
