"""The models that are varied: graphs of a few nodes, each of a kind that the runtime or ortfuse fuses, folds or passes through."""

from __future__ import annotations

from onnx import ModelProto, parser

_TEXTS: dict[str, tuple[int, str]] = {
    "gelu": (
        13,
        """(float[b, 8] x) => (float[b, 8] y) <float r = {1.4142135}, float one = {1}, float h = {0.5}>
        { d = Div(x, r) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, h) }""",
    ),
    "bias gelu": (
        13,
        """(float[b, 4] x) => (float[b, 4] y) <float[4] k = {1, 2, 3, 4}, float r = {1.4142135}, float one = {1}, float h = {0.5}>
        { s = Add(x, k) d = Div(s, r) e = Erf(d) a = Add(e, one) m = Mul(s, a) y = Mul(m, h) }""",
    ),
    "gelu by tanh": (
        13,
        """(float[b, 4] x) => (float[b, 4] y) <float three = {3}, float c = {0.044715}, float k = {0.7978845}, float one = {1},
        float h = {0.5}> { p = Pow(x, three) q = Mul(p, c) r = Add(x, q) s = Mul(r, k) t = Tanh(s) u = Add(t, one) v = Mul(x, u)
        y = Mul(v, h) }""",
    ),
    "norm spelled out": (
        13,
        """(float[b, 4] x) => (float[b, 4] y) <float two = {2}, float e = {0.00001}, float[4] g = {1, 2, 3, 4}, float[4] k = {1, 0, 1, 0}>
        { m = ReduceMean <axes = [-1]> (x) d = Sub(x, m) p = Pow(d, two) v = ReduceMean <axes = [-1]> (p) w = Add(v, e) r = Sqrt(w)
        n = Div(d, r) s = Mul(n, g) y = Add(s, k) }""",
    ),
    "skip and norm": (
        17,
        """(float[b, 4] x, float[b, 4] z) => (float[b, 4] y) <float[4] g = {1, 2, 3, 4}, float[4] k = {1, 0, 1, 0}>
        { a = Add(x, z) y = LayerNormalization <axis = -1, epsilon = 0.00001> (a, g, k) }""",
    ),
    "norm before opset 17": (
        12,
        """(float[b, 4] x, float[b, 4] z) => (float[b, 4] y) <float[4] g = {1, 2, 3, 4}, float[4] k = {1, 0, 1, 0}>
        { a = Add(x, z) y = LayerNormalization <axis = -1, epsilon = 0.00001> (a, g, k) }""",
    ),
    "simplified norm": (
        14,
        """(float[b, 4] x) => (float[b, 4] y) <float[4] g = {1, 2, 3, 4}>
        { y = SimplifiedLayerNormalization <axis = -1, epsilon = 0.00001, stash_type = 1> (x, g) }""",
    ),
    "skip norm of the runtime": (
        14,
        """(float[b, 2, 4] x, float[b, 2, 4] z) => (float[b, 2, 4] y) <float[4] g = {1, 2, 3, 4}, float[4] k = {1, 0, 1, 0}>
        { y = com.microsoft.SkipLayerNormalization <epsilon = 0.00001> (x, z, g, k) }""",
    ),
    "embedding and norm": (
        14,
        """(int32[b, 3] i, int32[b, 3] t) => (float[b, 3, 4] y) <float[5, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2},
        float[3, 4] p = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, float[2, 4] s = {1, 2, 3, 4, 8, 7, 6, 5}, float[4] g = {1, 2, 3, 4},
        float[4] k = {1, 0, 1, 0}>
        { y, m = com.microsoft.EmbedLayerNormalization <epsilon = 0.00001> (i, t, w, p, s, g, k) }""",
    ),
    "embedding": (
        13,
        """(int64[b, 3] i) => (float[b, 3, 4] y) <float[3, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, float[3, 4] p = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3},
        float[4] g = {1, 2, 3, 4}, float[4] k = {1, 0, 1, 0}>
        { e = Gather(w, i) a = Add(e, p) y = LayerNormalization <axis = -1, epsilon = 0.00001> (a, g, k) }""",
    ),
    "attention": (
        14,
        """(float[b, 2, s, 4] q, float[b, 2, s, 4] k, float[b, 2, s, 4] v) => (float[b, 2, s, 4] y) <float c = {2}>
        { t = Transpose <perm = [0, 1, 3, 2]> (k) p = MatMul(q, t) d = Div(p, c) w = Softmax <axis = -1> (d) y = MatMul(w, v) }""",
    ),
    "attention of the runtime": (
        14,
        """(float[b, s, 4] x) => (float[b, s, 4] y) <float[4, 12] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3,
        1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, float[12] k = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}>
        { y = com.microsoft.Attention <num_heads = 2> (x, w, k) }""",
    ),
    "heads": (
        14,
        """(float[b, s, 4] q, float[b, s, 4] k, float[b, s, 4] v) => (float[b, s, 4] y)
        { y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v) }""",
    ),
    "conv, sum and relu": (
        13,
        """(float[b, 1, 4, 4] x, float[b, 1, 3, 3] z) => (float[b, 1, 3, 3] y) <float[1, 1, 2, 2] w = {1, 2, 3, 4}, float[1] k = {1}>
        { c = Conv <kernel_shape = [2, 2]> (x, w, k) a = Add(c, z) y = Relu(a) }""",
    ),
    "conv and batch norm": (
        9,
        """(float[b, 1, 4, 4] x) => (float[b, 1, 3, 3] y) <float[1, 1, 2, 2] w = {1, 2, 3, 4}, float[1] g = {2}, float[1] k = {1},
        float[1] m = {0.5}, float[1] v = {1.5}>
        { c = Conv <kernel_shape = [2, 2], strides = [1, 1], pads = [0, 0, 0, 0], group = 1> (x, w)
        y = BatchNormalization <epsilon = 0.001, momentum = 0.9> (c, g, k, m, v) }""",
    ),
    "pad and conv": (
        11,
        """(float[1, 1, 4, 4] x) => (float[1, 1, 5, 5] y) <int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}, float z = {0}, float[1, 1, 2, 2] w = {1, 2, 3, 4}>
        { a = Pad <mode = "constant"> (x, p, z) y = Conv(a, w) }""",
    ),
    "pad and max pool": (
        11,
        """(float[1, 1, 4, 4] x) => (float[1, 1, 5, 5] y) <int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}>
        { n = Neg(x) a = Pad(n, p) y = MaxPool <kernel_shape = [2, 2]> (a) }""",
    ),
    "product of a transposition": (
        13,
        """(float[b, 3, 4] x, float[b, 3, 4] z) => (float[b, 4, 4] y) <float h = {0.5}>
        { t = Transpose <perm = [0, 2, 1]> (x) m = MatMul(t, z) y = Mul(m, h) }""",
    ),
    "transposition that is also an output": (
        13,
        """(float[3, 2] x) => (float[2, 2] y, float[2, 3] t) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] k = {1, 2}>
        { t = Transpose <perm = [1, 0]> (x) y = Gemm(t, w, k) }""",
    ),
    "linear": (
        13,
        """(float[b, 3] x) => (float[b, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] k = {1, 2}>
        { m = MatMul(x, w) a = Add(m, k) y = Relu(a) }""",
    ),
    "quantised conv": (
        13,
        """(float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y) <float s = {0.1}, uint8 z = {128}, int8[1, 1, 2, 2] w = {1, 2, 3, 4}, int8 o = {0}>
        { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(w, s, o) c = Conv(d, v)
        r = QuantizeLinear(c, s, z) y = DequantizeLinear(r, s, z) }""",
    ),
    "quantised product": (
        13,
        """(float[b, 2] x) => (float[b, 2] y) <float s = {0.1}, int8 z = {0}, int8[2, 2] w = {1, 2, 3, 4}, float[2] t = {0.1, 0.2}, int8[2] o = {0, 0}>
        { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear <axis = 1> (w, t, o) y = MatMul(d, v) }""",
    ),
    "dynamically quantised product": (
        13,
        """(float[b, 2] x) => (float[b, 2] y) <uint8[2, 2] w = {1, 2, 3, 4}, uint8 o = {1}, float t = {0.1}>
        { q, s, z = DynamicQuantizeLinear(x) i = MatMulInteger(q, w, z, o) f = Cast <to = 1> (i) g = Mul(s, t) y = Mul(f, g) }""",
    ),
    "quarter bytes": (
        21,
        """(float[b, 2] x) => (float[b, 2] y) <float[2, 1] t = {0.1, 0.2}, float[2, 2] f = {1, 2, 3, 4}>
        { w = Cast <to = 22> (f) v = DequantizeLinear <axis = 1, block_size = 2> (w, t) y = MatMul(x, v) }""",
    ),
    "eighth floats": (
        19,
        """(float[b, 2] x) => (float[b, 2] y) <float s = {0.1}>
        { q = Cast <to = 17, saturate = 0> (x) c = Cast <to = 1> (q) y = Mul(c, s) }""",
    ),
    "reshape by sizes": (
        13,
        """(float[b, s, 4] x) => (float[b, s, 2, 2] y) <int64 i = {0}, int64 j = {1}, int64[1] z = {0}, int64[1] h = {2}, int64[1] m = {-1}>
        { n = Shape(x) a = Gather <axis = 0> (n, i) c = Shape(x) d = Gather <axis = 0> (c, j) e = Unsqueeze(a, z) f = Unsqueeze(d, z)
        t = Concat <axis = 0> (e, f, h, m) y = Reshape(x, t) }""",
    ),
    "axes as attributes": (
        11,
        """(float[b, 1, 4] x) => (float[b, 4, 1] y) { s = Squeeze <axes = [1]> (x) u = Unsqueeze <axes = [2]> (s)
        r = ReduceSum <axes = [2], keepdims = 1> (u) y = Softmax <axis = 1> (r) }""",
    ),
    "clip, relu and dropout": (
        9,
        """(float[b, 4] x) => (float[b, 4] y) { r = Relu(x) c = Clip <min = 0.0, max = 6.0> (r) d = Dropout <ratio = 0.5> (c)
        i = Identity(d) y = Slice <axes = [0], starts = [0], ends = [9223372036854775807]> (i) }""",
    ),
    "casts": (13, "(float[b, 4] x) => (float[b, 4] y) { c = Cast <to = 11> (x) d = Cast <to = 1> (c) e = Cast <to = 1> (d) y = Neg(e) }"),
    "constants": (
        13,
        """(float[b, 4] x) => (float[b, 4] y) { k = Constant <value = float[4] {1, 2, 3, 4}> () c = Constant <value_float = 2.0> ()
        d = Constant <value_ints = [1, 4]> () e = Expand(c, d) f = Mul(k, e) y = Add(x, f) }""",
    ),
    "not and where": (
        13,
        """(bool[b] c, float[b] x, float[b] z) => (float[b] y) { n = Not(c) w = Where(n, x, z) d = Div(w, z) y = Mul(d, x) }""",
    ),
    "a branch": (
        13,
        """(bool c, float[b] x) => (float[b] y) <float k = {2}>
        { y = If(c) <then_branch = t () => (float[b] p) { p = Mul(x, k) }, else_branch = e () => (float[b] q) { q = Neg(x) }> }""",
    ),
    "a loop": (
        13,
        """(int64 m, float[b] x) => (float[b] y, float[n, b] z)
        { y, z = Loop(m, , x) <body = l (int64 i, bool d, float[b] s) => (bool o, float[b] t, float[b] u)
        { o = Identity(d) t = Add(s, s) u = Neg(t) }> }""",
    ),
    "a scan": (
        13,
        """(float[b, 3] x, float[3] a) => (float[3] y, float[b, 3] z)
        { y, z = Scan <num_scan_inputs = 1, body = l (float[3] s, float[3] i) => (float[3] t, float[3] u) { t = Add(s, i) u = Neg(t) }> (a, x) }""",
    ),
    "a sequence": (
        13,
        """(float[b, 4] x) => (float[b, 4] y) <int64 i = {0}> { s = SequenceConstruct(x, x) e = SequenceAt(s, i) c = ConcatFromSequence <axis = 0> (s)
        y = Neg(e) }""",
    ),
    "a sequence as output": (13, "(float[b, 4] x) => (seq(float[c, 2]) y) { n = Neg(x) y = SplitToSequence <axis = 1, keepdims = 1> (n) }"),
    "an optional": (16, "(float[b, 4] x) => (float[b, 4] y) { o = Optional(x) h = OptionalHasElement(o) e = OptionalGetElement(o) y = Neg(e) }"),
    "texts": (13, '(string[b] x) => (string[b] y) { y = StringNormalizer <case_change_action = "LOWER", is_case_sensitive = 0, locale = "C"> (x) }'),
    "labels": (
        13,
        """(string[b] x) => (int64[b] y) { y = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "c"], values_int64s = [1, 2], default_int64 = -1> (x) }""",
    ),
    "a map": (
        13,
        """(float[b, 2] x) => (seq(map(int64, float)) y) <float[2] k = {1, 2}>
        { s = Add(x, k) n = ai.onnx.ml.Normalizer <norm = "L2"> (s) y = ai.onnx.ml.ZipMap <classlabels_int64s = [3, 5]> (n) }""",
    ),
    "a linear classifier": (
        12,
        """(float[b, 2] x) => (int64[b] l, float[b, 2] y) { s = ai.onnx.ml.Scaler <offset = [0.5, 1.0], scale = [2.0, 3.0]> (x)
        l, y = ai.onnx.ml.LinearClassifier <coefficients = [1.0, 2.0, -1.0, -2.0], intercepts = [0.5, -0.5], classlabels_ints = [0, 1],
        multi_class = 0, post_transform = "SOFTMAX"> (s) }""",
    ),
    "recurrent": (
        14,
        """(float[3, b, 1] x) => (float[3, 1, b, 1] y) <float[1, 4, 1] w = {1, 2, 3, 4}, float[1, 4, 1] r = {1, 2, 3, 4}>
        { y, h, c = LSTM <hidden_size = 1> (x, w, r) }""",
    ),
    "group norm": (
        18,
        """(float[b, 4, 3] x) => (float[b, 4, 3] y) <float[2] g = {1, 2}, float[2] k = {1, 0}>
        { y = GroupNormalization <num_groups = 2, epsilon = 0.00001> (x, g, k) }""",
    ),
    "instance norm": (
        13,
        """(float[1, 2, 3] x) => (float[1, 2, 3] y) <float[2] g = {1, 2}, float[2] k = {1, 0}> { y = InstanceNormalization <epsilon = 0.00001> (x, g, k) }""",
    ),
    "resize": (
        13,
        """(float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y) <float[4] s = {1, 1, 2, 2}>
        { y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, , s) }""",
    ),
    "upsample": (9, '(float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y) <float[4] s = {1, 1, 2, 2}> { y = Upsample <mode = "nearest"> (x, s) }'),
    "random": (13, "(float[b, 4] x) => (float[b, 4] y) { r = RandomUniformLike <low = 1.0, high = 1.0> (x) y = Add(x, r) }"),
    "swish and fused activation": (
        13,
        """(float[b, 3] x) => (float[b, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] k = {1, 2}>
        { s = Sigmoid(x) m = Mul(x, s) y = com.microsoft.FusedGemm <activation = "Relu"> (m, w, k) }""",
    ),
    "wide normalisation": (18, "(float[b, 4] x) => (float[b, 4] y) <int64[1] a = {-1}> { s = ReduceSumSquare(x, a) r = Sqrt(s) y = Div(x, r) }"),
    "a function of a function": (
        17,
        """(float[b, 4] x) => (float[b, 4] y) { n = Neg(x) y = local.outer(n) }
        <domain: "local", opset_import: ["" : 17, "inner" : 1]> outer (a) => (b) { c = inner.swish(a) d = inner.swish(c) b = Neg(d) }
        <domain: "inner", opset_import: ["" : 17]> swish (a) => (b) { s = Sigmoid(a) b = Mul(a, s) }""",
    ),
    "channels last": (
        13,
        """(float[b, 4, 4, 1] x) => (float[b, 3, 3, 1] y) <float[1, 1, 2, 2] w = {1, 2, 3, 4}, float[1] k = {1}, float[1] g = {2}>
        { t = Transpose <perm = [0, 3, 1, 2]> (x) c = Conv(t, w) u = Transpose <perm = [0, 2, 3, 1]> (c) a = Mul(u, g) d = Add(a, k)
        r = Relu(d) v = Transpose <perm = [0, 3, 1, 2]> (r) m = MaxPool <kernel_shape = [1, 1]> (v) y = Transpose <perm = [0, 2, 3, 1]> (m) }""",
    ),
    "steps of a cell": (
        14,
        """(float[2, b, 1] x, float[b, 2] h) => (float[b, 2] y) <float[1, 2] w = {0.5, -1}, float[2, 2] r = {0.1, 0.2, 0.3, 0.4}, float[2] k = {0.5, 1},
        int64 i = {0}, int64 j = {1}>
        { a = Gather <axis = 0> (x, i) c = MatMul(a, w) d = MatMul(h, r) e = Add(c, d) f = Add(e, k) g = Tanh(f)
        l = Gather <axis = 0> (x, j) m = MatMul(l, w) n = MatMul(g, r) o = Add(m, n) p = Add(o, k) y = Tanh(p) }""",
    ),
    "chains of constants": (
        13,
        """(float[b, 2] x) => (float[b, 2] y) <float two = {2}, float[2] k = {1, 3}, float[2, 2] w = {1, 2, 3, 4}, float[2, 1] v = {0.5, 2}>
        { a = Neg(x) c = Neg(a) d = Mul(c, two) e = Add(d, k) f = Div(e, k) m = MatMul(f, w) n = MatMul(m, w) o = Mul(n, two) y = Sub(o, k) }""",
    ),
}  # fmt: skip


def base(name: str) -> ModelProto:
    """The model of this name, with imports of all domains that it uses."""
    opset, text = _TEXTS[name]
    domains = {"": opset, "com.microsoft": 1, "ai.onnx.ml": 3, "local": 1, "inner": 1}
    used = {domain: version for domain, version in domains.items() if not domain or f"{domain}." in text}
    imports = ", ".join(f'"{domain}" : {version}' for domain, version in used.items())
    return parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]> g {text}")


BASES = tuple(_TEXTS)
