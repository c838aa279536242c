"""Heads that a model computes one by one and concatenates are one attention."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest
from graphs import optimised_operators
from onnx import numpy_helper


def _model(
    heads: str = "abc", *, biases: str = "", scale: str = "0.5", mask: str = "", other: str = "", axis: int = -1
) -> onnx.ModelProto:
    """Attention of heads, each with products of its own; `other` is put between the heads and the Concat."""
    rng = np.random.default_rng(0)
    lines, constants, inputs = [], {}, "float[b, 7, 12] x" + (", bool[b, 1, 7, 7] keep" if mask else "")
    if mask:
        lines.append(
            "zero = Constant<value_float = 0.0>() low = Constant<value_float = -1e9>() m = Where(keep, zero, low)"
        )
    for one in heads:
        for kind in "qkv":
            name = f"{kind}{one}"
            constants[f"w{name}"] = rng.standard_normal((12, 4))
            lines.append(f"p{name} = MatMul(x, w{name})")
            if kind in biases and one != "b":
                constants[f"c{name}"] = rng.standard_normal(4)
                lines.append(f"{name} = Add(p{name}, c{name})")
            else:
                lines.append(f"{name} = Identity(p{name})")
        number = scale if one != "c" or "," not in scale else scale.split(",")[1]
        lines.append(
            f"kt{one} = Transpose<perm = [0, 2, 1]>(k{one}) s{one} = MatMul(q{one}, kt{one}) f{one} = Constant<value_float = {number.split(',')[0]}>()"
        )
        lines.append(
            f"t{one} = Mul(s{one}, f{one})"
            + (
                f" u{one} = Unsqueeze(t{one}, axes) r{one} = Add(u{one}, m) z{one} = Squeeze(r{one}, axes)"
                if mask
                else f" z{one} = Identity(t{one})"
            )
        )
        lines.append(f"e{one} = Softmax<axis = -1>(z{one}) o{one} = MatMul(e{one}, v{one})")
    if mask:
        constants["axes"] = np.array([1])
    lines.append(
        f"{other} y = Concat<axis = {axis}>({', '.join(f'o{one}' for one in heads)}{', extra' if other else ''})"
    )
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 23]> g ({inputs}) => (float[b, l, c] y) {{ {" ".join(lines)} }}'
    )
    for name, array in constants.items():
        kind = np.int64 if array.dtype.kind == "i" else np.float32
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(kind), name))
    return proto


_operators = partial(optimised_operators, verify="whole")


@pytest.mark.parametrize("biases", ["", "qv"])
def test_heads_of_one_input_are_one_attention(biases: str) -> None:
    made = _operators(_model(biases=biases))
    assert made.count("Attention") == 1 and made.count("MatMul") == 3 and "Concat" not in made


def test_heads_that_stand_next_to_others_are_joined_with_their_like() -> None:
    made = _operators(_model("abcd", scale="0.5,0.25"))
    assert made.count("Attention") == 3 and made.count("Concat") == 1
    made = _operators(_model(other="extra = Neg(x)"))
    assert made.count("Attention") == 1 and made.count("Concat") == 1


def test_heads_that_are_stacked_along_the_length_stay() -> None:
    assert _operators(_model(axis=1)).count("Attention") == 3
