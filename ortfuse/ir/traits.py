"""Operator traits: properties of an operator that hold for every node. The single table for all sets of operators.

A set holds operator names; operators outside ai.onnx are prefixed with their domain. Test with `has(node, MOVES)` or, if the
domain is known to be ai.onnx, with `node.op_type in MOVES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from weakref import WeakValueDictionary

import onnx_ir as ir

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

BLOCKED = "com.microsoft.nchwc"
"""The domain of the operators that ONNX Runtime executes in its blocked layout; shapes and costs are those of ai.onnx's."""

KNOWN_DOMAINS = frozenset({"", "ai.onnx.ml", MICROSOFT})
"""Domains whose operators are known here. Nothing is assumed about operators of other domains."""

_TABLE = """
Identity                                                       : moves reshapes inplace smooth
Reshape Flatten Squeeze Unsqueeze                              : moves reshapes smooth
Transpose Expand Tile Slice DepthToSpace SpaceToDepth GatherND : moves smooth
ReverseSequence Compress                                       : moves smooth
Split GatherElements                                           : moves along smooth
Gather                                                         : moves smooth weighs
Concat                                                         : moves joins along smooth
Pad CenterCropPad                                              : moves fills smooth
Trilu                                                          : moves fills matrices smooth
ScatterElements                                                : along smooth
ScatterND TensorScatter                                        : smooth
Unique                                                         : -

Add                                                            : broadcasts commutes sum wraps smooth
Sub                                                            : broadcasts sum wraps smooth
Mul                                                            : broadcasts commutes product wraps smooth
Div                                                            : broadcasts product
Neg                                                            : elementwise sum product wraps exact smooth
Reciprocal                                                     : elementwise product
Max Min                                                        : broadcasts commutes picks exact smooth
Sum Mean PRelu                                                 : broadcasts smooth
Where                                                          : broadcasts exact smooth
Pow Mod BitShift                                               : broadcasts
Equal                                                          : broadcasts compares commutes
Greater GreaterOrEqual Less LessOrEqual                        : broadcasts compares
And Or Xor                                                     : broadcasts logical commutes
BitwiseAnd BitwiseOr BitwiseXor                                : broadcasts commutes

Not                                                            : elementwise logical
Abs                                                            : elementwise exact ranged smooth
Relu                                                           : elementwise exact ranged smooth activates
Sign                                                           : elementwise exact ranged
Ceil Floor                                                     : elementwise exact
Round CastLike                                                 : elementwise exact smooth
Clip                                                           : elementwise exact smooth activates
HardSigmoid Sigmoid Tanh                                       : elementwise ranged smooth activates
Exp Softplus Sqrt Cos Erf Sin Softsign                         : elementwise ranged smooth
Acos Acosh Asin Asinh Atan Atanh BitCast BitwiseNot Cosh Log   : elementwise
Shrink Sinh Tan                                                : elementwise
HardSwish LeakyRelu                                            : elementwise smooth activates
Cast Celu Elu Gelu IsInf IsNaN Mish Selu Swish                 : elementwise smooth
ThresholdedRelu                                                : elementwise smooth

LogSoftmax Softmax                                             : layer ranged along smooth
Hardmax LpNormalization                                        : layer along
BatchNormalization GroupNormalization InstanceNormalization    : layer smooth
LRN                                                            : layer smooth
MeanVarianceNormalization                                      : layer
RMSNormalization                                               : layer trailing smooth
LayerNormalization SimplifiedLayerNormalization                : layer trailing stashes smooth
SkipLayerNormalization SkipSimplifiedLayerNormalization @ms    : layer smooth
EmbedLayerNormalization @ms                                    : layer smooth

ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceSum     : reduces smooth
ReduceSumSquare                                                : reduces smooth
ReduceLogSum ReduceLogSumExp ReduceProd                        : reduces
ArgMax ArgMin TopK                                             : along
CumSum                                                         : along smooth
CumProd                                                        : -

MatMul Gemm Einsum                                             : contracts smooth weighs
Attention Conv ConvTranspose                                   : layer smooth weighs
DeformConv                                                     : layer weighs
LinearAttention CausalConvWithState                            : layer smooth
Attention FusedConv @ms                                        : layer smooth weighs
GroupQueryAttention MultiHeadAttention @ms                     : layer smooth

BiasGelu FastGelu Gelu QuickGelu @ms                           : elementwise smooth

ConvInteger DynamicQuantizeLinear MatMulInteger QLinearConv    : quantises
QLinearMatMul                                                  : quantises
QuantizeLinear                                                 : quantises smooth
DequantizeLinear                                               : dequantises smooth
DynamicQuantizeMatMul MatMulIntegerToFloat QAttention @ms      : quantises
QGemm QLinearAdd QLinearAveragePool QLinearConcat @ms          : quantises
QLinearConv QLinearGlobalAveragePool QLinearLeakyRelu @ms      : quantises
QLinearMul QLinearReduceMean QLinearSigmoid @ms                : quantises
QLinearSoftmax QLinearWhere @ms                                : quantises
QuantizeLinear @ms                                             : quantises
DequantizeLinear @ms                                           : dequantises

Shape Size                                                     : sizes smooth
Constant ConstantOfShape Range                                 : exact
BlackmanWindow EyeLike HammingWindow HannWindow OneHot         : -
MelWeightMatrix                                                : -

Bernoulli Multinomial RandomNormal RandomNormalLike            : random seeded
RandomUniform RandomUniformLike                                : random seeded
BeamSearch GreedySearch WhisperBeamSearch @ms                  : names
Sampling @ms                                                   : names random
BiasDropout BitmaskBiasDropout BitmaskDropout @ms              : random
Dropout                                                        : inplace seeded smooth

If Loop Scan                                                   : control exact smooth
SequenceMap                                                    : control

GRU LSTM RNN                                                   : contracts smooth weighs
AffineGrid Det DFT GlobalLpPool ImageDecoder LpPool MaxRoiPool : -
MaxUnpool NegativeLogLikelihoodLoss NonMaxSuppression NonZero  : -
RoiAlign STFT SoftmaxCrossEntropyLoss SwiGLU TfIdfVectorizer   : -
ConcatFromSequence Optional OptionalGetElement                 : -
OptionalHasElement SequenceAt SequenceConstruct SequenceEmpty  : -
SequenceErase SequenceInsert SequenceLength SplitToSequence    : -
RegexFullMatch StringConcat StringNormalizer StringSplit       : -
AveragePool Col2Im GlobalAveragePool GlobalMaxPool GridSample  : smooth
MaxPool Resize RotaryEmbedding                                 : smooth
FusedGemm FusedMatMul @ms                                      : smooth weighs
BiasSplitGelu RotaryEmbedding LinearAttention @ms              : smooth
CausalConvWithState MatMulNBits @ms                            : smooth
"""


