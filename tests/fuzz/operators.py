"""Any operator on any operands: each function adds a node or two, or is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from .builder import Builder, RefusedError, Value

FLOATS = (np.float32, np.float32, np.float32, np.float16, np.float64)
INTEGERS = (np.int64, np.int64, np.int32, np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.uint64)
NEUTRAL = (0.0, -0.0, 1.0, 1.001, -1.0, 2.0, 0.5, np.inf, -np.inf, np.nan)
NEARLY_NEUTRAL = (1.0 + 1e-6, 1.0 - 1e-6, 1e-6, 1e-12)

UNARY = [
    "Abs",
    "Neg",
    "Relu",
    "Sigmoid",
    "Tanh",
    "Erf",
    "Softplus",
    "Softsign",
    "Sin",
    "Cos",
    "Sqrt",
    "Exp",
    "Log",
    "Reciprocal",
    "Identity",
    "Elu",
    "Selu",
    "LeakyRelu",
    "HardSigmoid",
]
NEWER_UNARY = {"HardSwish": 14, "Mish": 18, "Gelu": 20}
JUMPS = ["Floor", "Ceil", "Round", "Sign"]
BINARY = ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"]
COMPARISONS = ["Equal", "Less", "Greater"]
REDUCTIONS = [
    "ReduceMean",
    "ReduceSum",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSumExp",
]
ONNX_TYPE = {
    np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.float64): TensorProto.DOUBLE, np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.int32): TensorProto.INT32, np.dtype(bool): TensorProto.BOOL,
    np.dtype(np.int8): TensorProto.INT8, np.dtype(np.uint8): TensorProto.UINT8,
}  # fmt: skip


def scalar_like(b: Builder, x: Value, number: float) -> Value:
    """A constant of one element, of rank 0 or 1 or more, of the type of `x`."""
    if x.dtype.kind in "OSU":
        raise RefusedError("no number")
    if x.dtype.kind in "iub" and not np.isfinite(number):
        number = 1
    with np.errstate(all="ignore"):
        array = np.array(abs(number) if x.dtype.kind == "u" else number).astype(x.dtype)
    return b.const(array.reshape(b.choose.pick([(), (), (1,), (1, 1), (1,) * (x.known.ndim + 1)])))


def neutral(b: Builder) -> float:
    """A number that is neutral in some operation, or nearly so."""
    return b.choose.pick((*NEUTRAL, *NEARLY_NEUTRAL) if b.shared.nearly else NEUTRAL)


def numbers_like(b: Builder, x: Value) -> Value:
    """A constant that broadcasts to `x`, or nearly."""
    if x.dtype.kind in "OSU":
        raise RefusedError("no numbers")
    shape = [1 if b.choose.chance(30) else size for size in x.shape]
    shape = shape[b.choose.integer(0, len(shape)) :]
    array = np.random.default_rng(b.choose.integer(0, 99)).standard_normal(shape)
    return b.const(np.abs(array * 2).astype(x.dtype) if x.dtype.kind in "ub" else array.astype(x.dtype))


def unary(b: Builder) -> Value:
    """An elementwise operator of one operand."""
    if b.choose.chance(15):
        return b.op(b.choose.pick(JUMPS), b.some(np.float32, exact=True))
    kinds = UNARY + [kind for kind, since in NEWER_UNARY.items() if since <= b.opset]
    kind = b.choose.pick(kinds)
    x = b.some() if kind in ("Abs", "Neg", "Relu", "Identity") else b.some_float()
    if kind in ("Sqrt", "Log", "Reciprocal"):
        x = b.op("Add", b.op("Abs", x), b.const(np.ones((), x.dtype)))
    return b.op(kind, x)


def binary(b: Builder) -> Value:
    """An arithmetic operator: of two values, of one twice, or with a constant that is neutral or nearly so."""
    x = b.some()
    kind = b.choose.pick(BINARY)
    how = b.choose.pick(["value", "scalar", "scalar", "vector", "twice"])
    if how == "value":
        y = b.some(x.dtype)
    elif how == "scalar":
        y = scalar_like(b, x, neutral(b))
    else:
        y = numbers_like(b, x) if how == "vector" else x
    if x.dtype.kind in "iu" and kind in ("Div", "Pow") and (kind == "Pow" or (y.known == 0).any()):
        raise RefusedError("the runtime does not define it")
    if kind == "Div" and how in ("value", "twice"):
        y = b.op("Add", b.op("Abs", y), b.const(np.ones((), y.dtype)))
    if kind == "Pow" and how != "scalar":
        raise RefusedError("powers of random numbers are large or not numbers")
    return b.op(kind, *((y, x) if b.choose.chance(40) and kind != "Div" else (x, y)))


def variadic(b: Builder) -> Value:
    """Sum, Mean, Max or Min of several."""
    x = b.some_float()
    return b.op(
        b.choose.pick(["Sum", "Mean", "Max", "Min"]), x, *(b.some(x.dtype) for _ in range(b.choose.integer(0, 3)))
    )


def logic(b: Builder) -> Value:
    """Comparisons of unrounded numbers, and what is done with truth values."""
    kind = b.choose.pick(["compare", "compare", "not", "both", "where", "cast", "isnan"])
    if kind == "compare":
        x = b.some(exact=True)
        y = scalar_like(b, x, b.choose.pick([0.0, 1.0, 2.0])) if b.choose.chance(60) else b.some(x.dtype, exact=True)
        return b.op(b.choose.pick(COMPARISONS), x, y)
    if kind == "isnan":
        return b.op("IsNaN", b.some_float())
    if kind == "cast":
        return b.op("Cast", b.some(bool), to=TensorProto.FLOAT)
    if kind == "not":
        return b.op("Not", b.some(bool))
    if kind == "both":
        other = b.const(np.array(b.choose.chance(50))) if b.choose.chance(50) else b.some(bool)
        return b.op(b.choose.pick(["And", "Or", "Xor"]), b.some(bool), other)
    x = b.some()
    y = b.some(x.dtype) if b.choose.chance(50) else scalar_like(b, x, neutral(b))
    condition = (
        b.const(np.array(b.choose.chance(50)).reshape(b.choose.pick([(), (1,), (1, 1)])))
        if b.choose.chance(30)
        else b.some(bool)
    )
    return b.op("Where", condition, *((x, y) if b.choose.chance(50) else (y, x)))


def cast(b: Builder) -> Value:
    """A Cast, there or there and back, perhaps by way of a type that numpy lacks."""
    x = b.some()
    kind = b.choose.pick(["to", "back", "narrow", "like"])
    if kind == "like" and b.opset >= 15:
        return b.op("CastLike", x, b.some())
    if kind == "narrow" and x.dtype == np.float32:
        types = [TensorProto.BFLOAT16] + ([TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2] if b.opset >= 19 else [])
        inside = b.op("Cast", x, to=b.choose.pick(types), opaque=True)
        if b.choose.chance(40) and x.known.ndim:
            inside = b.op("Transpose", inside, perm=b.choose.permutation(x.known.ndim), opaque=True)
        if b.choose.chance(40):
            inside = b.op("Reshape", inside, b.ints([-1]), opaque=True)
        return b.op("Cast", inside, to=TensorProto.FLOAT)
    to = b.choose.pick(list(ONNX_TYPE.items()))
    if x.dtype.kind == "f" and to[0].kind in "iub" and not (x.exact and np.isfinite(x.known).all()):
        raise RefusedError("a jump")
    found = b.op("Cast", x, to=to[1])
    return b.op("Cast", found, to=ONNX_TYPE.get(x.dtype, TensorProto.FLOAT)) if kind == "back" else found


def reduction(b: Builder) -> Value:
    """A reduction over some axes."""
    x = b.some_float()
    axes = [axis for axis in range(x.known.ndim) if b.choose.chance(40)]
    if b.choose.chance(50):
        axes = [axis - x.known.ndim for axis in axes]
    if 0 in x.shape:
        raise RefusedError("the runtime is at odds with ONNX over empty reductions")
    return reduce(b, b.choose.pick(REDUCTIONS), x, axes, keep=b.choose.chance(60))


def reduce(b: Builder, kind: str, x: Value, axes: list[int], keep: bool = True) -> Value:
    """A reduction, written as the opset has it; without axes over all."""
    if b.opset >= (13 if kind == "ReduceSum" else 18):
        return b.op(kind, x, b.ints(axes) if axes else None, keepdims=int(keep))
    return b.op(kind, x, axes=axes or None, keepdims=int(keep))


def softmax(b: Builder) -> Value:
    """Softmax or LogSoftmax over some axis."""
    x = b.some_float()
    if not x.known.ndim:
        raise RefusedError("a scalar")
    return b.op(b.choose.pick(["Softmax", "LogSoftmax"]), x, axis=b.choose.integer(-x.known.ndim, x.known.ndim - 1))


def product(b: Builder) -> Value:
    """A matrix product, with or without something added."""
    x = b.some(b.choose.pick([np.float32, np.float32, np.float64]))
    if not x.known.ndim:
        raise RefusedError("a scalar")
    width, depth = b.choose.integer(1, 6), x.shape[-1]
    weight = np.random.default_rng(b.choose.integer(0, 9)).standard_normal((depth, width)).astype(x.dtype)
    kind = b.choose.pick(["matmul", "matmul", "gemm", "fused", "values"])
    if kind == "values":
        return b.op("MatMul", x, b.some(x.dtype))
    if kind == "fused":
        return b.op("FusedMatMul", x, b.const(weight), domain="com.microsoft", alpha=b.choose.pick([1.0, 0.5]))
    if kind == "gemm" and x.known.ndim == 2:
        bias = (
            numbers_like(b, x)
            if b.choose.chance(20)
            else b.const(np.ones(b.choose.pick([(width,), (1, width), ()]), x.dtype))
        )
        turned = b.choose.chance(50)
        operands = (x, b.const(weight.T if turned else weight), bias if b.choose.chance(70) else None)
        return b.op(
            "Gemm", *operands, transB=int(turned), alpha=b.choose.pick([1.0, 0.5]), beta=b.choose.pick([1.0, 2.0, 0.0])
        )
    found = b.op("MatMul", x, b.const(weight))
    bias = b.const(np.arange(width).astype(x.dtype).reshape(b.choose.pick([(width,), (1, width), (1, 1, width)])))
    return b.op("Add", *((found, bias) if b.choose.chance(60) else (bias, found)))


def optional_inputs(b: Builder) -> Value:
    """Operators that leave out inputs in the middle, or outputs."""
    x = b.some_float()
    kind = b.choose.pick(["clip", "clip", "dropout", "layer", "batch", "topk", "cumsum", "trilu"])
    low, high = (b.const(np.array(n, x.dtype)) for n in (-0.5, 0.5))
    if kind == "clip":
        return b.op("Clip", x, *b.choose.pick([(None, high), (low,), (low, high), (None, None), ()]))
    if kind == "dropout":
        ratio = b.const(np.array(b.choose.pick([0.0, 0.5]), np.float32))
        given = b.choose.pick([(), (ratio,), (None, b.const(np.array(False))), (ratio, b.const(np.array(False)))])
        return b.ops("Dropout", x, *given, outputs=b.choose.integer(1, 2))[0]
    if kind == "layer" and b.opset >= 17 and x.known.ndim and x.shape[-1]:
        gains = b.const(np.linspace(0.5, 1.5, x.shape[-1]).astype(x.dtype))
        bias = b.const(np.zeros(x.shape[-1], x.dtype)) if b.choose.chance(50) else None
        return b.op("LayerNormalization", x, gains, *([bias] if bias is not None else []), axis=-1)
    if kind == "topk" and x.exact and x.known.ndim:
        return b.ops("TopK", x, b.ints([1]), outputs=2)[b.choose.integer(0, 1)]
    if kind == "cumsum" and x.known.ndim:
        return b.op(
            "CumSum",
            x,
            b.const(np.array(b.choose.integer(-1, x.known.ndim - 1), np.int32)),
            exclusive=b.choose.integer(0, 1),
        )
    if kind == "trilu" and b.opset >= 14:
        return b.op("Trilu", x, *b.choose.pick([(), (b.ints(1),)]), upper=b.choose.integer(0, 1))
    raise RefusedError(kind)


def sequence(b: Builder) -> Value:
    """Into a sequence and out of it."""
    x = b.some()
    if b.choose.chance(50):
        made = b.op("SequenceConstruct", x, b.some(x.dtype), opaque=True)
        return b.op("SequenceAt", made, b.ints(b.choose.integer(-2, 1)))
    # Of one shape whatever the sizes of inputs: the runtime crashes on others.
    made = b.op("SequenceConstruct", x, x, opaque=True)
    return b.op("ConcatFromSequence", made, axis=0, new_axis=b.choose.integer(0, 1))


def contrib(b: Builder) -> Value:
    """Operators that only the runtime has."""
    x = b.some(np.float32)
    kind = b.choose.pick(["FastGelu", "QuickGelu", "Gelu", "BiasGelu", "SkipLayerNormalization"])
    if not x.known.ndim or not x.shape[-1]:
        raise RefusedError("a scalar")
    vector = b.const(np.linspace(-1, 1, x.shape[-1]).astype(np.float32))
    if kind == "SkipLayerNormalization":
        return b.op(kind, x, b.op("Neg", x), vector, vector, domain="com.microsoft", epsilon=1e-5)
    if kind == "BiasGelu":
        return b.op(kind, x, vector, domain="com.microsoft")
    return b.op(
        kind, x, domain="com.microsoft", **({"alpha": b.choose.pick([1.0, 1.702])} if kind == "QuickGelu" else {})
    )


def quantise(b: Builder) -> Value:
    """QuantizeLinear of something unrounded, and back."""
    x = b.some(np.float32, exact=True)
    scale, zero = b.const(np.array(0.1, np.float32)), b.const(np.array(3, np.uint8))
    return b.op("DequantizeLinear", b.op("QuantizeLinear", x, scale, zero), scale, zero)


OPERATORS: tuple[Callable[[Builder], Value], ...] = (
    unary, binary, binary, variadic, logic, logic, cast, reduction, softmax, product, optional_inputs, sequence, contrib, quantise,
)  # fmt: skip
