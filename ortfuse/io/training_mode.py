"""Find Dropout and BatchNormalization in training mode, warn of them, and convert them to inference mode.

A model is exported so by mistake: it then computes something else in each run, or for each batch. Nothing is changed unless the
user asks for it, since the model means what it says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import onnx_ir as ir

from ortfuse.errors import BoundError
from ortfuse.ir import walk
from ortfuse.ir.purity import may_drop, updates_statistics

_MODE, _MEAN, _VARIANCE = 2, 3, 4
"""The inputs of Dropout and BatchNormalization that matter here."""


def training_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes that are, or may be, in training mode."""
    for node in walk.nodes(model):
        if not node.domain and (
            (node.op_type == "Dropout" and may_drop(node))
            or (node.op_type == "BatchNormalization" and updates_statistics(node))
        ):
            yield node


def training_note(model: ir.Model) -> str | None:
    """A warning that a model is in training mode; `None` if it is not."""
    counts = Counter(node.op_type for node in training_nodes(model))
    if not counts:
        return None
    listed = " and ".join(f"{count} {kind}" for kind, count in counts.items())
    return (
        f"the model is in training mode ({listed}): it computes other outputs than the trained network. Export it with "
        "model.eval(), or remove training mode with 'ortfuse optimize --inference'"
    )


@contextmanager
def told_of_training(model: ir.Model) -> Iterator[Sequence[str]]:
    """The warning that a model is in training mode, as notes for what is measured inside; none if it is not.

    Raises:
        BoundError: The bound is not met inside. The message has the warning too, since noise of training may be why.
    """
    note = training_note(model)
    try:
        yield () if note is None else (note,)
    except BoundError as error:
        if note is None:
            raise
        raise BoundError(f"{error}; {note}") from error


def to_inference(model: ir.Model) -> str | None:
    """Take all nodes of a model out of training mode, in place; returns what was done, or `None` if none was in it.

    Dropout becomes Identity by its own definition. BatchNormalization takes the statistics that it was given; outputs of updated
    statistics become these. Statistics of the batch have no counterpart, so that a node that outputs them to others is left.
    """
    counts: Counter[str] = Counter()
    left = 0
    for node in list(training_nodes(model)):
        if node.op_type == "Dropout":
            node.replace_input_with(_MODE, None)
        elif not _infer(node):
            left += 1
            continue
        counts[node.op_type] += 1
    if not counts and not left:
        return None
    listed = " and ".join(f"{count} {kind}" for kind, count in counts.items()) or "nothing"
    rest = f"; {left} BatchNormalization stay, since the statistics of their batches are used" if left else ""
    return f"removed training mode from {listed}: the result computes what the trained network does{rest}"


def _infer(node: ir.Node) -> bool:
    """Take a BatchNormalization out of training mode; returns whether that is possible."""
    batch = [value for value in node.outputs[3:] if value.uses() or value.is_graph_output()]
    if batch:
        return False
    for number, given in ((1, node.inputs[_MEAN]), (2, node.inputs[_VARIANCE])):
        if len(node.outputs) > number and given is not None:
            _replace(node, node.outputs[number], given)
    node.attributes.pop("training_mode", None)
    node.resize_outputs(1)
    return True


def _replace(node: ir.Node, updated: ir.Value, given: ir.Value) -> None:
    """Put given statistics in the place of updated ones."""
    if updated.is_graph_output():
        name = updated.name
        updated.name = None
        identity = ir.node("Identity", [given])
        identity.outputs[0].name, identity.outputs[0].type, identity.outputs[0].shape = (
            name,
            updated.type,
            updated.shape,
        )
        assert node.graph is not None
        node.graph.insert_after(node, identity)
        ir.convenience.replace_all_uses_with(updated, identity.outputs[0], replace_graph_outputs=True)
    else:
        ir.convenience.replace_all_uses_with(updated, given)
