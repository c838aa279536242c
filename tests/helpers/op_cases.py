"""The facts that each operator should give: a table of small graphs over the symbols b, s and t."""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx.parser

SIZES = (
    {"b": 2, "s": 5, "t": 4},
    {"b": 1, "s": 1, "t": 1},
    {"b": 3, "s": 9, "t": 7},
    {"b": 2, "s": 2, "t": 2},
    {"b": 70, "s": 65, "t": 3},
)


@dataclass(frozen=True)
class Case:
    """A graph, and what the facts of its values should be: the dimensions, or after ``=`` the integers inside.

    ``?`` stands for anything unknown. `runs` is False where the runtime has no kernel or the sizes depend on the data.
    """

    inputs: str
    body: str
    gives: dict[str, str]
    opset: int = 20
    sizes: tuple[dict[str, int], ...] = SIZES
    runs: bool = True

    def __str__(self) -> str:
        return f"{self.body} @{self.opset}"

    def model(self) -> onnx.ModelProto:
        imports = f'["" : {self.opset}, "com.microsoft" : 1]'
        outputs = ", ".join(self.gives)
        return onnx.parser.parse_model(
            f"<ir_version: 10, opset_import: {imports}> g ({self.inputs}) => ({outputs}) {{ {self.body} }}"
        )


def ints(*numbers: int) -> str:
    return f"Constant <value = int64[{len(numbers)}] {{{', '.join(map(str, numbers))}}}> ()"


def scalar(number: int) -> str:
    return f"Constant <value = int64 {{{number}}}> ()"


X = "float[b, s, 64] x"
IMAGE = "float[b, 3, s, 32] x"

ELEMENTWISE = [
    Case(X, "y = Relu(x)", {"y": "b, s, 64"}),
    Case(X, "y = Erf(x)", {"y": "b, s, 64"}),
    Case(X, "y = Softmax <axis = -1> (x)", {"y": "b, s, 64"}),
    Case(X, "y = IsNaN(x)", {"y": "b, s, 64"}),
    Case(X, "y = Clip(x)", {"y": "b, s, 64"}),
    Case(X, "y, m = Dropout(x)", {"y": "b, s, 64", "m": "b, s, 64"}),
    Case(X, "z = Cast <to = 10> (x) y = CastLike(z, x)", {"z": "b, s, 64", "y": "b, s, 64"}),
    Case("float[b, s, 1] x, float[64] w", "y = Add(x, w)", {"y": "b, s, 64"}),
    Case("float[b, 1] x, float[1, s] w", "y = Mul(x, w)", {"y": "b, s"}),
    Case("float[b] x, float[7] w", "y = Sub(x, w)", {"y": "7"}, sizes=({"b": 1}, {"b": 7})),
    Case(
        "float[b] x, float[s] w", "y = Max(x, w)", {"y": "broadcast(b, s)"}, sizes=({"b": 1, "s": 4}, {"b": 3, "s": 1})
    ),
    Case("float[b, s] x, float[s] e", "y = Pow(x, e)", {"y": "b, s"}),
    Case("int64[b] x, int64[1] w", "y = Mod(x, w)", {"y": "b"}),
    Case("bool[b, 1] c, float[s] x, float[1] w", "y = Where(c, x, w)", {"y": "b, s"}),
    Case("float[b, s] x, float[b, s] w", "y = Greater(x, w) z = Not(y) v = Or(y, z)", {"y": "b, s", "v": "b, s"}),
    Case("float[b, s] x, float[s] w, float[1] v", "y = Sum(x, w, v) z = Mean(x, w)", {"y": "b, s", "z": "b, s"}),
    Case("float[b, 4, s] x, float[4, 1] w", "y = PRelu(x, w)", {"y": "b, 4, s"}),
    Case(X, f"a = {scalar(1)} y = CumSum(x, a)", {"y": "b, s, 64"}),
    Case("float[s, s] x", "y = Trilu <upper = 0> (x) z = EyeLike <dtype = 7> (x)", {"y": "s, s", "z": "s, s"}),
    Case("int32[b] x, int32[b] w", "y = BitwiseAnd(x, w)", {"y": "b"}),
    Case(X, 'y = Gelu <approximate = "tanh"> (x)', {"y": "b, s, 64"}),
    Case(X, "y = HardSigmoid(x) z = LeakyRelu(y) w = Softplus(z)", {"w": "b, s, 64"}),
]

