"""Of every operator it is said whether its axes can be moved, and if not, why; of those that are rare, that they are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graphs import run
from small_models import context_of, floats, model_of, proto_of

from ortfuse.analysis.transfer import TRANSFERS
from ortfuse.ir.traits import MICROSOFT
from ortfuse.transforms import Layout
from ortfuse.transforms.layout.layout_interfaces import is_movable_operator

STAYS = {
    "it is what is moved": "Transpose",
    "its operands and results are no tensors": """ConcatFromSequence Optional OptionalGetElement OptionalHasElement
        SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap SplitToSequence""",
    "its operands are text": "ImageDecoder RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer",
    "what is in its bodies is looked at by itself": "If Loop Scan",
    "numbers are drawn in the order of the elements": """Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform
        RandomUniformLike""",
    "its result depends on numbers and sizes alone": """AffineGrid BlackmanWindow Constant ConstantOfShape EyeLike
        HammingWindow HannWindow MelWeightMatrix Range""",
    "elements are found in their order": "NonZero Unique NonMaxSuppression",
    "its axes are batch, length and size, and no attribute can say otherwise": """Attention CausalConvWithState GRU LSTM
        LinearAttention RNN RotaryEmbedding STFT DFT TensorScatter com.microsoft.Attention com.microsoft.CausalConvWithState
        com.microsoft.DynamicQuantizeLSTM com.microsoft.EmbedLayerNormalization com.microsoft.GroupQueryAttention
        com.microsoft.LinearAttention com.microsoft.MultiHeadAttention com.microsoft.PackedMultiHeadAttention
        com.microsoft.QAttention com.microsoft.RotaryEmbedding""",
    "only quantisers write it, into models whose order of axes is settled": """com.microsoft.QLinearAveragePool
        com.microsoft.QLinearSoftmax com.microsoft.QLinearWhere""",
    "pixels of blocks are channels in an order": "DepthToSpace SpaceToDepth Col2Im",
    "coordinates name its rows and columns in an order": "DeformConv MaxRoiPool MaxUnpool RoiAlign",
    "it is spelled in other operators before": "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    "only the runtime makes it, for a provider of its own": """com.microsoft.NhwcConv
        com.microsoft.NhwcFusedConv com.microsoft.NhwcMaxPool com.microsoft.QLinearConv""",
    "its kernel has the channels last": """com.microsoft.BiasAdd com.microsoft.BiasSplitGelu com.microsoft.GroupNorm
        com.microsoft.SkipGroupNorm""",
    "its bias has rows for leading axes, or for those behind them": "com.microsoft.BiasSoftmax",
    "it has two axes, whose order it says itself": "com.microsoft.FusedGemm com.microsoft.QGemm",
    "numbers are packed along one of its axes": "com.microsoft.GatherBlockQuantized",
    "the runtime has no kernel for it": "CumProd SwiGLU com.microsoft.LayerNormalization com.microsoft.SimplifiedLayerNormalization",
    "later opsets have it under another name": "Scatter",
    "it returns token ids": "com.microsoft.BeamSearch com.microsoft.GreedySearch com.microsoft.Sampling",
}


def known() -> set[str]:
    """All operators of ONNX's own domain, and those of the runtime's that something is known of."""
    domains = {domain: f"{domain}." if domain else "" for domain in ("", MICROSOFT)}
    names = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    return names | {domains[domain] + name for domain, name in TRANSFERS if domain in domains}


def test_of_every_operator_it_is_known_whether_its_axes_can_be_moved() -> None:
    stays = {name for names in STAYS.values() for name in names.split()}
    assert not [name for name in stays if is_movable_operator(name)]
    assert [name for name in known() - stays if not is_movable_operator(name)] == []


HEAD = '<ir_version: 10, opset_import: ["": 20, "com.microsoft": 1]>'

CASES = {
    "an equation": (
        "2, 3, 4", "a, b, c",
        't = Transpose<perm = [1, 0, 2]>(x) r = Einsum<equation = "hbd,hed->bhe">(t, w) y = Relu(r)',
    ),
    "a product within a batch": (
        "2, 3, 4, 5", "a, b, c, d",
        """a = Transpose<perm = [1, 0, 2, 3]>(x) b = Relu(a) c = Abs(a) d = Transpose<perm = [0, 1, 3, 2]>(c)
           m = MatMul(b, d) y = Transpose<perm = [1, 0, 2, 3]>(m)""",
    ),
    "slices at coordinates of a batch": (
        "2, 3, 4, 5", "a, b, c, d",
        """t = Transpose<perm = [0, 1, 3, 2]>(x) r = GatherND<batch_dims = 1>(t, places) y = Transpose<perm = [0, 1, 3, 2]>(r)""",
    ),
    "batches of slices": (
        "2, 3, 4, 5", "a, b, c",
        """t = Transpose<perm = [1, 0, 2, 3]>(x) r = GatherND<batch_dims = 2>(t, pairs) y = Transpose<perm = [1, 0, 2]>(r)""",
    ),
    "slices put at coordinates": (
        "2, 3, 4, 5", "a, b, c, d",
        """t = Transpose<perm = [0, 1, 3, 2]>(x) a = Relu(t) u = Gather<axis = 0>(t, rows) r = ScatterND(a, row, u)
           y = Transpose<perm = [0, 1, 3, 2]>(r)""",
    ),
    "pixels at coordinates": (
        "2, 3, 4, 2", "a, b, c, d",
        "t = Transpose<perm = [0, 2, 1, 3]>(x) g = GridSample(image, t) y = Transpose<perm = [0, 1, 3, 2]>(g)",
    ),
    "determinants": (
        "2, 3, 4, 4", "a, b",
        "t = Transpose<perm = [1, 0, 2, 3]>(x) d = Det(t) y = Transpose<perm = [1, 0]>(d)",
    ),
    "cropped and padded": (
        "2, 3, 4, 5", "a, b, c, d",
        "t = Transpose<perm = [0, 2, 3, 1]>(x) r = CenterCropPad<axes = [1, 3]>(t, pair) y = Transpose<perm = [0, 3, 1, 2]>(r)",
    ),
    "integers of rows": (
        "2, 3, 4", "a, b, c",
        """t = Transpose<perm = [1, 0, 2]>(x) q = Cast<to = 2>(t) r = MatMulInteger(q, w8, z, z) c = Cast<to = 1>(r)
           y = Transpose<perm = [1, 0, 2]>(c)""",
    ),
    "quantised numbers": (
        "2, 3, 4", "a, b, c",
        """t = Transpose<perm = [1, 0, 2]>(x) q = QuantizeLinear(t, s, z) a = com.microsoft.QLinearSigmoid(q, s, z, s, z)
           b = com.microsoft.QLinearAdd(q, s, z, a, s, z, s, z) c = com.microsoft.QLinearConcat<axis = 2>(s, z, a, s, z, b, s, z)
           m = QLinearMatMul(c, s, z, w88, s, z, s, z) d = DequantizeLinear(m, s, z) y = Transpose<perm = [1, 0, 2]>(d)""",
    ),
    "a sum that is normalised": (
        "2, 3, 4", "a, b, c",
        """t = Transpose<perm = [1, 0, 2]>(x) a = Relu(t) r = com.microsoft.SkipLayerNormalization(t, a, four, four)
           y = Transpose<perm = [1, 0, 2]>(r)""",
    ),
    "a fused product of rows": (
        "2, 3, 4", "a, b, c",
        """t = Transpose<perm = [1, 0, 2]>(x) r = com.microsoft.FusedMatMul<alpha = 0.5>(t, plain)
           y = Transpose<perm = [1, 0, 2]>(r)""",
    ),
    "a convolution with a sum": (
        "2, 4, 4, 5", "a, b, c, d",
        """t = Transpose<perm = [0, 1, 3, 2]>(x) a = Abs(t)
           r = com.microsoft.FusedConv<pads = [0, 1, 0, 1], activation = "Relu">(t, filter, four, a)
           y = Transpose<perm = [0, 1, 3, 2]>(r)""",
    ),
    "a convolution of integers": (
        "2, 4, 4, 5", "a, b, c, d",
        """t = Transpose<perm = [0, 1, 3, 2]>(x) q = QuantizeLinear(t, s, z)
           r = QLinearConv<pads = [0, 1, 0, 1]>(q, s, z, filter8, s, z, s, z) i = ConvInteger<pads = [0, 1, 0, 1]>(q, filter8, z, z)
           d = DequantizeLinear(r, s, z) f = Cast<to = 1>(i) e = Add(d, f) y = Transpose<perm = [0, 1, 3, 2]>(e)""",
    ),
}  # fmt: skip
"""Graphs that have their axes in another order inside: the shapes of input and output, and the nodes."""


def _numbers(kind: str, name: str, *shape: int) -> str:
    drawn = np.random.default_rng(len(name)).random(shape).ravel()
    numbers = [f"{number:.3f}" for number in drawn] if kind == "float" else [str(int(9 * number)) for number in drawn]
    return f"{kind}{list(shape)} {name} = {{{', '.join(numbers)}}}"


CONSTANTS = ", ".join([
    _numbers("float", "w", 3, 6, 4), _numbers("float", "image", 2, 3, 6, 7), _numbers("float", "four", 4),
    _numbers("float", "plain", 4, 2), _numbers("float", "filter", 4, 4, 1, 3), _numbers("uint8", "filter8", 4, 4, 1, 3),
    _numbers("uint8", "w8", 4, 3), _numbers("uint8", "w88", 8, 3), "float s = {0.1}", "uint8 z = {2}",
    "int64[2, 2, 1] places = {0, 2, 1, 1}", "int64[3, 2, 1] pairs = {0, 1, 2, 3, 0, 1}", "int64[2] pair = {6, 2}",
    "int64[1] rows = {1}", "int64[1, 1] row = {0}",
])  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_transposes_meet_through(case: str) -> None:
    shape, result, body = CASES[case]
    text = f"{HEAD} agraph (float[{shape}] x) => (float[{result}] y) <{CONSTANTS}> {{ {body} }}"
    model, given = model_of(text), {"x": floats(*map(int, shape.split(", ")))}
    context = context_of(model)
    while Layout().run(context):
        pass
    left = [list(node.attributes["perm"].as_ints()) for node in model.graph if node.op_type == "Transpose"]
    absorbed = [[0, 1, 3, 2]] if case == "a product within a batch" else []
    assert left == absorbed, "the runtime merges that one into the product"
    np.testing.assert_allclose(run(model, given)[0], run(proto_of(text), given)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("operator", ["ReduceMean", "ArgMax"])
def test_flags_that_are_neither_0_nor_1_stay_where_they_are(operator: str) -> None:
    """The runtime takes such a keepdims for 0 and others for 1: there is no order of axes that is right for both."""
    parameter = "axes=[2]" if operator == "ReduceMean" else "axis=2"
    model = model_of(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[n, 3, 4, 5] x) => (y) {{
            t = Transpose<perm=[0, 2, 3, 1]>(x)  y = {operator}<{parameter}, keepdims=2>(t)
        }}"""
    )
    Layout().run(context_of(model))
    assert [node.op_type for node in model.graph] == ["Transpose", operator]