class OperatorSet(set[str]):
    """A set of operators that grows when an operator is described. Unions, intersections and differences grow with it."""

    __slots__ = ("_holds",)

    def __init__(self, names: Iterable[str], holds: Callable[[str], bool] | None = None) -> None:
        super().__init__(names)
        self._holds = holds
        if holds is not None:
            _DERIVED[id(self)] = self

    def renew(self, name: str) -> None:
        """Bring a derived set up to date after the traits of an operator have changed."""
        if self._holds is not None and self._holds(name):
            self.add(name)
        elif self._holds is not None:
            self.discard(name)

    def __or__(self, other: AbstractSet[str]) -> OperatorSet:  # type: ignore[override]
        return OperatorSet(self.union(other), lambda name: name in self or name in other)

    def __and__(self, other: AbstractSet[object]) -> OperatorSet:
        return OperatorSet(self.intersection(other), lambda name: name in self and name in other)

    def __sub__(self, other: AbstractSet[object]) -> OperatorSet:
        return OperatorSet(self.difference(other), lambda name: name in self and name not in other)


_DERIVED: WeakValueDictionary[int, OperatorSet] = WeakValueDictionary()
"""The sets that are computed from others and still in use, in the order of their creation."""


def _read(table: str) -> dict[str, OperatorSet]:
    """The operators of each trait."""
    found: dict[str, set[str]] = {}
    for row in filter(None, table.splitlines()):
        operators, _, traits = row.partition(":")
        names, marked, _ = operators.partition("@ms")
        prefix = f"{MICROSOFT}." if marked else ""
        for trait in traits.split():
            found.setdefault(trait, set()).update(prefix + name for name in names.split())
    return {trait: OperatorSet(names) for trait, names in found.items()}


_OPERATORS = _read(_TABLE)
_OPERATORS["pure"] = OperatorSet(())

MOVES = _OPERATORS["moves"]
"""The outputs consist of elements of the first input; nothing is computed."""

JOINS = _OPERATORS["joins"]
"""Operators that move elements, but from all inputs instead of only the first."""

FILLS = _OPERATORS["fills"]
"""Operators that move elements, but also insert numbers of their own, such as the zeros of a Pad."""

RESHAPES = _OPERATORS["reshapes"]
"""Operators that move elements and keep all of them, in row-major order."""

ELEMENTWISE = _OPERATORS["elementwise"]
"""Each element of the result is computed from the element at the same position in the first input."""

BROADCASTS = _OPERATORS["broadcasts"]
"""Computed element by element on broadcast operands: the result has the rank of the operand with the most axes."""

COMMUTES = _OPERATORS["commutes"]
"""The two operands can be swapped."""

PICKS = _OPERATORS["picks"]
"""Returns one of its operands; which zero or NaN is returned depends on their order."""

SUM = _OPERATORS["sum"]
"""Operators that sums consist of."""

PRODUCT = _OPERATORS["product"]
"""Operators that products consist of."""

WRAPS = _OPERATORS["wraps"]
"""Sums and products can be regrouped on integers too, since they wrap around; divisions cannot."""

