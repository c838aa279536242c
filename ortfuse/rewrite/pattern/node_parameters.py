"""The parameters of nodes, as the pattern language reads them (see `ortfuse.analysis.node_parameters`)."""

from ortfuse.analysis.node_parameters import UNKNOWN, attribute_value, parameter

__all__ = ["UNKNOWN", "attribute_value", "parameter"]
