"""Rules as data, and the one rewriter that applies them."""

from ortfuse.ir.editor import NODES_KEY, RULE_KEY
from ortfuse.rewrite.invariants import Debugging
from ortfuse.rewrite.lazily_loaded_rule import DeferredRule, RuleEntry
from ortfuse.rewrite.profitability import Chooser, FirstLegal
from ortfuse.rewrite.rewrite_log import Event, Log, NearMiss, RuleStatistics, Step
from ortfuse.rewrite.rewriter import Rewriter
from ortfuse.rewrite.rule import Exactness, Proof, Rule, demand_rule_test, missing_shapes
from ortfuse.rewrite.rule_test import RuleTest, Variation

__all__ = [
    "NODES_KEY",
    "RULE_KEY",
    "Chooser",
    "Debugging",
    "DeferredRule",
    "Event",
    "Exactness",
    "FirstLegal",
    "Log",
    "NearMiss",
    "Proof",
    "Rewriter",
    "Rule",
    "RuleEntry",
    "RuleStatistics",
    "RuleTest",
    "Step",
    "Variation",
    "demand_rule_test",
    "missing_shapes",
]
