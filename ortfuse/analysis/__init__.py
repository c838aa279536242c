"""Analyse the values of a model: element types, symbolic shapes, integers inside tensors, constants."""

from ortfuse.analysis.facts import Assumption, Facts, IntTensor, Range

__all__ = ["Assumption", "Facts", "IntTensor", "Range"]
