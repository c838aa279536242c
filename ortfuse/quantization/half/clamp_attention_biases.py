"""Clamp the numbers with which biases of attention hide keys to the lowest number of float16.

    attention(q, k, v, where(mask, b, -1e38)) = attention(where(hidden, 0, q), k, v, where(mask, b, -65504))

A hidden key has weight 0 in both where its row keeps another key, as long as scores are less than 65,000 apart. A row whose keys
are all hidden has the bias -65504 everywhere on the right, which does not drown its scores as the lower number does. There the
query is 0, and so are its scores: the weights are alike on both sides. `hidden` is left out where each row provably keeps a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import DimLike
from ortfuse.ir.traits import MICROSOFT
from ortfuse.quantization.half.clamp_mask_constants import LARGEST

LOWEST = -LARGEST[ir.DataType.FLOAT16]

_BIAS = {(MICROSOFT, "MultiHeadAttention"): 5}
"""The input of an operator that is added to the scores."""

_ABSENT = (3, 4)
"""Inputs of it that may not be given where queries become 0: what is added to them, and another mask."""

_DATA: Mapping[str, Sequence[int] | None] = {
    **dict.fromkeys(
        ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Expand", "Transpose", "Slice", "Gather", "Tile"), (0,)
    ),
    "Where": (1, 2),
    "Concat": None,
    "Max": None,
    "Min": None,
}
"""Operators that clamped operands give a clamped result, and their operands; `None` for all inputs."""

_DROWNS = -1e30
"""A number in which scores are lost in float32, and all numbers below it."""

_FIRST_OPSET = 13
"""The opset from which Squeeze takes its axes as an input."""


@dataclass(frozen=True)
class _Source:
    """The constants that make a bias, each with a node that reads it and the input's position, and the nodes between."""

    constants: tuple[tuple[ir.Value, ir.Node, int], ...]
    nodes: frozenset[ir.Node]


def clamp_attention_biases(model: ir.Model) -> int:
    """Clamp what hides keys in biases of attention that are float32, in place; returns how many biases were changed.

    Args:
        model: A model without functions whose constants are initializers; only its main graph is looked at.
    """
    graph = model.graph
    if graph.opset_imports.get("", 1) < _FIRST_OPSET:
        return 0
    facts, readers = Facts(model), dict[ir.Value, list[ir.Node]]()
    for node in graph:
        place = _BIAS.get((node.domain, node.op_type))
        bias = None if place is None or place >= len(node.inputs) else node.inputs[place]
        if bias is not None and facts.dtype(bias) == ir.DataType.FLOAT:
            readers.setdefault(bias, []).append(node)
    changed = 0
    for bias, nodes in readers.items():
        source = _source(bias)
        if source is None:
            continue
        tests = _tests_of_rows(bias, source)
        if tests is None or not _is_alone(bias, source, [*nodes, *tests]):
            continue
        guarded = not _keeps_a_key(bias, facts)
        can_be = _is_drowned(bias, source) and _hides_alike(bias, source, facts)
        if guarded and not (can_be and all(_can_be_guarded(node, facts) for node in nodes)):
            continue
        for value, reader, place in source.constants:
            reader.replace_input_with(place, _clamped(graph, value))
        for test in tests.values():
            test.replace_input_with(1, _constant(graph, f"{test.name}_{bias.name}_lowest", np.float32(LOWEST)))
        if guarded:
            _guard(graph, bias, nodes)
        changed += 1
    return changed


