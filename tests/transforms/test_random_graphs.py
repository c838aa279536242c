"""Random graphs with constants, duplicates, dead ends, shape arithmetic, branches and functions stay what they were."""

from __future__ import annotations

import random

import numpy as np
import pytest
from graphs import operators, run
from small_models import HEAD, floats, proto_of

from ortfuse.io.check_model import check
from ortfuse.io.convert_model_objects import enter
from ortfuse.pipeline import PassManager

UNARY = ["Exp", "Tanh", "Neg", "Abs", "Identity", "local.twice", "Sigmoid"]
BINARY = ["Add", "Mul", "Sub", "Max", "Div"]


class Writer:
    """Writes a random graph as text. All float values have the shape [2, 3] or [1, 3], all integer ones [1] or [2]."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def body(self, visible: list[str], length: int, depth: int) -> tuple[list[str], list[str]]:
        """Lines that compute new values from the visible ones, and the names of the new values of shape [2, 3]."""
        lines: list[str] = []
        new: list[str] = []
        for _ in range(length):
            made = self.name()
            lines += self.statement(made, [*visible, *new], depth)
            new.append(made)
            if self.random.random() < 0.3:  # the same once more
                again = self.name()
                lines.append(
                    lines[-1].replace(f"{made} =", f"{again} =", 1)
                    if " = If" not in lines[-1]
                    else f"{again} = Neg({made})"
                )
                new.append(again)
        return lines, new

    def statement(self, made: str, values: list[str], depth: int) -> list[str]:
        pick = self.random.choice
        kind = self.random.random()
        if kind < 0.15:
            content = ", ".join(str(pick([0.5, 1, -2, 0.1])) for _ in range(6))
            return [f"{made} = Constant <value = float[2, 3] {{{content}}}> ()"]
        if kind < 0.3:
            shape, size, parts = self.name(), self.name(), self.name()
            return [
                f"{shape} = Shape({pick(values)})",
                f"{size} = Gather <axis = 0> ({shape}, one)",
                f"{parts} = Concat <axis = 0> (two, {size})",
                f"{made} = Reshape({pick(values)}, {parts})",
            ]
        if kind < 0.4 and depth < 2:
            branches = []
            for branch in ("then", "else"):
                lines, new = self.body(values, 3, depth + 1)
                output = self.name()
                lines.append(f"{output} = Neg({new[-1]})")
                branches.append(
                    f"{branch}_branch = {self.name()} () => (float[2, 3] {output}) {{ {chr(10).join(lines)} }}"
                )
            return [f"{made} = If (c) <{', '.join(branches)}>"]
        if kind < 0.5:
            turned = self.name()
            return [f"{turned} = Transpose({pick(values)})", f"{made} = Transpose({turned})"]
        if kind < 0.75:
            return [f"{made} = {pick(UNARY)}({pick(values)})"]
        return [f"{made} = {pick(BINARY)}({pick(values)}, {pick(values)})"]

    def model(self) -> str:
        lines, new = self.body(["x", "w", "u"], 14, 0)
        outputs = self.random.sample(new, 3)
        declared = ", ".join(f"float[2, 3] {name}" for name in outputs)
        return f"""{HEAD}agraph (float[2, 3] x, bool c) => ({declared})
            <float[2, 3] w = {{1, 2, 3, 4, 5, 6}}, float[2, 3] u = {{1, 2, 3, 4, 5, 6}}, int64[1] one = {{1}}, int64[1] two = {{2}}> {{
            {chr(10).join(lines)} }}
            <domain: "local", opset_import: ["" : 20]> twice (a) => (b) {{
                k = Constant <value_float: float = 2.0> () \n e = Neg(a) \n f = Neg(a) \n g = Exp(k) \n h = Add(e, f) \n b = Mul(h, g) }}"""


@pytest.mark.parametrize("seed", range(60))
def test_a_random_graph_computes_the_same_bits(seed: int) -> None:
    text = Writer(seed).model()
    model, _ = enter(proto_of(text))
    before = len(operators(model))
    report = PassManager("fixpoint(lift_constants, fold, cse, dce)").run(model)
    check(model, name="result")
    assert report.after.nodes <= before
    for condition in (True, False):
        inputs = {"x": floats(2, 3), "c": np.array(condition)}
        for one, other in zip(run(proto_of(text), inputs), run(model, inputs), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("seed", range(60, 80))
def test_the_canonical_form_of_a_random_graph_computes_the_same(seed: int) -> None:
    text = Writer(seed).model()
    model, _ = enter(proto_of(text))
    PassManager("canonicalize").run(model)
    for condition in (True, False):
        inputs = {"x": floats(2, 3), "c": np.array(condition)}
        for one, other in zip(run(proto_of(text), inputs), run(model, inputs), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
