"""Why a model was rewritten where it was, and why not elsewhere."""

from ortfuse.explanation.explain import Explanation, Fused, Missed, chosen_rules, explanation

__all__ = ["Explanation", "Fused", "Missed", "chosen_rules", "explanation"]
