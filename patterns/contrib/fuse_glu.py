"""Fuse gated linear units (GLU, SwiGLU, GeGLU, ReGLU) if `--force` asks for them.

glu(g, x) = sigmoid(g) x        swiglu(g, x) = swish(g) x        geglu(g, x) = gelu(g) x        reglu(g, x) = relu(g) x

They are no faster on the CPU, but other targets look for them (`--force glu=SwiGLU`). The standard has SwiGLU from opset
28 on, which runtimes do not have yet. So they are model-local functions in the domain `ortfuse`: the runtime executes their
bodies, and the file runs anywhere. Gate and value may be halves of one MatMul, or two MatMuls.
"""

from __future__ import annotations

import functools
import operator

import onnx
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, OpBuilder, Pattern, ms, op, var
from ortfuse.targets import register_operators

from .._shared_guards import same_shape

PASS = "contrib.glu"

GATES = "arXiv:1612.08083, arXiv:2002.05202"
DOMAIN = "ortfuse"
made_of = OpBuilder(DOMAIN)

_NUMBER = "{name}_n = Constant <value = double {{{number}}}> () {name} = CastLike ({name}_n, h) "
_ONE, _HALF = (_NUMBER.format(name=name, number=number) for name, number in (("one", "1.0"), ("half", "0.5")))
_ROOT = _NUMBER.format(name="root", number="0.7071067811865476")
_SCALE = _NUMBER.format(name="scale", number="0.7978845608028654")
_CUBIC = _NUMBER.format(name="cubic", number="0.044715")

BODIES = {
    "Sigmoid": "a = Sigmoid (h)",
    "Relu": "a = Relu (h)",
    "Swish": "s = Sigmoid (h) a = Mul (h, s)",
    "Gelu": _ONE + _HALF + _ROOT + "r = Mul (h, root) e = Erf (r) f = Add (e, one) g = Mul (h, half) a = Mul (g, f)",
    "GeluTanh": _ONE + _HALF + _SCALE + _CUBIC
    + "h2 = Mul (h, h) h3 = Mul (h2, h) k = Mul (cubic, h3) l = Add (h, k)"
    " m = Mul (scale, l) t = Tanh (m) f = Add (t, one) g = Mul (h, half) a = Mul (g, f)",
}  # fmt: skip
"""The nodes of each activation in the body of the function: they make `a` of `h`."""

GLU = {"GLU": "Sigmoid", "SwiGLU": "Swish", "GeGLU": "Gelu", "GeGLUTanh": "GeluTanh", "ReGLU": "Relu"}


def function(name: str, inputs: str, body: str) -> onnx.FunctionProto:
    """A function of the domain, whose one result is `y`."""
    return onnx.parser.parse_function(
        f'<domain: "{DOMAIN}", opset_import: ["" : 15]> {name} ({inputs}) => (y) {{ {body} }}'
    )


register_operators(bodies=[function(name, "h, x", f"{BODIES[kind]} y = Mul (a, x)") for name, kind in GLU.items()])


def activated(kind: str, h: Pattern) -> Pattern:
    """An activation as the other rules leave it."""
    found: dict[str, Pattern] = {
        "Sigmoid": op.Sigmoid(h),
        "Relu": op.Relu(h),
        "Swish": ms.QuickGelu(h, alpha=1.0),
        "Gelu": op.Gelu(h) | ms.Gelu(h),
        "GeluTanh": op.Gelu(h, approximate="tanh") | ms.FastGelu(h),
    }
    return found[kind]


x, gate, bias = var("x"), var("gate"), var("bias", "c")
_BIASED = {"Gelu": ms.BiasGelu(gate, bias), "GeluTanh": ms.FastGelu(gate, bias)}
"""Activations that take in the bias of the gate."""


def is_not_itself(match: Match) -> Refusal | None:
    """The gate is not what it gates: that is swish."""
    same = match["gate"] is match["x"] and match.choice("gated") < len(GLU)
    return match.refuse("needless", "gate", found="it is what it gates") if same else None


def is_not_double(match: Match) -> Refusal | None:
    """The numbers are not of float64, for which Gelu has its tanh form with factors of float32."""
    dtype = match.dtype("x")
    wrong = dtype is None or dtype == ir.DataType.DOUBLE
    return match.refuse("dtype", "x", "float32 or float16") if wrong else None


def tanh_is_not_double(match: Match) -> Refusal | None:
    """The same where the gate is a Gelu in its tanh form."""
    return is_not_double(match) if match.choice("gated") in (3, 6) else None


def _either(*options: Pattern) -> Pattern:
    return functools.reduce(operator.or_, options).named("gated")


RULES = [
    Rule(
        name="glu.activation_times_x_to_function",
        formula="f(gate) x, f sigmoid, swish, gelu or relu",
        pattern=op.Mul(_either(*(activated(kind, gate) for kind in GLU.values()), *_BIASED.values()), x),
        replace=_either(
            *(getattr(made_of, name)(gate, x) for name in GLU),
            *(getattr(made_of, name)(op.Add(gate, bias), x) for name, kind in GLU.items() if kind in _BIASED),
        ),
        guards=(same_shape("gate", "x"), is_not_itself, tanh_is_not_double),
        on_request=True,
        exactness=Exactness.ROUNDING,
        source=GATES,
        test=RuleTest(shapes={"gate": "b 3", "x": "b 3", "bias": "3"}, opset=20),
    )
]