SHAPE_ARITHMETIC = [
    Case(X, "n = Shape(x)", {"n": "= b, s, 64"}),
    Case(X, "n = Shape <start = 1> (x) m = Shape <start = -3, end = -1> (x)", {"n": "= s, 64", "m": "= b, s"}),
    Case(X, "n = Size(x)", {"n": "= 64*b*s"}),
    Case(X, f"n = Shape(x) i = {scalar(1)} y = Gather(n, i)", {"y": "= s"}),
    Case(X, f"n = Shape(x) i = {ints(2, -3)} y = Gather(n, i)", {"y": "= 64, b"}),
    Case(X, f"n = Shape(x) u = {ints(0)} v = {ints(2)} y = Slice(n, u, v)", {"y": "= b, s"}),
    Case(X, f"n = Shape(x) u = {ints(-1)} v = {ints(-9)} a = {ints(0)} k = {ints(-1)} y = Slice(n, u, v, a, k)", {"y": "= 64, s, b"}),
    Case(X, "n = Shape(x) y, z = Split <num_outputs = 2> (n)", {"y": "= b, s", "z": "= 64"}),
    Case(X, f"n = Shape(x) k = {ints(1, 2)} y, z = Split(n, k)", {"y": "= b", "z": "= s, 64"}),
    Case(X, f"n = Shape(x) i = {scalar(1)} m = Gather(n, i) a = {ints(0)} y = Unsqueeze(m, a) z = Squeeze(y)", {"y": "= s", "z": "= s"}),
    Case(X, f"n = Shape(x) e = {ints(5, -1)} y = Concat <axis = 0> (e, n)", {"y": "= 5, -1, b, s, 64"}),
    Case(X, f"n = Shape(x) k = {ints(2)} y = Mul(n, k) z = Add(y, n) w = Sub(z, y) v = Neg(w)", {"z": "= 3*b, 3*s, 192", "v": "= -b, -s, -64"}),
    Case(X, f"n = Shape(x) k = {ints(2)} y = Div(n, k) z = Mod(n, k)", {"y": "= b//2, s//2, 32", "z": "= b - 2*(b//2), s - 2*(s//2), 0"}),
    Case(X, f"n = Shape(x) k = {ints(4)} y = Min(n, k) z = Max(n, k)", {"y": "= min(4, b), min(4, s), 4", "z": "= b - min(4, b) + 4, s - min(4, s) + 4, 64"}),
    Case(X, "n = Shape(x) y = ReduceProd <keepdims = 0> (n) z = ReduceSum(n) w = ReduceMax(n)", {"y": "= 64*b*s", "z": "= b + s + 64", "w": "= max(64, b, s)"}),
    Case(X, f"n = Shape(x) k = {ints(-1)} y = Equal(n, k) z = Where(y, k, n)", {"y": "= 0, 0, 0", "z": "= b, s, 64"}),
    Case(X, f"n = Shape(x) k = {ints(0)} y = Less(n, k) z = GreaterOrEqual(n, k) w = And(y, z) v = Or(y, z)", {"y": "= 0, 0, 0", "z": "= 1, 1, 1", "w": "= 0, 0, 0", "v": "= 1, 1, 1"}),
    Case(X, "n = Shape(x) y = Cast <to = 6> (n) z = Cast <to = 9> (y)", {"y": "= b, s, 64", "z": "= ?, ?, 1"}),
    Case(X, f"n = Shape(x) k = {ints(0, 0, 1)} c = Cast <to = 9> (k) y = Where(c, n, k)", {"y": "= 0, 0, 64"}),
    Case(X, f"n = Shape(x) k = {ints(3, 1)} y = Reshape(n, k) z = Transpose(y) i = {ints(0)} w = Gather <axis = 1> (z, i)", {"y": "= b, s, 64", "z": "= b, s, 64", "w": "= b"}),
    Case(X, f"n = Shape(x) k = {ints(2, 3)} y = Expand(n, k)", {"y": "= b, s, 64, b, s, 64"}),
    Case(X, f"n = Shape(x) k = {ints(2)} y = Tile(n, k)", {"y": "= b, s, 64, b, s, 64"}),
    Case(X, f"n = Shape(x) i = {scalar(1)} m = Gather(n, i) o = {scalar(0)} y = Range(o, m, i)", {"y": "s"}),
    Case(X, f"o = {scalar(2)} l = {scalar(9)} d = {scalar(3)} y = Range(o, l, d)", {"y": "= 2, 5, 8"}),
    Case(X, f"o = {scalar(9)} l = {scalar(2)} d = {scalar(-3)} y = Range(o, l, d)", {"y": "= 9, 6, 3"}),
    Case(X, "n = Shape(x) m = Shape(n) y = ConstantOfShape <value = int64[1] {1}> (m)", {"y": "= 1, 1, 1"}),
    Case(X, "n = Shape(x) y = ConstantOfShape(n)", {"y": "b, s, 64"}),
    Case(X, "n = Shape(x) y = ReduceMin(n) z = Abs(n)", {"y": "= min(64, b, s)", "z": "= b, s, 64"}),
    Case(X, "n = Shape(x) k = Constant <value = float[1] {0.5}> () f = Cast <to = 1> (n) g = Mul(f, k) h = Floor(g) y = Cast <to = 7> (h)", {"y": "= b//2, s//2, 32"}),
    Case(X, "n = Shape(x) k = Constant <value = float[1] {3.0}> () f = Cast <to = 1> (n) g = Div(f, k) h = Ceil(g) y = Cast <to = 7> (h) z = Cast <to = 7> (g)", {"y": "= (b + 2)//3, (s + 2)//3, 22", "z": "= b//3, s//3, 21"}),
    Case(X, f"n = Shape(x) i = {scalar(2)} m = Gather(n, i) f = Cast <to = 1> (m) r = Sqrt(f) y = Cast <to = 7> (r)", {"y": "= 8"}),
]  # fmt: skip

