"""Converts models to half precision, with the smallest float32 islands that keep what they compute, or caches to integers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from ortfuse.errors import OptionError, RewriteError, TargetError, VerificationError
from ortfuse.execution.experiments import experiments
from ortfuse.execution.input_files import read_inputs
from ortfuse.execution.inputs import Inputs
from ortfuse.execution.integer_caches import Cache
from ortfuse.execution.loading import Loading
from ortfuse.execution.session import Arrays, Session, weight_bytes
from ortfuse.graph.functions import without_functions
from ortfuse.model.interop import AnyModel, enter, leave
from ortfuse.model.io import save
from ortfuse.options import PathLike
from ortfuse.precision.caches import ONE_SEQUENCE, in_int8, run_in_float32
from ortfuse.precision.half.islands import TYPES, IslandSearch, error_of, has_floats
from ortfuse.precision.metrics import metric_of
from ortfuse.precision.samples import generated, refuse_nan
from ortfuse.precision.stated import Bound, write_bound
from ortfuse.sessions import hand_on
from ortfuse.targets import Target, raise_opset

_AT_ALL, _EVERYWHERE = 13, 22
"""The opset from which on a Cast knows bfloat16, and that from which on nearly every operator does."""

INT8_CACHES = "int8-caches"

DRAWN = 8
"""How many sets of inputs of typical size are generated for caches of integers, and for a bound."""


@dataclass(frozen=True)
class Conversion:
    """A model in half precision, or with caches of integers.

    Attributes:
        model: The model, of the same kind as the input (an `onnx_ir.Model` for a path).
        to: Its type.
        islands: What computes in float32, with the reason of each; of caches of integers, what has others.
        operators: How many operators compute in half precision, or read caches of integers.
        casts: How many Casts were added.
        errors: For each output of floating-point numbers, but for caches of integers, the norm of its error in relation to its
            own, at its worst; where a bound is to hold and inputs are generated, what is to be expected on others like them.
        emulated: Whether the errors come from a float32 model that rounds, as the CPU has no kernels for the type.
        bytes_before: The bytes of the weights.
        bytes_after: The same in the result.
        weak: Whether ranges were taken from generated inputs instead of the user's.
        notes: What was left out, in words.
        written: The file that it was written to.
        caches: The caches that are integers.
        token_bytes: What a token takes in these caches, in bytes: in float32, and now.
    """

    model: Any = field(repr=False)
    to: str
    islands: Mapping[str, str]
    operators: int
    casts: int
    errors: Mapping[str, float]
    emulated: bool
    bytes_before: int
    bytes_after: int
    weak: bool
    notes: Sequence[str] = ()
    written: Path | None = None
    caches: Sequence[Cache] = ()
    token_bytes: tuple[int, int] | None = None

    @property
    def error(self) -> float:
        """The largest error of an output."""
        return max(self.errors.values(), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the model as data for JSON."""
        errors = {name: value if math.isfinite(value) else None for name, value in self.errors.items()}
        return {
            "to": self.to, "islands": dict(self.islands), "operators": self.operators, "casts": self.casts,
            "errors": errors, "emulated": self.emulated, "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after, "weak": self.weak, "notes": list(self.notes),
            "written": str(self.written) if self.written else None, "caches": [asdict(one) for one in self.caches],
            "token_bytes": self.token_bytes,
        }  # fmt: skip


