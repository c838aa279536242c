"""Whole-graph algorithms, one per file. Each states in its file what it handles, and what it leaves alone and why."""

from ortfuse.passes.choice import Choice, Choices, Meter, check_pins
from ortfuse.passes.constants import Constants
from ortfuse.passes.context import Context, Pass
from ortfuse.passes.cse import CommonSubexpressions
from ortfuse.passes.dce import DeadCode
from ortfuse.passes.finalize import Finalize
from ortfuse.passes.fold import Fold
from ortfuse.passes.lengths import Lengths
from ortfuse.passes.minima import Minima
from ortfuse.passes.rules import RulePass

__all__ = [
    "Choice",
    "Choices",
    "CommonSubexpressions",
    "Constants",
    "Context",
    "DeadCode",
    "Finalize",
    "Fold",
    "Lengths",
    "Meter",
    "Minima",
    "Pass",
    "RulePass",
    "check_pins",
]
