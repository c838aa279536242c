"""The shapes, element types and small contents of tensors: facts, and what shape functions are made of.

A shape function (`transfer`) infers the facts of an operator's outputs from those of its inputs. The functions themselves are in
`ortfuse.analysis.operators`.
"""

from ortfuse.analysis.transfer.transfer_function_registry import TRANSFERS

__all__ = ["TRANSFERS"]
