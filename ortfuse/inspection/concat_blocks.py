"""Detect blocks that end in a Concat of parallel branches, or of a branch and its input.

| kind | what is joined | as in |
|---|---|---|
| `branches` | what several branches of convolutions or pools make of a value | Inception (arXiv:1409.4842), SqueezeNet |
| `dense` | a value, and what convolutions make of it and of one another | DenseNet (arXiv:1608.06993) |
| `cross-stage` | a part of a value as it is, and what convolutions make of the rest | CSPNet (arXiv:1911.11929), YOLO |
| `shuffle` | one of these, with its channels shuffled | ShuffleNet (arXiv:1807.11164) |

An operand that is resized on the way comes from another level of a pyramid or of a U-Net, so that it is none of these.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.inspection.paths_between_values import CONVOLUTIONS, Block, common, path
from ortfuse.ir.traits import JOINS, MOVES, RESHAPES, has

_ENLARGES = frozenset({"Resize", "Upsample", "ConvTranspose", "DepthToSpace"})


def joined(root: ir.Value, facts: Facts) -> Block | None:
    """The block that a Concat ends, with its kind; `None` if it ends none."""
    node = root.producer()
    shape = facts.shape(root)
    if node is None or node.op_type != "Concat" or shape is None or len(shape) < 3:
        return None
    parts = [value for value in node.inputs if value is not None]
    if len(parts) < 2 or not _joins_channels(node, parts, len(shape)):
        return None
    for start in parts:
        others = [path(start, part) for part in parts if part is not start]
        if others and all(others):
            return _made("dense", start, node, others) if all(map(_convolves, others)) else None
    shared = common(parts)
    if shared is None:
        return None
    branches = [path(shared, part) for part in parts]
    if not all(branches) or not any(map(_convolves, branches)):
        return None
    passes_by = any(all(has(one, MOVES - JOINS) for one in branch) for branch in branches)
    if not passes_by and sum(map(_convolves, branches)) < 2:
        return None
    return _made("cross-stage" if passes_by else "branches", shared, node, branches)


def _made(kind: str, start: ir.Value, node: ir.Node, branches: Sequence[Sequence[ir.Node]]) -> Block | None:
    inner = list(dict.fromkeys(one for branch in branches for one in branch))
    if any(has(one, _ENLARGES) for one in inner):
        return None
    behind = _shuffle(node.outputs[0])
    nodes = [*reversed(behind), node, *inner]
    return Block("shuffle" if behind else kind, start, nodes[0].outputs[0], nodes)


def _convolves(branch: Sequence[ir.Node]) -> bool:
    return any(has(node, CONVOLUTIONS) for node in branch)


def _joins_channels(node: ir.Node, parts: Sequence[ir.Value], rank: int) -> bool:
    """Whether images are joined by their channels: on axis 1 or, where layouts are the other way round, on the last.

    A value that is reshaped behind its last convolution, as the anchors of detectors are, is no image any more.
    """
    given = node.attributes.get("axis")
    if given is None or given.is_ref() or int(given.value) % rank not in (1, rank - 1):
        return False
    return not any(_is_reshaped(part) for part in parts)


def _is_reshaped(value: ir.Value) -> bool:
    maker = value.producer()
    while (
        maker is not None and maker.inputs and not has(maker, CONVOLUTIONS) and maker.op_type not in ("Concat", "Slice")
    ):
        if has(maker, RESHAPES) and maker.op_type != "Identity":
            return not _is_shuffled(maker)
        maker = maker.inputs[0].producer() if maker.inputs[0] is not None else None
    return False


def _is_shuffled(last: ir.Node) -> bool:
    """Whether a Reshape ends a shuffle of channels."""
    turned = last.inputs[0].producer() if last.inputs[0] is not None else None
    first = turned.inputs[0].producer() if turned is not None and turned.inputs[0] is not None else None
    return turned is not None and first is not None and _swaps_groups(turned) and has(first, RESHAPES)


def _swaps_groups(node: ir.Node) -> bool:
    perm = node.attributes.get("perm")
    order = list(perm.as_ints()) if node.op_type == "Transpose" and perm is not None and not perm.is_ref() else []
    swapped = [*range(len(order))]
    if len(order) < 4:
        return False
    first = [swapped[0], swapped[2], swapped[1], *swapped[3:]]
    last = [*swapped[:-2], swapped[-1], swapped[-2]]
    return order in (first, last)


def _shuffle(value: ir.Value) -> list[ir.Node]:
    """The three nodes that shuffle the channels of a value, in order, if nothing else uses it."""
    found: list[ir.Node] = []
    for fits in (lambda node: has(node, RESHAPES), _swaps_groups, lambda node: has(node, RESHAPES)):
        users = value.consumers()
        if len(users) != 1 or value.is_graph_output() or not fits(users[0]):
            return []
        found.append(users[0])
        value = users[0].outputs[0]
    return found
