"""Constraints of OpenVINO's kernels beyond their types, and its known bugs: found by trying (`benchmarks.targets.kernel_trials`).

The reproductions are `tests/targets/test_openvino_bugs.py`.
"""

from __future__ import annotations

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.traits import MICROSOFT
from ortfuse.targets.kernel_constraints import Limits, attribute_limit, input_at, input_limit, shape_words
from ortfuse.targets.known_bugs import KnownBug


class OpenVINOBug(KnownBug):
    """The known bugs of OpenVINO's provider on a CPU."""

    TAKES_FIRST_POSITION_FOR_ALL_ROWS = (
        "rotates each row of com.microsoft RotaryEmbedding as the first one, if a single position is given for all"
    )
    IGNORES_SEQUENCE_LENGTHS = "ignores the sequence lengths of LSTM, GRU and RNN where sizes are open"
    IGNORES_PEEPHOLES = "ignores the peepholes of LSTM"
    NORMALISES_ONE_AXIS = (
        "normalises one axis in Softmax before opset 13, which normalises all axes from the given one on"
    )
    TAKES_SLOPES_FOR_CHANNELS = "takes a vector of slopes of PRelu for those of axis 1, where the last one is meant"
    KEEPS_KERNELS_OF_ONE_KEY = (
        "computes attention of open sizes wrongly after a run with a single key, unless SNIPPETS_MODE is DISABLE"
    )
    COMPUTES_INT64_IN_INT32 = "computes int64 in int32, so that numbers from 2147483648 on are lost"
    COMPUTES_FLOAT64_IN_FLOAT32 = "computes float64 in float32"


_MATRIX, _LAST = 2, -1
_ALL_AXES_BEFORE = 13
"""The opset before that Softmax normalises all axes from the given one on."""


def _rotary(node: ir.Node, facts: Facts) -> Refusal | None:
    if "interleaved" not in node.attributes:
        return attribute_limit(node, "interleaved", "absent", "a written one")
    positions = input_at(node, 1)
    shape = facts.shape(positions)
    if shape is not None and len(shape) == _MATRIX:
        return None
    return input_limit(node, 1, "position_ids", shape_words(shape), "positions [batch, sequence] of each row")


def _known_initial_batch(node: ir.Node, facts: Facts) -> Refusal | None:
    """Refuse sequence lengths, and a constant initial state where the batch is open: it fails when it runs."""
    x = facts.shape(node.inputs[0])
    is_open = x is None or not all(isinstance(size, int) for size in x)
    if input_at(node, 4) is not None and is_open:
        return input_limit(node, 4, "sequence_lens", "given", "none where sizes are open")
    for index, role in ((5, "initial_h"), (6, "initial_c")):
        state = input_at(node, index)
        if is_open and state is not None and state.const_value is not None:
            return input_limit(node, index, role, "constant", "one that is computed where the batch is open")
    return None


def _recurrent(node: ir.Node, facts: Facts) -> Refusal | None:
    if node.op_type == "LSTM" and input_at(node, 7) is not None:
        return input_limit(node, 7, "P", "given", "no peepholes")
    return _known_initial_batch(node, facts)


def _last_axis(node: ir.Node, facts: Facts) -> Refusal | None:
    if facts.version(node) >= _ALL_AXES_BEFORE:
        return None
    attribute, rank = node.attributes.get("axis"), facts.rank(node.inputs[0])
    axis = 1 if attribute is None or attribute.is_ref() else attribute.value
    if axis == _LAST or (rank is not None and axis == rank - 1):
        return None
    return attribute_limit(node, "axis", axis, f"the last one before opset {_ALL_AXES_BEFORE}")


def _slopes(node: ir.Node, facts: Facts) -> Refusal | None:
    shape, rank = facts.shape(input_at(node, 1)), facts.rank(node.inputs[0])
    if shape is not None and (len(shape) != 1 or shape[0] == 1 or rank == _MATRIX):
        return None
    return input_limit(node, 1, "slope", shape_words(shape), "no vector, but one number or as many axes as X has")


CONSTRAINTS: Limits = {
    (MICROSOFT, "RotaryEmbedding"): _rotary,
    ("", "GRU"): _recurrent,
    ("", "LSTM"): _recurrent,
    ("", "RNN"): _recurrent,
    ("", "Softmax"): _last_axis,
    ("", "PRelu"): _slopes,
}
"""Checks of what OpenVINO computes wrongly or refuses, by domain and operator."""
