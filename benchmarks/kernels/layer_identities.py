"""More identities: along other axes, of images, integers and truth values, and of products of matrices."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.kernels.identities import IMAGES, ROWS, Identity, unary


def _axes() -> Iterator[Identity]:
    """Operators along axes other than the last one."""
    for size, axis in (("1,64,56,56", 1), ("1,21,128,128", 1), ("8,128,64", 1), ("1,12,128,128", 2), ("64,1000", 0)):
        dims = [int(dim) for dim in size.split(",")]
        swapped = list(range(len(dims)))
        swapped[axis], swapped[-1] = swapped[-1], swapped[axis]
        perm = ",".join(map(str, swapped))
        constants = f"int64[1] axis = {{{axis}}}, int64 along = {{{axis}}}"
        powers = "m = ReduceMax(x, axis) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, axis)"
        there, back = f"t = Transpose<perm=[{perm}]>(x)", f"y = Transpose<perm=[{perm}]>(r)"
        for name, spelled in (
            ("Softmax", f"{powers} y = Div(e, s)"),
            ("LogSoftmax", f"{powers} l = Log(s) y = Sub(d, l)"),
        ):
            yield Identity(
                f"{name}, axis {axis} of {len(dims)}",
                size,
                f"float[{size}] x",
                (f"y = {name}<axis={axis}>(x)", f"{there} r = {name}<axis=-1>(t) {back}", spelled),
                constants,
            )
        yield Identity(
            f"CumSum, axis {axis} of {len(dims)}",
            size,
            f"float[{size}] x",
            ("y = CumSum(x, along)", f"{there} r = CumSum(t, end) {back}"),
            f"int64 along = {{{axis}}}, int64 end = {{-1}}",
        )
        yield Identity(
            f"LpNormalization, axis {axis} of {len(dims)}",
            size,
            f"float[{size}] x",
            (
                f"y = LpNormalization<axis={axis}>(x)",
                "n = ReduceL2(x, axis) y = Div(x, n)",
                "q = Mul(x, x) s = ReduceSum(q, axis) n = Sqrt(s) y = Div(x, n)",
            ),
            constants,
        )
        yield Identity(
            f"TopK 1, axis {axis} of {len(dims)}",
            size,
            f"float[{size}] x",
            (f"y, i = TopK<axis={axis}>(x, k)", "y = ReduceMax(x, axis)"),
            f"{constants}, int64[1] k = {{1}}",
        )
        yield Identity(
            f"ArgMax, axis {axis} of {len(dims)}",
            size,
            f"float[{size}] x",
            (
                f"i = ArgMax<axis={axis}>(x) y = Cast<to=1>(i)",
                f"{there} i = ArgMax<axis=-1>(t) r = Cast<to=1>(i) {back}",
                f"v, i = TopK<axis={axis}>(x, k) y = Cast<to=1>(i)",
            ),
            "int64[1] k = {1}",
        )
    for size in ("32,128,768", "8,196,384", "128,1000"):
        dims = size.split(",")
        rest = ",".join(dims[1:])
        count = int(dims[0])
        for name in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2"):
            turned = ",".join(map(str, [*range(1, len(dims)), 0]))
            spellings = [
                f"y = {name}<keepdims=0>(x, first)",
                f"t = Transpose<perm=[{turned}]>(x) y = {name}<keepdims=0>(t, end)",
            ]
            if name in ("ReduceMean", "ReduceSum"):
                spellings.append("f = Reshape(x, flat) p = MatMul(w, f) y = Reshape(p, shape)")
            number = 1 / count if name == "ReduceMean" else 1.0
            yield Identity(
                f"{name}, axis 0",
                size,
                f"float[{size}] x",
                tuple(spellings),
                f"int64[1] first = {{0}}, int64[1] end = {{-1}}, int64[2] flat = {{{count}, -1}}, int64[{len(dims) - 1}] "
                f"shape = {{{rest}}}, float[1,{count}] w = {{{', '.join([str(number)] * count)}}}",
            )


def _scaled() -> Iterator[Identity]:
    """Rows that are divided by one number each, and what is spelled with larger operands than it needs."""
    for size in ROWS:
        shape = f"int64[{size.count(',') + 1}] to = {{{size}}}"
        constants = f"int64[1] end = {{-1}}, float least = {{0.000001}}, {shape}"
        norm = "n = ReduceL2(x, end) c = Clip(n, least)"
        yield from unary(
            "normalize",
            f"{norm} e = Expand(c, to) y = Div(x, e)",
            f"{norm} y = Div(x, c)",
            f"{norm} r = Reciprocal(c) y = Mul(x, r)",
            "q = Mul(x, x) s = ReduceSum(q, end) n = Sqrt(s) c = Max(n, least) y = Div(x, c)",
            "s = ReduceSumSquare(x, end) n = Sqrt(s) c = Max(n, least) r = Reciprocal(c) y = Mul(x, r)",
            constants=constants,
            sizes=(size,),
        )
        column = ",".join([*size.split(",")[:-1], "1"])
        yield Identity(
            "Expand and Mul",
            size,
            f"float[{size}] x, float[{column}] c",
            ("e = Expand(c, to) y = Mul(x, e)", "y = Mul(x, c)"),
            shape,
        )
        yield Identity(
            "Where with a number",
            size,
            f"float[{size}] x, float[{size}] c",
            (
                "b = Greater(c, zero) y = Where(b, x, zero)",
                "b = Greater(c, zero) z = Expand(zero, to) y = Where(b, x, z)",
            ),
            f"float zero = {{0.0}}, {shape}",
        )
    powers = (
        ("4", "q = Mul(x, x) y = Mul(q, q)"),
        ("-1", "y = Reciprocal(x)"),
        ("-2", "q = Mul(x, x) y = Reciprocal(q)"),
    )
    for number, other in powers:
        yield from unary(f"Pow {number}", "y = Pow(x, n)", other, constants=f"float n = {{{number}.0}}")
    roots = (("-0.5", "r = Sqrt(a) y = Reciprocal(r)"), ("1.5", "r = Sqrt(a) y = Mul(a, r)"))
    for number, other in roots:
        yield from unary(
            f"Pow {number}", "a = Exp(x) y = Pow(a, n)", f"a = Exp(x) {other}", constants=f"float n = {{{number}}}"
        )
    yield from unary("Sum of four", "y = Sum(x, x, x, x)", "a = Add(x, x) b = Add(a, x) y = Add(b, x)")
    yield from unary("Relu", "y = Relu(x)", "y = Max(x, zero)", "y = Clip(x, zero)", constants="float zero = {0.0}")
    yield from unary(
        "Sigmoid spelled out",
        "n = Neg(x) e = Exp(n) d = Add(e, one) y = Reciprocal(d)",
        "y = Sigmoid(x)",
        constants="float one = {1.0}",
    )
    yield from unary(
        "Sigmoid by Tanh",
        "h = Mul(x, half) t = Tanh(h) u = Add(t, one) y = Mul(u, half)",
        "y = Sigmoid(x)",
        constants="float one = {1.0}, float half = {0.5}",
    )
    yield from unary(
        "Tanh by Sigmoid",
        "d = Mul(x, two) s = Sigmoid(d) t = Mul(s, two) y = Sub(t, one)",
        "y = Tanh(x)",
        constants="float one = {1.0}, float two = {2.0}",
    )


def _whole_numbers() -> Iterator[Identity]:
    """Integers and truth values."""
    for size in ("65536", "1,512,512"):
        numbers, constants = f"int64[{size}] x", "int64 n = {8}, int64 one = {1}, int64 zero = {0}"
        yield Identity(
            "Mod of int64", size, numbers, ("y = Mod(x, n)", "d = Div(x, n) m = Mul(d, n) y = Sub(x, m)"), constants
        )
        yield Identity(
            "Div of int64",
            size,
            numbers,
            ("y = Div(x, n)", "s = Cast<to=6>(x) k = Cast<to=6>(n) d = Div(s, k) y = Cast<to=7>(d)"),
            constants,
        )
        yield Identity(
            "Cast to bool",
            size,
            numbers,
            ("y = Cast<to=9>(x)", "e = Equal(x, zero) y = Not(e)", "y = Greater(x, zero)"),
            constants,
        )
        yield Identity("Not of Equal", size, numbers, ("e = Equal(x, one) y = Not(e)", "y = Less(x, one)"), constants)
        truths = f"bool[{size}] x"
        yield Identity(
            "Cast of bool",
            size,
            truths,
            ("y = Cast<to=1>(x)", "y = Where(x, one, zero)"),
            "float one = {1.0}, float zero = {0.0}",
        )
        yield Identity(
            "Cast of bool to int64", size, truths, ("y = Cast<to=7>(x)", "y = Where(x, one, zero)"), constants
        )
        yield Identity("And", size, f"bool[{size}] x, bool[{size}] c", ("y = And(x, c)", "y = Where(x, c, x)"))


def _images() -> Iterator[Identity]:
    """Pools, normalisations and convolutions of images."""
    for size in IMAGES:
        batch, channels, *space = (int(dim) for dim in size.split(","))
        kernel = ",".join(map(str, space))
        yield from unary(
            "AveragePool over all",
            f"y = AveragePool<kernel_shape=[{kernel}]>(x)",
            "y = GlobalAveragePool(x)",
            "y = ReduceMean(x, space)",
            constants="int64[2] space = {2, 3}",
            sizes=(size,),
        )
        ones = ", ".join(["1.0"] * channels)
        constants = f"float[{channels}] w = {{{ones}}}, float[{channels}] b = {{{ones}}}"
        rows = (
            f"int64[2] rows = {{{batch * channels}, -1}}, int64[4] image = {{{size}}}, int64[1] end = {{-1}}, "
            f"float eps = {{0.00001}}"
        )
        columns = f"int64[3] column = {{{channels}, 1, 1}}"
        spelled = (
            "f = Reshape(x, rows) m = ReduceMean(f, end) d = Sub(f, m) q = Mul(d, d) v = ReduceMean(q, end) "
            "a = Add(v, eps) r = Sqrt(a) n = Div(d, r)"
        )
        affine = "i = Reshape(n, image) g = Reshape(w, column) h = Reshape(b, column) s = Mul(i, g) y = Add(s, h)"
        yield from unary(
            "InstanceNormalization",
            "y = InstanceNormalization(x, w, b)",
            f"{spelled} {affine}",
            constants=f"{constants}, {rows}, {columns}",
            sizes=(size,),
        )
        halves = ",".join(str(side // 2) for side in space)
        split = f"{batch},{channels},{space[0] // 2},2,{space[1] // 2},2"
        yield from unary(
            "MaxPool 2x2",
            "y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)",
            "a = Reshape(x, split) r = ReduceMax<keepdims=0>(a, inner) y = Reshape(r, halves)",
            constants=f"int64[6] split = {{{split}}}, int64[2] inner = {{3, 5}}, "
            f"int64[4] halves = {{{batch}, {channels}, {halves}}}",
            sizes=(size,),
        )
    for channels, outputs, side in ((128, 64, 28), (512, 256, 14), (32, 16, 56), (64, 1, 112)):
        size = f"1,{channels},{side},{side}"
        shuffled = 'd = DepthToSpace<blocksize=2, mode="CRD">(p)'
        turned = "a = Reshape(p, split) b = Transpose<perm=[0,1,4,2,5,3]>(a) d = Reshape(b, joined)"
        taps = "t = Transpose<perm=[1,2,3,0]>(w) v = Reshape(t, taps) p = Conv(x, v)"
        yield Identity(
            "ConvTranspose 2x2",
            size,
            f"float[{size}] x, float[{channels},{outputs},2,2] w",
            (
                "y = ConvTranspose<strides=[2,2]>(x, w)",
                f"{taps} {shuffled} y = Identity(d)",
                f"{taps} {turned} y = Identity(d)",
            ),
            f"int64[4] taps = {{{4 * outputs}, {channels}, 1, 1}}, int64[6] split = {{1, {outputs}, 2, 2, {side}, {side}}}, "
            f"int64[4] joined = {{1, {outputs}, {2 * side}, {2 * side}}}",
        )
    for channels, outputs, patch, side in ((3, 768, 16, 224), (3, 192, 16, 224), (3, 96, 4, 224), (96, 192, 2, 56)):
        count = side // patch
        yield Identity(
            "Conv of patches",
            f"1,{channels},{side},{side}",
            f"float[1,{channels},{side},{side}] x, float[{outputs},{channels},{patch},{patch}] w",
            (
                f"y = Conv<strides=[{patch},{patch}]>(x, w)",
                "a = Reshape(x, split) t = Transpose<perm=[0,1,3,5,2,4]>(a) f = Reshape(t, rows) "
                "v = Reshape(w, flat) p = MatMul(v, f) y = Reshape(p, image)",
            ),
            f"int64[6] split = {{1, {channels}, {count}, {patch}, {count}, {patch}}}, "
            f"int64[3] rows = {{1, {channels * patch * patch}, {count * count}}}, "
            f"int64[2] flat = {{{outputs}, -1}}, int64[4] image = {{1, {outputs}, {count}, {count}}}",
        )
    for channels, length in ((256, 200), (512, 1500)):
        for name in ("MaxPool", "AveragePool"):
            yield Identity(
                f"{name} over one axis",
                f"1,{channels},{length}",
                f"float[1,{channels},{length}] x",
                (
                    f"y = {name}<kernel_shape=[3], strides=[2]>(x)",
                    f"u = Unsqueeze(x, two) r = {name}<kernel_shape=[1,3], strides=[1,2]>(u) y = Squeeze(r, two)",
                ),
                "int64[1] two = {2}",
            )


def _contractions() -> Iterator[Identity]:
    """Einsum, and products of matrices of other ranks."""
    for equation, x, c, spelled in (
        ("bhid,bhjd->bhij", "1,12,128,64", "1,12,128,64", "t = Transpose<perm=[0,1,3,2]>(c) y = MatMul(x, t)"),
        ("bhij,bhjd->bhid", "1,12,128,128", "1,12,128,64", "y = MatMul(x, c)"),
        ("bij,jk->bik", "8,128,256", "256,256", "y = MatMul(x, c)"),
        ("bij,bij->bi", "8,128,256", "8,128,256", "m = Mul(x, c) y = ReduceSum<keepdims=0>(m, end)"),
        ("bi,bj->bij", "8,128", "8,256", "u = Unsqueeze(x, end) v = Unsqueeze(c, one) y = Mul(u, v)"),
    ):
        yield Identity(
            f"Einsum {equation}",
            x,
            f"float[{x}] x, float[{c}] c",
            (f'y = Einsum<equation="{equation}">(x, c)', spelled),
            "int64[1] end = {-1}, int64[1] one = {1}",
        )
    yield Identity(
        "MatMul with one matrix of rank 4",
        "4,12,64,64",
        "float[4,12,64,64] x, float[1,1,64,64] w",
        ("y = MatMul(x, w)", "v = Reshape(w, flat) y = MatMul(x, v)"),
        "int64[2] flat = {64, 64}",
    )
    for rows in (1, 16, 128):
        yield Identity(
            f"Gemm, {rows} rows",
            f"{rows},768",
            f"float[{rows},768] x, float[768,768] w, float[768] b",
            ("y = Gemm(x, w, b)", "m = MatMul(x, w) y = Add(m, b)"),
        )


def _more_moves() -> Iterator[Identity]:
    for size in ROWS:
        width = int(size.rpartition(",")[2])
        rank = size.count(",") + 1
        every = ", ".join(map(str, range(0, width, 2)))
        yield from unary(
            "Gather of every second",
            "y = Gather<axis=-1>(x, ids)",
            "y = Slice(x, start, end, axis, two)",
            constants=f"int64[{(width + 1) // 2}] ids = {{{every}}}, int64[1] start = {{0}}, int64[1] end = {{{width}}}, "
            "int64[1] axis = {-1}, int64[1] two = {2}",
            sizes=(size,),
        )
        part = width // 8
        parts = " ".join(f"p{number} = Slice(x, s{number}, s{number + 1}, axis)" for number in range(8))
        bounds = ", ".join(f"int64[1] s{number} = {{{number * part}}}" for number in range(9))
        names = ", ".join(f"p{number}" for number in range(8))
        yield from unary(
            "Split in eight and Concat",
            f"{names} = Split<axis=-1, num_outputs=8>(x) y = Concat<axis=-1>({names})",
            f"{parts} y = Concat<axis=-1>({names})",
            constants=f"{bounds}, int64[1] axis = {{-1}}",
            sizes=(size,),
        )
        around = ", ".join(["0"] * (rank - 1) + ["1"] + ["0"] * (rank - 1) + ["1"])
        yield from unary(
            "Pad, reflected",
            'y = Pad<mode="reflect">(x, by)',
            "f = Slice(x, a, b, axis) l = Slice(x, c, d, axis) y = Concat<axis=-1>(f, x, l)",
            constants=f"int64[{2 * rank}] by = {{{around}}}, int64[1] a = {{1}}, "
            f"int64[1] b = {{2}}, int64[1] c = {{{width - 2}}}, "
            f"int64[1] d = {{{width - 1}}}, int64[1] axis = {{-1}}",
            sizes=(size,),
        )
        last, first = ", ".join(["1"] * rank), ", ".join(["3"] + ["1"] * (rank - 1))
        yield from unary(
            "Tile, first axis",
            "y = Tile(x, by)",
            "y = Concat<axis=0>(x, x, x)",
            constants=f"int64[{rank}] by = {{{first}}}, int64[{rank}] none = {{{last}}}",
            sizes=(size,),
        )
        yield from unary(
            "Slice backwards",
            "y = Slice(x, last, lowest, axis, back)",
            "y = Gather<axis=-1>(x, ids)",
            constants=f"int64[1] last = {{-1}}, int64[1] lowest = {{-{width + 1}}}, int64[1] axis = {{-1}}, "
            f"int64[1] back = {{-1}}, "
            f"int64[{width}] ids = {{{', '.join(map(str, range(width - 1, -1, -1)))}}}",
            sizes=(size,),
        )


def layer_identities() -> list[Identity]:
    """All of them."""
    parts = (_axes, _scaled, _whole_numbers, _images, _contractions, _more_moves)
    return [identity for part in parts for identity in part()]
