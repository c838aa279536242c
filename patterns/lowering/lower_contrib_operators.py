"""Lower fused com.microsoft operators to operators of the standard.

gelu(x) = x/2 (1 + erf(x / sqrt 2))          fast_gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
quick_gelu(x) = x sigmoid(alpha x)          fused_matmul(a, b) = alpha a b, each transposed or not
skip_layer_norm(x, skip) = layer_norm(x + skip + bias)          skip_rms_norm(x, skip) = rms_norm(x + skip + bias)

They come before fusions, which make of the nodes what the chosen opset has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, built, ms, op, opt, var

from .._shared_guards import same_shape

PASS = "canonicalize"

SOURCE = "com.microsoft operators of ONNX Runtime"

x, bias, a, b = (var(name) for name in ("x", "bias", "a", "b"))
skip, gamma, beta = var("skip"), var("gamma"), var("beta")
total = op.Add(x, skip)

SHAPES = ({"x": "b s 8", "bias": "8"}, {"x": "n 8", "bias": "8"})


def _sum(match: Match) -> Pattern:
    """The value that is normalised: x + skip, and the bias where there is one."""
    return total if match["bias"] is None else op.Add(total, bias)


def _gelu(inner: Pattern) -> Pattern:
    return op.Mul(op.Mul(inner, 0.5), op.Add(op.Erf(op.Div(inner, math.sqrt(2))), 1.0))


def _tanh_gelu(inner: Pattern) -> Pattern:
    cubic = op.Mul(op.Mul(op.Mul(inner, inner), inner), 0.044715)
    return op.Mul(op.Mul(inner, 0.5), op.Add(op.Tanh(op.Mul(op.Add(inner, cubic), math.sqrt(2 / math.pi))), 1.0))


def _fast(match: Match) -> Pattern:
    return _tanh_gelu(x if match["bias"] is None else op.Add(x, bias))


def _quick(match: Match) -> Pattern:
    alpha = match["alpha"]
    return op.Mul(x, op.Sigmoid(op.Mul(x, 1.702 if alpha is None else alpha)))


def _transposed(match: Match, name: str) -> Pattern:
    rank = match.rank(name) or 0
    if not match[f"trans_{name}"] or rank < 2:
        return var(name)
    return op.Transpose(var(name), perm=(*range(rank - 2), rank - 1, rank - 2))


def _product(match: Match) -> Pattern:
    made: Pattern = op.MatMul(_transposed(match, "a"), _transposed(match, "b"))
    return made if match["alpha"] in (None, 1.0) else op.Mul(made, match["alpha"])


def ranks_are_known(match: Match) -> Refusal | None:
    """The ranks of what is transposed are known."""
    for name in ("a", "b"):
        if match[f"trans_{name}"] and match.rank(name) is None:
            return match.refuse("shape", name, "a known rank")
    return None


def keeps_batch(match: Match) -> Refusal | None:
    """No batch axis is moved behind the rows."""
    for name in ("batch_a", "batch_b"):
        if match[name]:
            return match.refuse("attribute", name, 0)
    return None


def _rms(match: Match, inner: Pattern) -> Pattern:
    epsilon = match["epsilon"] if match["epsilon"] is not None else 1e-5
    mean = op.ReduceMean(op.Mul(inner, inner), axes=(-1,), keepdims=1)
    return op.Mul(op.Div(inner, op.Sqrt(op.Add(mean, epsilon))), gamma)


def _skip_rms(match: Match) -> Pattern:
    return _rms(match, _sum(match))


def _plain_rms(match: Match) -> Pattern:
    return _rms(match, x)


def _skip_layer(match: Match) -> Pattern:
    return op.LayerNormalization(_sum(match), gamma, opt(beta), axis=-1, epsilon=attr("epsilon"))


def over_last_axis(match: Match) -> Refusal | None:
    """The operator normalises only the last axis."""
    rank, axis = match.rank("x"), match["axis"]
    return match.unless_value("axis", axis in (None, -1) or (rank is not None and axis == rank - 1), "the last axis")


def is_single(match: Match) -> Refusal | None:
    """The numbers are float32: in float64, the kernel rounds some to float32."""
    return match.unless_dtype("x", ir.DataType.FLOAT)


_ELEMENTWISE = ("Add", "Div", "Erf", "Mul", "Sigmoid", "Tanh")
_NORMALISING = ("Add", "Div", "Mul", "ReduceMean", "Sqrt")
_NORMALISED = {"x": "b s 8", "skip": "b s 8", "gamma": "8", "beta": "8", "bias": "8"}
_EPSILON = {"epsilon": [1e-5, 1e-3, None]}


def _rule(
    name: str,
    formula: str,
    pattern: Pattern,
    replace: Pattern,
    test: RuleTest,
    guards: tuple[Guard, ...] = (),
    intermediates: Mapping[str, Pattern] | None = None,
) -> Rule:
    return Rule(
        name=name,
        formula=formula,
        pattern=pattern,
        replace=replace,
        is_refinement=True,
        spells_out=True,
        guards=guards,
        intermediates=intermediates or {},
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=test,
    )


RULES = [
    _rule("gelu.lower_contrib_gelu", "com.microsoft.Gelu(x)", ms.Gelu(x), _gelu(x), RuleTest(shapes=SHAPES)),
    _rule(
        "gelu.lower_bias_gelu",
        "com.microsoft.BiasGelu(x, bias)",
        ms.BiasGelu(x, bias),
        _gelu(op.Add(x, bias)),
        RuleTest(shapes=SHAPES),
    ),
    _rule(
        "gelu.lower_fast_gelu",
        "com.microsoft.FastGelu(x, bias)",
        ms.FastGelu(x, opt(bias)),
        built(_fast, makes=_ELEMENTWISE),
        RuleTest(shapes=SHAPES),
        guards=(is_single,),
    ),
    _rule(
        "swish.lower_quick_gelu",
        "com.microsoft.QuickGelu(x)",
        ms.QuickGelu(x, alpha=attr("alpha")),
        built(_quick, makes=_ELEMENTWISE),
        RuleTest(shapes=SHAPES, attributes={"alpha": [None, 1.0, 1.702]}),
    ),
    _rule(
        "matmul.lower_fused_matmul",
        "com.microsoft.FusedMatMul(a, b)",
        ms.FusedMatMul(
            a,
            b,
            alpha=attr("alpha"),
            transA=attr("trans_a"),
            transB=attr("trans_b"),
            transBatchA=attr("batch_a"),
            transBatchB=attr("batch_b"),
        ),
        built(_product, makes=("MatMul", "Mul", "Transpose")),
        RuleTest(
            shapes=({"a": "b 3 4", "b": "b 4 5"}, {"a": "b 4 3", "b": "b 5 4"}),
            attributes=(
                {"alpha": [None, 0.5], "trans_a": [0], "trans_b": [None], "batch_a": [0], "batch_b": [None]},
                {"alpha": [0.5], "trans_a": [1], "trans_b": [1], "batch_a": [0], "batch_b": [0]},
            ),
        ),
        guards=(ranks_are_known, keeps_batch),
    ),
    _rule(
        "layernorm.lower_skip_layer_normalization",
        "com.microsoft.SkipLayerNormalization(x, skip, gamma, beta, bias)",
        ms.SkipLayerNormalization(x, skip, gamma, opt(beta), opt(bias), epsilon=attr("epsilon")).naming(summed=3),
        built(_skip_layer, makes=("Add", "LayerNormalization")),
        RuleTest(shapes=_NORMALISED, attributes=_EPSILON),
        guards=(same_shape("x", "skip"), is_single),
        intermediates={"summed": built(_sum, makes=("Add",))},
    ),
    _rule(
        "rmsnorm.lower_skip_simplified_layer_normalization",
        "com.microsoft.SkipSimplifiedLayerNormalization(x, skip, gamma, bias)",
        ms.SkipSimplifiedLayerNormalization(x, skip, gamma, opt(bias), epsilon=attr("epsilon")).naming(summed=3),
        built(_skip_rms, makes=_NORMALISING),
        RuleTest(shapes=_NORMALISED, attributes=_EPSILON),
        guards=(same_shape("x", "skip"), is_single),
        intermediates={"summed": built(_sum, makes=("Add",))},
    ),
    _rule(
        "rmsnorm.lower_simplified_layer_normalization",
        "SimplifiedLayerNormalization(x, gamma)",
        op.SimplifiedLayerNormalization(x, gamma, axis=attr("axis"), epsilon=attr("epsilon"), stash_type=attr("stash")),
        built(_plain_rms, makes=_NORMALISING),
        RuleTest(shapes=_NORMALISED, attributes={"axis": [-1], "stash": [1], **_EPSILON}, opset=17),
        guards=(over_last_axis, is_single),
    ),
]
