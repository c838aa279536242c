"""The arguments that commands declare, their conversion to options of ortfuse, and the files that they name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ortfuse.analysis.assumptions import ASSUMPTIONS
from ortfuse.cli.declared_sizes import fixed, numbers, ranges, same
from ortfuse.cli.parsing import positive_number, purpose, seconds, size_in_bytes, verification, whole_number
from ortfuse.errors import OptionError, OutputError
from ortfuse.options import Options, Purpose, Verification

if TYPE_CHECKING:
    from ortfuse.api.models_file import Settings

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A TOML file with options; those on the command line go before them.",
        show_default=False,
    ),
]
Models = Annotated[
    Path | None,
    typer.Option(
        "--models",
        metavar="FILE.toml",
        help="A TOML file with an entry for each model: its inputs, sizes, passes, tolerance and known failures; options on "
        "the command line go before them.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Where to write the result; without it, nothing is written.", show_default=False
    ),
]
Link = Annotated[
    bool | None,
    typer.Option(
        "--link/--no-link",
        help="Let external data of the result be hard links to that of the model.",
        show_default=False,
    ),
]
Load = Annotated[
    bool | None,
    typer.Option(
        "--load/--no-load",
        help="Have the runtime load the result before it is written, in a process of its own (the default).",
        show_default=False,
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="PROVIDER",
        help="The provider to optimise for, or a kernel table (.json) of another build; by default CPUExecutionProvider.",
        show_default=False,
    ),
]
Passes = Annotated[
    str | None,
    typer.Option(
        "--passes",
        help="A level (disabled, basic, extended, all), a pass list (bert, llama, resnet, ...), a TOML file, or a pipeline such "
        "as 'canonicalize, fixpoint(fold, cse, dce), fuse.attention'; by default auto. `ortfuse passes` shows what there is.",
        show_default=False,
    ),
]
For = Annotated[
    Purpose | None,
    typer.Option(
        "--for",
        parser=purpose,
        metavar="PURPOSE",
        help="quantization: a result that the runtime's own quantisers read (quantize_dynamic, quantize_static, "
        "quant_pre_process); execution, the default.",
        show_default=False,
    ),
]
Patterns = Annotated[
    list[Path] | None,
    typer.Option(
        "--patterns", help="A file or folder with rules of your own; may be given several times.", show_default=False
    ),
]
Lists = Annotated[
    list[Path] | None,
    typer.Option(
        "--lists",
        help="A pass list of your own (.toml), or a folder of them, which auto considers too; may be given several times.",
        show_default=False,
    ),
]
CustomOps = Annotated[
    list[Path] | None,
    typer.Option(
        "--custom-ops",
        metavar="LIBRARY",
        help="A library with kernels of operators that the runtime itself lacks; may be given several times.",
        show_default=False,
    ),
]
MaxOpset = Annotated[
    int | None,
    typer.Option(
        "--max-opset",
        parser=whole_number(1),
        metavar="NUMBER",
        help="Highest ai.onnx opset that the result may use.",
        show_default=False,
    ),
]
MaxGrowth = Annotated[
    int | None,
    typer.Option(
        "--max-growth",
        parser=size_in_bytes,
        metavar="SIZE",
        help="How much larger constant folding may make the file, such as 10MB, weights that are stored in a narrower type "
        "included; by default 64 KiB and a twentieth of the constants, without such weights.",
        show_default=False,
    ),
]
Preprocess = Annotated[
    Path | None,
    typer.Option(
        "--preprocess",
        metavar="FILE",
        help="A TOML file that says how images become inputs (resize, crop, colours, scale, mean, std, layout); by default "
        "preprocess.toml beside them.",
        show_default=False,
    ),
]
Approximate = Annotated[
    bool | None,
    typer.Option(
        "--approximate/--no-approximate",
        help="Allow rules that change the mathematics (tanh for erf).",
        show_default=False,
    ),
]
CheckUser = Annotated[
    bool | None,
    typer.Option(
        "--check-user/--no-check-user",
        help="Check each change of your own rules and passes on its own nodes and undo wrong ones; the default without --verify.",
        show_default=False,
    ),
]
Assume = Annotated[
    list[str] | None,
    typer.Option(
        "--assume",
        metavar="NAME",
        help="What is true of the model although ortfuse cannot prove it; may be given several times: "
        + "; ".join(f"{name}, {text}" for name, text in ASSUMPTIONS.items())
        + ".",
        show_default=False,
    ),
]
InputFiles = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        help="Your own inputs: an .npz file, a .npy file or image (one input), or a folder of them or of test_data_set_N.",
        show_default=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="PATTERN",
        help="What alone may be in lower precision: a node, operator, module, class or value of the model, with wildcards, such "
        "as 'op:MatMul' or 'module:encoder.layer.*'; may be given several times.",
        show_default=False,
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="PATTERN",
        help="What stays in float32, as for --only; may be given several times.",
        show_default=False,
    ),
]
Json = Annotated[
    Path | None, typer.Option("--json", help="Write the whole report as JSON to this file.", show_default=False)
]
Check = Annotated[
    Path | None,
    typer.Option(
        "--check",
        metavar="FILE",
        help="Compare with what the same command wrote with --json before; the exit code is 3 if it has become worse: more nodes "
        "or executed operators, fewer sites, a larger error, a speedup lower beyond noise.",
        show_default=False,
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE.html",
        help="Write a page to look at: one file, which needs no network.",
        show_default=False,
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback when something goes wrong.")]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        parser=whole_number(0),
        metavar="NUMBER",
        help="Seed of the generated inputs; by default 0.",
        show_default=False,
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        "--tolerance",
        parser=positive_number,
        metavar="NUMBER",
        help="Allowed error relative to an output's largest magnitude; by default 1e-4 for float32, 1e-2 for float16.",
        show_default=False,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        parser=whole_number(0),
        metavar="NUMBER",
        help="Threads of the runtime when measuring; at most 64 or four a processor; 0, the default, leaves the choice to it.",
        show_default=False,
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="NAME=NUMBER",
        help="Size of an open dimension when measuring and, besides others, verifying, such as sequence=128; may be given "
        "several times.",
        show_default=False,
    ),
]
VerifyBudget = Annotated[
    float | None,
    typer.Option(
        "--verify-budget",
        parser=seconds,
        metavar="SECONDS",
        help="How long comparing whole models may take; by default 60s. The verdict says what was left out.",
        show_default=False,
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        "--rounds",
        parser=whole_number(1),
        metavar="NUMBER",
        help="How often each model is run when it is measured; by default 20.",
        show_default=False,
    ),
]
LeastRounds = Annotated[
    int | None,
    typer.Option(
        "--rounds",
        parser=whole_number(1),
        metavar="NUMBER",
        help="How often each model is run at least when it is measured; by default 20. There are more rounds until the bounds of "
        "all speedups are narrow, or the time of --bench-budget is over.",
        show_default=False,
    ),
]
_BENCH_BUDGET = (
    "How long models may be measured side by side, unless the least rounds take longer; by default 10s. 0 makes no more rounds "
    "than --rounds."
)
BenchBudget = Annotated[
    float | None,
    typer.Option("--bench-budget", parser=seconds, metavar="TIME", help=_BENCH_BUDGET, show_default=False),
]
Budget = Annotated[
    float | None,
    typer.Option("--budget", "--bench-budget", parser=seconds, metavar="TIME", help=_BENCH_BUDGET, show_default=False),
]
Verify = Annotated[
    Verification | None,
    typer.Option(
        "--verify",
        parser=verification,
        metavar="[sites]",
        help="Run both models and compare; a result that differs is not written. --verify=sites checks each change on "
        "its own nodes instead and undoes wrong ones, which serves models too large to be run twice.",
        show_default=False,
    ),
]
Inference = Annotated[
    bool | None,
    typer.Option(
        "--inference/--no-inference",
        help="Remove training mode first: Dropout that drops, BatchNormalization that takes the statistics of its batch.",
        show_default=False,
    ),
]
Pins = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        help="What the sites of a family or rule become, whatever the cost: gelu=com.microsoft.Gelu, "
        "or layernorm=none to leave them as they are; may be given several times.",
        show_default=False,
    ),
]
Measure = Annotated[
    bool | None,
    typer.Option(
        "--measure/--no-measure",
        help="Where several operators are legal, measure them on this machine at the sizes of the model (see --size) instead "
        "of asking the table that comes with ortfuse. What was measured is kept for the next time.",
        show_default=False,
    ),
]
Fastest = Annotated[
    bool | None,
    typer.Option(
        "--fastest/--no-fastest",
        help="If the result is measured to be slower than the original, take the model without what makes it slower, or else "
        "the original. Goes with --bench.",
        show_default=False,
    ),
]
Bench = Annotated[
    bool | None,
    typer.Option(
        "--bench/--no-bench",
        help="Measure the latency after each pass, interleaved with the original.",
        show_default=False,
    ),
]
Explain = Annotated[
    bool | None,
    typer.Option(
        "--explain/--no-explain", help="Say for each site what fused it, or what came nearest.", show_default=False
    ),
]


FLAGS = {
    "sizes": "--size", "pins": "--pin", "output": "-o", "loaded": "--load", "purpose": "--for", "rungs": "--scheme",
    "outputs": "--judge", "form": "--format",
}  # fmt: skip
"""The command-line names of options, where these differ from their own names."""


def options(config: Path | None = None, settings: Settings | None = None, **given: Any) -> Options:
    """The options of the file, overridden by those given on the command line; `None` means not given.

    Args:
        config: A file of options.
        settings: What a file of models says about the model: it goes before the file of options.
        **given: What the command line says.

    Raises:
        OptionError: An option has an invalid value, or two contradict each other.
    """
    given = {name: value for name, value in given.items() if value is not None and value != []}
    known = Options() if config is None else Options.load(config)
    for name, parse in _TABLES.items():
        if name in given:
            given[name] = parse(given[name])
    if settings is not None:
        return settings.over(known, **given)
    merged: dict[str, Any] = {name: {**getattr(known, name), **given[name]} for name in _TABLES if name in given}
    return known.with_(**{**given, **merged})


def settings_of(models: Path | None, model: Path) -> Settings | None:
    """What the file given with --models says about a model; `None` if none is given.

    Raises:
        OptionError: The file cannot be used, or does not name the model.
    """
    if models is None:
        return None
    from ortfuse.api.models_file import ModelsFile

    return ModelsFile.load(models).demand(model)


def in_flags(error: OptionError) -> str:
    """The message of an error, with options called by their command-line names."""
    text = re.sub("`([a-z_]+)`", lambda found: _flag(found[1]), error.text)
    return f"{_flag(error.option)}: {text}"


def _flag(option: str) -> str:
    return FLAGS.get(option) or f"--{option.replace('_', '-')}"


def _sizes(texts: list[str]) -> dict[str, int]:
    """`["sequence=128"]` as `{"sequence": 128}`."""
    return numbers("sizes", texts)


def _pins(texts: list[str]) -> dict[str, str]:
    """`["attention=com.microsoft.MultiHeadAttention"]` as a dictionary."""
    pins: dict[str, str] = {}
    for text in texts:
        name, equals, operator = (part.strip() for part in text.partition("="))
        if not (name and equals and operator):
            raise OptionError("pins", f"write it as FAMILY=OPERATOR, such as attention=Attention, not {text}")
        if pins.setdefault(name, operator) != operator:
            raise OptionError("pins", f"{name} is pinned to {pins[name]} and to {operator}; write one of the two")
    return pins


_TABLES: Mapping[str, Callable[[list[str]], Mapping[str, Any]]] = {
    "sizes": _sizes, "pins": _pins, "same": same, "size_range": ranges, "fix": fixed,
}  # fmt: skip
"""The options that are tables, which the command line gives one entry after the other."""


def check_folder(path: Path) -> None:
    """Check that a folder exists and is writable, or can be created.

    Raises:
        OutputError: It is neither.
    """
    present = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not present.is_dir():
        raise OutputError(f"{path}: cannot be made: {present} is a file; give another folder")
    if not os.access(present, os.W_OK | os.X_OK):
        raise OutputError(f"{path}: cannot be written to: the folder {present} is read-only")
