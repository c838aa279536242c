"""Sum as Add, which patterns read in any order and nesting.

sum(a, b) = a + b
sum(a, b, c, ...) = (a + b) + c + ...      of branches that may become one convolution

AddN of TensorFlow and the sums of Caffe and MXNet come as Sum. That of more operands is one node less in other places, and stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ortfuse.pattern import Match, Pattern, op, redundant, rest
from ortfuse.refusal import Refusal
from ortfuse.rewrite import RULE_KEY, Exactness, Proof, Rule

from .._proofs import COST

_BRANCHES = ("Conv", "ConvTranspose", "BatchNormalization")


def _is_branch(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type in _BRANCHES


@redundant(COST)
def is_of_two_or_of_branches(match: Match) -> Refusal | None:
    """There are two operands, or more of which two are branches that may become one."""
    parts = match["parts"]
    if len(parts) == 2 or (len(parts) > 2 and sum(map(_is_branch, parts)) > 1):
        return None
    return match.refuse("needless", "root", found="it is one node for several sums")


@redundant(COST)
def was_there_before(match: Match) -> Refusal | None:
    """No rule has written it, in place of an Add that the runtime would merge with something."""
    rule = match.root.producer().metadata_props.get(RULE_KEY)  # type: ignore[union-attr]
    return None if rule is None else match.refuse("needless", "root", found=f"{rule} made it")


def _added(match: Match) -> Pattern:
    parts = [match.capture(f"part{number}", part) for number, part in enumerate(match["parts"])]
    made: Pattern = op.Add(*parts[:2])
    for part in parts[2:]:
        made = op.Add(made, part)
    return made


def _parts(build: Any) -> Sequence[ir.Value]:
    """Two operands of different ranks, or three of which two are branches."""
    x = build.input("x", build.dims("x"))
    if build.chooser.pick("operands", ("two", "three")) == 0:
        return [x, build.input("y", build.dims("x")[1:])]
    weight = build.constant(build.numbers.standard_normal((3, 3, 1, 1)))
    return [build.node("Conv", [x, weight]).outputs[0], x, build.node("Conv", [x, weight]).outputs[0]]


RULES = [
    Rule(
        name="sums.added",
        formula="Sum(x, y, ...)",
        pattern=op.Sum(rest("parts")),
        replace=_added,
        makes=("Add",),
        guards=(is_of_two_or_of_branches, was_there_before),
        exactness=Exactness.EXACT,
        source="ONNX operator Sum",
        proof=Proof(shapes={"x": "n 3 4 5"}, inputs={"parts": _parts}),
    )
]
