"""Convert models to half precision with the smallest float32 islands that preserve results, or KV caches to int8."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from ortfuse.errors import BoundError, OptionError, RewriteError, TargetError, VerificationError
from ortfuse.io.convert_model_objects import AnyModel, enter, leave
from ortfuse.io.load_and_save import save
from ortfuse.io.training_mode import told_of_training
from ortfuse.ir.count_expanded_nodes import beyond, expanded_nodes
from ortfuse.ir.inlinable_functions import without_functions
from ortfuse.ir.selection import demand_matches, mark, patterns_of, unmark
from ortfuse.options import InputsLike, Options, PathLike
from ortfuse.quantization.error_bound_metadata import Bound, write_bound
from ortfuse.quantization.half.add_distance_outputs import OPSET
from ortfuse.quantization.half.carry_marks_into_functions import mark_called
from ortfuse.quantization.half.changed_orderings import Run
from ortfuse.quantization.half.clamp_attention_biases import clamp_attention_biases
from ortfuse.quantization.half.float32_island_search import L2, TYPES, IslandSearch, has_floats
from ortfuse.quantization.half.merge_equal_weights import merge_equal_weights
from ortfuse.quantization.half.split_fused_convolutions import split_fused_convolutions
from ortfuse.quantization.input_sets import SEEDS_APART, fresh_runs, refuse_nan
from ortfuse.quantization.kv_cache_quantization import ONE_SEQUENCE, in_float32, in_int8
from ortfuse.quantization.metrics import error_words, metric_of
from ortfuse.quantization.statistical_tolerance_limit import limit_of_rounding
from ortfuse.runtime.inputs.random_inputs import Inputs
from ortfuse.runtime.inputs.read_input_files import notes_of, read_inputs
from ortfuse.runtime.int8_kv_caches import Cache
from ortfuse.runtime.load_check import Loading
from ortfuse.runtime.reference_runs import experiments
from ortfuse.runtime.session import Arrays, Session, weight_bytes
from ortfuse.runtime.session_settings import hand_on
from ortfuse.serialization import Record, derived, entry
from ortfuse.targets import Target, TargetSpec, raise_opset, resolve_target

_AT_ALL, _EVERYWHERE = 13, 22
"""The opset from which on a Cast knows bfloat16, and that from which on nearly every operator does."""

INT8_CACHES = "int8-caches"

DRAWN = 8
"""How many sets of inputs of typical size are generated for caches of integers."""

FOR_BOUND = (400, 2.0, 16)
"""The same for a bound: so many at most, as many as the model runs in so many seconds, and so many at least."""


LARGE = {"float16": 0.01, "bfloat16": 0.05, INT8_CACHES: 0.05}
"""Errors from here on are warned of."""


@dataclass(frozen=True)
class Conversion(Record):
    """A model in half precision, or with caches of integers.

    Attributes:
        model: The model, of the same kind as the input (an `onnx_ir.Model` for a path).
        precision: Its type.
        islands: What computes in float32, with the reason of each; of caches of integers, what has others.
        operators: How many operators compute in half precision, or read caches of integers.
        casts: How many Casts were added.
        errors: For each output, but for caches of integers, the norm of its error in relation to its own, at its worst, or the
            share of its integers that are others; where a bound is to hold, what is to be expected on other inputs.
        emulated: Whether the errors come from a float32 model that rounds after every operator, as accelerators do and the CPU
            provider does not.
        bytes_before: The bytes of the weights.
        bytes_after: The same in the result.
        generated_ranges: Whether ranges were taken from generated inputs instead of the user's.
        notes: What was left out, in words.
        written: The file that it was written to.
        caches: The caches that are integers.
        token_bytes: What a token takes in these caches, in bytes: in float32, and now.
        integer_outputs: The outputs whose error is a share of elements, since they hold no floating-point numbers.
        errors_in_float32_order: The errors where TopK, ArgMax, ArgMin and NonMaxSuppression decide as in float32; empty
            if they do, or errors are small.
    """

    model: Any = field(repr=False, metadata=entry(omit=True))
    precision: str
    islands: Mapping[str, str]
    operators: int
    casts: int
    errors: Mapping[str, float]
    emulated: bool
    bytes_before: int
    bytes_after: int
    generated_ranges: bool
    notes: Sequence[str] = ()
    written: Path | None = None
    caches: Sequence[Cache] = ()
    token_bytes: tuple[int, int] | None = None
    integer_outputs: Sequence[str] = ()
    errors_in_float32_order: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        islands = len(self.islands)
        return f"<{type(self).__name__}: {self.precision}, {self.operators} operators, {islands} islands, error {self.error:.2g}>"

    @property
    def error(self) -> float:
        """The largest error of an output."""
        return max(self.errors.values(), default=0.0)

    @property
    @derived()
    def warnings(self) -> list[str]:
        """The largest error in words if it is large; first of those that another order does not explain."""
        name, error = _largest(self.errors_in_float32_order or self.errors)
        if error < LARGE[self.precision]:
            name, error = _largest(self.errors)
            if error < LARGE[self.precision]:
                return []
            least = _largest(self.errors_in_float32_order)[1]
            return [
                f"the error of '{name}' is {error_words(error)}, since near ties are decided otherwise; in the order of float32 "
                f"errors are {least:.2g} at most: see whether the order matters to you"
            ]
        size = f"{error:.2g}" if math.isfinite(error) else "without bounds"
        remedy = (
            "a bound (--max-error) leaves more operators in float32"
            if self.precision in TYPES
            else "a bound is --max-error"
        )
        return [
            f"the error of '{name}' is {size}, much for {self.precision}: {remedy}, and --inputs measures it on your data"
        ]


def _largest(errors: Mapping[str, float]) -> tuple[str, float]:
    """The output with the largest error, and that."""
    return max(errors.items(), key=lambda item: item[1], default=("", 0.0))


def convert(
    model: AnyModel,
    to: str = "float16",
    *,
    keep_io: bool = False,
    only: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    inputs: InputsLike | None = None,
    preprocess: PathLike | None = None,
    max_error: float | None = None,
    target: Target | TargetSpec | PathLike | None = None,
    seed: int = 0,
    output: PathLike | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Conversion:
    """Convert a float32 model to half precision.

    Operators that would overflow, lose their numbers or have no kernel stay in float32.

    With `to="int8-caches"`, the caches of keys and values that a decoder takes and gives become 8-bit integers, and nothing else.

    Args:
        model: A path, `onnx.ModelProto`, `onnx_ir.Model` or `onnx_graphsurgeon.Graph`; it is not changed.
        to: `"float16"`, `"bfloat16"` or `"int8-caches"`.
        keep_io: Whether inputs and outputs of the model stay float32; caches of integers do not.
        only: Patterns of what may be in half precision: names of nodes, operators, modules, classes or values of the model, with
            wildcards, such as `"op:MatMul"` or `"module:encoder.*"` (see `ortfuse.ir.selection`); by default everything.
        exclude: Patterns of what stays in float32.
        inputs: Sets of inputs by name, or the path of a file or folder of inputs, from which the ranges of values are taken; by
            default they are generated; or an object with `get_next()`, as ONNX Runtime's calibration takes it.
        preprocess: A TOML file that says how images become inputs; by default `preprocess.toml` beside them.
        max_error: The largest allowed error of an output: the norm of the difference in relation to the norm of the output.
        target: The runtime that has to have kernels: a target, a provider of the installed runtime or the path of a kernel table
            (`.json`); by default every operator may be half whose definition allows it.
        seed: Seed of generated inputs.
        output: The file that the result is written to.
        progress: Called with short messages about what is going on.

    Raises:
        OptionError: `to`, `keep_io` or `max_error` is not valid, or a pattern matches nothing.
        RewriteError: The model has no cache that can be integers.
        BoundError: The bound cannot be met; nothing was written.
        VerificationError: The model cannot be executed, or no error can be measured on its inputs.
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
    only, exclude = patterns_of(only), patterns_of(exclude)
    if to == INT8_CACHES and (only or exclude):
        raise OptionError("only" if only else "exclude", "goes with float16 and bfloat16")
    found = mark(inside, only, exclude)
    demand_matches("only", only, found, inside)
    demand_matches("exclude", exclude, found, inside)
    given: Any = Options(inputs=inputs, preprocess=preprocess).inputs
    if isinstance(given, str | os.PathLike):
        named = [value for value in inside.graph.inputs if value.name not in inside.graph.initializers]
        given = read_inputs(Path(given), named, preprocess)
    refuse_nan(given or ())
    with told_of_training(inside) as training:
        if to == INT8_CACHES:
            done = _with_int8_caches(inside, given, _target(target), seed, max_error, progress)
        else:
            done = _in_half(
                inside,
                to,
                keep_io,
                only,
                given,
                None if target is None else resolve_target(target),
                seed,
                max_error,
                progress,
            )
            unmark(done.model, only)
    hand_on(done.model.metadata_props, source.name)
    if to != "bfloat16":
        Loading.of_graph(done.model).demand()
    if output is not None:
        progress(f"writing {output}")
        save(done.model, output, source=source.path)
    written = None if output is None else Path(output)
    notes = [*notes_of(given), *training, *done.notes]
    return replace(done, model=leave(done.model, source), written=written, notes=notes)


