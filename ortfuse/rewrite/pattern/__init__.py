"""Patterns over ONNX graphs: the language and the matcher."""

from ortfuse.rewrite.pattern.language import Op, Pattern
from ortfuse.rewrite.pattern.match_operators import Guard, Match, Matcher, Miss
from ortfuse.rewrite.pattern.pattern_builders import (
    OpBuilder,
    all_attributes,
    attr,
    body,
    built,
    computed,
    const,
    fixed,
    maybe,
    ms,
    op,
    opt,
    rearrange,
    rest,
    scalar,
    siblings,
    var,
    variables,
)
from ortfuse.rewrite.pattern.redundant_guard_decorator import redundant

__all__ = [
    "Guard",
    "Match",
    "Matcher",
    "Miss",
    "Op",
    "OpBuilder",
    "Pattern",
    "all_attributes",
    "attr",
    "body",
    "built",
    "computed",
    "const",
    "fixed",
    "maybe",
    "ms",
    "op",
    "opt",
    "rearrange",
    "redundant",
    "rest",
    "scalar",
    "siblings",
    "var",
    "variables",
]
