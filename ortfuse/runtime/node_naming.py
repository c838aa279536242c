"""Give all nodes unique names, by which profiles and error messages refer to them."""

from __future__ import annotations

import itertools

import onnx_ir as ir

from ortfuse.ir import walk


def name_all_nodes(model: ir.Model) -> None:
    """Give nodes without a name, or with one that another node has too, a name of their own; the model is changed."""
    taken = {node.name for node in walk.nodes(model) if node.name}
    seen: set[str] = set()
    fresh = (f"{number}" for number in itertools.count())
    for node in walk.nodes(model):
        if not node.name or node.name in seen:
            node.name = next(f"{node.op_type}#{number}" for number in fresh if f"{node.op_type}#{number}" not in taken)
        seen.add(node.name)
