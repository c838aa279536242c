"""Calls of model-local functions become what the functions do, where that is the same."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from graphs import parsed
from rewriting import ops, same

from ortfuse.errors import TargetError
from ortfuse.ir.walk import nodes
from ortfuse.pipeline import PassManager
from ortfuse.targets import raise_opset


def after(passes: str, model: ir.Model) -> ir.Model:
    """A copy of a model after these passes."""
    copy = model.clone()
    PassManager(passes).run(copy)
    return copy


HEAD = '<ir_version: 10, opset_import: ["": 22, "own": 1]>'


def model(call: str, functions: str, inputs: str = "float[n,4] x", given: str = "") -> ir.Model:
    """A model with `call` in its main graph, and these functions."""
    return parsed(f"""{HEAD} g ({inputs}) => (float[n,4] y) {given} {{ {call} }} {functions}""")


def function(body: str, *, opset: int = 22, head: str = "f (a) => (r)") -> str:
    """A function of the domain `own`."""
    return f'<domain: "own", opset_import: ["": {opset}, "own": 1]> {head} {{ {body} }}'


X = np.array([[np.nan, -2.0, 0.5, 3.0], [np.inf, -np.inf, -0.0, 1e-40]], np.float32)

INLINED = {
    "y = own.f(x)": (function("r = Abs(a)"), "Abs"),
    "s = own.f(x) y = own.f(s)": (function("r = Neg(a)"), "Neg Neg"),
    "y = own.f<scale: float = 0.25>(x)": (
        function("r = LeakyRelu<alpha: float = @scale>(a)", head="f <scale> (a) => (r)"),
        "LeakyRelu",
    ),
    "y = own.f(x) ": (
        function("r = LeakyRelu<alpha: float = @scale>(a)", head="f <scale: float = 0.5> (a) => (r)"),
        "LeakyRelu",
    ),
    " y = own.f(x)": (function("b = own.g(a) r = Abs(b)") + function("r = Exp(a)", head="g (a) => (r)"), "Exp Abs"),
    "y = own.f(x, )": (function("r = Clip(a, low)", head="f (a, low) => (r)"), "Clip"),
    "y = own.f (x)": (
        function("z = Constant<value_float = 0.0>() c = Less(a, z) m = Neg(a) r = Where(c, m, a)", opset=13),
        "Less Neg Where",
    ),
    "y, z = own.f(x)": (function("r = Abs(a) q = Exp(a)", head="f (a) => (r, q)"), "Abs"),
}


@pytest.mark.parametrize("call", INLINED)
def test_a_call_becomes_what_the_function_does(call: str) -> None:
    functions, wanted = INLINED[call]
    original = model(call, functions)
    result = after("canonicalize", original)
    assert ops(result) == wanted
    assert not result.functions
    same(original, result, {"x": X})


def test_calls_within_branches_are_inlined() -> None:
    branch = (
        "then_branch = t () => (float[n,4] p) { p = own.f(x) }, else_branch = e () => (float[n,4] q) { q = Neg(x) }"
    )
    original = model(f"y = If<{branch}>(c)", function("r = Abs(a)"), "float[n,4] x, bool c")
    result = after("canonicalize", original)
    assert not result.functions
    for truth in (True, False):
        same(original, result, {"x": X, "c": np.array(truth)})


def test_fusions_see_through_functions() -> None:
    body = "s = Sigmoid(a) r = Mul(a, s)"
    original = model("y = own.f(x)", function(body, opset=18))
    assert "QuickGelu" in ops(after("all", original))


def test_large_constants_are_not_repeated() -> None:
    many = ", ".join(["0.5"] * 4)
    body = f"w = Constant<value = float[4] {{{many}}}>() r = Add(a, w)"
    original = model("s = own.f(x) y = own.f(s)", function(body))
    assert ops(after("inline_functions{repeated_bytes=15}", original)) == "f f"
    assert ops(after("inline_functions{repeated_bytes=16}", original)).count("Add") == 2


def test_a_kernel_goes_before_a_function() -> None:
    original = parsed("""<ir_version: 10, opset_import: ["": 22, "com.microsoft": 1]> g (float[n,4] x) => (float[n,4] y)
        { y = com.microsoft.QuickGelu<alpha = 1.0>(x) }
        <domain: "com.microsoft", opset_import: ["": 22]> QuickGelu <alpha> (a) => (r) { s = Sigmoid(a) r = Mul(a, s) }""")
    assert ops(after("inline_functions", original)) == "QuickGelu"


def test_an_operator_of_another_definition_keeps_the_call() -> None:
    newer = function("k = Constant<value_ints = [1]>() r = ReduceMax(a, k)", opset=20)
    original = parsed(
        f"""<ir_version: 10, opset_import: ["": 13, "own": 1]> g (float[n,4] x) => (float[n,1] y) {{ y = own.f(x) }} {newer}"""
    )
    result = after("canonicalize", original)
    assert ops(result) == "f"


READ_OTHERWISE = {
    "r = Softmax(a)": (13, 11, "Softmax"),
    "r = Softmax<axis = 1>(a)": (18, 12, "Softmax"),
    "r = LogSoftmax(a)": (11, 13, "LogSoftmax"),
    "b = Hardmax(a) r = Mul(b, a)": (20, 9, "Hardmax"),
}


@pytest.mark.parametrize("body", READ_OTHERWISE)
def test_the_call_of_a_function_stays_if_the_runtime_reads_it_by_another_opset(body: str) -> None:
    """It reads the nodes of a function by the opset of the model: inlined by its own, the result would be another."""
    opset, own, operator = READ_OTHERWISE[body]
    original = parsed(
        f"""<ir_version: 10, opset_import: ["": {opset}, "own": 1]> g (float[2,3,4] x) => (float[2,3,4] y)
        {{ s = Neg(x) t = Neg(s) y = own.f(t) }} {function("c = own.h(a) r = Relu(c)", opset=own)}
        {function(body, opset=own, head="h (a) => (r)")}"""
    )
    copy = original.clone()
    report = PassManager("all").run(copy)
    assert ops(copy) == "h Relu", "what is around it is rewritten, and so are other functions"
    assert copy.graph.opset_imports[""] == opset
    ((_, found),) = copy.functions.items()
    assert found[0].op_type == operator and found.opset_imports[""] == own
    (note,) = (note for note in report.notes if "own::h" in note)
    assert f"written for opset {own}" in note and f"by the model's, {opset}" in note and operator in note
    same(original, copy, {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)})
    with pytest.raises(TargetError, match="own::h"):
        raise_opset(original.clone(), 23)


@pytest.mark.parametrize(
    ("body", "opset", "own"),
    [("b = Reshape(a, k) r = Add(b, b)", 18, 13), ("r = Softmax<axis = -1>(a)", 20, 12), ("r = Relu(a)", 11, 22)],
)
def test_an_operator_that_only_took_on_types_and_options_means_the_same(body: str, opset: int, own: int) -> None:
    text = function(f"k = Constant<value = int64[2] {{0, -1}}>() {body}", opset=own)
    original = parsed(
        f"""<ir_version: 10, opset_import: ["": {opset}, "own": 1]> g (float[n,4] x) => (float[n,4] y) {{ y = own.f(x) }} {text}"""
    )
    result = after("canonicalize", original)
    assert not result.functions
    same(original, result, {"x": X})


def test_a_form_that_only_the_opset_of_the_function_has_is_what_was_meant() -> None:
    """The runtime does not load the model as it is."""
    original = parsed(
        f"""<ir_version: 10, opset_import: ["": 13, "own": 1]> g (float[n,4] x) => (float[n,1] y) {{ y = own.f(x) }}
        {function("r = ReduceSum<axes = [1]>(a)", opset=11)}"""
    )
    assert ops(after("canonicalize", original)) == "ReduceSum"


def test_a_model_that_would_become_too_large_keeps_its_calls() -> None:
    functions = "".join(
        function(f"c = own.f{number + 1}(a) r = own.f{number + 1}(c)", head=f"f{number} (a) => (r)")
        for number in range(30)
    )
    original = model("y = own.f0(x)", functions + function("r = Neg(a)", head="f30 (a) => (r)"))
    assert ops(after("canonicalize", original)) == "f0"


@pytest.mark.parametrize(("main", "opset", "made"), [(17, 21, "com.microsoft"), (20, 21, "")])
def test_functions_get_no_operators_that_the_opset_of_the_model_lacks(main: int, opset: int, made: str) -> None:
    """The runtime looks up the operators of a function in the main graph's imports."""
    body = """
        half = Constant <value_float = 0.5> () one = Constant <value_float = 1.0> () root = Constant <value_float = 1.4142135> ()
        d = Div (a, root) e = Erf (d) s = Add (e, one) h = Mul (a, half) r = Mul (h, s)
    """
    before = model("y = own.f (x)", function(body, opset=opset)).clone()
    before.graph.opset_imports[""] = main
    after = before.clone()
    PassManager("canonicalize, fuse.activation, finalize").run(after)
    found = {node.op_type: node.domain for node in nodes(after)}
    assert found.get("Gelu") == made
    same(before, after, {"x": X[:, :4]})
