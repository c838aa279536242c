"""Compute int64 numbers of tensors in int32, for which WebGPU has kernels, where they provably fit.

a < b = int32(a) < int32(b)                         also >, <=, >= and ==
float(a) = float(int32(a))                          also of truth values
int32(min(a, b)) = min(int32(a), int32(b))          also of max and clip
int32(|a|) = max(int32(a), -int32(a))               int32(sign(a)) = clip(int32(a), -1, 1)
int32(a / b) = int32(a) / int32(b)          b > 0
int32(a mod b) = where(r < 0, r + b, r)          r = int32(a) - (int32(a) / b) b, b > 0
int32(range(a, b, c)) = range(int32(a), int32(b), int32(c))
int32(int64(x)) = int32(x)                          x floats within int32, after truncation
int32(argmax(x)) = min(where(x = max(x), range(n), n))
gather_nd(x, i) = gather_nd(x, int64(int32(i)))     also of positions in RotaryEmbedding

*Requires:* ranges within int32, as `ortfuse.targets.webgpu.index_ranges` finds them, and elements of tensors. Indices fit in
each run that succeeds, since axes are shorter.

*Does not handle:* ArgMax of numbers that may be NaN; what inputs of int64 hold, which may be anything.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, all_attributes, attr, built, computed, ms, op, var
from ortfuse.targets.webgpu.index_ranges import INDEX_RANGE, counts_in_int32, fits_int32, has_elements

LONG, SHORT = ir.DataType.INT64, ir.DataType.INT32
_ROTARY = all_attributes("rotary")
_WIDENED_FROM = (ir.DataType.INT32, ir.DataType.BOOL)

a, b, low, high, step, data, indices = (var(name) for name in ("a", "b", "low", "high", "step", "data", "indices"))
x, cos, sin = (var(name) for name in ("x", "cos", "sin"))


def _narrow(value: Pattern) -> Pattern:
    made: Pattern = op.Cast(value, to=SHORT)
    return made


def fit(*names: str) -> Guard:
    """The numbers are int64 and within int32, and some are elements of tensors."""

    def are_narrow(match: Match) -> Refusal | None:
        found = [match[name] for name in names]
        for name, value in zip(names, found, strict=True):
            if (refused := match.unless_dtype(name, LONG)) is not None:
                return refused
            if not fits_int32(match.facts, value):
                return match.refuse("value", name, "provably within int32", "any int64")
        if not any(has_elements(match.facts, value) for value in found):
            return match.refuse("needless", "root", found="it reads sizes and inputs alone")
        return None

    return are_narrow


def is_range_of_elements(match: Match) -> Refusal | None:
    """The Range counts upwards in int64, and its start, its limit and all numbers are within int32."""
    if (refused := match.unless_dtype("numbers", LONG)) is not None:
        return refused
    operands = [match[name] for name in ("low", "high", "step", "numbers")]
    if not counts_in_int32(match.facts, *operands):
        return match.refuse("value", "root", "provably within int32", "any int64")
    if not has_elements(match.facts, match["numbers"]):
        return match.refuse("needless", "root", found="it reads sizes alone")
    return None


def fits_after_truncation(match: Match) -> Refusal | None:
    """The numbers are floats within int32."""
    dtype = match.dtype("a")
    if dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        return match.refuse("dtype", "a", "float32 or float16")
    fits = fits_int32(match.facts, match["a"], as_integer=True)
    return None if fits else match.refuse("value", "a", "provably within int32", "any number")


def is_positive(match: Match) -> Refusal | None:
    """The divisor is a constant of positive numbers within int32."""
    found = match.facts.const(match["b"])
    fits = found is not None and bool(((found > 0) & (found <= np.iinfo(np.int32).max)).all())
    return match.unless_value("b", fits, "a constant of positive numbers within int32")


def is_of_floor(match: Match) -> Refusal | None:
    """The remainder has the sign of the divisor."""
    return match.refuse("attribute", "fmod", 0) if match["fmod"] else None


def is_int32(match: Match) -> Refusal | None:
    """The numbers are int32."""
    return match.unless_dtype("a", SHORT)


def are_indices_in_int64(match: Match) -> Refusal | None:
    """The indices are computed in int64, of elements of tensors."""
    if (refused := match.unless_dtype("indices", LONG)) is not None:
        return refused
    node = match["indices"].producer()
    if node is None or not has_elements(match.facts, match["indices"]):
        return match.refuse("needless", "indices", found="sizes and inputs alone")
    if node.op_type == "TopK":
        return match.refuse("needless", "indices", found="those of TopK, which the GPU makes so")
    if node.op_type == "Cast" and match.facts.dtype(node.inputs[0]) in _WIDENED_FROM:
        return match.refuse("needless", "indices", found="already of int32")
    return None


def takes_first_of_numbers(match: Match) -> Refusal | None:
    """The first largest number is taken, and none is NaN."""
    if match["last"]:
        return match.refuse("attribute", "last", 0)
    dtype = match.dtype("data")
    if dtype == SHORT:
        return None
    if dtype != ir.DataType.FLOAT:
        return match.refuse("dtype", "data", "int32 or float32")
    found = match.facts.range(match["data"])
    return None if found is not None and not found.nan else match.refuse("value", "data", "never NaN", "any number")


def has_known_rank(match: Match) -> Refusal | None:
    """The rank is known."""
    return match.refuse("rank", "data", "a known one") if not match.rank("data") else None


def _first_largest(match: Match) -> Pattern:
    rank = match.rank("data")
    assert rank
    axis = (match["axis"] or 0) % rank
    # The Cast comes last: shape inference takes an int32 size behind a Squeeze for int64, and refuses the Range.
    size = _narrow(op.Squeeze(op.Shape(data, start=axis, end=axis + 1), axes=(0,)))
    zero, one = (computed(name, functools.partial(_int32, number)) for number, name in enumerate(("first", "step")))
    positions = op.Range(zero, size, one)
    if axis < rank - 1:
        positions = op.Unsqueeze(positions, axes=tuple(range(1, rank - axis)))
    is_largest = op.Equal(data, op.ReduceMax(data, axes=(axis,), keepdims=1))
    kept = 1 if match["keepdims"] is None else int(match["keepdims"])
    made: Pattern = op.ReduceMin(op.Where(is_largest, positions, size), axes=(axis,), keepdims=kept)
    return made


def _remainder(match: Match) -> Pattern:
    """The remainder, which has the sign of the positive divisor."""
    numbers, divisor = (value if match.dtype("a") == SHORT else _narrow(value) for value in (a, b))
    cut = op.Sub(numbers, op.Mul(op.Div(numbers, divisor), divisor))
    found = match.facts.answering(INDEX_RANGE)(match["a"])
    if found is not None and found.low >= 0:
        return cut
    made: Pattern = op.Where(op.Less(cut, zero), op.Add(cut, divisor), cut)
    return made


def _int32(number: int, match: Match) -> Any:
    return np.int32(number)


def _compared(first: Pattern, second: Pattern) -> Pattern:
    kinds = [op.Less, op.LessOrEqual, op.Greater, op.GreaterOrEqual, op.Equal]
    found: Pattern = functools.reduce(operator.or_, [kind(first, second) for kind in kinds])
    return found.named("compared")


def _rows(build: Any) -> ir.Value:
    """The number of rows of an input."""
    size = build.node("Shape", [build.input("like", ["b", 3])]).outputs[0]
    made: ir.Value = build.node("Gather", [size, build.constant(np.array(0, np.int64))]).outputs[0]
    return made


def _index_rule(
    name: str, pattern: Pattern, replace: Any, guards: tuple[Guard, ...], test: RuleTest, source: str = ""
) -> Rule:
    return Rule(
        name=f"index_arithmetic.{name}",
        is_refinement=True,
        pattern=pattern,
        replace=replace,
        guards=guards,
        exactness=Exactness.EXACT,
        source=source or "ONNX operator Cast",
        test=test,
    )


def _floats(build: Any) -> ir.Value:
    """Numbers between -5.5 and 7.5."""
    given = build.input("floats", build.dims("a"), ir.DataType.FLOAT)
    ends = [build.constant(np.array(number, np.float32)) for number in (-5.5, 7.5)]
    made: ir.Value = build.node("Clip", [given, *ends]).outputs[0]
    return made


def _numbers(name: str) -> Any:
    """Numbers of int32, as int64."""

    def make(build: Any) -> ir.Value:
        given = build.input(f"short_{name}", build.dims(name), SHORT)
        made: ir.Value = build.node("Cast", [given], {"to": int(LONG)}).outputs[0]
        return made

    return make


def _int64(number: int) -> Any:
    return lambda build: build.constant(np.array(number, np.int64))


def _some_indices(build: Any) -> ir.Value:
    """Indices 0 and 1, computed of truth values."""
    value = build.input("flags", build.dims("indices"), ir.DataType.BOOL)
    wide = build.node("Cast", [value], {"to": int(LONG)}).outputs[0]
    made: ir.Value = build.node("Neg", [build.node("Neg", [wide]).outputs[0]]).outputs[0]
    return made


_CAST_TO = {"to": [int(kind) for kind in (ir.DataType.FLOAT, ir.DataType.BOOL)]}
_ALL = RuleTest(shapes={"a": "b 4", "b": "b 4"}, inputs={"a": _numbers("a"), "b": _numbers("b")}, dtypes=("int64",))
_ONE = RuleTest(shapes={"a": "b 4"}, inputs={"a": _numbers("a")}, dtypes=("int64",))
_ENDS = RuleTest(
    shapes={"a": "b 4", "low": "", "high": ""},
    inputs={"a": _numbers("a"), "low": _int64(-2), "high": _int64(3)},
    dtypes=("int64",),
)
_DIVIDED = RuleTest(shapes={"a": "b 4", "b": ""}, inputs={"a": _numbers("a"), "b": _int64(5)}, dtypes=("int64",))
_MADE_OF_MOD = ("Cast", "Sub", "Mul", "Div", "Where", "Less", "Add")
zero = computed("zero", lambda match: np.int32(0))
least, most = computed("least", lambda match: np.int32(-1)), computed("most", lambda match: np.int32(1))

RULES = [
    _index_rule("compare_in_int32", _compared(a, b), _compared(_narrow(a), _narrow(b)), (fit("a", "b"),), _ALL),
    _index_rule(
        "cast_from_int32",
        op.Cast(a, to=attr("to", lambda to, facts: to in _CAST_TO["to"], "float32 or bool")),
        op.Cast(_narrow(a), to=attr("to")),
        (fit("a"),),
        RuleTest(shapes={"a": "b 4"}, inputs={"a": _numbers("a")}, attributes=_CAST_TO, dtypes=("int64",)),
    ),
    _index_rule(
        "narrow_min_to_int32",
        op.Cast(op.Min(a, b).kept(), to=SHORT),
        op.Min(_narrow(a), _narrow(b)),
        (fit("a", "b"),),
        _ALL,
    ),
    _index_rule(
        "narrow_max_to_int32",
        op.Cast(op.Max(a, b).kept(), to=SHORT),
        op.Max(_narrow(a), _narrow(b)),
        (fit("a", "b"),),
        _ALL,
    ),
    _index_rule(
        "narrow_clip_to_int32",
        op.Cast(op.Clip(a, low, high).kept(), to=SHORT),
        op.Clip(_narrow(a), _narrow(low), _narrow(high)),
        (fit("a", "low", "high"),),
        _ENDS,
    ),
    _index_rule(
        "narrow_abs_to_int32",
        op.Cast(op.Abs(a).kept(), to=SHORT),
        op.Max(_narrow(a), op.Sub(zero, _narrow(a))),
        (fit("a"),),
        _ONE,
    ),
    _index_rule(
        "narrow_sign_to_int32",
        op.Cast(op.Sign(a).kept(), to=SHORT),
        op.Clip(_narrow(a), least, most),
        (fit("a"),),
        _ONE,
    ),
    _index_rule(
        "narrow_div_to_int32",
        op.Cast(op.Div(a, b).kept(), to=SHORT),
        op.Div(_narrow(a), _narrow(b)),
        (fit("a"), is_positive),
        _DIVIDED,
        "ONNX operator Div",
    ),
    _index_rule(
        "narrow_mod_to_int32",
        op.Cast(op.Mod(a, b, fmod=attr("fmod")).kept(), to=SHORT),
        built(_remainder, makes=_MADE_OF_MOD),
        (fit("a"), is_positive, is_of_floor),
        dataclasses.replace(_DIVIDED, attributes={"fmod": [0, None]}),
        "ONNX operator Mod",
    ),
    _index_rule(
        "mod_of_int32",
        op.Mod(a, b, fmod=attr("fmod")),
        built(_remainder, makes=_MADE_OF_MOD),
        (is_int32, is_positive, is_of_floor),
        RuleTest(
            shapes={"a": "b 4", "b": ""},
            constants={"b": np.int32(5)},
            attributes={"fmod": [0, None]},
            dtypes=("int32",),
        ),
        "ONNX operator Mod",
    ),
    _index_rule(
        "narrow_range_to_int32",
        op.Cast(op.Range(low, high, step).kept().named("numbers"), to=SHORT),
        op.Range(_narrow(low), _narrow(high), _narrow(step)),
        (is_range_of_elements,),
        RuleTest(
            shapes={"low": "", "high": "", "step": ""},
            inputs={"low": _int64(-3), "high": _rows, "step": _int64(2)},
            dtypes=("int64",),
        ),
    ),
    _index_rule(
        "cast_floats_to_int32_at_once",
        op.Cast(op.Cast(a, to=LONG).kept(), to=SHORT),
        _narrow(a),
        (fits_after_truncation,),
        RuleTest(shapes={"a": "b 4"}, inputs={"a": _floats}),
    ),
    _index_rule(
        "arg_max_to_int32",
        op.Cast(
            op.ArgMax(data, axis=attr("axis"), keepdims=attr("keepdims"), select_last_index=attr("last")).kept(),
            to=SHORT,
        ),
        built(
            _first_largest,
            makes=("Cast", "Shape", "Squeeze", "Range", "Unsqueeze", "Equal", "ReduceMax", "Where", "ReduceMin"),
        ),
        (has_known_rank, takes_first_of_numbers),
        RuleTest(
            shapes={"data": "b 4 3"},
            dtypes=("int32",),
            attributes={"axis": [1, -1, None], "keepdims": [0, 1, None], "last": [0]},
            never_empty={"*": "nothing has no largest number"},
        ),
        "ONNX operator ArgMax",
    ),
    _index_rule(
        "gather_nd_of_int32",
        op.GatherND(data, indices, batch_dims=attr("batch")),
        op.GatherND(data, op.Cast(_narrow(indices), to=LONG), batch_dims=attr("batch")),
        (are_indices_in_int64,),
        RuleTest(
            shapes={"data": "2 3 4", "indices": "2 1"}, inputs={"indices": _some_indices}, attributes={"batch": [0, 1]}
        ),
        "ONNX operator GatherND",
    ),
    _index_rule(
        "rotary_embedding_of_int32_positions",
        ms.RotaryEmbedding(x, indices, cos, sin, attributes=_ROTARY),
        ms.RotaryEmbedding(x, op.Cast(_narrow(indices), to=LONG), cos, sin, attributes=_ROTARY),
        (are_indices_in_int64,),
        RuleTest(
            shapes={"x": "2 3 32", "indices": "2 3", "cos": "9 8", "sin": "9 8"},
            inputs={"indices": _some_indices},
            attributes={"rotary": [{"num_heads": 2, "interleaved": number} for number in (0, 1)]},
        ),
        "com.microsoft operators of ONNX Runtime",
    ),
]
