"""Find the operators and architecture signs of a model, by which pass lists are chosen.

A sign is a small piece of a graph, as exporters write it, that says what kind of model it belongs to: a table of embeddings, the
halves of a rotation, the windows of a Swin transformer. Signs decide which passes run and in what order, never what is right: a
sign that is missed or mistaken costs time or a fusion, not a wrong result. A sign for want of which lists leave passes
out is defined widely: everything that the rules of the pass could match shows it. Nothing is inferred from names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.ir.traits import ELEMENTWISE, FILLS, JOINS, MICROSOFT, MOVES
from ortfuse.ir.walk import describe, nodes


@dataclass(frozen=True)
class Content:
    """The operators and signs of a model.

    Attributes:
        operators: How many nodes of each operator, all graphs together; outside of ai.onnx with their domain.
        signs: How many nodes show each sign that the model has.
        examples: For each sign, one of these nodes.
    """

    operators: Mapping[str, int]
    signs: Mapping[str, int]
    examples: Mapping[str, str]

    @classmethod
    def of(cls, model: ir.Model) -> Content:
        """Look through a model."""
        operators: Counter[str] = Counter()
        signs: Counter[str] = Counter()
        examples: dict[str, str] = {}
        for node in nodes(model):
            operators[f"{node.domain}.{node.op_type}" if node.domain else node.op_type] += 1
            for sign in _signs_of(node):
                signs[sign] += 1
                examples.setdefault(sign, describe(node))
        return cls(operators, signs, examples)

    def __contains__(self, word: str) -> bool:
        return word in self.operators or word in self.signs

    def evidence(self, word: str) -> str:
        """The number of an operator or sign in the model, as text: `rotations (4, such as node 'rotate')`."""
        if word in self.signs:
            return f"{word} ({self.signs[word]}, such as {self.examples[word]})"
        return f"{word} ({self.operators[word]})" if word in self.operators else f"no {word}"


Sign = Callable[[ir.Node], bool]

_MOVES = MOVES - JOINS - FILLS | {"Cast", "SplitToSequence", "SequenceAt"}
_COMBINES = ("Mul", "Add", "Sub")
_FAR = 6
"""How many operators that move elements are looked through."""


def _constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer or of a Constant node."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    given = node.attributes.get("value") if node is not None and node.op_type == "Constant" else None
    is_given = given is not None and given.type == ir.AttributeType.TENSOR and not given.is_ref()
    return given.as_tensor() if given is not None and is_given else None


def _rank(value: ir.Value | None) -> int | None:
    if value is None:
        return None
    constant = _constant(value)
    if constant is not None:
        return len(constant.shape)
    return None if value.shape is None else len(value.shape)


def _stored(value: ir.Value | None) -> ir.Value | None:
    """The value, or what it is dequantised from."""
    node = value.producer() if value is not None else None
    return node.inputs[0] if node is not None and node.op_type == "DequantizeLinear" else value


def _producer(value: ir.Value | None) -> str:
    node = value.producer() if value is not None else None
    return node.op_type if node is not None and not node.domain else ""


def _numbers(node: ir.Node, name: str) -> list[int]:
    attribute = node.attributes.get(name)
    return list(attribute.as_ints()) if attribute is not None and not attribute.is_ref() else []


def _looks_up_a_table(node: ir.Node) -> bool:
    table = _constant(node.inputs[0])
    return (
        table is not None
        and len(table.shape) == 2
        and table.dtype.is_floating_point()
        and _constant(node.inputs[1]) is None
    )


def _convolves(rank: int) -> Sign:
    """A Conv over so many spatial axes, whose weight may be quantised."""
    return lambda node: len(node.inputs) > 1 and _rank(_stored(node.inputs[1])) == rank + 2


def _is_depthwise(node: ir.Node) -> bool:
    group = node.attributes.get("group")
    weight = _constant(_stored(node.inputs[1])) if len(node.inputs) > 1 else None
    several = group is not None and not group.is_ref() and group.as_int() > 1
    return several and weight is not None and weight.shape[1] == 1


def _cuts_patches(node: ir.Node) -> bool:
    kernel, strides = _numbers(node, "kernel_shape"), _numbers(node, "strides")
    return len(kernel) > 1 and kernel == strides and max(kernel) > 1


def _reaches(node: ir.Node, operators: Collection[str], through: Collection[str] = ()) -> bool:
    """Whether a result gets to one of some operators, through what moves it, or anything else named."""
    waiting = [(output, 0) for output in node.outputs]
    while waiting:
        value, steps = waiting.pop()
        for user in value.consumers():
            if user.op_type in operators:
                return True
            if steps < _FAR and user.op_type in (*_MOVES, *through):
                waiting += [(output, steps + 1) for output in user.outputs]
    return False


def _turns_by_an_angle(node: ir.Node) -> bool:
    """A sine that something is multiplied by."""
    return _reaches(node, ("Mul",))


def _is_negated_part(node: ir.Node) -> bool:
    """A Concat of a value negated, by Neg or a factor, with another value."""
    factors = [_constant(value) for value in node.inputs]
    negates = node.op_type == "Neg" or any(
        one is not None and one.size == 1 and float(one.numpy().ravel()[0]) < 0 for one in factors
    )
    return negates and _reaches(node, ("Concat",), _COMBINES)


def _is_difference_of_products(node: ir.Node) -> bool:
    """The real part of a product of complex numbers."""
    return all(_made_by(value, ("Mul",)) for value in node.inputs)


def _made_by(
    value: ir.Value | None, operators: Collection[str], through: Collection[str] = (), past: Collection[str] = ()
) -> bool:
    """Whether a value is the result of one of some operators, whatever moved it since, or anything else named.

    With `past`, one of these operators has to stand between.
    """
    passed = not past
    for _ in range(2 * _FAR if through else _FAR):
        node = value.producer() if value is not None else None
        if node is None or node.op_type in operators:
            return node is not None and passed
        if node.op_type not in (*_MOVES, *through) or not node.inputs:
            return False
        passed |= node.op_type in past
        value = node.inputs[0]
    return False


_ENLARGES = ("Resize", "Upsample", "ConvTranspose")
_MAPS = ELEMENTWISE | {*_COMBINES, "Conv", "BatchNormalization", "InstanceNormalization", "Pad"}
_DECODES = ELEMENTWISE | {*_COMBINES, "Concat", "Softmax", "Pow", "Div"}


def _joins_enlarged(node: ir.Node) -> bool:
    """Images that were enlarged beside others that convolutions made at that size, as in U-Nets and pyramids."""
    enlarged = [_made_by(value, _ENLARGES, _MAPS) for value in node.inputs]
    rest = [value for value, is_enlarged in zip(node.inputs, enlarged, strict=True) if not is_enlarged]
    return any(enlarged) and any(_made_by(value, ("Conv",), (*_MAPS, "MaxPool", "Concat")) for value in rest)


def _joins_predictions(node: ir.Node) -> bool:
    """A Concat of the predictions of convolutions for images of several sizes, as in detectors."""
    return len(node.inputs) > 1 and all(
        _made_by(value, ("Conv",), _DECODES, past=("Reshape", "Flatten")) for value in node.inputs
    )


def _appends_to_a_past(node: ir.Node) -> bool:
    return any(value is not None and value.is_graph_input() and _rank(value) == 4 for value in node.inputs)


def _weighs(node: ir.Node) -> bool:
    """Weights that a product takes, whatever else is done to them before."""
    return _reaches(node, ("MatMul", "Einsum"), (*_COMBINES, "Div", "ReduceSum", "Dropout", "Where"))


def _averages_squares(node: ir.Node) -> bool:
    """The mean of squares of what is no difference."""
    squares = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    if squares is None or squares.op_type not in ("Pow", "Mul") or not squares.inputs:
        return False
    is_square = squares.op_type == "Pow" or squares.inputs[0] is squares.inputs[-1]
    return is_square and _producer(squares.inputs[0]) != "Sub"


def _subtracts_the_mean(node: ir.Node) -> bool:
    return _producer(node.inputs[1]) == "ReduceMean"


def _moves_windows(node: ir.Node) -> bool:
    return len(_numbers(node, "perm")) == 6


def _counts_buckets(node: ir.Node) -> bool:
    """Distances of positions in logarithmic steps."""
    value, seen = node.inputs[0], 0
    while value is not None and seen < 4 and (found := value.producer()) is not None:
        if found.op_type == "Cast":
            return True
        value, seen = found.inputs[0] if found.inputs else None, seen + 1
    return False


def _is_a_step(node: ir.Node) -> bool:
    """It is computed by a product with weights that other products have too, as in cells that were unrolled."""
    waiting = [(value, 0) for value in node.inputs]
    while waiting:
        value, steps = waiting.pop()
        maker = value.producer() if value is not None else None
        if maker is None or steps == _FAR:
            continue
        if maker.op_type in ("MatMul", "Gemm") and _is_shared_weight(maker.inputs[1]):
            return True
        if maker.op_type in (*_MOVES, *_COMBINES):
            waiting += [(operand, steps + 1) for operand in maker.inputs]
    return False


def _is_shared_weight(value: ir.Value | None) -> bool:
    """A matrix, or its transposition, with several uses."""
    while value is not None and _constant(value) is None:
        maker = value.producer()
        if maker is None or maker.op_type not in _MOVES or len(value.uses()) > 1:
            break
        value = maker.inputs[0]
    return value is not None and len(value.uses()) > 1 and (_rank(value) or 0) > 1


def _compares_computed(node: ir.Node) -> bool:
    """Both sides are computed, as the positions of queries and keys are."""
    return all(_constant(value) is None for value in node.inputs)


def _gates_what_it_is_made_of(node: ir.Node) -> bool:
    """It is multiplied by its own input, or by what that is a multiple of, as in swish; or by a number, as in tanh."""
    operand = node.inputs[0]
    maker = operand.producer() if operand is not None else None
    made_of = {operand, *(maker.inputs if maker is not None and maker.op_type in ("Mul", "Div") else ())}
    factors = [value for user in node.outputs[0].consumers() if user.op_type == "Mul" for value in user.inputs]
    return any(value in made_of or _constant(value) is not None for value in factors)


def _is_bounded_again(node: ir.Node) -> bool:
    return _producer(node.inputs[0]) in ("Relu", "Clip")


def _always(node: ir.Node) -> bool:
    return True


_SPELLS = ("Erf", "Exp", "Tanh", "Log", "Abs", "Neg", "Max", "Min", "Where", "Clip", "Softplus", "Swish", "Gelu")

TABLE: Mapping[str, Mapping[str, Sign]] = {
    "token ids": {"Gather": _looks_up_a_table},
    "1-D convolutions": {"Conv": _convolves(1)},
    "2-D convolutions": {"Conv": _convolves(2)},
    "depthwise convolutions": {"Conv": _is_depthwise},
    "patches": {"Conv": _cuts_patches},
    "upsampling": {"Resize": _always, "Upsample": _always, "ConvTranspose": _always},
    "larger images joined": {"Concat": _joins_enlarged},
    "predictions by place": {"Concat": _joins_predictions},
    "attention": {"Softmax": _weighs, "Exp": _weighs, "Attention": _always,
                  f"{MICROSOFT}.Attention": _always, f"{MICROSOFT}.MultiHeadAttention": _always,
                  f"{MICROSOFT}.GroupQueryAttention": _always},
    "rotations": {"Neg": _is_negated_part, "Mul": _is_negated_part, "Sub": _is_difference_of_products, "Sin": _turns_by_an_angle,
                  "RotaryEmbedding": _always, f"{MICROSOFT}.RotaryEmbedding": _always},
    "past keys": {"Concat": _appends_to_a_past, f"{MICROSOFT}.GroupQueryAttention": _always},
    "causal masks": {"Trilu": _always, "LessOrEqual": _compares_computed, "GreaterOrEqual": _compares_computed},
    "distances in buckets": {"Log": _counts_buckets},
    "scores by distance": {"GatherElements": _always},
    "windows": {"Transpose": _moves_windows},
    "layer normalisation": {"LayerNormalization": _always, "Sub": _subtracts_the_mean},
    "RMS normalisation": {"ReduceMean": _averages_squares, "RMSNormalization": _always, "SimplifiedLayerNormalization": _always},
    "group normalisation": {"GroupNormalization": _always, "InstanceNormalization": _always},
    "activations spelled out": {
        **dict.fromkeys(_SPELLS, _always),
        **dict.fromkeys((f"{MICROSOFT}.{kind}" for kind in ("Gelu", "FastGelu", "QuickGelu")), _always),
        "Sigmoid": _gates_what_it_is_made_of, "Relu": _is_bounded_again},
    "recurrence": {**dict.fromkeys(("LSTM", "GRU", "RNN", "Loop", "Scan"), _always), "Tanh": _is_a_step, "Relu": _is_a_step},
    "trees": {f"ai.onnx.ml.TreeEnsemble{kind}": _always for kind in ("", "Classifier", "Regressor")},
    "linear models": {f"ai.onnx.ml.{kind}": _always for kind in ("LinearClassifier", "LinearRegressor", "SVMClassifier",
                                                                 "SVMRegressor", "Scaler", "Normalizer")},
}  # fmt: skip
"""For each sign the operators that may show it, with what their nodes must be like."""

SIGNS = frozenset(TABLE)
"""The names of all signs."""


def _by_operator() -> dict[str, list[tuple[str, Sign]]]:
    found: dict[str, list[tuple[str, Sign]]] = {}
    for sign, kinds in TABLE.items():
        for operator, test in kinds.items():
            found.setdefault(operator, []).append((sign, test))
    return found


_BY_OPERATOR = _by_operator()


def _signs_of(node: ir.Node) -> Iterator[str]:
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    tests: Iterable[tuple[str, Sign]] = _BY_OPERATOR.get(operator, ()) if node.inputs else ()
    yield from (sign for sign, test in tests if test(node))
