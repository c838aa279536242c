"""Make rules of the table of algebra: one identity is one line, from which pattern, guards, replacement and rule test follow.

    identity("add_of_neg", "x + -y -> x - y", EXACT)

The rule test is generated: shapes with and without broadcasting and without axes, and numbers that fulfil the condition.
Counterexamples are numbers that do not, and every pair of special numbers (NaN, infinities, zeros of both signs); near misses
have integers at the ends of their type.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match
from ortfuse.rewrite.rule import Replacement

from ._conditions import Conditions, Interval
from ._formula import ARRAYS, BOOLEANS, NUMBERS, TYPES, VALUES, Formula

SOURCE = "ONNX operator specification"


class Same(enum.Enum):
    """The exactness of an identity: how far both of its sides agree."""

    BITS = "the same bits"
    BUT_ZEROS = "the same numbers; a zero may have the other sign"
    ROUNDED = "the same but for rounding"


EXACT, BUT_ZEROS, ROUNDED = Same.BITS, Same.BUT_ZEROS, Same.ROUNDED


class Types(enum.Enum):
    """The element types that an identity holds for."""

    ANY = "any type that the operators take"
    FLOATS = "floating-point numbers"
    INTEGERS = "integers"


ANY, FLOATS, INTEGERS = Types.ANY, Types.FLOATS, Types.INTEGERS

_OF_FLOATS = {
    "Ceil", "Cos", "Erf", "Exp", "Floor", "IsNaN", "Log", "Reciprocal", "Round", "Sigmoid", "Sin", "Softplus", "Sqrt", "Tanh",
}  # fmt: skip
"""The operators that take floating-point numbers alone."""

_TESTS = {field.name for field in dataclasses.fields(RuleTest)}

DECLARED: dict[str, Same] = {}
"""How far both sides of each identity are the same, by the name of its rule: more than a rule's exactness says."""

SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.0, 0.25, 3.0)
"""The numbers of which every pair is tried."""


def identity(
    name: str,
    text: str,
    same: Same,
    types: Types = ANY,
    when: str = "",
    *,
    each: Sequence[Mapping[str, str]] = ({},),
    chain: bool = False,
    examples: Mapping[str, Sequence[Any]] | None = None,
    written: Replacement | None = None,
    **more: Any,
) -> list[Rule]:
    """The rules of one line of the table.

    Args:
        name: The name of the rule, of the family `algebra` if it names no other.
        text: The identity (see `_formula`).
        same: How far both sides are the same.
        types: The element types that it holds for.
        when: The condition under which it holds (see `_conditions`).
        each: What braces in the name, the identity and the condition stand for, if several identities have one form.
        chain: See `Formula`.
        examples: What the captured numbers and element types are in the rule test, if not those that the condition leaves.
        written: The replacement, if the right side cannot be written as an expression.
        more: Further fields of `Rule`, or of its rule test.
    """
    rules = []
    for one in each:
        formula, condition = Formula(_filled(text, one), chain=chain), Conditions(_filled(when, one))
        guards = _guards(formula, types, condition, drops=written is None)
        examples_of = _Examples(formula, types, condition, examples or {})
        tests = {key: value for key, value in more.items() if key in _TESTS}
        made = _filled(name, one)
        full_name = made if "." in made else f"algebra.{made}"
        DECLARED[full_name] = same
        rules.append(
            Rule(
                name=full_name,
                formula=str(formula),
                pattern=formula.pattern,
                replace=formula.replacement if written is None else written,
                guards=guards,
                exactness=Exactness.EXACT if same is Same.BITS else Exactness.ROUNDING,
                test=examples_of.rule_test(tests),
                **{"source": SOURCE, **{key: value for key, value in more.items() if key not in tests}},
            )
        )
    return rules


def named(*names: str) -> list[dict[str, str]]:
    """Return the words for `{f}` in each of several identities: a function, which is the name too."""
    return [{"f": name} for name in names]


def _filled(text: str, words: Mapping[str, str]) -> str:
    return text.format(**words) if words else text


def _guards(formula: Formula, types: Types, condition: Conditions, *, drops: bool) -> tuple[Guard, ...]:
    """Return the guards: of element types, of the condition, and that values left out add no axes."""
    of_floats = types is FLOATS and bool(formula.operators & _OF_FLOATS)
    typed = () if types is ANY or of_floats else (_of_type(types, formula),)
    left_out = drops and not set(formula.tensors) <= formula.read
    return (*typed, *condition.guards, *((_keeps_axes(formula),) if left_out else ()))


def _of_type(types: Types, formula: Formula) -> Guard:
    """The guard that the values are of these types."""
    floats, name = types is FLOATS, next(name for name in formula.names if name[0] in VALUES)

    def is_of_type(match: Match) -> Refusal | None:
        dtype = match.dtype(name)
        known = dtype is not None and (dtype.is_floating_point() if floats else dtype.is_integer())
        return None if known else match.refuse("dtype", name, types.value)

    is_of_type.__doc__ = f"{name} is of {types.value}."
    return is_of_type


def _keeps_axes(formula: Formula) -> Guard:
    """The guard that no value that is left out makes the result larger."""
    names = [name for name in formula.tensors if name in formula.read] or formula.tensors[:1]

    def keeps_axes(match: Match) -> Refusal | None:
        found = match.shapes("root", *names)
        if isinstance(found, Refusal):
            return found
        whole, *shapes = (shape[::-1] for shape in found)
        covered = all(
            (dim == 1 and len(whole) == max(map(len, shapes)))
            or any(axis < len(shape) and shape[axis] == dim for shape in shapes)
            for axis, dim in enumerate(whole)
        )
        return None if covered else match.refuse("shape", names[0], found[0])

    keeps_axes.__doc__ = f"The result is no larger than {' and '.join(names)}."
    return keeps_axes