def _in_half(
    model: ir.Model, to: str, keep_io: bool, only: Sequence[str], inputs: Sequence[Inputs] | None, target: Target | None,
    seed: int, max_error: float | None, progress: Callable[[str], None],
) -> Conversion:  # fmt: skip
    flat, raised = _flat(model, TYPES[to])
    progress("running the model")
    found, notes = experiments(flat, inputs, seed, reference=False)
    _demand_numbers((one.expected for one in found), are_given=inputs is not None)
    ran = [(one.inputs, one.expected) for one in found]
    # What the search for ranges is run on is of few sizes: a bound is to hold on others that are like those of a user.
    drawn = [] if max_error is None else ran if inputs is not None else _drawn(flat, seed)
    if TYPES[to] == ir.DataType.FLOAT16:
        clamp_attention_biases(flat)
    if target is not None:
        split_fused_convolutions(flat, TYPES[to], target)
    search = IslandSearch(flat, TYPES[to], keep_io, target, ran, drawn, progress)
    search.keep_what_is_not_selected(only)
    best = search.run(max_error)
    if max_error is not None:
        write_bound(best.model, Bound(metric_of("l2", tuple(best.errors)), max_error))
    order = search.order(best)
    return Conversion(
        best.model, to, search.islands(best.wide), search.count(best.wide), best.casts, best.errors, best.is_emulated,
        weight_bytes(model), weight_bytes(best.model), inputs is None, [*raised, *notes, *search.notes, *order.notes],
        integer_outputs=_counted(best.errors, found[0].expected), errors_in_float32_order=order.errors,
    )  # fmt: skip


