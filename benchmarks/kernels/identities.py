"""A small table of identities: spellings of one computation, as bodies of graphs with inputs x, c, ... and the result y.

The first spelling of each is the operator that the identity is about. `slow_kernels.py` adds the bodies by which the
standard defines operators, and the rules of the catalogue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

IMAGES = ("1,64,56,56", "1,21,128,128", "8,256,14,14")
ROWS = ("1,128,768", "1,16,1536", "64,1000")
ANY = ("1,128,768", "1,64,56,56", "4096")


@dataclass(frozen=True)
class Identity:
    """Spellings of one computation on inputs of one size; inputs other than x and c are weights, and so constants."""

    operator: str
    size: str
    inputs: str
    spellings: tuple[str, ...]
    constants: str = ""


def unary(operator: str, *spellings: str, constants: str = "", sizes: tuple[str, ...] = ANY) -> Iterator[Identity]:
    """Spellings of a function of x alone, at each size."""
    for size in sizes:
        yield Identity(operator, size, f"float[{size}] x", spellings, constants)


def _pointwise() -> Iterator[Identity]:
    zero, one, two, half = (f"float {name} = {{{number}}}" for name, number in
                            (("zero", 0.0), ("one", 1.0), ("two", 2.0), ("half", 0.5)))  # fmt: skip
    stable = "r = Max(x, zero) a = Abs(x) n = Neg(a) e = Exp(n) f = Add(e, one) l = Log(f) s = Add(r, l)"
    yield from unary("Softplus", "y = Softplus(x)", f"{stable} y = Identity(s)", constants=f"{zero}, {one}")
    yield from unary("Mish", "y = Mish(x)", "s = Softplus(x) t = Tanh(s) y = Mul(x, t)", f"{stable} t = Tanh(s) y = Mul(x, t)",
                      constants=f"{zero}, {one}")  # fmt: skip
    yield from unary("Pow", "y = Pow(x, two)", "y = Mul(x, x)", constants=two)
    yield from unary("Pow 3", "y = Pow(x, three)", "q = Mul(x, x) y = Mul(q, x)", constants="float three = {3.0}")
    yield from unary("Pow 0.5", "a = Abs(x) y = Pow(a, half)", "a = Abs(x) y = Sqrt(a)", constants=half)
    yield from unary("Div", "y = Div(x, two)", "y = Mul(x, half)", constants=f"{two}, {half}")
    yield from unary("Reciprocal", "a = Exp(x) y = Reciprocal(a)", "a = Exp(x) y = Div(one, a)", constants=one)
    yield from unary(
        "Where", "c = Greater(x, zero) y = Where(c, x, zero)", "y = Relu(x)", "y = Max(x, zero)", constants=zero
    )
    yield from unary(
        "LeakyRelu", "y = LeakyRelu<alpha=0.1>(x)", "m = Mul(x, a) y = Max(m, x)", constants="float a = {0.1}"
    )
    yield from unary("PRelu", "y = PRelu(x, a)", "m = Mul(x, a) y = Max(m, x)", "y = LeakyRelu<alpha=0.1>(x)",
                      constants="float[1] a = {0.1}")  # fmt: skip
    yield from unary("Elu", "y = Elu(x)", "m = Min(x, zero) e = Exp(m) k = Sub(e, one) r = Relu(x) y = Add(r, k)",
                      constants=f"{zero}, {one}")  # fmt: skip
    yield from unary("Clip", "y = Clip(x, zero, one)", "m = Max(x, zero) y = Min(m, one)", constants=f"{zero}, {one}")
    yield from unary("HardSigmoid", "y = HardSigmoid<alpha=0.5, beta=0.5>(x)",
                      "m = Mul(x, half) a = Add(m, half) y = Clip(a, zero, one)", constants=f"{zero}, {one}, {half}")  # fmt: skip
    yield from unary("HardSwish", "y = HardSwish(x)", "h = HardSigmoid<alpha=0.16666667, beta=0.5>(x) y = Mul(x, h)")
    yield from unary(
        "Sigmoid", "y = Sigmoid(x)", "h = Mul(x, half) t = Tanh(h) m = Mul(t, half) y = Add(m, half)", constants=half
    )
    yield from unary("Swish", "s = Sigmoid(x) y = Mul(x, s)", "y = com.microsoft.QuickGelu<alpha=1.0>(x)")
    yield from unary("Softsign", "y = Softsign(x)", "a = Abs(x) b = Add(a, one) y = Div(x, b)", constants=one)
    yield from unary("Sign", "y = Sign(x)", "p = Greater(x, zero) n = Less(x, zero) a = Cast<to=1>(p) b = Cast<to=1>(n)"
                      " y = Sub(a, b)", constants=zero)  # fmt: skip
    yield from unary("Abs", "y = Abs(x)", "n = Neg(x) y = Max(x, n)")
    yield from unary("Neg", "y = Neg(x)", "y = Mul(x, m)", constants="float m = {-1.0}")
    yield from unary("Sum", "y = Sum(x, x)", "y = Add(x, x)")
    yield from unary(
        "Mean", "y = Mean(x, x, x)", "a = Add(x, x) b = Add(a, x) y = Mul(b, t)", constants="float t = {0.33333333}"
    )
    yield from unary("IsNaN", "n = IsNaN(x) y = Cast<to=1>(n)", "e = Equal(x, x) n = Not(e) y = Cast<to=1>(n)")
    yield from unary("Mod", "y = Mod<fmod=1>(x, two)", "d = Div(x, two) p = Floor(d) n = Ceil(d) c = Less(x, zero)"
                      " t = Where(c, n, p)"
                      " m = Mul(t, two) y = Sub(x, m)", constants=f"{two}, {zero}")  # fmt: skip


def _reductions() -> Iterator[Identity]:
    for size in IMAGES:
        first = int(size.split(",")[1])
        last = "t = Transpose<perm=[0,2,3,1]>(x)"
        back = "y = Transpose<perm=[0,3,1,2]>(r)"
        for name in ("Softmax", "LogSoftmax", "Hardmax"):
            yield Identity(f"{name}, axis 1", size, f"float[{size}] x",
                           (f"y = {name}<axis=1>(x)", f"{last} r = {name}<axis=-1>(t) {back}"))  # fmt: skip
        for name in (
            "ReduceMean",
            "ReduceSum",
            "ReduceMax",
            "ReduceL2",
            "ReduceSumSquare",
            "ReduceL1",
            "ReduceLogSumExp",
        ):
            spellings = [f"y = {name}<keepdims=0>(x, one)", f"{last} y = {name}<keepdims=0>(t, end)"]
            if name == "ReduceSum":
                spellings.append("f = Reshape(x, flat) p = MatMul(ones, f) y = Reshape(p, image)")
            image = ",".join(size.split(",")[:1] + size.split(",")[2:])
            constants = (
                f"int64[1] one = {{1}}, int64[1] end = {{-1}}, int64[3] flat = {{0, {first}, -1}}, "
                f"int64[3] image = {{{image}}}, float[1,{first}] ones = {{{', '.join(['1.0'] * first)}}}"
            )
            yield Identity(f"{name}, axis 1", size, f"float[{size}] x", tuple(spellings), constants)
        space = (
            "int64[2] space = {2, 3}, int64[3] rows = {0, 0, -1}, int64[1] end = {-1}, int64[4] column = {0, 0, 1, 1}"
        )
        for name, pool in (("ReduceMean", "GlobalAveragePool"), ("ReduceMax", "GlobalMaxPool")):
            yield Identity(
                f"{name}, axes 2 and 3", size, f"float[{size}] x",
                (f"y = {name}(x, space)", f"y = {pool}(x)",
                 f"f = Reshape(x, rows) r = {name}(f, end) y = Reshape(r, column)"), space,
            )  # fmt: skip
        yield Identity("ArgMax, axis 1", size, f"float[{size}] x",
                       ("a = ArgMax<axis=1, keepdims=0>(x) y = Cast<to=1>(a)",
                        f"{last} a = ArgMax<axis=-1, keepdims=0>(t) y = Cast<to=1>(a)"))  # fmt: skip
    for size in ROWS:
        constants = "int64[1] end = {-1}, int64[1] k = {1}"
        yield from unary("TopK 1", "y, i = TopK(x, k)", "y = ReduceMax(x, end)", constants=constants, sizes=(size,))
        yield from unary("TopK 1, indices", "v, i = TopK(x, k) y = Cast<to=1>(i)", "i = ArgMax<axis=-1>(x) y = Cast<to=1>(i)",
                          constants=constants, sizes=(size,))  # fmt: skip
        for name, other in (
            ("ReduceL2", "q = Mul(x, x) s = ReduceSum(q, end) y = Sqrt(s)"), ("ReduceL1", "a = Abs(x) y = ReduceSum(a, end)"),
            ("ReduceSumSquare", "q = Mul(x, x) y = ReduceSum(q, end)"), ("ReduceLogSum", "a = ReduceSum(x, end) y = Log(a)"),
            ("ReduceLogSumExp", "m = ReduceMax(x, end) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, end) l = Log(s) y = Add(l, m)"),
            ("ReduceMean", "s = ReduceSum(x, end) y = Div(s, n)"),
        ):  # fmt: skip
            count = size.rpartition(",")[2]
            yield Identity(
                name, size, f"float[{size}] x", (f"y = {name}(x, end)", other), f"{constants}, float n = {{{count}.0}}"
            )
        yield from unary("LpNormalization", "y = LpNormalization<axis=-1>(x)", "n = ReduceL2(x, end) y = Div(x, n)",
                          constants=constants, sizes=(size,))  # fmt: skip
        width = int(size.rpartition(",")[2])
        yield Identity("CumSum", size, f"float[{size}] x",
                       ("y = CumSum(x, last)",
                        "o = Expand(one, square) w = Trilu(o) y = MatMul(x, w)"),
                       f"int64 last = {{-1}}, float one = {{1.0}}, int64[2] square = {{{width}, {width}}}")  # fmt: skip


def _moves() -> Iterator[Identity]:
    for size in ROWS:
        width = int(size.rpartition(",")[2])
        half = width // 2
        numbers = ", ".join(map(str, range(half)))
        yield from unary(
            "Gather of neighbours", "y = Gather<axis=-1>(x, ids)", "y = Slice(x, start, end, axis)",
            "y, z = Split<axis=-1>(x, both)",
            constants=f"int64[{half}] ids = {{{numbers}}}, int64[1] start = {{0}}, int64[1] end = {{{half}}}, "
            f"int64[1] axis = {{-1}}, int64[2] both = {{{half}, {width - half}}}", sizes=(size,),
        )  # fmt: skip
        yield from unary("Gather of one", "y = Gather<axis=-1>(x, id)", "s = Slice(x, start, end, axis) y = Squeeze(s, axis)",
                          constants="int64 id = {3}, int64[1] start = {3}, int64[1] end = {4}, int64[1] axis = {-1}",
                          sizes=(size,))  # fmt: skip
        yield from unary("Split", "a, b = Split<axis=-1, num_outputs=2>(x) y = Add(a, b)",
                          "a = Slice(x, start, mid, axis) b = Slice(x, mid, end, axis) y = Add(a, b)",
                          constants=f"int64[1] start = {{0}}, int64[1] mid = {{{half}}}, int64[1] end = {{{width}}}, "
                      "int64[1] axis = {-1}",
                          sizes=(size,))  # fmt: skip
        rank = size.count(",") + 1
        twice = ", ".join(["1"] * (rank - 1) + ["2"])
        yield from unary("Tile", "y = Tile(x, twice)", "y = Concat<axis=-1>(x, x)",
                          constants=f"int64[{rank}] twice = {{{twice}}}", sizes=(size,))  # fmt: skip
        yield from unary("Pad", "y = Pad(x, by)", "y = Concat<axis=-1>(x, border)",
                          constants=f"int64[{2 * rank}] by = {{{', '.join(['0'] * (2 * rank - 1) + ['1'])}}}, "
                          f"float[{','.join(size.split(',')[:-1])},1] border = {{{', '.join(['0.0'] * _count(size))}}}",
                          sizes=(size,))  # fmt: skip
    yield from unary(
        "Expand",
        "e = Expand(x, to) y = Add(e, x)",
        "y = Add(x, x)",
        constants="int64[3] to = {1, 128, 768}",
        sizes=ROWS[:1],
    )
    for size, perm, shape, moved in (("1,128,1,12,64", "0,3,2,1,4", "128,12,64", "1,12,1,128,64"),
                                     ("1,1,64,56,56", "0,1,3,4,2", "64,3136", "1,1,56,56,64")):  # fmt: skip
        inner = "1,0,2" if shape.count(",") == 2 else "1,0"
        yield from unary("Transpose with axes of 1", f"y = Transpose<perm=[{perm}]>(x)",
                          f"a = Reshape(x, to) b = Transpose<perm=[{inner}]>(a) y = Reshape(b, back)",
                          constants=f"int64[{shape.count(',') + 1}] to = {{{shape}}}, int64[5] back = {{{moved}}}",
                          sizes=(size,))  # fmt: skip
    for channels, side in ((64, 56), (16, 112)):
        size = f"1,{channels},{side},{side}"
        resized = "float[4] by = {1.0, 1.0, 2.0, 2.0}"
        yield from unary(
            "Resize, nearest",
            'y = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x, , by)',
            "a = Reshape(x, split) b = Expand(a, to) y = Reshape(b, joined)",
            constants=f"{resized}, int64[6] split = {{1, {channels}, {side}, 1, {side}, 1}}, "
            f"int64[6] to = {{1, {channels}, {side}, 2, {side}, 2}}, int64[4] joined = {{1, {channels}, {2 * side}, {2 * side}}}",
            sizes=(size,),
        )  # fmt: skip
        yield from unary(
            "DepthToSpace", "y = DepthToSpace<blocksize=2>(x)",
            "a = Reshape(x, split) b = Transpose<perm=[0,3,4,1,5,2]>(a) y = Reshape(b, joined)",
            constants=f"int64[6] split = {{1, 2, 2, {channels // 4}, {side}, {side}}}, "
            f"int64[4] joined = {{1, {channels // 4}, {2 * side}, {2 * side}}}", sizes=(size,),
        )  # fmt: skip


def _count(size: str) -> int:
    count = 1
    for dim in size.split(",")[:-1]:
        count *= int(dim)
    return count


def _products() -> Iterator[Identity]:
    for inner, outer in ((768, 3072), (3072, 768), (512, 1000)):
        size = f"1,{inner}"
        yield Identity("Gemm of one row", size, f"float[{size}] x, float[{inner},{outer}] w, float[{outer}] b",
                       ("y = Gemm(x, w, b)", "m = MatMul(x, w) y = Add(m, b)"))  # fmt: skip
        yield Identity("Gemm of one row, transB", size, f"float[{size}] x, float[{outer},{inner}] w, float[{outer}] b",
                       ("y = Gemm<transB=1>(x, w, b)",
                        "t = Transpose<perm=[1,0]>(w) m = MatMul(x, t) y = Add(m, b)"))  # fmt: skip
    yield Identity("Einsum", "1,128,12,64", "float[1,128,12,64] x, float[1,128,12,64] c",
                   ('y = Einsum<equation="bihd,bjhd->bhij">(x, c)',
                    "a = Transpose<perm=[0,2,1,3]>(x) b = Transpose<perm=[0,2,3,1]>(c) y = MatMul(a, b)"))  # fmt: skip
    yield Identity("MatMul, vector", "128,768", "float[128,768] x, float[768] w",
                   ("y = MatMul(x, w)", "m = Mul(x, w) y = ReduceSum<keepdims=0>(m, end)"), "int64[1] end = {-1}")  # fmt: skip
    for groups, width in ((256, 31), (256, 1), (1, 9)):
        channels, per = 256, 256 // groups
        size, pad = f"1,{channels},200", width // 2
        yield Identity(
            f"Conv over one axis, {groups} groups, {width} wide", size,
            f"float[{size}] x, float[{channels},{per},{width}] w",
            (f"y = Conv<group={groups}, pads=[{pad},{pad}]>(x, w)",
             f"u = Unsqueeze(x, two) v = Unsqueeze(w, two) r = Conv<group={groups}, pads=[0,{pad},0,{pad}]>(u, v)"
             " y = Squeeze(r, two)"),
            "int64[1] two = {2}",
        )  # fmt: skip
    yield Identity(
        "Conv 1x1", "1,64,56,56", "float[1,64,56,56] x, float[64,64,1,1] w",
        ("y = Conv(x, w)", "a = Reshape(x, flat) b = Reshape(w, square) p = MatMul(b, a) y = Reshape(p, image)"),
        "int64[3] flat = {1, 64, 3136}, int64[2] square = {64, 64}, int64[4] image = {1, 64, 56, 56}",
    )  # fmt: skip
    yield Identity("AveragePool", "1,64,56,56", "float[1,64,56,56] x",
                   ("y = AveragePool<kernel_shape=[2,2], strides=[2,2]>(x)",
                    "a = Reshape(x, split) y = ReduceMean<keepdims=0>(a, axes)"),
                   "int64[6] split = {1, 64, 28, 2, 28, 2}, int64[2] axes = {3, 5}")  # fmt: skip


def _normalisations() -> Iterator[Identity]:
    for rows, width in ((16, 384), (128, 768)):
        size = f"1,{rows},{width}"
        vectors = f"float[{size}] x, float[{size}] c, float[{width}] w, float[{width}] b"
        yield Identity("SkipLayerNormalization", size, vectors,
                       ("y = com.microsoft.SkipLayerNormalization<epsilon=0.00001>(x, c, w, b)",
                        "s = Sum(x, c) y = LayerNormalization(s, w, b)"))  # fmt: skip
    for size in IMAGES:
        channels = size.split(",")[1]
        yield Identity("BatchNormalization", size, f"float[{size}] x, float[{channels},1,1] w, float[{channels},1,1] b",
                       ("m = Mul(x, w) y = Add(m, b)",
                        "s = Reshape(w, flat) t = Reshape(b, flat) z = Sub(s, s) o = Exp(z)"
                        " y = BatchNormalization<epsilon=0.0>(x, s, t, z, o)"),
                       "int64[1] flat = {-1}")  # fmt: skip


def identities() -> list[Identity]:
    """All of them."""
    parts = (_pointwise, _reductions, _moves, _products, _normalisations)
    return [identity for part in parts for identity in part()]
