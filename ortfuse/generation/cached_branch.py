"""Models with a branch for the first step and one for those after it, as Optimum merges two exports of a decoder.

A Boolean input chooses the branch. The one with past keys and values serves for the first step, too, with caches of no tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.generation.decoder_interface import PAST
from ortfuse.ir.editor import Editor
from ortfuse.ir.walk import branches


@dataclass(frozen=True)
class BranchedDecoder:
    """The two decoders that a model has as branches.

    Attributes:
        prompt: A model of the branch without a past.
        step: A model of the branch with past keys and values.
        choice: The Boolean input that chooses between them.
    """

    prompt: ir.Model
    step: ir.Model
    choice: str


def split_branches(model: ir.Model) -> BranchedDecoder | None:
    """The branches that a Boolean input chooses between, of which one appends to caches; `None` if there is no such input."""
    graph = model.graph
    for value in graph.inputs:
        if value.dtype != ir.DataType.BOOL or value.name is None or value.name in graph.initializers:
            continue
        chosen = [use.node for use in value.uses() if use.node.op_type == "If" and use.node.graph is graph]
        if not chosen or len(chosen) != len(tuple(value.uses())):
            continue
        appends = {truth: _appends(branch) for truth, branch in branches(chosen[0]).items()}
        if appends[True] != appends[False]:
            prompt, step = (_with(model, value.name, truth) for truth in (not appends[True], appends[True]))
            return BranchedDecoder(prompt, step, value.name)
    return None


def _with(model: ir.Model, choice: str, truth: bool) -> ir.Model:
    """A copy in which a Boolean input is fixed, with the branches that are then taken."""
    copy = model.clone()
    graph = copy.graph
    value = next(value for value in graph.inputs if value.name == choice)
    editor = Editor(copy, Facts(copy), author="take_branch")
    for node in [use.node for use in value.uses()]:
        with editor.change("take_branch", nodes=[node]):
            results = editor.insert_copy(node, branches(node)[truth])
            assert results is not None
            for old, new in zip(node.outputs, results, strict=True):
                editor.replace(old, new)
            editor.remove(node)
    graph.inputs.remove(value)
    return copy


def _appends(graph: ir.Graph) -> bool:
    """Whether a branch appends to a value of the graph around it, or attention in it has past keys."""
    inside = {value for node in graph for value in node.outputs}
    for node in graph:
        if node.op_type == "Concat" and len(node.inputs) == 2:
            first = node.inputs[0]
            if first is not None and first not in inside and first.is_graph_input():
                return True
        if any(len(node.inputs) > number and node.inputs[number] is not None for number in PAST.get(node.op_type, ())):
            return True
    return False
