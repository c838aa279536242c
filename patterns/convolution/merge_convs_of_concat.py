"""Merge Convs of one input with one window, adjacent in a Concat, into one Conv.

concat(conv(x, V, a), conv(x, W, b), ...) = conv(x, concat(V, W, ...), concat(a, b, ...))      of one group
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.linear_maps.windows import Window, window
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Match, Pattern, attr, computed, op, rest

from ._conv_weights import MOST_COPIED
from ._test_instances import PADDED

SOURCE = "ONNX operators Conv and Concat"

ATTRIBUTES = ("kernel_shape", "strides", "dilations", "pads", "group")

Layers = list[ir.Node]


def _layer(value: ir.Value, match: Match) -> ir.Node | None:
    """The convolution of one group with constant weights that computes a value, which nothing else needs."""
    node = value.producer()
    if node is None or node.domain or node.op_type != "Conv" or node.graph is not match.root.producer().graph:  # type: ignore[union-attr]
        return None
    if len(value.uses()) > 1 or value.is_graph_output() or any(one.is_ref() for one in node.attributes.values()):
        return None
    constants = node.inputs[1:]
    if any(one is not None and not match.facts.is_const(one) for one in constants):
        return None
    if not _is_whole(node, match):
        return None
    # Large weights that are used elsewhere too would be stored twice.
    copied = any(one is not None and len(one.uses()) > 1 and _bytes(one, match) > MOST_COPIED for one in constants)
    found = _window(node, match)
    return None if copied or found is None or found.groups != 1 else node


def _is_whole(node: ir.Node, match: Match) -> bool:
    """Whether the bias, if there is one, has a number for each channel."""
    weight, *bias = (match.facts.shape(value) for value in node.inputs[1:3] if value is not None)
    return weight is not None and all(shape == weight[:1] for shape in bias)


def _bytes(value: ir.Value, match: Match) -> int:
    array = match.facts.const(value)
    return 0 if array is None else array.nbytes


def _window(node: ir.Node, match: Match) -> Window | None:
    """The window of a convolution; `None` if it is not known."""
    shape = match.facts.shape(node.inputs[1])
    if shape is None or len(shape) < 3:
        return None
    kernel = [dim for dim in shape[2:] if isinstance(dim, int)]
    return window({name: one.value for name, one in node.attributes.items()}, kernel)


def _read_alike(one: ir.Node | None, other: ir.Node | None, match: Match) -> bool:
    """Whether two convolutions have one input, one window and one type."""
    if one is None or other is None or one.inputs[0] is not other.inputs[0]:
        return False
    facts = match.facts
    weights = [node.inputs[1] for node in (one, other)]
    types, shapes = [facts.dtype(weight) for weight in weights], [facts.shape(weight) or () for weight in weights]
    alike = types[0] == types[1] and shapes[0][1:] == shapes[1][1:]
    return alike and _window(one, match) == _window(other, match)


def _runs(match: Match) -> list[ir.Value | Layers]:
    """The operands of the Concat, with neighbours that can be one convolution together."""
    runs: list[ir.Value | Layers] = []
    for part in match["parts"]:
        layer, before = _layer(part, match), runs[-1] if runs else None
        if isinstance(before, list) and _read_alike(before[-1], layer, match):
            before.append(layer)  # type: ignore[arg-type]
        else:
            runs.append(part if layer is None else [layer])
    return runs


def _weight(layers: Layers, match: Match) -> Any:
    return np.concatenate([match.facts.const(layer.inputs[1]) for layer in layers])


def _bias(layers: Layers, match: Match) -> Any:
    """The biases, with zeros for those that are absent; `None` if all are."""
    given = [layer.inputs[2] if len(layer.inputs) > 2 else None for layer in layers]
    if given == [None] * len(given):
        return None
    weights = [match.facts.const(layer.inputs[1]) for layer in layers]
    return np.concatenate(
        [
            np.zeros(len(weight), weight.dtype) if bias is None else match.facts.const(bias)  # type: ignore[arg-type, union-attr]
            for bias, weight in zip(given, weights, strict=True)
        ]
    )


def joins_channels(match: Match) -> Refusal | None:
    """The Concat is along the channel axis."""
    rank = match.rank("root")
    if rank is None:
        return match.refuse("rank", "root")
    return match.unless_value("axis", match["axis"] in (1, 1 - rank), 1)


def has_neighbours(match: Match) -> Refusal | None:
    """Some adjacent operands are Convs of one group, with one input and one window."""
    if any(isinstance(run, list) and len(run) > 1 for run in _runs(match)):
        return None
    return match.refuse("condition", "root", "of neighbours that are convolutions of one input with one window")


def _as_one(layers: Layers, number: int, match: Match) -> Pattern:
    """One convolution with the channels of all."""
    x = match.capture(f"x{number}", layers[0].inputs[0])  # type: ignore[arg-type]
    found = _window(layers[0], match)
    assert found is not None
    weight = computed(f"weight{number}", lambda match: _weight(layers, match))
    bias = computed(f"bias{number}", lambda match: _bias(layers, match))
    made: Pattern = op.Conv(x, weight, bias, **{name: found.attributes()[name] for name in ATTRIBUTES})
    return made


def _concat_of_merged_convs(match: Match) -> Pattern:
    parts: list[Pattern] = []
    for number, run in enumerate(_runs(match)):
        if isinstance(run, list) and len(run) > 1:
            parts.append(_as_one(run, number, match))
        else:
            value = run[0].outputs[0] if isinstance(run, list) else run
            parts.append(match.capture(f"part{number}", value))
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=1)


# Proof

_SPELLINGS = ("two", "six", "around another", "twice two")


def _branches(build: Any) -> Sequence[ir.Value]:
    """The operands of a Concat: convolutions of one input, and others between them."""
    dims = build.dims("x")
    x, other = build.input("x", dims), build.input("y", dims)
    spelled = build.chooser.pick("branches", _SPELLINGS)

    def convolved(image: ir.Value, channels: int, biased: bool = True) -> ir.Value:
        weight = build.constant(build.numbers.standard_normal((channels, dims[1], *[3] * (len(dims) - 2))))
        bias = [build.constant(build.numbers.standard_normal(channels))] if biased else []
        attributes = PADDED if len(dims) == 4 else {}
        made: ir.Value = build.node("Conv", [image, weight, *bias], attributes).outputs[0]
        return made

    if spelled == 0:
        return [convolved(x, 4), convolved(x, 4, biased=False)]
    if spelled == 1:
        return [convolved(x, channels, biased=False) for channels in (1, 2, 3, 1, 2, 2)]
    if spelled == 2:
        return [convolved(x, 1), convolved(other, 2), convolved(x, 3), convolved(x, 1)]
    return [convolved(x, 1), convolved(x, 3), convolved(other, 2), convolved(other, 2)]


RULES = [
    Rule(
        name="conv.merge_convs_of_concat",
        formula="Concat(Conv(x, V, a), Conv(x, W, b), ...)",
        pattern=op.Concat(rest("parts"), axis=attr("axis")),
        replace=_concat_of_merged_convs,
        makes=("Conv", "Concat"),
        guards=(joins_channels, has_neighbours),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=({"x": "n 3 6 6"}, {"x": "n 3 7"}),
            inputs={"parts": _branches},
            attributes=({"axis": [1, -3]}, {"axis": [1]}),
            counterexamples={"of rows": Variation(attributes={"axis": 2})},
        ),
    ),
]