def convert(
    model: AnyModel,
    to: str = "float16",
    *,
    keep_io: bool = False,
    inputs: PathLike | Sequence[Inputs] | None = None,
    max_error: float | None = None,
    target: Target | PathLike | None = None,
    seed: int = 0,
    output: PathLike | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Conversion:
    """Convert a float32 model to half precision. What would overflow, lose its numbers or has no kernel stays in float32.

    With `to="int8-caches"`, the caches of keys and values that a decoder takes and gives become 8-bit integers, and nothing else.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`; it is not changed.
        to: `"float16"`, `"bfloat16"` or `"int8-caches"`.
        keep_io: Whether inputs and outputs of the model stay float32; caches of integers do not.
        inputs: Sets of inputs by name, or the path of a file or folder of inputs, from which the ranges of values are taken; by
            default they are generated.
        max_error: The largest allowed error of an output: the norm of the difference in relation to the norm of the output.
        target: The runtime that has to have kernels: a target, a provider of the installed runtime or the path of a kernel table
            (`.json`); by default every operator may be half whose definition allows it.
        seed: Seed of generated inputs.
        output: The file that the result is written to.
        progress: Called with short messages about what is going on.

    Raises:
        OptionError: `to`, `keep_io` or `max_error` is not valid.
        RewriteError: The model has no cache that can be integers.
        VerificationError: The model cannot be executed, no error can be measured on its inputs, or the bound cannot be met.
            Nothing was written.
        OrtfuseError: The model cannot be used, or the result not be written.
    """
    if to not in (*TYPES, INT8_CACHES):
        raise OptionError("to", f"write float16, bfloat16 or {INT8_CACHES}, not {to}")
    if to == INT8_CACHES and keep_io:
        raise OptionError("keep_io", "leave it out: the caches are inputs and outputs of the model")
    if max_error is not None and not 0 < max_error < math.inf:
        raise OptionError("max_error", f"write a positive number such as 0.01, not {max_error}")
    progress("loading the model")
    inside, source = enter(model)
    given = inputs
    if isinstance(inputs, str) or hasattr(inputs, "__fspath__"):
        named = [value for value in inside.graph.inputs if value.name not in inside.graph.initializers]
        given = read_inputs(Path(inputs), named)  # type: ignore[arg-type]
    refuse_nan(given or ())  # type: ignore[arg-type]
    if to == INT8_CACHES:
        done = _with_int8_caches(inside, given, _target(target), seed, max_error, progress)  # type: ignore[arg-type]
    else:
        done = _in_half(inside, to, keep_io, given, _target(target), seed, max_error, progress)  # type: ignore[arg-type]
    hand_on(done.model.metadata_props, source.name)
    if to != "bfloat16":
        Loading.of_graph(done.model).demand()
    if output is not None:
        progress(f"writing {output}")
        save(done.model, output)
    return replace(done, model=leave(done.model, source), written=None if output is None else Path(output))


def _in_half(
    model: ir.Model, to: str, keep_io: bool, inputs: Sequence[Inputs] | None, target: Target | None, seed: int,
    max_error: float | None, progress: Callable[[str], None],
) -> Conversion:  # fmt: skip
    flat, raised = _flat(model, TYPES[to])
    progress("running the model")
    found, notes = experiments(flat, inputs, seed, reference=False)
    _demand_numbers((one.expected for one in found), are_given=inputs is not None)
    # What the search for ranges is run on is of few sizes: a bound is to hold on others that are like those of a user.
    drawn = _drawn(flat, seed) if max_error is not None and inputs is None else []
    search = IslandSearch(flat, TYPES[to], keep_io, target, found, drawn, progress)
    wide, casts, result, errors = search.run(max_error)
    if max_error is not None:
        write_bound(result, Bound(metric_of("l2", tuple(errors)), max_error))
    return Conversion(
        result, to, search.islands(wide), search.count(wide), casts, errors, to == "bfloat16", weight_bytes(model),
        weight_bytes(result), inputs is None, [*raised, *notes, *search.notes],
    )  # fmt: skip


def _drawn(model: ir.Model, seed: int) -> list[tuple[Inputs, Arrays]]:
    """Generated inputs of typical size, with what the model makes of them."""
    session = Session(model, optimise=False)
    _, sets = generated(session, model, {}, range(seed * DRAWN, (seed + 1) * DRAWN))
    return [(given, session.run(given)) for given in sets]


def _with_int8_caches(
    model: ir.Model, inputs: Sequence[Inputs] | None, target: Target | None, seed: int, max_error: float | None,
    progress: Callable[[str], None],
) -> Conversion:  # fmt: skip
    progress("running the model")
    session = Session(model)
    weak = inputs is None
    if inputs is None:
        _, inputs = generated(session, model, {}, range(seed * DRAWN, (seed + 1) * DRAWN))
    progress("observing keys and values")
    # Numbers on the others may lie outside of the range that is seen on these.
    made = in_int8(model, inputs[: max(1, len(inputs) // 2)], target)
    progress("running the result")
    other, errors = Session(made.model), dict[str, float]()
    presents = {one.present for one in made.caches}
    originals = [session.run(given) for given in inputs]
    _demand_numbers(originals, are_given=not weak)
    for given, outputs in zip(inputs, originals, strict=True):
        results = run_in_float32(other, made.caches, given)
        for name, expected in outputs.items():
            error = None if name in presents else error_of(expected, results[name])
            if error is not None:
                errors[name] = max(error, errors.get(name, 0.0))
    if max_error is not None:
        if not all(math.isfinite(error) and error <= max_error for error in errors.values()):
            raise VerificationError(
                f"with caches of 8-bit integers the error is {max(errors.values()):.2g}, more than {max_error:g}; nothing was "
                "written"
            )
        write_bound(made.model, Bound(metric_of("l2", tuple(errors)), max_error))
    return Conversion(
        made.model, INT8_CACHES, made.left, made.operators, 0, errors, False, weight_bytes(model),
        weight_bytes(made.model), weak, [ONE_SEQUENCE], None, made.caches, made.token_bytes,
    )  # fmt: skip


def _target(given: Target | PathLike | None) -> Target | None:
    """The target that is meant.

    Raises:
        TargetError: The provider is not installed, or the file is not a kernel table.
    """
    if given is None or isinstance(given, Target):
        return given
    name = os.fspath(given)
    return Target.from_table(name) if name.endswith(".json") else Target(name)


def _flat(model: ir.Model, half: ir.DataType) -> tuple[ir.Model, list[str]]:
    """A copy without functions, whose constants are initializers, at an opset that has the type; and notes.

    Raises:
        TargetError: The model cannot be raised to an opset that has the type at all.
        RewriteError: Its functions cannot be put in the place of their calls.
    """
    notes: list[str] = []
    copy = without_functions(model) if model.functions else model.clone()
    if copy is None:
        raise RewriteError(
            "a function of the model calls itself, or has an operator that is another one in the opset of the model; "
            "convert functions to the opset of the model first, or inline them"
        )
    opset = copy.graph.opset_imports.get("", 1)
    if half == ir.DataType.BFLOAT16 and opset < _EVERYWHERE:
        try:
            raise_opset(copy, _EVERYWHERE)
        except TargetError as error:
            why = str(error).partition(";")[0]
            if opset < _AT_ALL:
                raise TargetError(f"bfloat16 needs opset {_AT_ALL}: {why}; export it anew, or take float16") from error
            notes.append(f"operators that are not defined for bfloat16 at opset {opset} stay float32: {why}")
    return LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy).model, notes


def _demand_numbers(sets: Iterable[Arrays], *, are_given: bool) -> None:
    """Check that there are outputs on which an error can be measured: on each of the given inputs, or on any generated ones.

    Raises:
        VerificationError: There are outputs of floating-point numbers, and none of them is finite.
    """
    floats = [[array for array in arrays.values() if has_floats(array)] for arrays in sets]
    measured = [any(np.isfinite(array).any() for array in arrays) for arrays in floats]
    if any(floats) and not (all(measured) if are_given else any(measured)):
        where = f"set {measured.index(False)} (from 0) of the inputs" if are_given else "the generated inputs"
        remedy = "leave it out" if are_given else "give inputs of your own with --inputs"
        raise VerificationError(f"on {where} no output has a finite number, so no error can be measured; {remedy}")
