"""What the commands have in common: their options, and reading and writing the files these name."""

from __future__ import annotations

import enum
import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ortfuse.errors import OutputError, PipelineError, VerificationError

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)]
Passes = Annotated[
    str,
    typer.Option(
        "--passes",
        help="A pass list (auto, basic, extended, all, transformer, convnet), a TOML file, or a pipeline such as "
        "'canonicalize, fixpoint(fold, cse, dce), fuse.attention'. `ortfuse passes` shows what there is.",
    ),
]
Patterns = Annotated[
    list[Path] | None,
    typer.Option(
        "--patterns", help="A file or folder with rules of your own; may be given several times.", show_default=False
    ),
]
MaxOpset = Annotated[
    int | None, typer.Option("--max-opset", help="Highest ai.onnx opset that the result may use.", show_default=False)
]
Approximate = Annotated[
    bool, typer.Option("--approximate", help="Allow rules that change the mathematics (tanh for erf).")
]
InputFiles = Annotated[
    Path | None,
    typer.Option(
        "--inputs", help="Your own inputs: an .npz file, or a folder of them or of test_data_set_N.", show_default=False
    ),
]
Json = Annotated[
    Path | None, typer.Option("--json", help="Write the whole report as JSON to this file.", show_default=False)
]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback when something goes wrong.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the generated inputs.")]
Tolerance = Annotated[
    float | None,
    typer.Option(
        "--tolerance",
        min=0.0,
        help="Allowed error relative to an output's largest magnitude; by default 1e-4 for float32, 1e-2 for float16.",
        show_default=False,
    ),
]
Threads = Annotated[int, typer.Option("--threads", min=0, help="Threads of the runtime; 0 leaves the choice to it.")]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--size", help="Size of an open dimension when measuring, such as sequence=128.", show_default=False),
]
Pins = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        help="What the sites of a family or rule become, whatever the cost: attention=com.microsoft.MultiHeadAttention, "
        "or layernorm=none to leave them as they are; may be given several times.",
        show_default=False,
    ),
]
Measure = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="Where several operators are legal, measure them on this machine at the sizes of the model (see --size) instead "
        "of asking the table that comes with ortfuse. What was measured is kept for the next time.",
    ),
]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="How often each model is run when it is measured.")]


class Verify(enum.StrEnum):
    """What `--verify` checks."""

    WHOLE = "whole"
    SITES = "sites"


class WithVerify(TyperCommand):
    """A command whose `--verify` may stand without a value, which then is `whole`; others are given by `=`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write the value out."""
        end = args.index("--") if "--" in args else len(args)
        whole = [f"--verify={Verify.WHOLE}" if text == "--verify" else text for text in args[:end]]
        return super().parse_args(ctx, whole + args[end:])


def load_model(path: Path) -> Any:
    """Load a model file."""
    from ortfuse.ir.io import load

    return load(path)


def given_inputs(path: Path | None, model: Any) -> Any:
    """The user's inputs, `None` when inputs are to be generated."""
    if path is None:
        return None
    from ortfuse.validate import read_inputs

    return read_inputs(path, [v.name for v in model.graph.inputs if v.name not in model.graph.initializers])


def parse_sizes(texts: list[str] | None) -> dict[str, int]:
    """`["sequence=128"]` as `{"sequence": 128}`."""
    sizes = {}
    for text in texts or []:
        name, _, number = text.rpartition("=")
        if not name or not number.isdigit():
            raise VerificationError(f"--size {text}: write it as NAME=NUMBER, such as sequence=128")
        sizes[name] = int(number)
    return sizes


def parse_pins(texts: list[str] | None) -> dict[str, str]:
    """`["attention=com.microsoft.MultiHeadAttention"]` as a dictionary."""
    pins = {}
    for text in texts or []:
        name, equals, operator = (part.strip() for part in text.partition("="))
        if not (name and equals and operator):
            raise PipelineError(f"--pin {text}: write it as FAMILY=OPERATOR, such as attention=Attention")
        pins[name] = operator
    return pins


def write_json(path: Path | None, content: dict[str, Any]) -> None:
    """Write a report aside and move it into place."""
    if path is None:
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        aside.write_text(json.dumps(content, indent=1, default=str) + "\n")
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OutputError(f"{path}: the report cannot be written: {error.strerror or error}") from error