def _drawn(model: ir.Model, seed: int, how_many: tuple[int, float, int] = FOR_BOUND) -> list[Run]:
    """Generated inputs of typical size, with what the model makes of them: as many as there is time for."""
    most, seconds, least = how_many
    seeds = range(seed * SEEDS_APART, seed * SEEDS_APART + most)
    return fresh_runs(Session(model, optimise=False), model, seeds, seconds, least)


def _with_int8_caches(
    model: ir.Model, inputs: Sequence[Inputs] | None, target: Target | None, seed: int, max_error: float | None,
    progress: Callable[[str], None],
) -> Conversion:  # fmt: skip
    progress("running the model")
    weak = inputs is None
    if inputs is not None:
        session = Session(model)
        ran = [(given, session.run(given)) for given in inputs]
    else:
        ran = _drawn(model, seed, (DRAWN, 0.0, DRAWN) if max_error is None else FOR_BOUND)
    _demand_numbers((outputs for _, outputs in ran), are_given=not weak)
    progress("observing keys and values")
    # Numbers on the others may lie outside of the range that is seen on these.
    made = in_int8(model, [given for given, _ in ran[: max(1, min(len(ran), 2 * DRAWN) // 2)]], target)
    progress("running the result")
    other, presents = Session(made.model), {one.present for one in made.caches}
    each: dict[str, list[float]] = {}
    for given, outputs in ran:
        for name, error in L2.each(outputs, in_float32(other.run(given), made.caches)).items():
            if name not in presents:
                each.setdefault(name, []).append(error)
    errors = {name: max(some) if max_error is None else limit_of_rounding(some) for name, some in each.items()}
    if max_error is not None:
        if not all(math.isfinite(error) and error <= max_error for error in errors.values()):
            raise BoundError(
                f"with caches of 8-bit integers the error is {error_words(max(errors.values()))}, more than {max_error:g}"
            )
        write_bound(made.model, Bound(metric_of("l2", tuple(errors)), max_error))
    return Conversion(
        made.model, INT8_CACHES, made.left, made.operators, 0, errors, False, weight_bytes(model),
        weight_bytes(made.model), weak, [ONE_SEQUENCE], None, made.caches, made.token_bytes,
        _counted(errors, ran[0][1]),
    )  # fmt: skip


def _counted(names: Iterable[str], outputs: Arrays) -> tuple[str, ...]:
    """The names of outputs that hold no floating-point numbers."""
    return tuple(name for name in names if not has_floats(outputs[name]))


def _target(given: Target | TargetSpec | PathLike | None) -> Target | None:
    """The target that is meant; `None` if none is given."""
    return None if given is None else resolve_target(given)


def _flat(model: ir.Model, half: ir.DataType) -> tuple[ir.Model, list[str]]:
    """A copy without functions, whose constants are initializers, at an opset that has the type; and notes.

    Raises:
        TargetError: The model cannot be raised to an opset that has the type at all.
        RewriteError: Its functions cannot be put in the place of their calls.
    """
    notes: list[str] = []
    mark_called(model)
    copy = without_functions(model) if model.functions else model.clone()
    if copy is None:
        if reason := beyond(expanded_nodes(model)):
            raise RewriteError(f"functions must be inlined before types are changed, but {reason}")
        raise RewriteError(
            "a function of the model takes a graph, or has an operator that is another one in the opset of the model; "
            "convert functions to the opset of the model first, or inline them"
        )
    opset = copy.graph.opset_imports.get("", 1)
    wanted = _EVERYWHERE if half == ir.DataType.BFLOAT16 else OPSET
    if opset < wanted:
        try:
            raise_opset(copy, wanted)
        except TargetError as error:
            why = str(error).partition(";")[0]
            if half == ir.DataType.FLOAT16:
                notes.append(f"single operators are not emulated at opset {opset}, the outputs alone tell: {why}")
            elif opset < _AT_ALL:
                raise TargetError(f"bfloat16 needs opset {_AT_ALL}: {why}; export it anew, or take float16") from error
            else:
                notes.append(f"operators that are not defined for bfloat16 at opset {opset} stay float32: {why}")
    flat = LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy).model
    merge_equal_weights(flat)
    return flat, notes


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
