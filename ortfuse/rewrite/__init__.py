"""Rules as data, and the one rewriter that edits graphs by them."""

from ortfuse.rewrite.invariants import Debugging
from ortfuse.rewrite.log import Event, Log, NearMiss, RuleStatistics
from ortfuse.rewrite.rewriter import NODES_KEY, RULE_KEY, Rewriter
from ortfuse.rewrite.rule import Exactness, Proof, Rule, Variation, demand_proof, unproved
from ortfuse.rewrite.scopes import Scope, scopes, subgraphs
from ortfuse.rewrite.site import Edit, Inspector, Site

__all__ = [
    "NODES_KEY",
    "RULE_KEY",
    "Debugging",
    "Edit",
    "Event",
    "Exactness",
    "Inspector",
    "Log",
    "NearMiss",
    "Proof",
    "Rewriter",
    "Rule",
    "RuleStatistics",
    "Scope",
    "Site",
    "Variation",
    "demand_proof",
    "scopes",
    "subgraphs",
    "unproved",
]
