"""Lower a model's ai.onnx opset and IR version to what the target loads, if all of its nodes mean the same there."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.ir import walk
from ortfuse.ir.editor import Editor
from ortfuse.ir.schemas import accepts, keeps_meaning
from ortfuse.targets.target import Target

AUTHOR = "lower_opset"


def lower_opset(model: ir.Model, target: Target, editor: Editor) -> list[str]:
    """Lower the opset and the IR version of a model as far as the target needs; returns why it was not possible, in words.

    Nodes that rules lower for the target keep the opset that they are read at, as the mark `version`.
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
            nodes = [node for node in walk.nodes_within(root) if not node.domain and node.version is None]
            newer = [node for node in nodes if not _means_the_same(node, current, newest)]
            kept = next((node for node in newer if not target.is_lowered(node.op_type)), None)
            if kept is not None:
                left.append(
                    f"the model imports opset {current}, and {target.table.runtime} takes up to {newest}: "
                    f"{kept.op_type} '{kept.name}' means something else there, or is not defined"
                )
                continue
            for node in newer:
                editor.set_version(node, current)
            editor.set_import(root, "", newest)
        editor.renew_facts()
    return left


def _means_the_same(node: ir.Node, current: int, older: int) -> bool:
    return accepts(node, older) and keeps_meaning(node.op_type, older, current)
