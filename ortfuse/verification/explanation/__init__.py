"""Why a model was rewritten where it was, and why not elsewhere."""

from ortfuse.verification.explanation.explain import Explanation, Fused, Missed, chosen_rules, explanation, fused_sites
from ortfuse.verification.explanation.forced_outcomes import PinOutcome, pin_outcomes
from ortfuse.verification.explanation.remarks import remarks

__all__ = [
    "Explanation",
    "Fused",
    "Missed",
    "PinOutcome",
    "chosen_rules",
    "explanation",
    "fused_sites",
    "pin_outcomes",
    "remarks",
]
