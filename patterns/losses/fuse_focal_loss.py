"""Fuse focal losses to model-local functions, and decompose these functions.

p = sigmoid(x)          far = p (1 - t) + (1 - p) t = 1 - p t - (1 - p) (1 - t)
sigmoid_focal(x, t) = far^gamma e          times alpha t + beta (1 - t) where it is balanced, beta mostly 1 - alpha
softmax_focal(x, labels) = (1 - exp(-e))^gamma e          e = cross_entropy(x, labels)

ONNX has no operators for these. `--force focal=SigmoidFocalLoss` asks for a function, and the runtime executes its body.
Exporters write the cross entropy e in several ways, which are infinite or NaN for different x; some labels may be ignored.
Each of these forms has a function of the same name in a domain of its own.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Op, OpBuilder, Pattern, attr, computed, op, opt, scalar, var
from ortfuse.targets import register_operators

from ._scores_of_labels import a_label_for_each, logs, normalises_classes_alone, of_kept, picked, safe
from .decompose_losses import labels, x

SOURCE = "arXiv:1708.02002"
DOMAIN = "ortfuse.losses"
LARGEST = 2.0**20
"""The largest factor of a loss; the smallest is the inverse."""

t, gamma = var("t"), scalar("gamma")
probability = op.Sigmoid(x)

# Exporters write 1 as a number or as a vector, so that 1 - t may be computed twice.
ENTROPIES: Mapping[str, tuple[Sequence[Pattern], str]] = {
    "": (
        [op.Softplus(x) - x * t, op.Relu(x) - x * t + op.Log(1 + op.Exp(-op.Abs(x)))],
        "l = Softplus(x) xt = Mul(x, t) e = Sub(l, xt)",
    ),
    "by_logarithm": ([(1 - t) * x - op.Log(probability)], "l = Log(p) rx = Mul(r, x) e = Sub(rx, l)"),
    "by_logarithms": (
        [-(t * op.Log(probability) + (1 - t) * op.Log(1 - probability))],
        "l = Log(p) o = Log(s) tl = Mul(t, l) ro = Mul(r, o) m = Add(tl, ro) e = Neg(m)",
    ),
}
"""The cross entropy of two classes by the form of the function: as patterns, and in the function."""

_SIGMOID = """p = Sigmoid(x) s = Sub(one, p) r = Sub(one, t) pr = Mul(p, r) st = Mul(s, t) far = Add(pr, st)
    {entropy} f = Pow(far, gamma)"""
_BALANCED = "fe = Mul(f, e) at = Mul(alpha, t) br = Mul(beta, r) w = Add(at, br) loss = Mul(w, fe)"
_SOFTMAX = """axes = Constant<value_ints = [1]>() {safe} u = Unsqueeze({labels}, axes) l = LogSoftmax<axis = 1>(x)
    k = GatherElements<axis = 1>(l, u) q = Squeeze(k, axes) n = Neg(q) {kept} m = Neg({e}) p = Exp(m) far = Sub(one, p)
    f = Pow(far, gamma) loss = Mul(f, {e})"""
_SAFE = """zero = Constant<value_float = 0.0>() first = Constant<value_int = 0>() h = Equal(labels, ignored)
    safe = Where(h, first, labels)"""

Function = onnx.FunctionProto


def _function(name: str, form: Sequence[str], inputs: str, numbers: Sequence[str], body: str) -> Function:
    kinds = {number: "int" if number == "ignored" else "float" for number in numbers}
    constants = (f"{number} = Constant<value_{kind}: {kind} = @{number}>()" for number, kind in kinds.items())
    return onnx.parser.parse_function(
        f'<domain: "{".".join([DOMAIN, *form])}", opset_import: ["": 17]> {name} <{", ".join(numbers)}> ({inputs}) => (loss)'
        f"{{ one = Constant<value_float = 1.0>() {' '.join(constants)} {body} }}"
    )


def _of_sigmoid(form: str, entropy: str, balanced: bool) -> Function:
    body = _SIGMOID.format(entropy=entropy) + (_BALANCED if balanced else " loss = Mul(f, e)")
    numbers = ["alpha", "beta", "gamma"] if balanced else ["gamma"]
    return _function("SigmoidFocalLoss", [*form.split(), *(["balanced"] if balanced else [])], "x, t", numbers, body)


def _of_softmax(ignoring: bool) -> Function:
    parts = {"safe": _SAFE, "labels": "safe", "kept": "e = Where(h, zero, n)", "e": "e"}
    plain = {"safe": "", "labels": "labels", "kept": "", "e": "n"}
    numbers = ["ignored", "gamma"] if ignoring else ["gamma"]
    body = _SOFTMAX.format_map(parts if ignoring else plain)
    return _function("SoftmaxFocalLoss", ["ignoring"] if ignoring else [], "x, labels", numbers, body)


OF_SIGMOID = {
    (form, balanced): _of_sigmoid(form, text, balanced)
    for form, (_, text) in ENTROPIES.items()
    for balanced in (False, True)
}
OF_SOFTMAX = {ignoring: _of_softmax(ignoring) for ignoring in (False, True)}
register_operators(bodies=[*OF_SIGMOID.values(), *OF_SOFTMAX.values()])


def _call(function: Function, **numbers: Any) -> Op:
    """A call of a function, by default with its numbers captured by their names."""
    given = {name: numbers.get(name, attr(name)) for name in function.attribute}
    made: Op = getattr(OpBuilder(function.domain), function.name)(*(var(name) for name in function.input), **given)
    return made


def _inlined(function: Function, match: Match) -> Pattern:
    """The body of a function, applied to the operands of its call."""
    values: dict[str, Pattern] = {name: var(name) for name in function.input}
    for node in function.node:
        inputs = [values[name] for name in node.input]
        given = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute if not one.ref_attr_name}
        values[node.output[0]] = (
            _constant(node, match) if node.op_type == "Constant" else getattr(op, node.op_type)(*inputs, **given)
        )
    return values[function.output[0]]


def _constant(node: onnx.NodeProto, match: Match) -> Pattern:
    (attribute,) = node.attribute
    number = match[attribute.ref_attr_name] if attribute.ref_attr_name else onnx.helper.get_attribute_value(attribute)
    kind = np.float32 if attribute.name == "value_float" else np.int64
    return computed(node.output[0], lambda match: np.asarray(number, kind))


def _spelled(name: str, functions: Sequence[Function], test: RuleTest) -> Rule:
    """Calls of any of these functions become what they hold."""

    def replacement(match: Match) -> Pattern:
        return _inlined(functions[match.choice("call")], match)

    calls = functools.reduce(operator.or_, (_call(function) for function in functions))
    makes = dict.fromkeys(node.op_type for function in functions for node in function.node)
    return Rule(
        name=f"focal.decompose_{name}_focal_loss", formula=f"{functions[0].name}({', '.join(functions[0].input)})",
        pattern=calls.named("call"), replace=replacement, makes=[one for one in makes if one != "Constant"],
        spells_out=True, exactness=Exactness.ROUNDING, source=SOURCE, test=test,
    )  # fmt: skip


def _named(name: str, pattern: Pattern, functions: Sequence[Function], replace: Callable[[Match], Pattern], test: RuleTest,
           *guards: Guard) -> Rule:  # fmt: skip
    """A spelling becomes a call of one of these functions."""
    makes = dict.fromkeys(f"{function.domain}.{function.name}" for function in functions)
    return Rule(
        name=f"focal.to_{name}", pattern=scalar("factor") * pattern, replace=replace, makes=[*makes, "Mul"],
        guards=(computes_in_float32, factor_is_moderate, *guards), by_definition=True, allow_extra_operands=True,
        exactness=Exactness.ROUNDING, source=SOURCE, test=test,
    )  # fmt: skip


def computes_in_float32(match: Match) -> Refusal | None:
    """The scores are float32, as the numbers of the functions are."""
    return match.unless_dtype("x", ir.DataType.FLOAT)


def factor_is_moderate(match: Match) -> Refusal | None:
    """Refuse a last factor that may overflow or vanish on the way."""
    return match.unless_value(
        "factor", LARGEST**-1 <= abs(match["factor"]) <= LARGEST, f"of 1/{LARGEST:g} to {LARGEST:g} in size"
    )


def has_int64_labels(match: Match) -> Refusal | None:
    """Labels are int64, as the number of the one that is ignored."""
    return match.unless_dtype("labels", ir.DataType.INT64)


def _sigmoid_call(match: Match) -> Pattern:
    forms = [form for form, (patterns, _) in ENTROPIES.items() for _ in patterns]
    called = OF_SIGMOID[forms[match.choice("entropy")], match["alpha"] is not None]
    return _scaled(_call(called, alpha=match["alpha"], beta=match["beta"], gamma=match["gamma"]), match)


def _softmax_call(match: Match) -> Pattern:
    ignored = match.get("number")
    number = None if ignored is None else int(match.const("number").item())
    return _scaled(_call(OF_SOFTMAX[number is not None], ignored=number, gamma=match["gamma"]), match)


def _scaled(called: Pattern, match: Match) -> Pattern:
    return (
        called
        if match["factor"] == 1
        else op.Mul(called, computed("factor", lambda match: np.float32(match["factor"])))
    )


other, rest = 1 - probability, 1 - t
far = probability * rest + other * t | 1 - probability * t - other * rest
entropy = functools.reduce(operator.or_, (one for patterns, _ in ENTROPIES.values() for one in patterns)).named(
    "entropy"
)
balance = scalar("alpha") * t + scalar("beta") * (1 - t)
log_probability = picked(logs, labels)
kept_loss = of_kept(-picked(logs, safe), 0)

_NUMBERS = {"alpha": [0.25], "beta": [0.75], "gamma": [1.5], "factor": [3.0]}
_OF_TWO: dict[str, Any] = {"shapes": {"x": "n 3", "t": "n 3"}, "opset": 17}
_OF_MANY: dict[str, Any] = {
    "shapes": {"x": "n 4", "labels": "n", "number": "", "class": ""},
    "inputs": {"labels": "int64"},
    "opset": 17,
}

RULES = [
    _named("sigmoid_focal_loss_function", opt(balance) * op.Pow(far, gamma) * entropy, [*OF_SIGMOID.values()], _sigmoid_call,
           RuleTest(**_OF_TWO, scalars=_NUMBERS, assumes={
               "input 0 of Add* is the lowest number*": "a factor that makes the loss infinite is none"})),
    _spelled("sigmoid", [*OF_SIGMOID.values()], RuleTest(**_OF_TWO, attributes=_NUMBERS)),
    _named("softmax_focal_loss_function", op.Pow(1 - op.Exp(log_probability), gamma) * -log_probability, [OF_SOFTMAX[False]],
           _softmax_call, RuleTest(**_OF_MANY, scalars=_NUMBERS), a_label_for_each, normalises_classes_alone),
    _named("softmax_focal_loss_function_with_ignore_index", op.Pow(1 - op.Exp(-kept_loss), gamma) * kept_loss, [OF_SOFTMAX[True]],
           _softmax_call, RuleTest(**_OF_MANY, constants={"number": 2, "class": 0}, scalars=_NUMBERS),
           has_int64_labels, a_label_for_each,
           normalises_classes_alone),
    _spelled("softmax", [*OF_SOFTMAX.values()], RuleTest(**_OF_MANY, attributes={**_NUMBERS, "ignored": [2]})),
]  # fmt: skip
