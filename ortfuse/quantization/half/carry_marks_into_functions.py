"""Mark the nodes of functions whose calls are marked (`ortfuse.ir.selection`)."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.ir import walk
from ortfuse.ir.graph_transaction import EXCLUDED_KEY, ONLY_KEY

_MARKED, _UNMARKED = "ortfuse.marked", "ortfuse.unmarked"
"""Metadata of functions whose nodes are all marked: how, and the overload that they were made of."""


def mark_called(model: ir.Model) -> None:
    """Mark the nodes of functions that marked nodes call: those of copies, which nothing else calls."""
    waiting = list(walk.roots(model))
    while waiting:
        for node in walk.nodes_within(waiting.pop()):
            function = model.functions.get(node.op_identifier())
            marks = {key: node.metadata_props[key] for key in (ONLY_KEY, EXCLUDED_KEY) if key in node.metadata_props}
            if function is None or not marks or function.metadata_props.get(_MARKED) == repr(marks):
                continue
            domain, name, _ = function.identifier()
            node.overload = f"{function.metadata_props.get(_UNMARKED, function.overload)} {marks}"
            if node.op_identifier() in model.functions:
                continue
            copy = function.clone()
            made = ir.Function(domain, name, node.overload, graph=copy.graph, attributes=copy.attributes)
            made.metadata_props.update({_MARKED: repr(marks), _UNMARKED: function.overload})
            for inner in walk.nodes_within(made.graph):
                inner.metadata_props.update({**marks, **inner.metadata_props})
            model.functions[made.identifier()] = made
            waiting.append(made.graph)
