"""Processor time that grows with the size of a model, and not with its square, whatever its shape."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial

import graphs
import onnx
import pytest

import ortfuse

BOUND = 7.0
"""Four times the nodes may take so many times as long; what is quadratic takes sixteen times."""
LEAST = 0.1
"""Seconds below which a time is mostly noise."""


model = partial(graphs.proto, inputs="float[s] x", outputs="float[t] y", opset=20, ir_version=10, domains=["local"])


def repeated(count: int, step: str, separator: str = " ") -> str:
    return separator.join(step.format(i=i, j=i + 1) for i in range(count))


def functions(count: int, body: str) -> str:
    head = '<domain: "local", opset_import: ["": 20, "local": 1]>'
    return " ".join(
        f"{head} f{i} (a) => (b) {{ {body.format(i=i, j=i - 1) if i else 'b = Exp(a)'} }}" for i in range(count)
    )


SHAPES: dict[str, tuple[int, Callable[[int], onnx.ModelProto]]] = {
    "Concat of open sizes": (1000, lambda n: model(
        f"c = Concat <axis = 0> ({repeated(n, 'x{i}', ', ')}) y = Neg(c)", inputs=repeated(n, "float[d{i}] x{i}", ", ")
    )),
    "a chain of Concats": (120, lambda n: model(
        f"c0 = Neg(x) {repeated(n, 'c{j} = Concat <axis = 0> (c{i}, x)')} y = Neg(c{n})"
    )),
    "a Split and its Concat": (200, lambda n: model(
        f"{repeated(n, 'o{i}', ', ')} = Split <axis = 0, num_outputs = {n}> (x)"
        f" y = Concat <axis = 0> ({repeated(n, 'o{i}', ', ')})"
    )),
    "a Split and part of its Concat": (250, lambda n: model(
        f"{repeated(n, 'o{i}', ', ')} = Split <axis = 0, num_outputs = {n}> (x) p = Neg(o0)"
        f" y = Concat <axis = 0> ({repeated(n - 1, 'o{j}', ', ')}, p)"
    )),
    "functions that call each other": (80, lambda n: model(
        f"y = local.f{n - 1}(x)", functions=functions(n, "t = Neg(a) b = local.f{j}(t)")
    )),
    "users of one value that are rewritten": (250, lambda n: model(
        "c = Abs(x) " + repeated(n, "s{i} = Shape(c) e{i} = Expand(c, s{i}) r{i} = Exp(e{i})")
        + f" y = Max({repeated(n, 'r{i}', ', ')})"
    )),
}  # fmt: skip


def seconds(made: onnx.ModelProto) -> float:
    gc.collect()
    started = time.process_time()
    ortfuse.optimize(made, loaded=False)
    return time.process_time() - started


@pytest.mark.parametrize("shape", SHAPES)
def test_time_grows_with_the_size(shape: str) -> None:
    count, make = SHAPES[shape]
    ortfuse.optimize(make(8), loaded=False)
    assert seconds(make(4 * count)) < BOUND * max(seconds(make(count)), LEAST)
