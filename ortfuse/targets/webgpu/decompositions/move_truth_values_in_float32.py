"""Move truth values that the GPU makes as float32, where WebGPU moves no truth values.

move(a) = bool(move(float(a)))          move: Slice, Transpose, Concat, ScatterND and others

*Requires:* truth values of comparisons that the GPU makes. Those of inputs and sizes are on the processor, and stay there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, all_attributes, built, op, opt, rest, var
from ortfuse.targets.webgpu.index_ranges import MOST_NODES, has_elements

TRUTH, FLOAT = ir.DataType.BOOL, ir.DataType.FLOAT
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.INT32, ir.DataType.UINT32)

_HOW = all_attributes("how")
a, updates = var("a"), var("updates")
starts, ends, axes, steps, indices, sizes = (
    var(name) for name in ("starts", "ends", "axes", "steps", "indices", "sizes")
)


def _is_made_by_gpu(facts: Facts, value: ir.Value) -> bool:
    """Whether truth values are of numbers that the GPU makes."""
    stack, seen = [value], set[ir.Value]()
    while stack and len(seen) < MOST_NODES:
        one = stack.pop()
        node = one.producer()
        if node is None or one in seen:
            continue
        seen.add(one)
        for given in node.inputs:
            kind = None if given is None else facts.dtype(given)
            if given is None or facts.const(given) is not None:
                continue
            if kind in _FLOATS or (kind == ir.DataType.INT64 and _tells_truth(node) and has_elements(facts, given)):
                return True
            if kind == TRUTH:
                stack.append(given)
    return False


def _tells_truth(node: ir.Node) -> bool:
    """Whether a node makes truth values of numbers, rather than moves some by them."""
    return node.op_type in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Cast")


def are_truth_values(match: Match) -> Refusal | None:
    """Truth values that the GPU makes are moved."""
    parts = match["parts"] if match.get("parts") is not None else [match["a"]]
    kinds = {match.facts.dtype(part) for part in parts}
    if kinds != {TRUTH}:
        return match.refuse("dtype", "root", TRUTH, kinds)
    if not any(_is_made_by_gpu(match.facts, part) for part in parts):
        return match.refuse("needless", "root", found="inputs and sizes alone tell them")
    return None


def _as_floats(value: Pattern) -> Pattern:
    made: Pattern = op.Cast(value, to=FLOAT)
    return made


def _concat(match: Match) -> Pattern:
    parts = [match.capture(f"part{index}", part) for index, part in enumerate(match["parts"])]
    made: Pattern = op.Cast(op.Concat(*map(_as_floats, parts), attributes=_HOW), to=TRUTH)
    return made


def _moves(of: Pattern, more: Pattern) -> dict[str, Any]:
    """Each operator that moves truth values; `more` are written over some of them."""
    return {
        "slice": op.Slice(of, starts, ends, opt(axes), opt(steps)),
        "transpose": op.Transpose(of, attributes=_HOW),
        "squeeze": op.Squeeze(of, opt(axes), attributes=_HOW),
        "tile": op.Tile(of, sizes),
        "gather_elements": op.GatherElements(of, indices, attributes=_HOW),
        "gather_nd": op.GatherND(of, indices, attributes=_HOW),
        "scatter_nd": op.ScatterND(of, indices, more, attributes=_HOW),
        "scatter_elements": op.ScatterElements(of, indices, more, attributes=_HOW),
    }


def _compared(name: str) -> Any:
    """Truth values of numbers."""

    def make(build: Any) -> ir.Value:
        given = build.input(f"numbers_{name}", build.dims(name), FLOAT)
        made: ir.Value = build.node("Greater", [given, build.constant(np.float32(0))]).outputs[0]
        return made

    return make


def _both(build: Any) -> list[ir.Value]:
    return [_compared("first")(build), _compared("second")(build)]


def _int64(*numbers: Any) -> Any:
    return lambda build: build.constant(np.array(numbers, np.int64))


_TESTS: dict[str, dict[str, Any]] = {
    "slice": {
        "inputs": {"starts": _int64(1), "ends": _int64(3), "axes": _int64(1), "steps": _int64(1)},
        "shapes": {"starts": "1", "ends": "1", "axes": "1", "steps": "1"},
    },
    "transpose": {"attributes": {"how": [{"perm": (1, 0, 2)}, {}]}},
    "squeeze": {"inputs": {"axes": _int64(1)}, "shapes": {"a": "b 1 3", "axes": "1"}, "attributes": {"how": [{}]}},
    "tile": {"inputs": {"sizes": _int64(1, 2, 1)}, "shapes": {"sizes": "3"}},
    "gather_elements": {
        "inputs": {"indices": _int64([[0, 1, 1]], [[1, 0, 1]])}, "shapes": {"a": "2 2 3", "indices": "2 1 3"},
        "attributes": {"how": [{"axis": 1}]},
    },
    "gather_nd": {
        "inputs": {"indices": _int64([0, 1], [1, 0])}, "shapes": {"a": "2 2 3", "indices": "2 2"},
        "attributes": {"how": [{}, {"batch_dims": 1}]},
    },
    "scatter_nd": {
        "inputs": {"indices": _int64([1], [0]), "updates": _compared("updates")},
        "shapes": {"a": "2 2 3", "indices": "2 1", "updates": "2 2 3"}, "attributes": {"how": [{}]},
    },
    "scatter_elements": {
        "inputs": {"indices": _int64([[0, 1, 1]], [[1, 0, 1]]), "updates": _compared("updates")},
        "shapes": {"a": "2 2 3", "indices": "2 1 3", "updates": "2 1 3"}, "attributes": {"how": [{"axis": 1}]},
    },
}  # fmt: skip


def _rule(name: str) -> Rule:
    test = _TESTS[name]
    return Rule(
        name=f"truth_values.move_by_{name}_in_float32",
        is_refinement=True,
        pattern=_moves(a, updates)[name],
        replace=op.Cast(_moves(_as_floats(a), _as_floats(updates))[name], to=TRUTH),
        guards=(are_truth_values,),
        exactness=Exactness.EXACT,
        source="ONNX operators",
        test=RuleTest(
            shapes={"a": "b 2 3", **test.get("shapes", {})},
            inputs={"a": _compared("a"), **test.get("inputs", {})},
            attributes=test.get("attributes", {}),
        ),
    )


RULES = [
    *map(_rule, _TESTS),
    Rule(
        name="truth_values.concat_in_float32",
        formula="concat(parts)",
        is_refinement=True,
        pattern=op.Concat(rest("parts"), attributes=_HOW),
        replace=built(_concat, makes=("Concat", "Cast")),
        guards=(are_truth_values,),
        exactness=Exactness.EXACT,
        source="ONNX operator Concat",
        test=RuleTest(
            shapes={"first": "b 3", "second": "b 2"}, inputs={"parts": _both}, attributes={"how": [{"axis": 1}]},
            assumes={f"numbers_{name} *": "ONNX demands one size along other axes" for name in ("first", "second")},
        ),
    ),
]  # fmt: skip
