"""Explain the rewrites of a model, and the missed ones."""

from ortfuse.verification.explanation.explain import Explanation, Fused, Missed, chosen_rules, explanation, fused_sites
from ortfuse.verification.explanation.force_option_outcomes import ForcedOutcome, forced_outcomes
from ortfuse.verification.explanation.missed_optimization_remarks import remarks

__all__ = [
    "Explanation",
    "ForcedOutcome",
    "Fused",
    "Missed",
    "chosen_rules",
    "explanation",
    "forced_outcomes",
    "fused_sites",
    "remarks",
]