class _Examples:
    """The instances and near misses of an identity."""

    def __init__(
        self, formula: Formula, types: Types, conditions: Conditions, given: Mapping[str, Sequence[Any]]
    ) -> None:
        self._formula, self._types, self._conditions, self._given = formula, types, conditions, given
        self._values = [name for name in formula.tensors if name[0] in VALUES]
        self._intervals = {name: found for name in self._values if (found := conditions.interval(name)) is not None}

    def rule_test(self, more: Mapping[str, Any]) -> RuleTest:
        """The declaration from which the rule is tested."""
        captured = [name for name in self._formula.names if name[0] in NUMBERS]
        numbers = {name: self._numbers(name)[0] for name in captured}
        whole = self._conditions.calls("finite")
        makers = {name: _maker(name, found, whole) for name, found in self._intervals.items()}
        return RuleTest(
            shapes=self._shapes(),
            inputs={**makers, **self._elements()},
            constants={name: [_filling(name)] * 3 for name in self._formula.tensors if name.startswith("fill")},
            scalars=numbers,
            attributes={**numbers, **{name: self._given[name] for name in self._formula.names if name[0] in TYPES}},
            counterexamples=self._counterexamples(captured),
            **more,
        )

    def _numbers(self, name: str) -> tuple[Sequence[Any], Sequence[Any]]:
        right, wrong = self._conditions.numbers(name)
        return self._given.get(name, right), () if name in self._given else wrong

    def _shapes(self) -> Sequence[Mapping[str, str]]:
        """With and without broadcasting, or without axes."""
        tensors, arrays = self._formula.tensors, [name for name in self._formula.names if name[0] in ARRAYS]
        whole = dict.fromkeys(tensors, "b 3") | dict.fromkeys(arrays, "3")
        whole |= {name: "3" for name in tensors if name.startswith("fill")}
        if len(tensors) == 1:
            return (whole,) if arrays or self._formula.chain else (whole, {tensors[0]: ""})
        left_out = [name for name in tensors if name not in self._formula.read]
        if self._conditions.calls("shaped_like_result") or (
            tensors[-1] in self._formula.read and len(self._formula.read) == 1
        ):
            return (whole, whole | {left_out[-1]: "3"}) if left_out else (whole,)
        smaller = whole | {(left_out or tensors)[-1]: "3"}
        return (whole,) if smaller == whole else (whole, smaller)

    def _elements(self) -> Mapping[str, str]:
        found = dict.fromkeys(self._values, "int64") if self._types is INTEGERS else {}
        return found | {name: "bool" for name in self._formula.tensors if name[0] in BOOLEANS}

    def _counterexamples(self, captured: Sequence[str]) -> Mapping[str, Variation]:
        found = {}
        floats = self._types is not INTEGERS and bool(self._values)
        if floats:
            if not self._conditions.calls("finite"):
                found["special numbers"] = self._special(self._formula.tensors, {})
            if self._intervals:
                found["of any numbers"] = self._special(
                    self._formula.tensors, dict.fromkeys(self._intervals, "float32")
                )
        for name in captured:
            for wrong in self._numbers(name)[1]:
                found[f"{name} is {wrong:g}"] = Variation(scalars={name: wrong}, attributes={name: wrong})
        return found

    def _special(self, tensors: Sequence[str], inputs: Mapping[str, str]) -> Variation:
        """Every pair of special numbers, of booleans both, in values of one shape."""
        names = [name for name in tensors if not name.startswith("fill")]
        columns = _every_combination("".join("p" if name[0] in BOOLEANS else "x" for name in names))
        sources = [f"numbers_{name}" if name in self._intervals and name not in inputs else name for name in names]
        fixed = dict(zip(sources, columns, strict=True))
        return Variation(inputs=inputs, sizes={"b": len(columns[0])}, fixed=fixed)


@functools.cache
def _every_combination(kinds: str) -> list[np.ndarray[Any, Any]]:
    """Every combination of special numbers (`x`) and booleans (`p`), as matrices with three columns."""
    rows = list(itertools.product(*((True, False) if kind == "p" else SPECIAL for kind in kinds)))
    rows += rows[: -len(rows) % 3]
    types = [np.bool_ if kind == "p" else np.float32 for kind in kinds]
    return [
        np.array(column, dtype).reshape(-1, 3) for column, dtype in zip(zip(*rows, strict=True), types, strict=True)
    ]


def _filling(name: str) -> float | bool:
    text = name.removeprefix("fill_")
    return text == "True" if text in ("True", "False") else float(text.replace("m", "-"))


def _maker(name: str, interval: Interval, whole: bool) -> Callable[[Any], ir.Value]:
    """Numbers of an interval, some of them equal to its ends; `whole` ones are never NaN."""

    def made(build: Any) -> ir.Value:
        numbers = build.input(f"numbers_{name}", build.dims(name), ir.DataType.INT64 if whole else None)
        if whole:
            numbers = build.node("Cast", [numbers], {"to": build.dtype.value}).outputs[0]
        clipped: ir.Value = build.node("Clip", [numbers, *map(build.constant, interval)]).outputs[0]
        return clipped

    return made
