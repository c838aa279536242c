"""Make copies of a model in which the branches that a run takes stand in the place of their Ifs.

Decisions are imposed in the main graph alone. On the same inputs, the copies compute what the models do, with all decisions of
Ifs in their main graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.editor import Editor
from ortfuse.ir.walk import branches

_AUTHOR = "inline_taken_branches"

Values = Callable[[ir.Model, Sequence[ir.Value]], Mapping[str, Any]]
"""Returns the arrays that values of the main graph of a model are in a run of it, by name."""


def has_branches(model: ir.Model) -> bool:
    """Whether the main graph has an If."""
    return any(branches(node) for node in model.graph)


def with_taken_branches(model: ir.Model, values: Values) -> ir.Model:
    """A copy of a model that has, at any depth, the taken branches of the Ifs of its main graph instead of those.

    Args:
        model: A model.
        values: What values of a model are in the run.

    Raises:
        OrtfuseError: It cannot be run.
    """
    copy = model.clone()
    editor = Editor(copy, Facts(copy), author=_AUTHOR)
    while chosen := [node for node in copy.graph if branches(node)]:
        known = values(copy, [condition for node in chosen if (condition := node.inputs[0]) is not None])
        for node in chosen:
            condition = node.inputs[0]
            assert condition is not None
            _inline(node, bool(np.all(known[condition.name or ""])), editor)
    return copy


def _inline(node: ir.Node, truth: bool, editor: Editor) -> None:
    with editor.change(_AUTHOR, nodes=[node]):
        results = editor.insert_copy(node, branches(node)[truth])
        assert results is not None
        for old, new in zip(node.outputs, results, strict=True):
            editor.replace(old, new)
        editor.remove(node)