RESHAPING = [
    Case(X, f"n = {ints(0, 0, -1, 16)} y = Reshape(x, n)", {"y": "b, s, 4, 16"}),
    Case(X, f"u = Shape <end = 2> (x) v = {ints(-1, 16)} n = Concat <axis = 0> (u, v) y = Reshape(x, n)", {"y": "b, s, 4, 16"}),
    Case(X, f"n = {ints(-1, 64)} y = Reshape(x, n)", {"y": "b*s, 64"}),
    Case(X, f"n = {ints(-1, 8)} y = Reshape(x, n) z = Shape(x) w = Reshape(y, z)", {"y": "8*b*s, 8", "w": "b, s, 64"}),
    Case("float[b, 0, 4] x", f"n = {ints(0, 3)} y = Reshape <allowzero = 1> (x, n)", {"y": "0, 3"}),
    Case("float[b, s, 64] x, int64[3] n", "y = Reshape(x, n) z = Shape(y)", {"y": "?, ?, ?"}, runs=False),
    Case(X, "y = Flatten <axis = 2> (x) z = Flatten <axis = 0> (x)", {"y": "b*s, 64", "z": "1, 64*b*s"}),
    Case("float[b, 1, s, 1] x", f"a = {ints(1)} y = Squeeze(x, a)", {"y": "b, s, 1"}),
    Case(X, f"a = {ints(0, -1)} y = Unsqueeze(x, a)", {"y": "1, b, s, 64, 1"}),
    Case(X, "y = Transpose <perm = [0, 2, 1]> (x) z = Transpose(x)", {"y": "b, 64, s", "z": "64, s, b"}),
    Case("float[b, 1, 64] x, int64[s] i", f"n = Shape(i) u = {ints(4, 1)} v = {ints(1)} m = Concat <axis = 0> (u, n, v) y = Expand(x, m)", {"y": "4, b, s, 64"}),
    Case(X, f"k = {ints(1, 2, 3)} y = Tile(x, k)", {"y": "b, 2*s, 192"}),
    Case("float[b, s] x, float[b, t] w", "y = Concat <axis = -1> (x, w, x)", {"y": "b, 2*s + t"}),
    Case("float[b, s, 6] x", "y, z = Split <axis = -1, num_outputs = 2> (x)", {"y": "b, s, 3", "z": "b, s, 3"}),
    Case("float[b, s, 6] x", f"k = {ints(1, 5)} y, z = Split <axis = 2> (x, k)", {"y": "b, s, 1", "z": "b, s, 5"}),
    Case("float[b, 7] x", "y, z, w = Split <axis = 1, num_outputs = 3> (x)", {"y": "b, 3", "z": "b, 3", "w": "b, 1"}),
    Case("float[b, 6] x", "y, z = Split <axis = 1> (x)", {"y": "b, 3", "z": "b, 3"}, opset=13),
    Case("float[b, 6] x", "y, z = Split <axis = 1, split = [2, 4]> (x)", {"y": "b, 2", "z": "b, 4"}, opset=11),
    Case("float[b, 4, s, t] x", "y = DepthToSpace <blocksize = 2> (x)", {"y": "b, 1, 2*s, 2*t"}),
    Case("float[b, 3, 4, 8] x", "y = SpaceToDepth <blocksize = 2> (x)", {"y": "b, 12, 2, 4"}),
    Case("float[b, s] x", f"p = {ints(0, 1, 2, 3)} y = Pad(x, p)", {"y": "b + 2, s + 4"}),
    Case("float[b, s] x", f"p = {ints(1, 3)} v = Constant <value = float {{0.0}}> () a = {ints(-1)} y = Pad(x, p, v, a)", {"y": "b, s + 4"}),
    Case("float[b, s] x", "y = Pad <pads = [0, 1, 0, 1]> (x)", {"y": "b, s + 2"}, opset=10),
    Case("float[b, s] x", "y = Unsqueeze <axes = [1]> (x) z = Squeeze <axes = [1]> (y)", {"y": "b, 1, s", "z": "b, s"}, opset=11),
]  # fmt: skip

