"""Find operators that ONNX Runtime saved in its blocked layout NCHWc, and warn of them."""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.ir import walk
from ortfuse.ir.traits import BLOCKED


def blocked_layout_note(model: ir.Model) -> str | None:
    """A warning that weights of a model are in blocks for one kind of processor; `None` if they are not."""
    count = sum(node.domain == BLOCKED for node in walk.nodes(model))
    if not count:
        return None
    return (
        f"{count} of the nodes are of {BLOCKED} and stay as they are: ONNX Runtime saved the model with all optimizations, with "
        "weights in blocks whose size is that of the processor and is not in the file. Other processors may compute "
        "something else, or refuse it. Optimize the model as it was exported, or save it at the level ORT_ENABLE_EXTENDED"
    )
