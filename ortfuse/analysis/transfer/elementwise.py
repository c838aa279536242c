"""Elementwise operators: unary, binary and variadic, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx_ir as ir

from ortfuse.analysis.transfer import symbolic_elements as el
from ortfuse.analysis.transfer.broadcasting import broadcast_all, broadcast_shapes, map_elements
from ortfuse.analysis.transfer.fact import FLOATS, INTEGERS, Element, Elements, Fact, Shape, element_of_float
from ortfuse.analysis.transfer.op import Op, Transfer, transfer


def _same(op: Op) -> Fact:
    """One output like the first input."""
    first = op.fact(0)
    return Fact(first.dtype, first.shape)


transfer(
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Gelu"),
    *("HardSigmoid", "HardSwish", "Hardmax", "LeakyRelu", "Log", "LogSoftmax", "LpNormalization", "LRN", "Mish"),
    *("MeanVarianceNormalization", "Reciprocal", "Relu", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh"),
    *("Softmax", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu", "BitwiseNot"),
    *("CumSum", "CumProd", "ReverseSequence", "Trilu"),
)(_same)


def _unary(function: Callable[[Element], Element]) -> Transfer:
    def apply(op: Op) -> Fact:
        first = op.fact(0)
        found = first.elements()
        if found is not None:
            found = tuple([el.fitting(function(element), first.dtype) for element in found])
        return Fact(first.dtype, first.shape, found)

    return apply


transfer("Neg")(_unary(el.negate))
transfer("Abs")(_unary(el.absolute))
transfer("Floor")(_unary(el.floor))
transfer("Ceil")(_unary(el.ceil))
transfer("Round")(_unary(el.round_even))
transfer("Not")(_unary(el.logical_not))


@transfer("Clip")
def clip(op: Op) -> Fact:
    """The input between two bounds (attributes before opset 11)."""
    data = op.fact(0)
    found = data.elements()
    if found is not None:
        for index, name, choose in ((1, "min", el.largest), (2, "max", el.smallest)):
            if op.has(index):
                bound = (op.elements(index) or (None,))[0]
            elif op.version < 11 and op.given(name):
                bound = element_of_float(op.attribute(name))
            else:
                continue
            found = tuple([choose(element, bound) for element in found])
    return Fact(data.dtype, data.shape, found)


@transfer("IsNaN", "IsInf")
def is_nan(op: Op) -> Fact:
    """A truth value for each element."""
    return Fact(ir.DataType.BOOL, op.shape())


def _binary(function: el.Binary, *, dtype: ir.DataType | None = None) -> Transfer:
    def apply(op: Op) -> Fact:
        a, b = op.fact(0), op.fact(1)
        shape = broadcast_shapes(a.shape, b.shape)
        found = _map_binary(function, a, b, shape)
        result = dtype or a.dtype or b.dtype
        return Fact(result, shape, found if found is None else tuple([el.fitting(e, result) for e in found]))

    return apply


def _map_binary(function: el.Binary, a: Fact, b: Fact, shape: Shape | None) -> Elements | None:
    left = a.elements()
    right = None if left is None else b.elements()
    if left is None or right is None:
        return None
    if len(left) == len(right) == 1 and shape is not None:
        return (function(left[0], right[0]),)
    return map_elements(function, [a, b], shape)


transfer("Add")(_binary(el.add))
transfer("Sub")(_binary(el.subtract))
transfer("Mul")(_binary(el.multiply))
for _op_type, _function in {
    "Equal": el.equal,
    "Less": el.less,
    "LessOrEqual": el.less_or_equal,
    "Greater": el.greater,
    "GreaterOrEqual": el.greater_or_equal,
    "And": el.logical_and,
    "Or": el.logical_or,
    "Xor": el.logical_xor,
}.items():
    transfer(_op_type)(_binary(_function, dtype=ir.DataType.BOOL))


@transfer("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise(op: Op) -> Fact:
    """Bit operations; their elements are not tracked."""
    return Fact(op.dtype(0) or op.dtype(1), broadcast_shapes(op.shape(0), op.shape(1)))


_divide_integer = _binary(el.divide_integer)
_divide_float = _binary(el.divide_float)


@transfer("Div")
def divide(op: Op) -> Fact | tuple[Fact, ...]:
    """Division; of integers it rounds towards zero."""
    return _divide_integer(op) if op.dtype(0) in INTEGERS else _divide_float(op)


def _unknown_element(*elements: Element) -> Element:
    return None


_modulo = _binary(el.modulo)
_remainder = _binary(el.remainder)
_untracked = _binary(_unknown_element)


@transfer("Mod")
def modulo(op: Op) -> Fact | tuple[Fact, ...]:
    """Remainder, with the sign of the divisor or (fmod) of the dividend; not tracked for floats."""
    if op.dtype(0) not in INTEGERS:
        return _untracked(op)
    return _remainder(op) if op.attr_int("fmod", 0) else _modulo(op)


transfer("PRelu")(_untracked)


_power = _binary(el.power)


@transfer("Pow")
def pow_(op: Op) -> Fact | tuple[Fact, ...]:
    """Power, in the type of the base."""
    if op.dtype(0) in INTEGERS:
        return _power(op)
    return Fact(op.dtype(0), broadcast_shapes(op.shape(0), op.shape(1)))


def _variadic(function: Callable[..., Element]) -> Transfer:
    def apply(op: Op) -> Fact:
        facts = [op.fact(index) for index in range(len(op.inputs))]
        shape = broadcast_all([fact.shape for fact in facts])
        dtype = next((fact.dtype for fact in facts if fact.dtype is not None), None)
        found = map_elements(lambda *row: el.fitting(function(*row), dtype), facts, shape)
        return Fact(dtype, shape, found)

    return apply


transfer("Max")(_variadic(el.largest))
transfer("Min")(_variadic(el.smallest))
transfer("Sum")(_variadic(el.total))
transfer("Mean")(_variadic(_unknown_element))


@transfer("Where")
def where(op: Op) -> Fact:
    """A choice between two tensors, element by element."""
    facts = [op.fact(0), op.fact(1), op.fact(2)]
    shape = broadcast_all([fact.shape for fact in facts])
    found = None
    if facts[1].elements() is not None or facts[2].elements() is not None:
        found = map_elements(el.select, facts, shape)
    return Fact(facts[1].dtype or facts[2].dtype, shape, found)


def cast_to(fact: Fact, dtype: ir.DataType | None) -> Fact:
    """The fact of a value converted to `dtype` (Cast, CastLike)."""
    if dtype is not None and fact.dtype == dtype:
        return fact
    found = fact.elements() if dtype in INTEGERS or dtype in FLOATS else None
    if found is not None:
        convert = partial(el.cast, source=fact.dtype, target=dtype)
        found = tuple([convert(element) for element in found])
    return Fact(dtype, fact.shape, found)


@transfer("Cast")
def cast(op: Op) -> Fact:
    """Conversion to the type given by the attribute."""
    return cast_to(op.fact(0), op.attr_dtype("to"))


@transfer("CastLike")
def cast_like(op: Op) -> Fact:
    """Conversion to the type of the second input."""
    return cast_to(op.fact(0), op.dtype(1))


@transfer("Identity")
def identity(op: Op) -> Fact:
    """The input itself."""
    return op.fact(0)


@transfer("Dropout")
def dropout(op: Op) -> tuple[Fact, ...]:
    """The input (in training with elements dropped), and the mask."""
    data = op.fact(0)
    mask = data.dtype if op.version < 10 else ir.DataType.BOOL
    training = (op.version < 7 and not op.attr_int("is_test", 0)) or (op.has(2) and op.integers(2) != (0,))
    return Fact(data.dtype, data.shape) if training else data, Fact(mask, data.shape)