INDEXING = [
    Case("float[100, 32] x, int64[b, s] i", "z = Sub(i, i) y = Gather(x, z)", {"y": "b, s, 32"}),
    Case(X, f"i = {scalar(0)} y = Gather <axis = 1> (x, i)", {"y": "b, 64"}),
    Case("float[b, 4] x", "i = Constant <value = int64[1, 2] {0, 3}> () y = GatherElements <axis = 1> (x, i)", {"y": "1, 2"}),
    Case("float[4, 5, s] x", "i = Constant <value = int64[1, 2] {0, 3}> () y = GatherND(x, i)", {"y": "1, s"}),
    Case("float[b, 5, s] x, int64[b, 1] i", "z = Sub(i, i) y = GatherND <batch_dims = 1> (x, z)", {"y": "b, s"}),
    Case("float[4, s] x, float[2, s] u", "i = Constant <value = int64[2, 1] {0, 3}> () y = ScatterND(x, i, u)", {"y": "4, s"}),
    Case(X, f"u = {ints(1)} v = {ints(9223372036854775807)} a = {ints(1)} y = Slice(x, u, v, a)", {"y": "b, s - min(1, s), 64"}),
    Case(X, f"u = {ints(0)} v = {ints(9223372036854775807)} a = {ints(1)} k = {ints(2)} y = Slice(x, u, v, a, k)", {"y": "b, (s + 1)//2, 64"}),
    Case(X, f"u = {ints(-1)} v = {ints(-9223372036854775807)} a = {ints(1)} k = {ints(-1)} y = Slice(x, u, v, a, k)", {"y": "b, s, 64"}),
    Case(X, f"u = {ints(-1)} v = {ints(9223372036854775807)} a = {ints(1)} y = Slice(x, u, v, a)", {"y": "b, min(1, s), 64"}),
    Case(X, f"u = {ints(0, 10)} v = {ints(4, -10)} a = {ints(1, -1)} y = Slice(x, u, v, a)", {"y": "b, min(4, s), 44"}),
    Case(X, f"k = {ints(-3)} d = Shape <start = 1, end = 2> (x) m = Mod(k, d) o = {ints(0)} a = {ints(1)} u = Slice(x, m, d, a) v = Slice(x, o, m, a) y = Concat <axis = 1> (u, v)", {"y": "b, s, 64"}),
    Case(X, "y = Slice <starts = [0], ends = [2], axes = [2]> (x)", {"y": "b, s, 2"}, opset=9),
    Case("float[1, 512] x, int64[b, s] i", f"n = Shape <start = 1> (i) u = {ints(0)} a = {ints(1)} y = Slice(x, u, n, a)", {"y": "1, min(512, s)"}),
    Case("float[b, s] x", "y = NonZero(x)", {"y": "2, ?"}),
    Case("float[b, 64] x", f"k = {ints(3)} y, i = TopK(x, k)", {"y": "b, 3", "i": "b, 3"}),
    Case(X, "y = ArgMax <axis = -1> (x) z = ArgMax <axis = 1, keepdims = 0> (x)", {"y": "b, s, 1", "z": "b, 64"}),
    Case("int64[b, s] x", "d = Constant <value = int64[1] {5}> () v = Constant <value = float[2] {0.0, 1.0}> () y = OneHot(x, d, v)", {"y": "b, s, 5"}),
    Case("float[b, s] x", "c = Constant <value = bool[1] {1}> () y = Compress(x, c) z = Compress <axis = 1> (x, c)", {"y": "?", "z": "b, ?"}),
    Case("int64[b] x", "y, i, v, c = Unique(x)", {"y": "?", "i": "?", "v": "b", "c": "?"}),
    Case("float[b, 8] x", "c = Size(x)", {"c": "= 8*b"}),
]  # fmt: skip

