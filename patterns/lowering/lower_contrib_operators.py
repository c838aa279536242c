"""Lower fused com.microsoft operators to operators of the standard.

gelu(x) = x/2 (1 + erf(x / sqrt 2))          fast_gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
quick_gelu(x) = x sigmoid(alpha x)          fused_matmul(a, b) = alpha a b, each transposed or not
bias_split_gelu([a, b]) = a gelu(b)          bias_add(x, bias, skip) = x + bias + skip
bias_softmax(x, bias) = softmax(x + bias)
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

from .._shared_guards import constant, same_shape

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
    """An operand as MatMul takes it: with batch axes that lie between rows and columns, the first axis goes behind them."""
    rank = match.rank(name) or 0
    rows, columns = rank - 2, rank - 1
    order = [*range(rows), rows, columns]
    if match.get(f"batch_{name}") and rank > 2:
        order = [*range(1, columns), 0, columns]
    if match[f"trans_{name}"] and rank > 1:
        order[-2:] = order[:-3:-1]
    return var(name) if order == sorted(order) else op.Transpose(var(name), perm=tuple(order))


def _product(match: Match) -> Pattern:
    made: Pattern = op.MatMul(_transposed(match, "a"), _transposed(match, "b"))
    return made if match["alpha"] in (None, 1.0) else op.Mul(made, match["alpha"])


def ranks_are_known(match: Match) -> Refusal | None:
    """The ranks of transposed operands are known."""
    for name in ("a", "b"):
        if (match[f"trans_{name}"] or match.get(f"batch_{name}")) and match.rank(name) is None:
            return match.refuse("shape", name, "a known rank")
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


def _half_activated(match: Match) -> Pattern:
    width = _width(match)
    total = op.Add(x, bias)
    first, second = (op.Slice(total, constant(at), constant(at + width // 2), constant(-1)) for at in (0, width // 2))
    return op.Mul(first, _gelu(second))


def _width(match: Match) -> int:
    shape = match.shape("x")
    assert shape is not None and isinstance(shape[-1], int)
    return shape[-1]


def has_two_halves(match: Match) -> Refusal | None:
    """The last axis has a known even size, and the bias that size."""
    shape = match.shape("x")
    if not shape or not isinstance(shape[-1], int) or shape[-1] % 2:
        return match.refuse_dimension("x", -1, "a known even size")
    return match.unless_shape((shape[-1],), "bias")


def is_of_last_axis(match: Match) -> Refusal | None:
    """The bias has the size of the last axis."""
    shape = match.shape("x")
    return match.refuse("shape", "x", "a known one") if not shape else match.unless_shape((shape[-1],), "bias")


def repeats_as_numpy_does(match: Match) -> Refusal | None:
    """The bias is broadcast to the scores along the axes that the attribute says, and has the size of the last one.

    The kernel reads a row of the bias for several rows of scores that follow on one another (1), or the rows in turn (0).
    """
    shape, other = match.shape("x"), match.shape("bias")
    if not shape or not other or len(other) > len(shape) or other[-1] != shape[-1]:
        return match.refuse("shape", "bias", "one that is broadcast to the scores, with their last size")
    sizes = (*[1] * (len(shape) - len(other)), *other)
    if not all(size in (1, own) for size, own in zip(sizes, shape, strict=True)):
        return match.refuse("shape", "bias", "one that is broadcast to the scores")
    repeats = [size != own for size, own in zip(sizes[:-1], shape[:-1], strict=True) if own != 1]
    wanted = sorted(repeats, reverse=match["is_inner"] == 0)
    return match.unless_value(
        "is_inner", match["is_inner"] in (0, 1) and repeats == wanted, "the axes of the bias of size 1"
    )


def over_last_axis_of_one(match: Match) -> Refusal | None:
    """Softmax is over the last axis: over others, it merges those behind them."""
    rank, axis = match.rank("x"), 1 if match["axis"] is None else match["axis"]
    return match.unless_value("axis", axis == -1 or (rank is not None and axis == rank - 1), "the last axis")


def over_last_axis(match: Match) -> Refusal | None:
    """The operator normalises only the last axis."""
    rank, axis = match.rank("x"), match["axis"]
    return match.unless_value("axis", axis in (None, -1) or (rank is not None and axis == rank - 1), "the last axis")


def is_single(match: Match) -> Refusal | None:
    """The numbers are float32: in float64, the kernel rounds some to float32."""
    return match.unless_dtype("x", ir.DataType.FLOAT)


def _split_gelu_function(node: ir.Node, opset: int) -> str:
    """For rule tests: BiasSplitGelu, which only kernels of GPUs compute."""
    return f"""<domain: "any", opset_import: ["": {opset}]> any (x, bias) => (y) {{
        s = Add(bias, x) n = Shape(s) at = Constant <value_ints = [-1]> () all = Gather(n, at)
        two = Constant <value_ints = [2]> () half = Div(all, two) none = Constant <value_ints = [0]> ()
        a = Slice(s, none, half, at) b = Slice(s, half, all, at)
        r = Constant <value_float = 0.70710678> () c = Mul(b, r) e = Erf(c) one = Constant <value_float = 1.0> () f = Add(e, one)
        h = Constant <value_float = 0.5> () g = Mul(f, h) p = Mul(g, b) y = Mul(p, a) }}"""


def _add_function(node: ir.Node, opset: int) -> str:
    """For rule tests: BiasAdd."""
    return f"""<domain: "any", opset_import: ["": {opset}]> any (x, bias, skip) => (y) {{ s = Add(bias, skip) y = Add(x, s) }}"""


def _softmax_function(node: ir.Node, opset: int) -> str | None:
    """For rule tests: BiasSoftmax, each of whose rows of biases is for several rows of scores, on end or in turn."""
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    if given.get("is_inner_broadcast") not in (0, 1):
        return None
    rows, row = ("k, m, e", "k, o, e") if given["is_inner_broadcast"] else ("m, k, e", "o, k, e")
    return f"""<domain: "any", opset_import: ["": {opset}]> any (x, bias) => (y) {{
        z = Constant <value_ints = [0]> () o = Constant <value_ints = [1]> () m = Constant <value_ints = [-1]> ()
        f = Flatten <axis = {given.get("axis", 1)}> (x) fs = Shape(f) e = Gather(fs, o) flat = Concat <axis = 0> (m, e)
        b = Reshape(bias, flat) bs = Shape(b) k = Gather(bs, z) sc = Concat <axis = 0> ({rows}) bc = Concat <axis = 0> ({row})
        scores = Reshape(f, sc) biases = Reshape(b, bc) t = Add(scores, biases) p = Softmax <axis = -1> (t)
        s = Shape(x) y = Reshape(p, s) }}"""


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
            shapes=(
                {"a": "b 3 4", "b": "b 4 5"},
                {"a": "b 4 3", "b": "b 5 4"},
                {"a": "3 2 b 4", "b": "4 2 b 5"},
                {"a": "4 2 b 3", "b": "5 2 b 4"},
            ),
            attributes=(
                {"alpha": [None, 0.5], "trans_a": [0], "trans_b": [None], "batch_a": [0], "batch_b": [None]},
                {"alpha": [0.5], "trans_a": [1], "trans_b": [1], "batch_a": [0], "batch_b": [0]},
                {"alpha": [None], "trans_a": [0], "trans_b": [0], "batch_a": [1], "batch_b": [1]},
                {"alpha": [0.5], "trans_a": [1], "trans_b": [1], "batch_a": [1], "batch_b": [1]},
            ),
        ),
        guards=(ranks_are_known,),
    ),
    _rule(
        "matmul.lower_transpose_matmul",
        "com.microsoft.TransposeMatMul(a, b)",
        ms.TransposeMatMul(a, b, alpha=attr("alpha"), transA=attr("trans_a"), transB=attr("trans_b")),
        built(_product, makes=("MatMul", "Mul", "Transpose")),
        RuleTest(
            shapes=({"a": "b 3 4", "b": "b 4 5"}, {"a": "b 4 3", "b": "b 5 4"}),
            attributes=(
                {"alpha": [None, 0.5], "trans_a": [0], "trans_b": [None]},
                {"alpha": [0.5], "trans_a": [1], "trans_b": [1]},
            ),
        ),
        guards=(ranks_are_known,),
    ),
    _rule(
        "gelu.lower_bias_split_gelu",
        "com.microsoft.BiasSplitGelu(x, bias)",
        ms.BiasSplitGelu(x, bias),
        built(_half_activated, makes=("Slice", *_ELEMENTWISE)),
        RuleTest(shapes={"x": "b s 8", "bias": "8"}, definitions={"com.microsoft.BiasSplitGelu": _split_gelu_function}),
        guards=(has_two_halves,),
    ),
    _rule(
        "algebra.lower_bias_add",
        "com.microsoft.BiasAdd(x, bias, skip)",
        ms.BiasAdd(x, bias, skip),
        op.Add(op.Add(x, bias), skip),
        RuleTest(
            shapes={"x": "b s 8", "bias": "8", "skip": "b s 8"}, definitions={"com.microsoft.BiasAdd": _add_function}
        ),
        guards=(is_of_last_axis, same_shape("x", "skip")),
    ),
    _rule(
        "softmax.lower_bias_softmax",
        "com.microsoft.BiasSoftmax(x, bias)",
        ms.BiasSoftmax(x, bias, axis=attr("axis"), is_inner_broadcast=attr("is_inner")),
        op.Softmax(op.Add(x, bias), axis=-1),
        RuleTest(
            shapes=(
                {"x": "b 2 s t", "bias": "b 1 1 t"},
                {"x": "b t", "bias": "1 t"},
                {"x": "b 2 s t", "bias": "s t"},
            ),
            attributes=(
                {"axis": [3, -1], "is_inner": [1]},
                {"axis": [1, None], "is_inner": [0, 1]},
                {"axis": [-1], "is_inner": [0]},
            ),
            definitions={"com.microsoft.BiasSoftmax": _softmax_function},
        ),
        guards=(repeats_as_numpy_does, over_last_axis_of_one),
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