def _source(bias: ir.Value) -> _Source | None:
    """The nodes and constants that make a bias; `None` if none of it is too low for float16."""
    constants, answers = list[tuple[ir.Value, ir.Node, int]](), dict[ir.Node, bool]()
    pending = [bias.producer()]
    while pending:
        node = pending[-1]
        if node is None or node in answers or not _carries(node):
            pending.pop()
            continue
        operands = _operands(node)
        makers = [value.producer() for _, value in operands]
        open_ones = [one for one in makers if one is not None and one not in answers and _carries(one)]
        if open_ones:
            pending += open_ones
            continue
        pending.pop()
        deep = [(value, node, place) for place, value in operands if _is_deep(value)]
        constants += deep
        answers[node] = bool(deep) or any(answers.get(one, False) for one in makers if one is not None)
    return _Source(tuple(constants), frozenset(node for node, hides in answers.items() if hides)) if constants else None


def _carries(node: ir.Node) -> bool:
    """Whether an operator gives a clamped result for clamped operands."""
    return not node.domain and node.op_type in _DATA


def _operands(node: ir.Node) -> list[tuple[int, ir.Value]]:
    """The operands that a result is made of, with their positions."""
    places = _DATA[node.op_type]
    found = range(len(node.inputs)) if places is None else places
    return [(place, value) for place in found if (value := node.inputs[place]) is not None]


def _is_deep(value: ir.Value) -> bool:
    """Whether a constant has finite numbers below the range of float16."""
    if not value.is_initializer() or value.is_graph_input() or value.const_value is None:
        return False
    if value.const_value.dtype != ir.DataType.FLOAT:
        return False
    array = value.const_value.numpy()
    return bool((np.isfinite(array) & (array < LOWEST)).any())


def _tests_of_rows(bias: ir.Value, source: _Source) -> dict[ir.Node, ir.Node] | None:
    """The comparisons that find rows which are hidden altogether, by the ReduceMax before each.

    Returns:
        None if one of them would tell something else of clamped numbers.
    """
    hiding = [_lowest_of(value) for value, _, _ in source.constants]
    found: dict[ir.Node, ir.Node] = {}
    for value in [bias, *(value for node in source.nodes for value in node.outputs)]:
        for largest in [use.node for use in value.uses() if use.node.op_type == "ReduceMax" and not use.node.domain]:
            after = largest.outputs[0].consumers()
            if len(after) == 1 and after[0].op_type == "Squeeze":
                after = after[0].outputs[0].consumers()
            test = after[0] if len(after) == 1 and after[0].op_type == "LessOrEqual" else None
            bound = None if test is None or test.inputs[1] is None else test.inputs[1].const_value
            if test is None or bound is None or bound.size != 1 or not max(hiding) <= float(bound.numpy().item()):
                return None
            found[largest] = test
    return found


def _lowest_of(value: ir.Value) -> float:
    """The largest number in a constant of those that are below the range of float16."""
    assert value.const_value is not None
    array = value.const_value.numpy()
    return float(array[np.isfinite(array) & (array < LOWEST)].max())


def _is_alone(bias: ir.Value, source: _Source, readers: Iterable[ir.Node]) -> bool:
    """Whether nothing but attention reads the bias and what it is made from."""
    allowed = {*source.nodes, *readers}
    made = [bias, *(value for node in source.nodes for value in node.outputs)]
    return not any(
        value.is_graph_output() or any(use.node not in allowed for use in value.uses()) for value in made
    ) and all(
        use.idx == _BIAS.get((use.node.domain, use.node.op_type), 0)
        for use in bias.uses()
        if use.node not in source.nodes
    )


def _keeps_a_key(bias: ir.Value, facts: Facts) -> bool:
    """Whether each row provably has a key that is not hidden: the first or the last one."""
    columns = (facts.first_column(bias), facts.last_column(bias))
    return any(column is not None and not column.nan and column.low > LOWEST / 2 for column in columns)


def _is_drowned(bias: ir.Value, source: _Source) -> bool:
    """Whether the scores of a row that is hidden altogether are lost in one number, so that its weights are all alike.

    That holds for one number that hides, or several of which a Max makes the largest one. Numbers that a model computes are
    taken to be near 0.
    """
    hiding = {float(number) for value, _, _ in source.constants for number in _numbers_of(value) if number < LOWEST}
    last = bias.producer()
    is_one = len(hiding) == 1 or (
        last is not None
        and last.op_type == "Max"
        and any(node is last and set(_numbers_of(value)) == {max(hiding)} for value, node, _ in source.constants)
    )
    return is_one and max(hiding) <= _DROWNS