REDUCTION = [
    Case(X, "y = ReduceMean <axes = [-1]> (x) z = ReduceMean <axes = [1], keepdims = 0> (x)", {"y": "b, s, 1", "z": "b, 64"}, opset=17),
    Case(X, f"a = {ints(-1)} y = ReduceMean(x, a) z = ReduceSum <keepdims = 0> (x, a) w = ReduceL2(x)", {"y": "b, s, 1", "z": "b, s", "w": "1, 1, 1"}),
    Case(X, f"a = {ints(0, 2)} y = ReduceMax <keepdims = 0> (x, a)", {"y": "s"}),
    Case("float[b, 3, s, t] x", "y = GlobalAveragePool(x) z = GlobalMaxPool(x)", {"y": "b, 3, 1, 1", "z": "b, 3, 1, 1"}),
    Case(X, "e = Constant <value = int64[0] {}> () y = ReduceSum <noop_with_empty_axes = 1> (x, e) z = ReduceSum <keepdims = 0> (x, e)", {"y": "b, s, 64", "z": ""}),
]  # fmt: skip

LINEAR = [
    Case("float[b, s, 64] x, float[64, 32] w", "y = MatMul(x, w)", {"y": "b, s, 32"}),
    Case("float[b, 4, s, 8] x, float[b, 4, 8, t] w", "y = MatMul(x, w)", {"y": "b, 4, s, t"}),
    Case("float[8] x, float[b, 8, t] w", "y = MatMul(x, w) z = MatMul(x, x)", {"y": "b, t", "z": ""}),
    Case("float[b, s, 8] x, float[8] w", "y = MatMul(x, w)", {"y": "b, s"}),
    Case("float[b, 8] x, float[4, 8] w, float[4] c", "y = Gemm <transB = 1> (x, w, c)", {"y": "b, 4"}),
    Case("float[8, b] x, float[8, 4] w", "y = Gemm <transA = 1> (x, w)", {"y": "b, 4"}),
    Case("float[b, s, 4, 8] x, float[b, t, 4, 8] w", "y = Einsum <equation = \"bshd,bthd->bhst\"> (x, w)", {"y": "b, 4, s, t"}),
    Case("float[b, s] x", "y = Einsum <equation = \"ij\"> (x) z = Einsum <equation = \"ji\"> (x)", {"y": "b, s", "z": "s, b"}),
    Case("float[b, 4, s, 8] x, float[b, 4, t, 8] w", "y = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (x, w)", {"y": "b, 4, s, t"}),
    Case("float[b, 8] x, float[4, 8] w", "y = com.microsoft.FusedGemm <transB = 1, activation = \"Relu\"> (x, w)", {"y": "b, 4"}, runs=False),
]  # fmt: skip

