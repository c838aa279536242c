"""Weights that are no single matrix on the right of a product: stacks of matrices, and matrices on the left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import run
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app
from ortfuse.errors import NoSiteError
from ortfuse.quantization import lowered, sites

RNG = np.random.default_rng(0)
K, N = 64, 40
SIZES = {"b": 3, "n": 5, "e": 4}


def product(x: Sequence[int | str], w: Sequence[int], *, left: bool = False) -> onnx.ModelProto:
    """Relu(x W), or Relu(W x)."""
    given = (RNG.standard_normal(w) * 0.2).astype(np.float32)
    rank = max(len(x), len(w))
    operands = ["w", "x"] if left else ["x", "w"]
    nodes = [onnx.helper.make_node("MatMul", operands, ["p"]), onnx.helper.make_node("Relu", ["p"], ["y"])]
    ends = [onnx.helper.make_tensor_value_info("x", 1, x), onnx.helper.make_tensor_value_info("y", 1, [None] * rank)]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], [onnx.numpy_helper.from_array(given, "w")])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)


RIGHT = [
    ((5, K), (1, K, N)),
    (("b", "n", K), (1, K, N)),
    ((5, K), (1, 1, K, N)),
    ((4, "n", K), (4, K, N)),
    ((5, K), (4, K, N)),
    (("e", "n", K), (4, K, N)),
    (("b", 4, "n", K), (4, K, N)),
    (("b", 1, "n", K), (4, K, N)),
    ((4, "n", K), (1, 4, K, N)),
    ((5, K), (4, 1, K, N)),
]
LEFT = [
    ((K, "n"), (N, K)),
    (("b", K, "n"), (N, K)),
    (("b", K, 5), (1, N, K)),
    ((K, 5), (1, N, K)),
    ((4, K, "n"), (4, N, K)),
]
LIMITS = {"dynamic_int8": 0.03, "static_int8": 0.04, "weight_int8": 0.01, "weight_int4": 0.15}


@pytest.mark.parametrize("scheme", LIMITS)
@pytest.mark.parametrize(
    ("x", "w", "left"), [*((*one, False) for one in RIGHT), *((*one, True) for one in LEFT)], ids=str
)
def test_it_is_lowered_and_right(x: tuple[int | str, ...], w: tuple[int, ...], left: bool, scheme: str) -> None:
    original = product(x, w, left=left)
    given = RNG.standard_normal([SIZES[size] if isinstance(size, str) else size for size in x]).astype(np.float32)
    made = ortfuse.lower(original, scheme, inputs=[{"x": given}] * 2 if scheme == "static_int8" else None)
    assert made.uniform.size < 0.4 * made.uniform.float_size
    expected, found = run(original, {"x": given}, optimised=True)[0], run(made.model, {"x": given}, optimised=True)[0]
    assert found.shape == expected.shape
    assert 0 < np.linalg.norm(found - expected) < LIMITS[scheme] * np.linalg.norm(expected)


def test_experts_may_have_scales_of_their_own() -> None:
    original = product((4, "n", K), (4, K, N))
    array = onnx.numpy_helper.to_array(original.graph.initializer[0]).copy()
    array[2] *= 100
    original.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(array, "w"))
    x = RNG.standard_normal((4, 5, K)).astype(np.float32)
    expected = run(original, {"x": x}, optimised=True)[0]
    for scheme in ("dynamic_int8.channel", "weight_int8", "weight_int4.block32_level4"):
        found = run(ortfuse.lower(original, scheme).model, {"x": x}, optimised=True)[0]
        assert np.linalg.norm(found[0] - expected[0]) < 0.15 * np.linalg.norm(expected[0])


def test_a_matrix_behind_axes_of_size_1_has_the_schemes_of_a_matrix() -> None:
    made = ir.from_proto(product((5, K), (1, K, N)))
    (site,) = sites(made).values()
    assert (site.name, site.operator, site.activations, site.weight) == ("p", "MatMul", ("x",), "w")
    assert "split_int8.both_three_terms" in site.schemes
    low = lowered(made, {"p": "split_int8.both_three_terms"})
    assert sum(node.op_type == "MatMulIntegerToFloat" for node in low.graph) == 3


def test_a_name_takes_in_the_form_for_stacks() -> None:
    made = ortfuse.lower(product((4, "n", K), (4, K, N)), "weight_int4.block32_level4")
    assert list(made.uniform.choice.values()) == ["weight_int4_batched.block32_level4"]
    operators = [node.op_type for node in made.model.graph.node]
    assert operators.count("MatMulNBits") == 4


REASONS = [
    (
        (4, 5, K),
        (4, K, N),
        False,
        "split_int8",
        r"weight 'w' \[4, 64, 40\]: it is a stack of matrices, which split_int8 does not",
    ),
    ((4, K, 5), (N, K), True, "split_int8", "it is on the left of the product, which split_int8 does not take"),
    ((2, 4, 5, K), (2, 4, K, N), False, "weight_int4", "a stack of matrices along one axis"),
    ((4, 5, 8), (4, 8, N), False, "weight_int4", "of at least 32 rows|of at least 128 rows"),
    ((5, K), (K, N), False, "embedding_int8", "no scheme of embedding_int8 is for Gemm"),
]


@pytest.mark.parametrize(("x", "w", "left", "scheme", "reason"), REASONS)
def test_what_is_left_is_told_with_the_reason(
    x: tuple[int, ...], w: tuple[int, ...], left: bool, scheme: str, reason: str
) -> None:
    with pytest.raises(NoSiteError, match=reason):
        ortfuse.lower(product(x, w, left=left), scheme)


def test_weights_that_stay_beside_others_are_told_of(tmp_path: Path) -> None:
    text = f"""<ir_version: 9, opset_import: ["": 17]> g (float[4,n,{K}] x) => (float[4,n,8] y) {{ a = MatMul(x, w) y = MatMul(a, v) }}"""
    model = onnx.parser.parse_model(text)
    weights = {"w": (4, K, N), "v": (N, 8)}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)
        for name, shape in weights.items()
    )
    onnx.save(model, tmp_path / "m.onnx")
    data = tmp_path / "q.json"
    arguments = [
        "quantize",
        str(tmp_path / "m.onnx"),
        "-o",
        str(tmp_path / "q.onnx"),
        "--scheme",
        "split_int8",
        "--json",
        str(data),
    ]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    assert "weight 'w' [4, 64, 40]: it is a stack of matrices" in " ".join(ran.output.split())
    assert list(json.loads(data.read_text())["unquantized"]) == ["a"]


@pytest.mark.parametrize("arguments", [["--scheme", "dynamic_int8"], ["--max-error", "0.1", "--store", "store.db"]])
def test_where_no_scheme_is_legal_the_answer_is_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Sin(x) }'
    onnx.save(onnx.parser.parse_model(text), "m.onnx")
    ran = CliRunner().invoke(app, ["quantize", "m.onnx", "-o", "q.onnx", "--json", "q.json", *arguments])
    assert ran.exit_code == 1
    assert "nothing is lowered: " in ran.output
    assert "has a constant weight of float32; nothing was written" in " ".join(ran.output.split())
    assert json.loads(Path("q.json").read_text())["ok"] is False
    assert not Path("q.onnx").exists()
