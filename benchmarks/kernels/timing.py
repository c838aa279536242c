"""Times of fused operators beside the operators that they replace, for `measure.py`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from rich.console import Console
from rich.table import Table

from ortfuse.targets import default_spec

ROUNDS = 41
SECONDS_A_ROUND = 0.004
WEIGHTS = frozenset({"w", "b", "gamma", "beta", "bias", "words", "types", "positions"})
ROWS = 100
"""Rows of tables, and so the bound of integer inputs, which are indices."""


@dataclass(frozen=True)
class Comparison:
    """Graph bodies that compute the same `y` from the same inputs; the first is what an exporter writes.

    Inputs named in `WEIGHTS` are made constants, as they are in a model: the runtime packs constant weights.
    """

    what: str
    inputs: str
    bodies: Mapping[str, str]
    weights: str = ""


def _attention(length: int, masked: bool) -> Comparison:
    heads, size = 12, 64
    hidden = heads * size
    split = "".join(f"{x}r = Reshape({x}, split) {x}h = Transpose<perm=[0,2,1,3]>({x}r) " for x in "qkv")
    merge = "o = Transpose<perm=[0,2,1,3]>(h) y = Reshape(o, merge)"
    mask = "mask" if masked else ""
    add = "t = Add(s, mask) p = Softmax(t)" if masked else "p = Softmax(s)"
    of_heads = f"q_num_heads={heads}, kv_num_heads={heads}"
    return Comparison(
        f"attention of {length} tokens, {heads} heads of {size}{', mask [1,1,s,s]' if masked else ''}",
        ", ".join(f"float[1,{length},{hidden}] {x}" for x in "qkv")
        + (f", float[1,1,{length},{length}] mask" if masked else ""),
        {
            "subgraph": f"{split} kt = Transpose<perm=[0,1,3,2]>(kh) m = MatMul(qh, kt) s = Mul(m, scale) {add} "
            f"h = MatMul(p, vh) {merge}",
            "Attention 3-D": f"y = Attention<{of_heads}>(q, k, v, {mask})"
            if masked
            else f"y = Attention<{of_heads}>(q, k, v)",
            "Attention 4-D": f"{split} h = Attention(qh, kh, vh{', mask' if masked else ''}) {merge}",
            "MultiHeadAttention": f"y = com.microsoft.MultiHeadAttention<num_heads={heads}>(q, k, v"
            + (", , , mask)" if masked else ")"),
        },
        f"int64[4] split = {{1, {length}, {heads}, {size}}}, int64[3] merge = {{1, {length}, {hidden}}}, float scale = {{0.125}}",
    )


def _decoding(past: int) -> Comparison:
    heads, size = 12, 64
    inputs = ", ".join(f"float[1,1,{heads * size}] {x}" for x in "qkv")
    pasts = ", ".join(f"float[1,{heads},{past},{size}] {x}" for x in ("pk", "pv"))
    split = "".join(f"{x}r = Reshape({x}, split) {x}h = Transpose<perm=[0,2,1,3]>({x}r) " for x in "qkv")
    return Comparison(
        f"one token and {past} cached, {heads} heads of {size}",
        f"{inputs}, {pasts}",
        {
            "subgraph": f"{split} kk = Concat<axis=2>(pk, kh) vv = Concat<axis=2>(pv, vh) kt = Transpose<perm=[0,1,3,2]>(kk) "
            "m = MatMul(qh, kt) s = Mul(m, scale) p = Softmax(s) h = MatMul(p, vv) "
            "o = Transpose<perm=[0,2,1,3]>(h) y = Reshape(o, merge)",
            "Attention 3-D, past": f"y, kk, vv = Attention<q_num_heads={heads}, kv_num_heads={heads}>(q, k, v, , pk, pv)",
            "MultiHeadAttention, past": f"y, kk, vv = com.microsoft.MultiHeadAttention<num_heads={heads}>(q, k, v, , , , pk, pv)",
            "GroupQueryAttention": f"y, kk, vv = com.microsoft.GroupQueryAttention<num_heads={heads}, kv_num_heads={heads}>"
            "(q, k, v, pk, pv, last, total)",
        },
        f"int64[4] split = {{1, 1, {heads}, {size}}}, int64[3] merge = {{1, 1, {heads * size}}}, float scale = {{0.125}}, "
        f"int32[1] last = {{{past}}}, int32 total = {{{past + 1}}}",
    )


def _normalization(rows: int, hidden: int) -> Iterator[Comparison]:
    x, vector = f"float[1,{rows},{hidden}]", f"float[{hidden}]"
    yield Comparison(
        f"sum and layer normalisation, {rows}x{hidden}",
        f"{x} x, {x} skip, {vector} gamma, {vector} beta",
        {
            "Add, LayerNormalization": "s = Add(x, skip) y = LayerNormalization(s, gamma, beta)",
            "Sum, LayerNormalization": "s = Sum(x, skip) y = LayerNormalization(s, gamma, beta)",
            "SkipLayerNormalization": "y = com.microsoft.SkipLayerNormalization<epsilon=0.00001>(x, skip, gamma, beta)",
        },
    )
    yield Comparison(
        f"RMS normalisation, {rows}x{hidden}",
        f"{x} x, {vector} gamma",
        {
            "subgraph": "q = Mul(x, x) m = ReduceMean<keepdims=1>(q, last) e = Add(m, epsilon) r = Sqrt(e) d = Div(x, r) "
            "y = Mul(d, gamma)",
            "RMSNormalization": "y = RMSNormalization(x, gamma)",
            "SimplifiedLayerNormalization": "y = SimplifiedLayerNormalization<axis=-1>(x, gamma)",
        },
        "int64[1] last = {-1}, float epsilon = {0.00001}",
    )
    yield Comparison(
        f"sum and RMS normalisation, {rows}x{hidden}",
        f"{x} x, {x} skip, {vector} gamma",
        {
            "Add, RMSNormalization": "s = Add(x, skip) y = RMSNormalization(s, gamma)",
            "SkipSimplifiedLayerNormalization": "y = com.microsoft.SkipSimplifiedLayerNormalization(x, skip, gamma)",
        },
    )


def _activation(rows: int, hidden: int) -> Iterator[Comparison]:
    inputs = f"float[1,{rows},{hidden}] x, float[{hidden}] bias"
    yield Comparison(
        f"bias and GELU, {rows}x{hidden}",
        inputs,
        {
            "subgraph": "b = Add(x, bias) d = Div(b, root) e = Erf(d) o = Add(e, one) h = Mul(b, o) y = Mul(h, half)",
            "Add, Gelu": "b = Add(x, bias) y = Gelu(b)",
            "Add, com.microsoft.Gelu": "b = Add(x, bias) y = com.microsoft.Gelu(b)",
            "BiasGelu": "y = com.microsoft.BiasGelu(x, bias)",
        },
        "float root = {1.4142135}, float one = {1.0}, float half = {0.5}",
    )
    yield Comparison(
        f"bias and tanh GELU, {rows}x{hidden}",
        inputs,
        {
            "Add, Gelu": 'b = Add(x, bias) y = Gelu<approximate="tanh">(b)',
            "FastGelu": "y = com.microsoft.FastGelu(x, bias)",
        },
    )
    yield Comparison(
        f"x sigmoid(1.702 x), {rows}x{hidden}",
        f"float[1,{rows},{hidden}] x",
        {
            "subgraph": "m = Mul(x, alpha) s = Sigmoid(m) y = Mul(x, s)",
            "QuickGelu": "y = com.microsoft.QuickGelu<alpha=1.702>(x)",
        },
        "float alpha = {1.702}",
    )


def _linear(rows: int, inner: int, outer: int) -> Comparison:
    return Comparison(
        f"product with a weight and sum, {rows}x{inner}x{outer}",
        f"float[{rows},{inner}] x, float[{inner},{outer}] w, float[{outer}] b",
        {"MatMul, Add": "m = MatMul(x, w) y = Add(m, b)", "Gemm": "y = Gemm(x, w, b)"},
    )


def _embeddings(length: int, hidden: int) -> Comparison:
    tables = ", ".join(f"float[{ROWS},{hidden}] {name}" for name in ("words", "types"))
    return Comparison(
        f"sum of three embeddings and layer normalisation, {length}x{hidden}",
        f"int32[1,{length}] ids, int32[1,{length}] kinds, {tables}, float[{length},{hidden}] positions, "
        f"float[{hidden}] gamma, float[{hidden}] beta",
        {
            "Gather, Add, LayerNormalization": "e = Gather(words, ids) t = Gather(types, kinds) a = Add(e, t) "
            "s = Add(a, positions) y = LayerNormalization(s, gamma, beta)",
            "EmbedLayerNormalization": "y, m = com.microsoft.EmbedLayerNormalization<epsilon=0.00001>"
            "(ids, kinds, words, positions, types, gamma, beta)",
        },
    )


def _others() -> Iterator[Comparison]:
    yield Comparison(
        "scaled product with a transpose, 12x128x64x128",
        "float[1,12,128,64] a, float[1,12,128,64] c",
        {
            "subgraph": "t = Transpose<perm=[0,1,3,2]>(c) m = MatMul(a, t) y = Mul(m, scale)",
            "FusedMatMul": "y = com.microsoft.FusedMatMul<transB=1, alpha=0.125>(a, c)",
        },
        "float scale = {0.125}",
    )
    yield Comparison(
        "convolution, ReLU, 64x56x56, 3x3",
        "float[1,64,56,56] x, float[64,64,3,3] w, float[64] b",
        {
            "subgraph": "c = Conv<pads=[1,1,1,1]>(x, w, b) y = Relu(c)",
            "FusedConv": 'y = com.microsoft.FusedConv<pads=[1,1,1,1], activation="Relu">(x, w, b)',
        },
    )
    yield Comparison(
        "convolution, sum, ReLU, 64x56x56, 3x3",
        "float[1,64,56,56] x, float[64,64,3,3] w, float[64] b, float[1,64,56,56] z",
        {
            "subgraph": "c = Conv<pads=[1,1,1,1]>(x, w, b) s = Add(c, z) y = Relu(s)",
            "FusedConv": 'y = com.microsoft.FusedConv<pads=[1,1,1,1], activation="Relu">(x, w, b, z)',
        },
    )
    yield Comparison(
        "rotary embedding, 128 tokens, 12 heads of 64",
        "float[1,12,128,64] x, float[1,128,32] c, float[1,128,32] s",
        {
            "subgraph": "cc = Concat<axis=-1>(c, c) ss = Concat<axis=-1>(s, s) c4 = Unsqueeze(cc, axis) s4 = Unsqueeze(ss, axis) "
            "u, v = Split<axis=-1, num_outputs=2>(x) n = Neg(v) r = Concat<axis=-1>(n, u) "
            "p = Mul(x, c4) q = Mul(r, s4) y = Add(p, q)",
            "RotaryEmbedding": "y = RotaryEmbedding(x, c, s)",
        },
        "int64[1] axis = {1}",
    )


def comparisons() -> list[Comparison]:
    """All of them."""
    found = [_attention(length, masked) for length in (16, 128, 512, 1024) for masked in (False, True)]
    found += [_decoding(past) for past in (64, 512)]
    for rows, hidden in ((16, 384), (128, 768), (512, 1024)):
        found += _normalization(rows, hidden)
    for rows, hidden in ((16, 1536), (128, 3072)):
        found += _activation(rows, hidden)
    found += [_linear(rows, 768, 3072) for rows in (1, 16, 128)] + [_linear(1, 3072, 768)]
    found += [_embeddings(16, 384), _embeddings(128, 768)]
    return found + list(_others())


def _sessions(
    comparison: Comparison, level: onnxruntime.GraphOptimizationLevel, threads: int
) -> dict[str, onnxruntime.InferenceSession]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    # Threads of one session that wait by spinning would take the processors from the next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    sessions = {}
    for name, body in comparison.bodies.items():
        text = (
            '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]> '
            f"g ({comparison.inputs}) => (y) <{comparison.weights}> {{ {body} }}"
        )
        model = onnx.parser.parse_model(text)
        _fix_weights(model.graph)
        sessions[name] = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=[default_spec().provider]
        )
    return sessions


def _fix_weights(graph: onnx.GraphProto) -> None:
    random = np.random.default_rng(1)
    for value in [value for value in graph.input if value.name in WEIGHTS]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = (random.standard_normal(shape) / max(1, shape[0]) ** 0.5).astype(np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        graph.input.remove(value)


def measure(comparison: Comparison, level: onnxruntime.GraphOptimizationLevel, threads: int) -> dict[str, str]:
    """Median milliseconds of each body and half the range of its middle half, the bodies taking turns."""
    sessions = _sessions(comparison, level, threads)
    random = np.random.default_rng(0)
    first = next(iter(sessions.values()))
    inputs = {
        value.name: random.integers(0, ROWS, value.shape).astype(np.int32)
        if "int" in value.type
        else random.standard_normal(value.shape).astype(np.float32)
        for value in first.get_inputs()
    }
    feeds = {
        name: {value.name: inputs[value.name] for value in session.get_inputs()} for name, session in sessions.items()
    }
    once = max(_time(session, feeds[name], 1) for name, session in sessions.items())
    runs = max(1, int(SECONDS_A_ROUND / max(once, 1e-6)))
    samples: dict[str, list[float]] = {name: [] for name in sessions}
    for index in range(ROUNDS):
        names = list(sessions)
        for name in names[index % len(names) :] + names[: index % len(names)]:
            samples[name].append(_time(sessions[name], feeds[name], runs))
    return {name: _summary(values) for name, values in samples.items()}


def _summary(seconds: list[float]) -> str:
    low, median, high = statistics.quantiles(seconds, n=4)
    return f"{1000 * median:.3f} ±{50 * (high - low) / median:.0f}%"


def _time(session: onnxruntime.InferenceSession, feeds: Mapping[str, np.ndarray], runs: int) -> float:
    session.run(["y"], feeds)
    started = time.perf_counter()
    for _ in range(runs):
        session.run(["y"], feeds)
    return (time.perf_counter() - started) / runs


def timings(console: Console, threads: int) -> list[str]:
    """Measure everything, print it, and return the lines of the document."""
    level = onnxruntime.GraphOptimizationLevel
    lines = [
        "## Times",
        "",
        f"float32, {threads} thread{'s' if threads > 1 else ''}, median milliseconds of {ROUNDS} rounds in which the",
        "alternatives take turns, and half the range of the middle half of them: more than a few percent means that the",
        "machine was busy. Weights are constants. `off`: the runtime's own optimisations disabled; `default`: enabled, where",
        "it fuses some of the subgraphs itself.",
        "",
        "| what | as | off | default |",
        "|---|---|---|---|",
    ]
    table = Table("what", "as", "off", "default")
    for comparison in comparisons():
        off = measure(comparison, level.ORT_DISABLE_ALL, threads)
        default = measure(comparison, level.ORT_ENABLE_ALL, threads)
        for index, name in enumerate(comparison.bodies):
            row = (comparison.what if not index else "", name, off[name], default[name])
            lines.append(f"| {' | '.join(row)} |")
            table.add_row(*row)
    console.print(table)
    return lines
