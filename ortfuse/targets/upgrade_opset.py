"""Raise a model's ai.onnx opset with ONNX's own version converter, without copying the weights.

The converter is given stand-ins (`ortfuse.targets.opset_converter_skeleton`) of the main graph, with its subgraphs, and of each
model function, since it does not convert functions by itself. Conversions it is known to get wrong are refused. They were found
by converting ONNX's own node tests, and old forms of their operators, and comparing the results in ONNX Runtime
(`tests/targets/test_opset_forms.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx.version_converter
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import TargetError
from ortfuse.ir import walk
from ortfuse.ir.editor import Editor
from ortfuse.ir.inlinable_functions import read_otherwise
from ortfuse.targets.apply_converter_changes import Plan
from ortfuse.targets.custom_operators import opset_of_body
from ortfuse.targets.opset_converter_skeleton import Skeleton
from ortfuse.targets.target import Target, installed

_CONVERTED_WRONGLY = {
    "Hardmax": (13, "it forgets that the axes from `axis` on were one"),
    "Upsample": (10, "it forgets how positions were rounded"),
    "Resize": (11, "it forgets how positions were rounded"),
    "GroupNormalization": (21, "its conversion of scale and bias is not a valid graph"),
    "Scan": (9, "it does not convert this operator"),
}
"""By operator, the opset at which its meaning changed and what the converter does wrong there."""

_ONLY_FLOAT = {"Clip": 11, "Pad": 11}
"""Operators whose attributes became inputs at some opset; the converter makes them float32 whatever the node's type."""


AUTHOR = "raise_opset"


def raise_to_newest(model: ir.Model, target: Target | None = None) -> None:
    """Raise `model` to the newest opset that any of its nodes needs, if that is newer than what it imports.

    Raises:
        TargetError: As for `raise_opset`.
    """
    newest = max(map(opset_needed, walk.nodes(model)), default=0)
    if newest > model.graph.opset_imports.get("", 1):
        raise_opset(model, newest, target)


def opset_needed(node: ir.Node) -> int:
    """The opset that a node is marked with, or that its operator is defined in; 0 if neither is known."""
    return opset_of_body(node) if node.domain else node.version or 0


def raise_opset(
    model: ir.Model,
    opset: int,
    target: Target | None = None,
    facts: Facts | None = None,
    editor: Editor | None = None,
) -> None:
    """Raise the ai.onnx version that `model` imports to `opset`, in place, model functions included.

    Nodes that rules made for a newer opset than the model imports (as given by their `version`) are converted from that opset.
    Nodes that the converter does not change remain the same objects; the others are replaced by new nodes, which keep the
    name and metadata of the old ones, as do their outputs.

    Args:
        model: The model; its main graph, subgraphs and functions are converted.
        opset: The version to raise it to.
        target: The runtime that must execute the result; by default the installed one.
        facts: What is known about the model; by default computed.
        editor: Makes the changes and keeps `facts` up to date; by default a new one.

    Raises:
        TargetError: The converter fails or is known to convert a node wrongly, an inspector objects to a converted node, or the
            target has no kernel for a node at the new opset although it has one now. The model is then unchanged.
    """
    facts = Facts(model) if facts is None else facts
    editor = Editor(model, facts) if editor is None else editor
    if "" not in model.graph.opset_imports:
        editor.set_import(model.graph, "", opset)
        return
    found = list(_roots(model, opset))
    if not found:
        return
    for name, operator in read_otherwise(model).items() if model.functions else ():
        raise TargetError(
            f"the model cannot be raised to opset {opset} because of the function {name[0]}::{name[1]}: in its opset {operator} "
            f"is another operator than in that of the model, by which the runtime reads it; give --max-opset "
            f"{model.graph.opset_imports['']} to stay below"
        )
    _refuse_unconvertible(model, opset, target or installed(), facts)
    plans = [plan for root, is_function in found for plan in _plans(root, opset, is_function, facts)]
    names = {value.name for graph in walk.graphs(model) for value in walk.own_values(graph) if value.name}
    with editor.change(AUTHOR) as change:
        for plan in plans:
            plan.apply(names, editor, AUTHOR)
        for node in walk.nodes(model):
            editor.set_version(node, None)
        for root, _ in found:
            editor.set_import(root, "", opset)
        needed = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)], True)
        editor.set_ir_version(max(model.ir_version, int(needed)))
        editor.renew_facts()
    if change.refusal is not None:
        raise TargetError(f"the model cannot be raised to opset {opset}: {change.refusal}")