def _numbers_of(value: ir.Value) -> list[float]:
    assert value.const_value is not None
    found: list[float] = np.unique(value.const_value.numpy()).tolist()
    return found


def _hides_alike(bias: ir.Value, source: _Source, facts: Facts) -> bool:
    """Whether a row that is hidden altogether is so for all heads, as where the bias or the condition that hides is for all."""
    shape = facts.shape(bias)
    if shape is None or len(shape) != 4:
        return False
    if shape[1] == 1:
        return True
    kept = all(node.op_type in ("Where", "Max", "Identity", "Expand") for node in source.nodes)
    return kept and all(
        node.op_type == "Max" or (node.op_type == "Where" and _is_for_all_heads(facts.shape(node.inputs[0])))
        for _, node, _ in source.constants
    )


def _is_for_all_heads(shape: tuple[DimLike, ...] | None) -> bool:
    return shape is not None and (len(shape) < 3 or shape[-3] == 1)


def _can_be_guarded(node: ir.Node, facts: Facts) -> bool:
    """Whether queries can be made 0: they are [batch, length, heads * size], and nothing is added to them."""
    return facts.rank(node.inputs[0]) == 3 and all(
        place >= len(node.inputs) or node.inputs[place] is None for place in _ABSENT
    )


def _guard(graph: ir.Graph, bias: ir.Value, readers: Sequence[ir.Node]) -> None:
    """Put queries that are 0 in rows that are hidden altogether before the nodes that read a bias."""
    name, taken = f"{bias.name}_row", graph.opset_imports[""] >= 18
    lowest = _constant(graph, f"{name}_lowest", np.float32(LOWEST))
    heads = _constant(graph, f"{name}_heads", np.array([1], np.int64))
    nothing = _constant(graph, f"{name}_nothing", np.float32(0))
    axes = [_constant(graph, f"{name}_axes", np.array([1, 3], np.int64))] if taken else []
    attributes: dict[str, int | list[int]] = {"keepdims": 1, **({} if taken else {"axes": [1, 3]})}
    largest = ir.node("ReduceMax", [bias, *axes], attributes)
    hidden = ir.node("LessOrEqual", [largest.outputs[0], lowest])
    rows = ir.node("Squeeze", [hidden.outputs[0], heads])
    for node, ending, kind in ((largest, "max", "FLOAT"), (hidden, "hidden", "BOOL"), (rows, "rows", "BOOL")):
        node.outputs[0].name, node.outputs[0].dtype = f"{name}_{ending}", ir.DataType[kind]
    graph.insert_before(readers[0], [largest, hidden, rows])
    for number, node in enumerate(readers):
        query = node.inputs[0]
        assert query is not None
        kept = ir.node("Where", [rows.outputs[0], nothing, query])
        kept.outputs[0].name = f"{name}_query_{number}"
        kept.outputs[0].type, kept.outputs[0].shape = query.type, query.shape
        graph.insert_before(node, kept)
        node.replace_input_with(0, kept.outputs[0])


def _clamped(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """A constant with what is finite and below the range of float16 raised to its lowest number."""
    assert value.const_value is not None
    array = value.const_value.numpy()
    name = f"{value.name}_in_float16"
    found = graph.initializers.get(name)
    return found or _constant(
        graph, name, np.where(np.isfinite(array), np.maximum(array, LOWEST), array).astype(array.dtype)
    )


def _constant(graph: ir.Graph, name: str, array: np.ndarray | np.generic) -> ir.Value:
    tensor = ir.tensor(np.asarray(array), name=name)
    shape = ir.Shape(np.asarray(array).shape)
    value = ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value
