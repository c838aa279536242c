"""Keep calls of functions opaque that the runtime executes with another opset than they declare.

The runtime reads the nodes of a function by the opset of the model. A Softmax in a function of opset 11 is one over the
last axis for it where the model is of opset 13, although opset 11 means all axes from the second on. The result must
compute what the model computed. So such a function is an unknown operator to the passes, and the opset of the model is
not raised.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from ortfuse.ir.editor import Editor
from ortfuse.ir.inlinable_functions import called, read_otherwise


def opaque_functions(model: ir.Model) -> dict[ir.OperatorIdentifier, str]:
    """Such functions of a model, each with a remark for the user."""
    found = read_otherwise(model) if model.functions else {}
    return {name: _remark(model.functions[name], operator, model) for name, operator in found.items()}


def take_out(names: Collection[ir.OperatorIdentifier], editor: Editor) -> list[ir.Function]:
    """Take functions out of the model, and forget what is known of their calls.

    Returns:
        The functions with those that they call, to be put back as far as they are gone by then.
    """
    model = editor.model
    needed = dict.fromkeys([*names, *(name for start in names for name in called(model, start))])
    functions = [model.functions[name] for name in needed]
    if functions:
        editor.remove_functions(names)
        editor.renew_facts()
    return functions


def _remark(function: ir.Function, operator: str, model: ir.Model) -> str:
    own, given = (imports.get("", 1) for imports in (function.opset_imports, model.graph.opset_imports))
    return (
        f"calls of the function {function.domain}::{function.name} stay, and so does the opset of the model: it is written "
        f"for opset {own}, and the runtime reads it by the model's, {given}, in which {operator} is another operator"
    )
