"""What the commands have in common: their options, and reading and writing the files these name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ortfuse.cli.usage import Verification, positive_number, verification, whole_number
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
    int | None,
    typer.Option(
        "--max-opset",
        parser=whole_number(1),
        metavar="NUMBER",
        help="Highest ai.onnx opset that the result may use.",
        show_default=False,
    ),
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
Seed = Annotated[
    int, typer.Option("--seed", parser=whole_number(0), metavar="NUMBER", help="Seed of the generated inputs.")
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
    int,
    typer.Option(
        "--threads",
        parser=whole_number(0),
        metavar="NUMBER",
        help="Threads of the runtime when measuring; 0 leaves the choice to it.",
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="NAME=NUMBER",
        help="Size of an open dimension when measuring, such as sequence=128; may be given several times.",
        show_default=False,
    ),
]
Rounds = Annotated[
    int,
    typer.Option(
        "--rounds", parser=whole_number(1), metavar="NUMBER", help="How often each model is run when it is measured."
    ),
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


def load_model(path: Path) -> Any:
    """Load a model file."""
    from ortfuse.model.io import load

    return load(path)


def given_inputs(path: Path | None, model: Any) -> Any:
    """The user's inputs, `None` when inputs are to be generated."""
    if path is None:
        return None
    from ortfuse.verification import read_inputs

    return read_inputs(path, [value for value in model.graph.inputs if value.name not in model.graph.initializers])


def parse_sizes(texts: list[str] | None) -> dict[str, int]:
    """`["sequence=128"]` as `{"sequence": 128}`."""
    sizes: dict[str, int] = {}
    for text in texts or []:
        name, _, number = text.rpartition("=")
        if not name or not number.isdecimal() or int(number) < 1:
            raise VerificationError(
                f"--size {text}: write NAME=NUMBER, such as sequence=128, with a number of 1 or more"
            )
        if sizes.setdefault(name, int(number)) != int(number):
            raise VerificationError(f"--size {name}: has two sizes, {sizes[name]} and {number}; write one of them")
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


def check_targets(output: Path | None, json_file: Path | None) -> None:
    """See that the files can be written before minutes of work are spent on what is to stand in them.

    Raises:
        OutputError: Naming the file that cannot be.
    """
    from ortfuse.model.atomic_write import writable_target

    for path in (output, json_file):
        if path is not None:
            writable_target(path)
    if output is not None and json_file is not None and output.resolve() == json_file.resolve():
        raise OutputError(f"{output}: -o and --json name the same file; write two names")


def check_sizes_used(sizes: list[str] | None, bench: bool, inputs: Path | None) -> None:
    """Refuse sizes that would be ignored.

    Raises:
        VerificationError: Nothing is measured, or it is on inputs that have sizes of their own.
    """
    if sizes and inputs is not None:
        raise VerificationError(f"--size {sizes[0]}: --inputs have sizes of their own; leave out one of the two")
    if sizes and not bench:
        raise VerificationError(
            f"--size {sizes[0]}: is the size that is measured; add --bench or --measure, or leave it out"
        )


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


def check_folder(path: Path) -> None:
    """See that a folder is there to be written to, or can be made.

    Raises:
        OutputError: It cannot.
    """
    present = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not present.is_dir():
        raise OutputError(f"{path}: cannot be made: {present} is a file; give another folder")
    if not os.access(present, os.W_OK | os.X_OK):
        raise OutputError(f"{path}: cannot be written to: the folder {present} is read-only")
