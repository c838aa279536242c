"""What is known about the values of a model: element types, symbolic shapes, integers inside tensors, constants."""

from ortfuse.facts.facts import Facts, IntTensor

__all__ = ["Facts", "IntTensor"]