IMAGES = [
    Case("float[b, 3, s, 32] x, float[8, 3, 3, 3] w", "y = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w)", {"y": "b, 8, (s + 1)//2, 16"}),
    Case("float[b, 4, s] x, float[4, 4, 3] v, float[4, 4, 2] w", "f = Conv <strides = [2]> (x, v) y = Conv <strides = [2]> (f, w)", {"f": "b, 4, (s + 1)//2 - min(1, (s + 1)//2)", "y": "b, 4, (s + 3)//4 - min(1, (s + 3)//4)"}, runs=False),
    Case("float[b, 4, s] x, float[8, 2, 3] w", "y = Conv <group = 2, pads = [2, 2], dilations = [2]> (x, w)", {"y": "b, 8, s"}),
    Case("float[b, 3, s, 32] x, float[8, 3, 3, 3] w", "y = Conv <auto_pad = \"SAME_UPPER\", strides = [2, 2]> (x, w)", {"y": "b, 8, (s + 1)//2, 16"}),
    Case("float[b, 4, s, 8] x, float[4, 3, 2, 2] w", "y = ConvTranspose <strides = [2, 2]> (x, w)", {"y": "b, 3, 2*s, 16"}),
    Case("float[b, 4, s] x, float[4, 3, 3] w", "y = ConvTranspose <group = 2, strides = [2], pads = [1, 1], output_padding = [1]> (x, w)", {"y": "b, 6, 2*s"}),
    Case("float[b, 3, s, 32] x", "y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x)", {"y": "b, 3, (s + 1)//2, 16"}),
    Case("float[b, 3, s] x", "y = MaxPool <kernel_shape = [2], strides = [2]> (x)", {"y": "b, 3, s//2 - min(1, s//2) + 1"}, sizes=({"b": 2, "s": 1}, {"b": 1, "s": 7})),
    Case("float[b, 3, s] x", "y = MaxPool <kernel_shape = [5], strides = [3], pads = [0, 2]> (x)", {"y": "b, 3, s//3 - min(1, s//3) + 1"}, sizes=({"b": 2, "s": 1}, {"b": 1, "s": 2}, {"b": 1, "s": 7})),
    Case("float[b, 3, s] x", "y = AveragePool <kernel_shape = [5], strides = [2]> (x)", {"y": "b, 3, ?"}, sizes=({"b": 2, "s": 5}, {"b": 1, "s": 8})),
    Case("float[b, 3, 33] x", "y, i = MaxPool <kernel_shape = [2], strides = [2], ceil_mode = 1> (x)", {"y": "b, 3, 17", "i": "b, 3, 17"}),
    Case("float[b, 3, 5] x", "y = AveragePool <kernel_shape = [2], strides = [3], pads = [0, 1], ceil_mode = 1> (x)", {"y": "b, 3, 2"}),
    Case("float[b, 3, s] x", "y = MaxPool <kernel_shape = [2], strides = [2], ceil_mode = 1> (x)", {"y": "b, 3, (s + 1)//2"}, sizes=({"b": 2, "s": 4}, {"b": 1, "s": 7})),
    Case(IMAGE, "k = Constant <value = float[4] {1.0, 1.0, 2.0, 0.5}> () y = Resize(x, , k)", {"y": "b, 3, 2*s, 16"}),
    Case(IMAGE, f"n = Shape <end = 2> (x) k = {ints(7, 9)} m = Concat <axis = 0> (n, k) y = Resize(x, , , m)", {"y": "b, 3, 7, 9"}),
    Case(IMAGE, f"k = {ints(7, 9)} y = Resize <axes = [2, 3]> (x, , , k)", {"y": "b, 3, 7, 9"}),
    Case(IMAGE, "k = Constant <value = float[4] {1.0, 1.0, 2.0, 2.0}> () y = Upsample(x, k)", {"y": "b, 3, 2*s, 64"}, opset=9),
]  # fmt: skip

NORMALIZATION = [
    Case("float[b, 3, s] x, float[3] w, float[3] c, float[3] m, float[3] v", "y = BatchNormalization(x, w, c, m, v)", {"y": "b, 3, s"}),
    Case("float[b, s, 64] x, float[64] w, float[64] c", "y, m, v = LayerNormalization(x, w, c)", {"y": "b, s, 64", "m": "b, s, 1", "v": "b, s, 1"}),
    Case("float[b, 4, s] x, float[4] w, float[4] c", "y = InstanceNormalization(x, w, c)", {"y": "b, 4, s"}),
    Case("float[b, 4, s] x, float[4] w, float[4] c", "y = GroupNormalization <num_groups = 2> (x, w, c)", {"y": "b, 4, s"}, opset=21),
    Case("float[b, s, 64] x, float[64] w", "y = RMSNormalization(x, w)", {"y": "b, s, 64"}, opset=23),
    Case("float[b, s, 64] x, float[64] w", "y, v = SimplifiedLayerNormalization <axis = -1> (x, w)", {"y": "b, s, 64", "v": "b, s, 1"}),
    Case("float[b, s, 64] x, float[b, s, 64] k, float[64] w, float[64] c", "y, m, v, u = com.microsoft.SkipLayerNormalization(x, k, w, c)", {"y": "b, s, 64", "u": "b, s, 64"}),
    Case("float[b, s, 64] x, float[b, s, 64] k, float[64] w", "y, m, v, u = com.microsoft.SkipSimplifiedLayerNormalization(x, k, w)", {"y": "b, s, 64", "u": "b, s, 64"}),
    Case("int32[b, s] i, float[9, 64] x, float[70, 64] p, float[64] w, float[64] c", "z = Sub(i, i) y, m, u = com.microsoft.EmbedLayerNormalization(z, , x, p, , w, c)", {"y": "b, s, 64", "m": "b", "u": "b, s, 64"}),
]  # fmt: skip

