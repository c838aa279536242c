"""Rules as data, and the one rewriter that edits graphs by them."""

from ortfuse.rewrite.chooser import Chooser, FirstLegal
from ortfuse.rewrite.invariants import Debugging
from ortfuse.rewrite.log import Event, Log, NearMiss, RuleStatistics, Step
from ortfuse.rewrite.rewriter import NODES_KEY, RULE_KEY, Rewriter
from ortfuse.rewrite.rule import Exactness, Proof, Rule, Variation, demand_proof, unproved
from ortfuse.rewrite.scopes import Scope, scopes, subgraphs
from ortfuse.rewrite.site import Edit, Inspector, Site

__all__ = [
    "NODES_KEY",
    "RULE_KEY",
    "Chooser",
    "Debugging",
    "Edit",
    "Event",
    "Exactness",
    "FirstLegal",
    "Inspector",
    "Log",
    "NearMiss",
    "Proof",
    "Rewriter",
    "Rule",
    "RuleStatistics",
    "Scope",
    "Site",
    "Step",
    "Variation",
    "demand_proof",
    "scopes",
    "subgraphs",
    "unproved",
]
