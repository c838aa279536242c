"""The kinds of operators that are left outside fusions, and the comparison of two commits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnx.parser

from benchmarks.leftovers.kinds import kinds, operators
from benchmarks.leftovers.measure import changed_operators, compared
from benchmarks.leftovers.optimising import Tree, optimise

TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[b, s, 4] x, bool c) => (float[b, s, 4] y, int64[2] n) {
    h = Shape(x) e = Identity(h) n = Slice(e, i, j) t = Transpose<perm = [1, 0, 2]>(x) r = Relu(t) m = ReduceMean(r)
    a = Cast<to = 1>(c) z = MatMul(x, w) p = Add(z, a)
    y = If(c) <then_branch = one () => (float[b, s, 4] u) { u = Mul(p, m) }, else_branch = two () => (float[b, s, 4] v) { v = Exp(p) }> }"""


def model() -> onnx.ModelProto:
    parsed = onnx.parser.parse_model(TEXT)
    parsed.graph.initializer.extend(
        [
            onnx.helper.make_tensor("i", onnx.TensorProto.INT64, [1], [0]),
            onnx.helper.make_tensor("j", onnx.TensorProto.INT64, [1], [2]),
            onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [4, 4], [0.5] * 16),
        ]
    )
    return onnx.shape_inference.infer_shapes(parsed)


def test_nodes_of_bodies_count_and_integers_of_one_axis_are_shape_arithmetic() -> None:
    found = kinds(model())
    expected = {"shape arithmetic": 3, "data movement": 1, "elementwise": 4, "reduction": 1, "cast": 1, "kernel": 2}
    assert {kind: count for kind, count in found.items() if ": " not in kind} == expected
    assert found["shape arithmetic: Slice"] == 1 and found["elementwise: Exp"] == 1
    assert operators(model())["Mul"] == 1


def row(error: str = "", **counts: int) -> dict[str, Any]:
    return {"error": error, "seconds": 1.0, "operators": counts, "kinds": {"elementwise": sum(counts.values())}}


def test_models_with_more_operators_are_told_and_failures_left_out() -> None:
    before = {"a": row(Add=2), "b": row(Add=2), "c": row("no"), "d": row(Mul=3)}
    after = {"a": row(Add=1, Mul=2), "b": row(Add=1), "c": row(Add=1), "d": row("crashed")}
    found = compared({"before": before, "after": after}, list("abcd"))
    assert found["more"] == {"a": [2, 3]} and found["fewer"] == {"b": [2, 1]}
    assert found["operators"] == [4, 4] and found["leftovers"] == [4, 4]
    assert found["failed"] == {"before": {"c": "no"}, "after": {"d": "crashed"}}
    assert changed_operators(before["a"]["operators"], after["a"]["operators"]) == "-1 Add, +2 Mul"


def test_a_tree_is_run_with_its_own_rules_and_failures_are_told(tmp_path: Path) -> None:
    for folder, text in (
        ("ortfuse", "from ortfuse.patterns import FACTOR\ndef optimize(source, **_): return Result()\n"),
        ("patterns", "FACTOR = 7\n"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text(text)
    with (tmp_path / "ortfuse" / "__init__.py").open("a") as file:
        file.write(
            "class Result: model = 'm'\ndef save(model, target):\n    if 'bad' in target: raise ValueError(FACTOR)\n"
        )
    jobs = [(tmp_path / "a.onnx", tmp_path / "b"), (tmp_path / "c.onnx", tmp_path / "bad")]
    found = list(optimise(Tree(sys.executable, tmp_path), jobs, 60.0))
    assert [one.error for one in found] == ["", "ValueError: 7"]
