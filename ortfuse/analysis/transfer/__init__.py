"""Facts about tensors (shape, element type, small contents), and the building blocks of shape functions.

A shape function (`transfer`) infers the facts of an operator's outputs from those of its inputs. The functions themselves are in
`ortfuse.analysis.operators`.
"""

from ortfuse.analysis.transfer.transfer_function_registry import TRANSFERS

__all__ = ["TRANSFERS"]
