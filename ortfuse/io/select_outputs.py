"""Keep some of a model's outputs with the nodes that these need, and remove inputs that nothing reads."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import onnx_ir as ir

from ortfuse.errors import OptionError
from ortfuse.ir.walk import nested_nodes


def keep_outputs(model: ir.Model, names: Sequence[str]) -> list[str]:
    """Remove all outputs of a model but some, and the nodes that only these needed, in place; the order of outputs stays.

    Args:
        model: The model.
        names: The outputs; a text may hold several with commas.

    Returns:
        A note for the user, or none if all outputs stay.

    Raises:
        OptionError: The model has no output of a name.
    """
    outputs = model.graph.outputs
    known = {value.name: value for value in outputs}
    wanted = dict.fromkeys(one for text in names for one in ([text] if text in known else text.split(",")))
    kept = [known[_known(name.strip(), list(map(str, known)))] for name in wanted]
    removed = [value for value in outputs if value not in kept]
    if not removed:
        return []
    outputs[:] = [value for value in outputs if value in kept]
    _remove_dead(model.graph)
    return [f"outputs removed, as --outputs asks: {_listed(removed)}"]


def drop_unread_inputs(model: ir.Model) -> list[str]:
    """Remove the inputs of a model that no node reads and that are no outputs, in place; returns a note for the user, or none."""
    graph = model.graph
    unread = [value for value in graph.inputs if not value.uses() and not value.is_graph_output()]
    if not unread:
        return []
    graph.inputs[:] = [value for value in graph.inputs if value not in unread]
    for value in unread:
        graph.initializers.pop(value.name or "", None)
    return [f"inputs removed that nothing reads: {_listed(unread)}"]


def _known(name: str, known: Sequence[str]) -> str:
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    raise OptionError("keep_outputs", f"the model has no output {name!r}; it has {', '.join(known)}{meant}")


def _remove_dead(graph: ir.Graph) -> None:
    """Remove the nodes of which no output is used, last ones first; those without outputs are there for a side effect."""
    for node in reversed(list(graph)):
        if not node.outputs or any(value.uses() or value.is_graph_output() for value in node.outputs):
            continue
        for inner in nested_nodes(node):
            for position in range(len(inner.inputs)):
                inner.replace_input_with(position, None)
        graph.remove(node, safe=True)


def _listed(values: Sequence[ir.Value]) -> str:
    return ", ".join(str(value.name) for value in values)
