"""Why a model was rewritten where it was, and why not elsewhere."""

from ortfuse.explanation.explain import Explanation, Fused, Missed, explain, explanation

__all__ = ["Explanation", "Fused", "Missed", "explain", "explanation"]
