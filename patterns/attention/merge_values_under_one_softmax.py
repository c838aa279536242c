"""Concatenate values that share one softmax, so that one MatMul reads them.

concat(p v, p w) = p concat(v, w)

on [batch, heads, length, size], concatenated along the last axis (differential attention, Ye et al., arXiv:2410.05258).
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Pattern, op, var

from .._rule_test_inputs import COST


def is_softmax(value: ir.Value, facts: Facts) -> bool:
    """Whether a value is a Softmax, perhaps with its NaN replaced."""
    node = value.producer()
    if node is not None and node.op_type == "Where" and not node.domain and node.inputs[2] is not None:
        node = node.inputs[2].producer()
    return node is not None and node.op_type == "Softmax" and not node.domain


def softmax_of_scores(build: Any) -> ir.Value:
    """For rule tests: the Softmax of an input, over its last axis."""
    scores = build.input("scores", build.dims("weights"))
    weights: ir.Value = build.node("Softmax", [scores], {"axis": -1}).outputs[0]
    return weights


weights = var("weights", "b h s t", check=is_softmax, text="computed by a Softmax")
first, second = var("first", "b g t v"), var("second", "b g t w")


def _moved(product: Pattern) -> Pattern:
    """[batch, length, heads, size]"""
    moved: Pattern = op.Transpose(product, perm=(0, 2, 1, 3))
    return moved


one, other, both = weights @ first, weights @ second, weights @ op.Concat(first, second, axis=-1)

RULES = [
    Rule(
        name="attention.concat_values_under_one_softmax",
        formula="concat(softmax(scores) v, softmax(scores) w), heads first or the length",
        is_refinement=True,
        pattern=(op.Concat(one, other, axis=-1) | op.Concat(_moved(one), _moved(other), axis=-1)).named("layout"),
        replace=(both | _moved(both)).named("layout"),
        exactness=Exactness.ROUNDING,
        source="arXiv:2410.05258",
        test=RuleTest(
            shapes={"h": 2, "g": 2, "v": 4, "w": 3},
            inputs={"weights": softmax_of_scores},
            redundant={"check of weights": COST},
        ),
    )
]
