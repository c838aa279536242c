"""Whole-graph algorithms, one per file. Each states in its file what it handles, and what it leaves alone and why."""

from ortfuse.passes.constants import Constants
from ortfuse.passes.context import Context, Pass
from ortfuse.passes.cse import CommonSubexpressions
from ortfuse.passes.dce import DeadCode
from ortfuse.passes.finalize import Finalize
from ortfuse.passes.fold import Fold
from ortfuse.passes.minima import Minima
from ortfuse.passes.rules import RulePass

__all__ = [
    "CommonSubexpressions",
    "Constants",
    "Context",
    "DeadCode",
    "Finalize",
    "Fold",
    "Minima",
    "Pass",
    "RulePass",
]