ATTENTION = [
    Case("float[b, 4, s, 8] q, float[b, 4, t, 8] k, float[b, 4, t, 6] v", "y = Attention(q, k, v)", {"y": "b, 4, s, 6"}, opset=23),
    Case("float[b, s, 32] q, float[b, t, 16] k, float[b, t, 16] v", "y = Attention <q_num_heads = 4, kv_num_heads = 2> (q, k, v)", {"y": "b, s, 32"}, opset=23),
    Case("float[b, 4, s, 8] q, float[b, 4, s, 8] k, float[b, 4, s, 8] v, float[b, 4, t, 8] p, float[b, 4, t, 8] r", "y, u, w = Attention(q, k, v, , p, r)", {"y": "b, 4, s, 8", "u": "b, 4, s + t, 8", "w": "b, 4, s + t, 8"}, opset=23),
    Case("float[b, 4, s, 8] x, float[70, 4] c, float[70, 4] n, int64[b, s] i", "z = Sub(i, i) y = RotaryEmbedding(x, c, n, z)", {"y": "b, 4, s, 8"}, opset=23),
    Case("float[b, s, 32] q, float[b, t, 32] k, float[b, t, 32] v", "y = com.microsoft.MultiHeadAttention <num_heads = 4> (q, k, v)", {"y": "b, s, 32"}),
    Case("float[b, s, 32] q, float[b, s, 32] k, float[b, s, 32] v, float[b, 4, t, 8] p, float[b, 4, t, 8] r", "y, u, w = com.microsoft.MultiHeadAttention <num_heads = 4> (q, k, v, , , , p, r)", {"y": "b, s, 32", "u": "b, 4, s + t, 8", "w": "b, 4, s + t, 8"}),
    Case("float[b, s, 32] q, float[b, s, 16] k, float[b, s, 16] v, float[b, 2, t, 8] p, float[b, 2, t, 8] r, int32[b] n, int32[1] m", "y, u, w = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (q, k, v, p, r, n, m)", {"y": "b, s, 32", "u": "b, 2, ?, 8"}, runs=False),
    Case("float[b, s, 32] x, float[32, 96] w, float[96] c", "y = com.microsoft.Attention <num_heads = 4> (x, w, c)", {"y": "b, s, 32"}),
    Case("float[b, s, 32] x", "y = com.microsoft.FastGelu(x) z = com.microsoft.QuickGelu(x) w = com.microsoft.Gelu(x)", {"y": "b, s, 32", "z": "b, s, 32", "w": "b, s, 32"}),
    Case("float[b, s, 32] x, float[32] c", "y = com.microsoft.BiasGelu(x, c)", {"y": "b, s, 32"}),
]  # fmt: skip

