"""Selections of rows of random graphs of operators that mix rows and keep them: results are the same, and no more is computed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from graphs import run

from ortfuse.analysis.facts import Facts
from ortfuse.io.check_model import check
from ortfuse.targets import Target
from ortfuse.transforms import Context, HoistSelection

STEPS = (
    "Neg({a})", "Tanh({a})", "Add({a}, {b})", "Mul({a}, {b})", "MatMul({a}, w)", "MatMul(w, {a})", "LayerNormalization({a}, g)",
    "Softmax<axis = -1>({a})", "Softmax<axis = 1>({a})", "Transpose<perm = [1, 0, 2]>({a})", "Transpose<perm = [0, 2, 1]>({a})",
    "Attention<q_num_heads = 2, kv_num_heads = 2>({a}, {b}, {c})",
    "Attention<q_num_heads = 2, kv_num_heads = 2, is_causal = 1>({a}, {b}, {c})",
    "Attention<q_num_heads = 2, kv_num_heads = 2>({a}, {b}, {c}, m)", "CumSum({a}, one)", "Concat<axis = 1>({a}, {b})",
    "Where(t, {a}, {b})", "Clip({a})", "ReduceMean<keepdims = 1>({a}, lasts)", "ReduceMax<keepdims = 1>({a}, ones)",
    "Gather<axis = 1>({a}, turned)", "Slice({a}, zeros, ones, lasts)", "com.microsoft.BiasGelu({a}, g)", "Expand({a}, sizes)",
    "com.microsoft.SkipLayerNormalization({a}, {b}, g)", "Reshape({a}, flat)", "Reshape({a}, parts)", "Sum({a}, r)", "Add({a}, p)",
)  # fmt: skip
SELECTIONS = (
    "Gather<axis = 1>({z}, first)", "Gather<axis = 1>({z}, last)", "Gather<axis = 0>({z}, last)", "Gather<axis = 2>({z}, first)",
    "Gather<axis = 1>({z}, index)", "Slice({z}, zeros, ones, ones)", "Slice({z}, lasts_row, far, ones)", "GatherND<batch_dims = 1>({z}, each)",
    "Gather<axis = 1>({z}, pair)", "Gather({z}, one)",
)  # fmt: skip
SIZE = 4
CONSTANTS = f"""int64 first = {{0}}, int64 last = {{-1}}, int64 one = {{1}}, int64[1] ones = {{1}}, int64[1] zeros = {{0}}, int64[1] lasts = {{-1}},
    int64[1] lasts_row = {{-1}}, int64[1] far = {{9223372036854775807}}, int64[2] pair = {{1, 0}}, int64[4] turned = {{3, 2, 1, 0}},
    int64[3] sizes = {{1, 4, 1}}, int64[2] flat = {{-1, 4}}, int64[4] parts = {{0, 0, 2, 2}}, float[4] g = {{1, 2, 0.5, -1}},
    float[4, 4] w = {{{", ".join(f"{(7 * n) % 11 / 11 - 0.4:.3f}" for n in range(16))}}},
    float[4, 4] m = {{{", ".join(f"{(5 * n) % 7 / 7:.3f}" for n in range(16))}}}, float[4, 1] r = {{1, 2, 3, 4}}, float[1, 4, 4] p = {{
    {", ".join(f"{(3 * n) % 5 / 5:.3f}" for n in range(16))}}}"""
"""Length and size are equal, so that a mistake in an axis is not refused for its shape."""


def graph(seed: int) -> str:
    draw = random.Random(seed)
    values, lines = ["x", "y"], []
    for number in range(draw.randint(2, 9)):
        picked = draw.choices(values[-4:], k=3)
        lines.append(f"v{number} = {draw.choice(STEPS).format(**dict(zip('abc', picked, strict=True)))}")
        values.append(f"v{number}")
    lines.append(f"o = {draw.choice(SELECTIONS).format(z=values[-1])}")
    return " ".join(lines)


def model_of(body: str) -> onnx.ModelProto | None:
    """The model, `None` if one of its operators does not take what it is given."""
    text = f"""<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>
        g (float[b, 4, 4] x, float[b, 4, 4] y, bool[b, 4, 1] t, int64 index, int64[b, 1] each) => (o) <{CONSTANTS}> {{ {body} }}"""
    try:
        made = onnx.parser.parse_model(text)
        run(made, feeds(2))
    except Exception:  # the runtime raises several kinds
        return None
    return made


def feeds(batch: int) -> dict[str, Any]:
    random_ = np.random.default_rng(batch)
    drawn = {name: random_.standard_normal((batch, 4, 4)).astype(np.float32) for name in "xy"}
    places = random_.integers(-4, 4, (batch, 1))
    return {**drawn, "t": random_.random((batch, 4, 1)) > 0.5, "index": np.array(2), "each": places}


@pytest.mark.parametrize("part", range(6))
def test_results_of_random_graphs_are_the_same(part: int) -> None:
    hoisted = 0
    for seed in range(part * 150, (part + 1) * 150):
        body = graph(seed)
        source = model_of(body)
        if source is None:
            continue
        model = ir.from_proto(source)
        context = Context(model, Facts(model), Target())
        count = HoistSelection().run(context)
        if not count:
            continue
        hoisted += 1
        check(model, name=f"seed {seed}")
        for batch in (2, 4):
            try:
                (expected,) = run(source, feeds(batch))
            except Exception:  # a batch that the graph does not take
                continue
            (found,) = run(model, feeds(batch))
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=f"seed {seed}: {body}")
    assert hoisted > 3
