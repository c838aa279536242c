"""Lower a model's ai.onnx opset and IR version to what the target loads, with nodes of older definitions where that is needed."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir import walk
from ortfuse.ir.editor import Editor
from ortfuse.ir.refusal import words
from ortfuse.targets.forms_of_older_opsets import NoOlderFormError, means_the_same, write_for_older
from ortfuse.targets.match_kernel_types import ABSENT, MismatchError, arguments, bind
from ortfuse.targets.target import Target

AUTHOR = "lower_opset"


def lower_opset(model: ir.Model, target: Target, editor: Editor, facts: Facts) -> list[str]:
    """Lower the opset and the IR version of a model as far as the target needs; returns why it was not possible, in words.

    A graph is lowered as a whole or stays as it is. Nodes that rules lower for the target keep the opset that they are read at,
    as the mark `version`.
    """
    left: list[str] = []
    newest = target.max_opset
    with editor.change(AUTHOR):
        if model.ir_version > target.table.max_ir_version:
            editor.set_ir_version(target.table.max_ir_version)
        for root in walk.roots(model):
            current = root.opset_imports.get("", 1)
            if current <= newest:
                continue
            try:
                with editor.change(AUTHOR):
                    _lower(root, current, target, editor, facts)
            except NoOlderFormError as error:
                node: ir.Node = error.args[0]
                why = error.args[1] if len(error.args) > 1 else "means something else there, or is not defined"
                left.append(
                    f"the model imports opset {current}, and the result may have at most {newest}: "
                    f"{node.op_type} '{node.name}' {why}"
                )
        editor.renew_facts()
    return left


def _lower(root: ir.Graph, current: int, target: Target, editor: Editor, facts: Facts) -> None:
    """Lower one graph with those in it.

    Raises:
        NoOlderFormError: A node of it cannot be written for the older opset.
    """
    newest, changed = target.max_opset, False
    for node in list(walk.nodes_within(root)):
        if node.domain or node.version is not None:
            continue
        if means_the_same(node, current, newest):
            continue
        if target.is_lowered(node.op_type):
            editor.set_version(node, current)
        else:
            write_for_older(node, current, newest, facts, editor)
            changed = True
    for node in walk.nodes_within(root):
        if not node.domain and node.version in (None, newest) and not _takes_types(node, target, facts):
            raise NoOlderFormError(node, f"does not take {_types(node, facts)} there")
    editor.set_import(root, "", newest)
    for node in list(walk.nodes_within(root)) if changed else ():
        if node.version == newest and not node.domain:
            editor.set_version(node, None)


def _types(node: ir.Node, facts: Facts) -> str:
    """The known element types of the inputs and outputs of a node, in words."""
    values = [value for value in (*node.inputs, *node.outputs) if value is not None and value.name]
    kinds = dict.fromkeys(facts.dtype(value) or value.dtype for value in values)
    return ", ".join(words(kind) for kind in kinds if kind is not None)


def _takes_types(node: ir.Node, target: Target, facts: Facts) -> bool:
    """Whether the definition at the newest opset that the target takes has the known element types of a node."""
    operator = target.table.operators.get(("", node.op_type))
    schema = None if operator is None else operator.at(target.max_opset)
    if schema is None:
        return True
    inputs, outputs = (
        [ABSENT if value is None or value.name == "" else facts.dtype(value) or value.dtype for value in values]
        for values in (node.inputs, node.outputs)
    )
    try:
        bind(schema, list(arguments(schema, inputs, outputs)))
    except MismatchError:
        return False
    return True