QUANTIZATION = [
    Case("float[b, s] x", "k = Constant <value = float {0.5}> () z = Constant <value = int8 {0}> () y = QuantizeLinear(x, k, z) w = DequantizeLinear(y, k, z)", {"y": "b, s", "w": "b, s"}),
    Case("float[b, s] x", "y, k, z = DynamicQuantizeLinear(x)", {"y": "b, s", "k": "", "z": ""}),
    Case("uint8[b, s, 8] x, uint8[8, 4] w", "y = MatMulInteger(x, w)", {"y": "b, s, 4"}),
    Case("uint8[b, 8] x, uint8[8, 4] w", "k = Constant <value = float {0.5}> () z = Constant <value = uint8 {0}> () y = QLinearMatMul(x, k, z, w, k, z, k, z)", {"y": "b, 4"}),
    Case("uint8[b, 8] x, uint8[8, 4] w", "k = Constant <value = float {0.5}> () z = Constant <value = uint8 {0}> () y = com.microsoft.QGemm(x, k, z, w, k, z, , k, z)", {"y": "b, 4"}),
    Case("uint8[b, 3, s, t] x", "k = Constant <value = float {0.5}> () z = Constant <value = uint8 {0}> () y = com.microsoft.QLinearGlobalAveragePool(x, k, z, k, z) w = com.microsoft.QLinearGlobalAveragePool <channels_last = 1> (x, k, z, k, z)", {"y": "b, 3, 1, 1", "w": "b, 1, 1, t"}),
    Case("int64[b, s] x, uint8[9, 2, 8] t, float[9, 2, 1] k", "y = com.microsoft.GatherBlockQuantized <gather_axis = 0, quantize_axis = 2, block_size = 16, bits = 4> (t, x, k)", {"y": "b, s, 2, 16"}, runs=False),
    Case("uint8[b, 1, s] x, uint8[2, 1, 1] w", "k = Constant <value = float {0.5}> () z = Constant <value = uint8 {0}> () y = QLinearConv(x, k, z, w, k, z, k, z)", {"y": "b, 2, s"}),
    Case("float[b, s, 8] x, uint8[8, 4] w", "k = Constant <value = float {0.5}> () y = com.microsoft.DynamicQuantizeMatMul(x, w, k)", {"y": "b, s, 4"}),
]  # fmt: skip

RECURRENT = [
    Case("float[s, b, 4] x, float[1, 24, 4] w, float[1, 24, 6] r", "y, h, c = LSTM <hidden_size = 6> (x, w, r)", {"y": "s, 1, b, 6", "h": "1, b, 6", "c": "1, b, 6"}),
    Case("float[s, b, 4] x, float[2, 18, 4] w, float[2, 18, 6] r", "y, h = GRU <hidden_size = 6, direction = \"bidirectional\"> (x, w, r)", {"y": "s, 2, b, 6", "h": "2, b, 6"}),
]  # fmt: skip

SEQUENCES = [
    Case("float[b, s, 6] x", f"k = {scalar(4)} q = SplitToSequence <axis = 2> (x, k) i = {scalar(1)} y = SequenceAt(q, i) n = SequenceLength(q)", {"y": "b, s, 2", "n": "= 2"}),
    Case("float[b, 2, s] x", f"q = SplitToSequence <axis = 1, keepdims = 0> (x) i = {scalar(-1)} y = SequenceAt(q, i)", {"y": "b, s"}),
    Case("float[b, s] x, float[b, t] w", "q = SequenceConstruct(x, w) r = SequenceInsert(q, x) y = ConcatFromSequence <axis = 1> (r) u = SequenceErase(r) z = SequenceLength(u)", {"y": "b, 2*s + t", "z": "= 2"}),
    Case("float[b, s] x", "q = SequenceConstruct(x, x) y = ConcatFromSequence <axis = 1, new_axis = 1> (q)", {"y": "b, 2, s"}),
]  # fmt: skip

FALLBACK = [
    Case("float[b, 3, 6, 6] x, float[b, s, t, 2] g", "y = GridSample(x, g)", {"y": "b, 3, s, t"}),
    Case("float[b, 4, 4] x", "y = Det(x)", {"y": "b"}),
    Case("float[b, s] x", "y = Hardmax(x)", {"y": "b, s"}),
    Case("float[b, 3, 8, 8] x, float[s, 4] r, int64[s] i", "z = Sub(i, i) y = RoiAlign <output_height = 2, output_width = 3, sampling_ratio = 2> (x, r, z)", {"y": "s, 3, 2, 3"}),
]  # fmt: skip

CASES = [
    *ELEMENTWISE,
    *SHAPE_ARITHMETIC,
    *RESHAPING,
    *INDEXING,
    *REDUCTION,
    *LINEAR,
    *IMAGES,
    *NORMALIZATION,
    *ATTENTION,
    *QUANTIZATION,
    *RECURRENT,
    *SEQUENCES,
    *FALLBACK,
]
