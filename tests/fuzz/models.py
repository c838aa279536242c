"""Random valid models as a hypothesis strategy: every one runs in ONNX Runtime, on the inputs that come with it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from hypothesis import reject
from hypothesis import strategies as st
from onnx import helper

from .builder import SIZES, Array, Builder, Choose, Input, RefusedError, Shared, Value, free_names, model_of
from .edges import EDGES
from .fragments import FRAGMENTS
from .moving import MOVES
from .nesting import nested
from .operators import FLOATS, INTEGERS, OPERATORS

OPSETS = (7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 17, 18, 18, 19, 20, 20, 21, 22, 23, 23, 24)
OTHER_SIZES = (
    {"b": 1, "s": 4, "t": 4, "n": 2, "z": 1},
    {"b": 3, "s": 1, "t": 2, "n": 1, "z": 2},
    {"b": 0, "s": 3, "t": 3, "n": 1, "z": 0},
)


@dataclass(frozen=True)
class Sample:
    """A random model, the operators that were put into it, and sets of inputs (those of the first set fit)."""

    model: onnx.ModelProto
    operators: frozenset[str]
    feeds: list[dict[str, Array]]


@st.composite
def samples(draw: Any, nearly: bool = True, edges: bool = False) -> Sample:
    """Models of one fragment to some dozen nodes; `nearly` allows constants a millionth off neutral ones.

    With `edges`, many nodes are at the edges of what their operators are defined for, many models are of half precision, and some
    inputs are large, all alike, or hold infinities and NaN.
    """
    try:
        return sample(Choose(draw), nearly, edges)
    except RefusedError:
        reject()


def sample(choose: Choose, nearly: bool = True, edges: bool = False) -> Sample:
    """One of `samples`, by choices of any kind.

    Raises:
        RefusedError: They make no model.
    """
    shared = Shared(choose.pick(OPSETS), nearly)
    if edges:
        shared.only = choose.pick([None, None, None, np.float16, np.float16, np.float32])
        shared.filling = choose.pick(["plain", "plain", "plain", "plain", "large", "equal", "special"])
    main = Builder(choose, shared)
    _start(main)
    grow(main, choose.integer(2, 12), edges)
    return _finished(main)


def _start(b: Builder) -> None:
    choose = b.choose
    for number in range(choose.integer(1, 3)):
        kind = choose.pick(["float", "float", "float", "integer", "bool", "text"]) if number else "float"
        dtype = {"float": choose.pick(FLOATS), "integer": choose.pick(INTEGERS), "bool": bool, "text": object}[kind]
        rank = choose.pick([0, 1, 2, 3, 3, 4, 5, 6])
        dims = [
            choose.pick(["b", "s", "s", "n", "t", 1, 2, 3, 4, *(["z", 0] if choose.chance(15) else [])])
            for _ in range(rank)
        ]
        b.input(dtype, dims)


def grow(b: Builder, count: int, edges: bool = False) -> None:
    """Add what about `count` generators make; those that are refused leave nothing behind."""
    for _ in range(count):
        state, operators = b.state(), set(b.shared.operators)
        kind = b.choose.pick(
            [
                "move",
                "move",
                "move",
                "any",
                "any",
                "any",
                "fragment",
                "fragment",
                "fragment",
                "nested",
                *["edge"] * 6 * edges,
            ]
        )
        try:
            if kind == "nested":
                nested(b, partial(grow, edges=edges))
            else:
                made = b.choose.pick({"move": MOVES, "any": OPERATORS, "fragment": FRAGMENTS, "edge": EDGES}[kind])(b)
                assert made.array is not None
        except (RefusedError, ValueError, IndexError, ZeroDivisionError):  # asked for what these operands do not have
            b.restore(state)
            b.shared.operators = operators


def _finished(b: Builder) -> Sample:
    choose, shared = b.choose, b.shared
    used = free_names(b.nodes)
    used |= {name: None for node in b.nodes for name in node.input}
    made = [v for v in b.values if v.array is not None and any(v.name in node.output for node in b.nodes)]
    if not made:
        raise RefusedError("no nodes")
    outputs = [v for v in made if v.name not in used and not _is_constant(b, v)][-6:]
    for _ in range(choose.integer(0, 2)):
        outputs.append(choose.pick(made))
    outputs = list(dict.fromkeys(outputs or made[-1:]))
    inputs = [_declared(made_input) for made_input in shared.inputs]
    for name in b.defaults:
        tensor = next(t for t in b.initializers if t.name == name)
        inputs.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    infos = [_told(choose, v) for v in made if v not in outputs and choose.chance(20)]
    graph = helper.make_graph(
        b.nodes, "fuzz", inputs, [_output(choose, v) for v in outputs], b.initializers, value_info=infos
    )
    others = [sizes for sizes in OTHER_SIZES if 0 not in sizes.values() or not _computes_targets(b)]
    feeds = [{i.name: i.make(sizes) for i in shared.inputs} for sizes in (SIZES, *others)]
    return Sample(model_of(graph, shared), frozenset(shared.operators), feeds)


def _computes_targets(b: Builder) -> bool:
    """Whether a Reshape computes its target, which ortfuse takes literally: a 0 in it would copy another dimension."""
    constant = {t.name for t in b.initializers} | {n.output[0] for n in b.nodes if n.op_type == "Constant"}
    return any(node.op_type == "Reshape" and node.input[1] not in constant for node in b.nodes)


def _is_constant(b: Builder, value: Value) -> bool:
    return any(value.name in node.output and node.op_type == "Constant" for node in b.nodes)


def _declared(made: Input) -> onnx.ValueInfoProto:
    """As symbols and numbers, with nameless dimensions, or (only where nothing may follow from it) without a rank."""
    dims: list[Any] | None = list(made.dims)
    if made.declared == "ranks":
        dims = [None if isinstance(dim, str) else dim for dim in made.dims]
    if made.declared == "none":
        dims = None
    return helper.make_tensor_value_info(made.name, helper.np_dtype_to_tensor_dtype(np.dtype(made.dtype)), dims)


def _output(choose: Choose, value: Value) -> onnx.ValueInfoProto:
    dims = None if choose.chance(50) else [f"{value.name}_{axis}" for axis in range(value.known.ndim)]
    return helper.make_tensor_value_info(value.name, helper.np_dtype_to_tensor_dtype(value.dtype), dims)


def _told(choose: Choose, value: Value) -> onnx.ValueInfoProto:
    return _output(choose, value)