def _roots(model: ir.Model, opset: int) -> Iterator[tuple[ir.Graph, bool]]:
    """The main graph and the function bodies that import an older ai.onnx than `opset`."""
    for root in walk.roots(model):
        if root.opset_imports.get("", opset) < opset:
            yield root, root is not model.graph


def _plans(root: ir.Graph, opset: int, is_function: bool, facts: Facts) -> Iterator[Plan]:
    current = root.opset_imports[""]
    skeleton = Skeleton(root, current, opset, facts)
    for version in skeleton.versions():
        try:
            converted = onnx.version_converter.convert_version(skeleton.write(version), opset)
        except Exception as error:
            # The converter reports all failures as RuntimeError or worse, with the text of a C++ assertion.
            text = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise TargetError(
                f"ONNX's version converter cannot raise graph '{root.name}' from opset {version} to {opset}: {text}; "
                f"give --max-opset {current} to stay below"
            ) from error
        yield Plan(skeleton, converted, is_function)


def _refuse_unconvertible(model: ir.Model, opset: int, target: Target, facts: Facts) -> None:
    for scope in walk.scopes(model):
        current = scope.root.opset_imports.get("", opset)
        for node in scope.graph:
            version = max(current, node.version or 0)
            if node.domain or version == opset or version == current > opset:  # a function may stay at a newer opset
                continue
            if version > opset:
                raise TargetError(
                    f"{node.op_type} '{node.name}' needs opset {version}, and the model is to be raised to {opset}; "
                    f"raise it to {version} or higher"
                )
            wrong = _converted_wrongly(node, version, opset, facts)
            reason = wrong or target.lost_by_raising(node, version, opset, facts)
            if reason is not None:
                raise TargetError(
                    f"the model cannot be raised from opset {current} to {opset} because of {node.op_type} '{node.name}': "
                    f"{reason}; give --max-opset {current} to stay below"
                )


def _converted_wrongly(node: ir.Node, version: int, opset: int, facts: Facts) -> str | None:
    if node.op_type == "Dropout":
        return _changed_dropout(node, version, opset)
    if node.op_type == "Split" and version < 18 <= opset and _splits_nothing(node, facts):
        return "equal parts of nothing would be refused"
    boundary, reason = _CONVERTED_WRONGLY.get(node.op_type, (0, ""))
    if version < boundary <= opset:
        return f"ONNX's version converter gets it wrong ({reason})"
    if version < _ONLY_FLOAT.get(node.op_type, 0) <= opset:
        dtype = facts.dtype(node.inputs[0])
        if dtype != ir.DataType.FLOAT and set(node.attributes) & {"min", "max", "value"}:
            return f"ONNX's version converter takes it to be float32, and it is {dtype or 'of unknown type'}"
    return None


def _splits_nothing(node: ir.Node, facts: Facts) -> bool:
    """Whether an axis of size 0 is split into parts without stated sizes."""
    shape = facts.shape(node.inputs[0])
    sizes = "split" in node.attributes or len(node.inputs) > 1
    axis = node.attributes.get_int("axis", 0)
    return not sizes and shape is not None and -len(shape) <= axis < len(shape) and shape[axis] == 0


def _changed_dropout(node: ir.Node, version: int, opset: int) -> str | None:
    """The mask is of floats up to opset 9, false up to 11 and true since 12, where the ratio is checked."""
    mask = node.outputs[1] if len(node.outputs) > 1 else None
    used = mask is not None and (mask.uses() or mask.is_graph_output())
    if used and any(version < boundary <= opset for boundary in (10, 12)):
        return "its mask, which is used, would be another"
    ratio = node.attributes.get("ratio")
    if version < 12 <= opset and ratio is not None and not ratio.is_ref() and not 0 <= ratio.as_float() < 1:
        return f"its ratio, {ratio.as_float():g}, would be refused"
    return None
