import numpy as np
import onnx_ir as ir
import pytest

from ortfuse.runtime.branch_coverage import Coverage

HEAD = '<ir_version: 10, opset_import: ["": 17]>'
COUNTED = f"""{HEAD} g (float[3] x, int64 n, bool f) => (float[3] y)
    <bool t = {{1}}, float lo = {{-1}}, float hi = {{1}}> {{
    y = If(f) <
        then_branch = a () => (float[3] z) {{
            z = Loop(n, t, x) <body = b (int64 i, bool c, float[3] h) => (bool d, float[3] k) {{
                d = Identity(c) k = Clip(h, lo, hi) }}> }},
        else_branch = e () => (float[3] r) {{ r = Relu(x) }}>
    }}"""


def missing(text: str, **inputs: object) -> list[str]:
    found = Coverage(ir.from_onnx_text(text))
    reached = found.reached({name: np.asarray(value) for name, value in inputs.items()})
    assert reached is not None
    return [point.missing for number, point in enumerate(found.points) if number not in reached]


X = np.array([-2, 0, 0.5], "f4")
ONCE, BODY = "never ran its body more than once", "never ran its body"
THEN, ELSE = "never took its then branch", "never took its else branch"
BOUNDS = ["never reached its lower bound", "never reached its upper bound"]


@pytest.mark.parametrize(
    ("n", "f", "left"),
    [
        (3, False, [THEN, BODY, ONCE, *BOUNDS]),
        (0, True, [ELSE, BODY, ONCE, *BOUNDS]),
        (1, True, [ELSE, ONCE, BOUNDS[1]]),
        (2, True, [ELSE, BOUNDS[1]]),
    ],
)
def test_what_never_happened_inside_of_bodies_is_told(n: int, f: bool, left: list[str]) -> None:
    assert missing(COUNTED, x=X, n=np.int64(n), f=f) == left


@pytest.mark.parametrize("directions", ["", ", scan_output_directions = [1], scan_output_axes = [0]"])
def test_bodies_of_scans_are_counted(directions: str) -> None:
    text = f"""{HEAD} g (float[n, 2] x, float[2] s) => (float[2] last, float[n, 2] y) {{
        last, y = Scan(s, x) <num_scan_inputs = 1{directions}, body = b (float[2] h, float[2] e) => (float[2] k, float[2] o) {{
            k = Add(h, e) o = Max(k, e) }}> }}"""
    assert missing(text, x=np.ones((1, 2), "f4"), s=np.ones(2, "f4")) == [ONCE, "never took its second operand"]
    assert missing(text, x=np.ones((2, 2), "f4"), s=-np.ones(2, "f4")) == ["never took its first operand"]


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("c = Greater(x, x) y = Where(c, x, x)", ["never took its first value"]),
        ("a = Abs(x) n = NonZero(a) y = Cast<to = 1>(n)", []),
        ("z = Sub(x, x) n = NonZero(z) y = Cast<to = 1>(n)", ["never selected anything"]),
        ("s = Size(x) r = Range(nil, s, one) y = Cast<to = 1>(r)", []),
        ("r = Range(nil, m, one) y = Cast<to = 1>(r)", ["never had more than one number"]),
        ("y = ConstantOfShape(ms)", ["never had a size above 1"]),
        (
            "h = Cast<to = 10>(x) k = Min(h, h) y = Cast<to = 1>(k)",
            ["never took its first operand", "never took its second operand"],
        ),
    ],
)
def test_sides_counts_and_selections_are_points(body: str, left: list[str]) -> None:
    text = f"""{HEAD} g (float[3] x, int64 m, int64[1] ms) => (float[?] y) <int64 nil = {{0}}, int64 one = {{1}}> {{ {body} }}"""
    assert missing(text, x=X, m=np.int64(1), ms=np.ones(1, np.int64)) == left


def test_a_model_without_choices_has_no_points() -> None:
    assert Coverage(ir.from_onnx_text(f"{HEAD} g (float[3] x) => (float[3] y) {{ y = Relu(x) }}")).points == ()


def test_a_run_that_the_model_refuses_reaches_nothing() -> None:
    found = Coverage(ir.from_onnx_text(COUNTED))
    assert found.reached({"x": np.ones(4, "f4"), "n": np.array(1), "f": np.array(True)}) is None