COMPARES = _OPERATORS["compares"]
"""Comparisons: a truth value for each pair of numbers."""

LOGICAL = _OPERATORS["logical"]
"""Logical operators: truth values from truth values."""

EXACT = _OPERATORS["exact"] | MOVES
"""Does not round: the results are elements of the operands, or numbers that their type represents exactly."""

RANGED = _OPERATORS["ranged"]
"""The results lie in a fixed range (nonnegative, at most 1, ...), whatever the one input holds."""

REDUCES = _OPERATORS["reduces"]
"""Reduces along `axes` to one number."""

ACTIVATES = _OPERATORS["activates"]
"""Activation functions that FusedConv computes together with its convolution."""

LAYER = _OPERATORS["layer"]
"""Computes activations, as opposed to masks, positions or angles."""

IN_PLACE = _OPERATORS["inplace"]
"""Every element of the results stems from the element at the same position of the first input."""

ALONG_AXIS = _OPERATORS["along"]
"""Works along the one axis `axis` and treats all others alike; all tensors have the same axes, but for one that is dropped."""

TRAILING = _OPERATORS["trailing"]
"""Works on all axes of the first input from `axis` on together, and treats the others alike."""

CONTRACTS = _OPERATORS["contracts"]
"""Sums products along an axis of two operands: costs more than what converts its operands. Some with weights are in LAYER."""

STASHES = _OPERATORS["stashes"]
"""The outputs beyond the first have the type that the operator computes in, whatever that of the first."""

MATRICES = _OPERATORS["matrices"]
"""Works on each matrix of the last two axes of the first input alone; the result has its shape."""

WEIGHS = _OPERATORS["weighs"]
"""Takes weights or a table, which are constants of trained models."""

SMOOTH = _OPERATORS["smooth"]
"""A change of the operands changes the results by no more than a moderate multiple of it."""

QUANTISES = _OPERATORS["quantises"]
"""Quantises to integers, or operates on quantised numbers."""

DEQUANTISES = _OPERATORS["dequantises"]
"""Turns quantised numbers into floating-point ones."""

SIZES = _OPERATORS["sizes"]
"""Reads only the shape of its input."""

NAMES_INPUTS = _OPERATORS["names"]
"""Knows the inputs and outputs of its bodies by their names, which may be those of values outside."""

RANDOM = _OPERATORS["random"]
"""Draws random numbers. Dropout does so only in training."""

PURE = _OPERATORS["pure"]
"""Deterministic and without side effects, though of a domain that is not known here."""

SEEDED = _OPERATORS["seeded"]
"""Takes a seed as an attribute, which is a floating-point number if the operator is random in every run."""

CONTROL_FLOW = _OPERATORS["control"]
"""Operators of ai.onnx whose attributes are graphs."""

PARAMETER_INPUTS: Mapping[str, Mapping[str, int]] = {
    **{name: {"axes": 1} for name in sorted(REDUCES)},
    "Squeeze": {"axes": 1},
    "Unsqueeze": {"axes": 1},
    "Reshape": {"shape": 1},
    "Expand": {"shape": 1},
    "Tile": {"repeats": 1},
    "Split": {"split": 1},
    "Slice": {"starts": 1, "ends": 2, "axes": 3, "steps": 4},
    "Clip": {"min": 1, "max": 2},
    "Pad": {"pads": 1, "constant_value": 2},
    "TopK": {"k": 1},
    "Dropout": {"ratio": 1, "training_mode": 2},
    "CumSum": {"axis": 1},
}
"""Operator -> parameter -> input position, for parameters written as keywords in patterns. Some were attributes once."""

PLAIN = EXACT | SUM | PRODUCT | COMPARES | LOGICAL | SIZES | {"Cast", "MatMul", "Pow", "Sqrt", "Sum"}
"""Operators that say nothing about what the author of a model meant."""

ORDERED_AXES = frozenset({"Slice", "Pad", "Resize", "CenterCropPad"})
"""Operators whose axes correspond one by one to numbers in other inputs, so that their order matters."""


def operator_name(node: ir.Node) -> str:
    """The operator as it stands in the sets: with its domain, unless that is ai.onnx."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def traits_of(name: str) -> frozenset[str]:
    """The traits of an operator, by name as in the table."""
    return frozenset(trait for trait, operators in _OPERATORS.items() if name in operators)


def add_traits(name: str, traits: Iterable[str]) -> None:
    """Give an operator traits besides those that it has.

    Raises:
        ValueError: There is no such trait.
    """
    for trait in traits:
        if trait not in _OPERATORS:
            raise ValueError(f"{name}: there is no trait {trait}; there are {', '.join(sorted(_OPERATORS))}")
        _OPERATORS[trait].add(name)
    for derived in list(_DERIVED.values()):
        derived.renew(name)


def has(node: ir.Node, trait: AbstractSet[str]) -> bool:
    """Whether the node's operator, with its domain, is in the set."""
    return operator_name(node) in trait
