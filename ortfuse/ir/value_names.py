"""Names of values that no other value of a model has. Bodies see the names of the graphs around them: all graphs count."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.ir.walk import nested, own_values


def value_names(graph: ir.Graph) -> set[str]:
    """Return the names of the values of a graph and of all graphs nested in it."""
    return {value.name for inner in nested(graph) for value in own_values(inner) if value.name}


def unused_name(wanted: str, names: set[str]) -> str:
    """Return a name that is not among `names`, and add it to them: `wanted`, with underscores behind it if that is taken."""
    while wanted in names:
        wanted += "_"
    names.add(wanted)
    return wanted
