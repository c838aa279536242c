"""Bodies: If, Loop, Scan and model functions, whose nodes come from the same generators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper

from .builder import Builder, RefusedError, Value, free_names
from .operators import scalar_like

Grow = Callable[[Builder, int], None]
"""Adds about so many nodes to a graph."""

_DEEPEST = 2


def nested(b: Builder, grow: Grow) -> Value:
    """Control flow or a call."""
    if b.depth >= _DEEPEST:
        raise RefusedError("deep enough")
    return b.choose.pick([branch, branch, loop, scan, call])(b, grow)


def _body(b: Builder, name: str, inputs: list[Value], outputs: list[Value], shapes: bool = False) -> onnx.GraphProto:
    infos = [[_info(v, shapes) for v in values] for values in (inputs, outputs)]
    return helper.make_graph(b.nodes, name, *infos, b.initializers)


def _info(value: Value, shape: bool) -> onnx.ValueInfoProto:
    dims = [None] * value.known.ndim if shape else None
    return helper.make_tensor_value_info(value.name, helper.np_dtype_to_tensor_dtype(value.dtype), dims)


def branch(b: Builder, grow: Grow) -> Value:
    """An If of a constant or variable condition whose branches use values outside."""
    condition = b.const(np.array(b.choose.chance(50))) if b.choose.chance(40) else b.input(bool, ())
    wanted = b.some_float()
    bodies = []
    for name in ("then", "else"):
        inner = Builder(b.choose, b.shared, b)
        inner.values = []
        start = inner.op(b.choose.pick(["Identity", "Neg", "Abs"]), wanted)
        grow(inner, b.choose.integer(0, 4))
        fitting = [
            v for v in inner.values if v.array is not None and v.dtype == wanted.dtype and v.shape == wanted.shape
        ]
        made = {name for node in inner.nodes for name in node.output}
        fitting = [v for v in fitting if v.name in made]
        last = b.choose.pick(fitting[-2:] or [start])
        bodies.append(_body(inner, name, [], [last]))
    return b.op("If", condition, then_branch=bodies[0], else_branch=bodies[1])


def loop(b: Builder, grow: Grow) -> Value:
    """A Loop with a carried value and one stacked over the iterations."""
    start = b.some_float()
    count = b.ints(b.choose.pick([0, 1, 2, 3])) if b.choose.chance(70) else b.input(np.int64, (), "index")
    go = b.const(np.array(True)) if b.choose.chance(70) else None
    inner = Builder(b.choose, b.shared, b)
    number, goes = Value(inner.name(), np.array(0, np.int64)), Value(inner.name(), np.array(True))
    carried = Value(inner.name(), start.array, start.exact)
    inner.values = [number, goes, carried]
    grow(inner, b.choose.integer(0, 4))
    onward = inner.op("Identity", goes)
    step = inner.op("Tanh", inner.op("Mul", carried, scalar_like(inner, carried, 0.5)))
    stacked = inner.op("Cast", number, to=1) if inner.choose.chance(50) else inner.op("Neg", step)
    body = _body(inner, "body", [number, goes, carried], [onward, step, stacked])
    found = b.ops("Loop", count, go, start, body=body, outputs=2)
    return found[b.choose.integer(0, 1)]


def scan(b: Builder, grow: Grow) -> Value:
    """A Scan over the first axis with a running sum."""
    x = b.some_float()
    if x.known.ndim < 2 or not x.shape[0]:
        raise RefusedError("nothing to scan")
    inner = Builder(b.choose, b.shared, b)
    row = x.known[0]
    state, item = Value(inner.name(), np.zeros_like(row)), Value(inner.name(), row, x.exact)
    inner.values = [state, item]
    grow(inner, b.choose.integer(0, 3))
    total = inner.op("Add", state, item)
    out = inner.op("Tanh", total)
    body = _body(inner, "scan", [state, item], [total, out], shapes=True)
    return b.ops("Scan", b.const(np.zeros_like(row)), x, body=body, num_scan_inputs=1, outputs=2)[1]


def call(b: Builder, grow: Grow) -> Value:
    """One or two calls of a model function that may call another."""
    arguments = [b.some_float() for _ in range(b.choose.integer(1, 2))]
    inner = Builder(b.choose, b.shared, b, function=True)
    inner.values = inputs = [Value(inner.name(), v.array, v.exact) for v in arguments]
    inner.values = list(inputs)
    grow(inner, b.choose.integer(1, 5))
    made = [v for v in inner.values if v.array is not None and any(v.name in node.output for node in inner.nodes)]
    if not made or free_names(inner.nodes).keys() - {v.name for v in inputs}:
        raise RefusedError("no body")
    outputs = [b.choose.pick(made[-3:])]
    name = f"f{len(b.shared.functions)}"
    imports = [
        helper.make_opsetid("", b.opset),
        helper.make_opsetid("com.microsoft", 1),
        helper.make_opsetid("local", 1),
    ]
    names = [v.name for v in inputs]
    b.shared.functions.append(
        helper.make_function("local", name, names, [v.name for v in outputs], inner.nodes, imports)
    )
    found = b.op(name, *arguments, domain="local")
    return b.op(name, *reversed(arguments), domain="local") if b.choose.chance(30) else found
