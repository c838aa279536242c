"""Functions that call each other twice: small files that stand for more nodes than there is room for."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

import ortfuse
from ortfuse.errors import OrtfuseError, VerificationError
from ortfuse.io.convert_model_objects import enter
from ortfuse.ir.count_expanded_nodes import expanded_nodes, total
from ortfuse.ir.inlinable_functions import looked_into, without_functions
from ortfuse.runtime.session import Session

FUNCTION = '<domain: "local", opset_import: ["": 20, "local": 1]> '
LIMIT = "calls of functions stand for"


def doubling(depth: int, first: str = "b = Neg(a)") -> onnx.ModelProto:
    """A model whose calls stand for 2^depth nodes like the first, and one for each other call."""
    bodies = [first, *(f"c = local.f{i}(a) b = local.f{i}(c)" for i in range(depth))]
    functions = " ".join(f"{FUNCTION} f{i} (a) => (b) {{ {body} }}" for i, body in enumerate(bodies))
    return parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 20, "local": 1]> g (float[n] x) => (float[n] y)'
        f" {{ y = local.f{depth}(x) }} {functions}"
    )


@pytest.mark.parametrize("depth", [0, 1, 5, 20, 1000])
def test_nodes_are_counted_exactly(depth: int) -> None:
    model = enter(doubling(depth))[0]
    assert expanded_nodes(model) == 2**depth + 2 * (2**depth - 1)


def test_a_circle_has_no_number_of_nodes() -> None:
    assert total({"f": 1, "g": 1}, {"f": {"g": 2}, "g": {"f": 1}}, {"f": 1}) is None


@pytest.mark.parametrize("depth", [20, 60])
def test_optimize_leaves_the_calls_and_says_so(depth: int, tmp_path: Path) -> None:
    result = ortfuse.optimize(doubling(depth), output=tmp_path / "o.onnx")
    assert len(onnx.load(tmp_path / "o.onnx").functions) == depth + 1
    assert sum(LIMIT in note for note in result.report.notes) == 2
    assert any("not loaded" in note for note in result.report.notes)


@pytest.mark.parametrize("depth", [20, 60])
def test_the_runtime_is_not_asked(depth: int, tmp_path: Path) -> None:
    made = doubling(depth)
    onnx.save(made, tmp_path / "m.onnx")
    inside = enter(made)[0]
    for source in (inside, made.SerializeToString(), tmp_path / "m.onnx"):
        with pytest.raises(VerificationError, match=LIMIT):
            Session(source)
    assert without_functions(inside) is None
    assert looked_into(inside) is inside


COMMANDS = [
    lambda path: ortfuse.verify(path, path),
    lambda path: ortfuse.benchmark({"one": path, "other": path}),
    lambda path: ortfuse.convert(path, to="float16"),
    lambda path: ortfuse.bisect(path),
]


@pytest.mark.parametrize("command", COMMANDS, ids=["verify", "bench", "convert", "bisect"])
def test_commands_that_run_the_model_end_in_an_error(command: object, tmp_path: Path) -> None:
    onnx.save(doubling(60), tmp_path / "m.onnx")
    with pytest.raises(OrtfuseError, match=LIMIT):
        command(tmp_path / "m.onnx")  # type: ignore[operator]


def test_commands_that_only_look_still_work(tmp_path: Path) -> None:
    onnx.save(doubling(60), tmp_path / "m.onnx")
    ortfuse.inspect(tmp_path / "m.onnx")
    ortfuse.explain(tmp_path / "m.onnx")


def test_few_calls_are_inlined_as_before() -> None:
    made = doubling(6)
    result = ortfuse.optimize(made, verify="whole")
    assert not result.model.functions
    assert not any(LIMIT in note for note in result.report.notes)


def test_a_copy_without_functions_computes_the_same() -> None:
    body = (
        "k = Constant <value_float: float = @s> () d = Mul(a, k) t = Greater(d, z) "
        "b = If (t) <then_branch = th () => (float[1] p) { q = Neg(d) p = Abs(q) }, "
        "else_branch = el () => (float[1] r) { r = Sub(d, k) }> c = Identity(a)"
    )
    made = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20, "local": 1]> g (float[1] x) => (float[1] y, float[1] w) {'
        " z = Constant <value_floats = [0.0]> () u, v = local.g <s = 3.0> (x, z) y, w = local.h <s = -2.0> (u, z) }"
        ' <domain: "local", opset_import: ["": 20, "local": 1]> h <s> (a, z)'
        " => (b, c) { m, n = local.g <s: float = @s> (a, z) b, c = local.g <s: float = @s> (m, z) }"
        f' <domain: "local", opset_import: ["": 20, "local": 1]> g <s> (a, z) => (b, c) {{ {body} }}'
    )
    inside = enter(made)[0]
    flat = without_functions(inside)
    assert flat is not None
    assert not flat.functions
    assert ortfuse.verify(inside, flat).ok
