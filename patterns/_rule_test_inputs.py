"""Inputs, near misses and redundancy reasons that the rule tests of several families share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

NEVER_EMPTY = {"*": "the Attention kernel refuses empty tensors"}

FINITE_SCORES = dict.fromkeys(
    (
        "input * of Mul* is the lowest number*", "input * of Mul* is *inf*", "input * of Mul* is NaN", "input * of Div* is *0*",
        "input * of Div* is NaN", "operands 0 and 1 of Div* exchanged", "Div instead of Mul*",
    ),
    "scores are taken to be finite: a scale that makes them infinite or NaN is none",
)  # fmt: skip

# Reasons why a rule would be right without one of its conditions
SHAPES = "the rewriter refuses a result that has not provably the same shape"
KERNEL = "the target asks for the same before it takes the kernel"
COST = "the rule would be right, but not worth it"
NUMBERS = "another condition asks for the numbers, which only a constant has"
ADDS_NO_AXES = "the matcher takes a constant for a number only where it adds no axes"


def masked(*fillers: float, keys: str = "") -> Callable[[Any], ir.Value]:
    """An additive mask, `where(keep, 0, filler)`, from a boolean input that occasionally masks a whole row.

    `keys` is the size of the last axis if the pattern leaves it open.
    """

    def make(build: Any) -> ir.Value:
        dims = build.dims("mask")
        keep = build.input("keep", [*dims[:-1], keys or dims[-1]], ir.DataType.BOOL)
        filler = fillers[build.chooser.pick("filler of the mask", [str(filler) for filler in fillers])]
        mask: ir.Value = build.node("Where", [keep, build.constant(0.0), build.constant(filler)]).outputs[0]
        return mask

    return make


def computed_shape(of: str, axes: int, rest: Sequence[int]) -> Callable[[Any], ir.Value]:
    """A Reshape target: the first `axes` dimensions of the input `of` as Shape gives them, then the numbers `rest`."""

    def make(build: Any) -> ir.Value:
        source = next(value for value in build.graph.inputs if value.name == of)
        shape = build.node("Shape", [source]).outputs[0]
        leading = build.node("Gather", [shape, build.constant(list(range(axes)))]).outputs[0]
        target: ir.Value = build.node("Concat", [leading, build.constant(list(rest))], {"axis": 0}).outputs[0]
        return target

    return make


def angles(of: str, function: str, heads: int = 1, interleaved: bool = False) -> Callable[[Any], ir.Value]:
    """`function` (Cos or Sin) of duplicated angles that broadcast to the input `of`, whose axis `heads` has the heads."""

    def make(build: Any) -> ir.Value:
        dims = build.dims(of)
        size = dims[-1]
        leading = [1, 1, dims[2]] if heads == 1 else [1, dims[1], 1]
        known = [value for value in build.graph.inputs if value.name == "angles"]
        half = known[0] if known else build.input("angles", [*leading, int(size) // 2])
        if interleaved:
            column = build.node("Unsqueeze", [half, build.constant([4])]).outputs[0]
            twice = build.node("Tile", [column, build.constant([1, 1, 1, 1, 2])]).outputs[0]
            both = build.node(
                "Reshape", [twice, build.constant([1, 1, -1, int(size)] if heads == 1 else [1, -1, 1, int(size)])]
            ).outputs[0]
        else:
            both = build.node("Concat", [half, half], {"axis": -1}).outputs[0]
        made: ir.Value = build.node(function, [both]).outputs[0]
        return made

    return make
