"""Patterns over ONNX graphs: the language and the matcher."""

from ortfuse.pattern.language import (
    Op,
    Pattern,
    all_attributes,
    attr,
    computed,
    const,
    maybe,
    ms,
    op,
    opt,
    rest,
    scalar,
    var,
    variables,
)
from ortfuse.pattern.match import Guard, Match, Matcher, Miss

__all__ = [
    "Guard",
    "Match",
    "Matcher",
    "Miss",
    "Op",
    "Pattern",
    "all_attributes",
    "attr",
    "computed",
    "const",
    "maybe",
    "ms",
    "op",
    "opt",
    "rest",
    "scalar",
    "var",
    "variables",
]
