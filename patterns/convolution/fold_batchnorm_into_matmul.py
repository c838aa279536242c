"""Fold BatchNormalization behind or before a MatMul or Gemm with constant weights into these.

bn(x W + b) = x (W s) + (b s + t)       for x of two axes, with one factor s and offset t for each column
bn(reshape(x W + b)) = reshape(x (W s) + (b s + t))             where the Reshape or Flatten merges the other axes of x
bn(transpose(x W + b)) = transpose(x (W s) + (b s + t))         where the columns become the second axis, as in a sequence
bn(W x) = (s W) x + t                   for x [batch, channels, length] behind the matrix, with one s and t for each row
bn(x) W + b = x (s W) + (b + t W)       for x of two axes, with one factor s and offset t for each of its columns
transpose(bn(x)) W + b = transpose(x) (s W) + (b + t W)         where the second axis becomes the columns
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Match, Op, Pattern, attr, computed, const, op, opt, var

from . import _conv_weights as layers
from ._test_instances import NORMALISATION, POSITIVE, STATISTICS

SOURCE = "arXiv:1502.03167"

x, weight, bias, target = var("x"), const("weight", "_ _"), const("bias"), var("target")


def _gemm(data: Pattern) -> Op:
    made: Op = op.Gemm(
        data, weight, opt(bias), alpha=attr("alpha"), beta=attr("beta"), transA=attr("transA"), transB=attr("transB")
    )
    return made


def _normalised(data: Pattern) -> Op:
    return layers.batch_norm(data).named("mapped")


def _by_rows(match: Match) -> bool:
    """Whether the channels are the rows of the matrix, not its columns."""
    node = match["product"].producer()
    return bool(match.get("transB")) or (node.op_type == "MatMul" and node.inputs[0] is match["weight"])


def _channels(match: Match) -> int:
    shape = match.const("weight").shape
    return int(shape[0] if _by_rows(match) else shape[1])


def _map(match: Match) -> layers.Affine:
    found = layers.normalisation(match, _channels(match))
    assert isinstance(found, layers.Affine)
    return found


def _scaled(match: Match) -> Any:
    factor, array = _map(match).factor, match.const("weight")
    return (array * (factor[:, None] if _by_rows(match) else factor)).astype(array.dtype)


def _offset(match: Match) -> Any:
    """b s + t."""
    found = _map(match)
    before = 0.0 if match.get("bias") is None else match.const("bias").astype(np.float64).reshape(-1)
    with np.errstate(over="ignore"):
        total = before * match.bindings.get("beta", 1.0) * found.factor + found.offset
        return total.astype(match.const("weight").dtype)


def is_normalised(match: Match) -> Refusal | None:
    """The product has one channel for each statistic, the bias one number or one for each, and the results fit their type."""
    if refused := match.unless_dtype("weight", ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16):
        return refused
    found = layers.normalisation(match, _channels(match))
    if isinstance(found, Refusal):
        return found
    return _unless_biased(match) or _unless_held(match, found.factor, 1 if _by_rows(match) else 0, _offset(match))


def _unless_biased(match: Match) -> Refusal | None:
    """A refusal unless the bias, if there is one, has one number for each column or for all."""
    shape = match.shape("bias") if match.get("bias") is not None else ()
    if shape is None or len(shape) > 2 or (1, 1, *shape)[-2:] not in ((1, 1), (1, _channels(match))):
        return match.refuse("shape", "bias", (_channels(match),))
    return None


def _unless_held(match: Match, factor: Any, axis: int, bias: Any) -> Refusal | None:
    """A refusal unless the type of the weights holds their products with a factor, of which the axis is one, and the bias."""
    if 0 in match.const("weight").shape:
        return match.refuse("shape", "weight", "no size of 0")
    largest = np.abs(match.const("weight")).max(axis)
    return layers.unless_products_held(match, largest, factor) or layers.unless_finite(match, bias)


def turns_columns(match: Match) -> Refusal | None:
    """The Transpose makes the columns of the product the second axis."""
    perm = match["perm"]
    wanted = perm is not None and len(perm) > 2 and perm[1] == len(perm) - 1
    return match.unless_value("perm", wanted, "one that makes the last axis the second one")


def turns_into_columns(match: Match) -> Refusal | None:
    """The Transpose makes the second axis the columns."""
    perm = match["perm"]
    wanted = perm is not None and len(perm) > 2 and perm[-1] == 1
    return match.unless_value("perm", wanted, "one that makes the second axis the last one")


def has_rank(rank: int) -> Callable[[Match], Refusal | None]:
    """The result has that many axes, so that the second one is the one of the channels."""

    def guard(match: Match) -> Refusal | None:
        return match.unless_rank("root", rank)

    return guard


def has_rows(match: Match) -> Refusal | None:
    """The product has columns, and these are also the last axis behind the Reshape or Flatten."""
    rank = match.rank("x")
    if rank is None or rank < 2:
        return match.refuse("shape", "x", "two axes or more")
    shape = match.facts.shape(match.root)
    return (
        None if shape is not None and shape[-1] == _channels(match) else match.refuse("shape", "root", "those columns")
    )


def _inputs(match: Match) -> int:
    """The number of columns of x."""
    shape = match.const("weight").shape
    return int(shape[1] if match.get("transB") else shape[0])


def _map_before(match: Match) -> layers.Affine:
    found = layers.normalisation(match, _inputs(match))
    assert isinstance(found, layers.Affine)
    return found


def _scaled_inputs(match: Match) -> Any:
    factor, array = _map_before(match).factor, match.const("weight")
    return (array * (factor if match.get("transB") else factor[:, None])).astype(array.dtype)


def _shifted(match: Match) -> Any:
    """b + t W."""
    array = match.const("weight").astype(np.float64)
    before = 0.0 if match.get("bias") is None else match.const("bias").astype(np.float64).reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        product = _map_before(match).offset @ (array.T if match.get("transB") else array)
        total = before * match.bindings.get("beta", 1.0) + product * match.bindings.get("alpha", 1.0)
        return np.broadcast_to(total, _channels(match)).astype(match.const("weight").dtype)


def is_normalised_before(match: Match) -> Refusal | None:
    """x has one column for each statistic, the bias one number or one for each column, and the results fit their type."""
    if refused := match.unless_dtype("weight", ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16):
        return refused
    found = layers.normalisation(match, _inputs(match))
    if isinstance(found, Refusal):
        return found
    if match.get("transA"):
        return match.refuse("attribute", "transA", 0)
    return _unless_biased(match) or _unless_held(match, found.factor, 0 if match.get("transB") else 1, _shifted(match))


new_weight, new_bias = computed("weight", _scaled), computed("bias", _offset)
inputs_weight, shifted_bias = computed("weight", _scaled_inputs), computed("bias", _shifted)
as_column = computed("bias", lambda match: _offset(match)[:, None])


def _batchnorm_rule(name: str, pattern: Pattern, replace: Pattern, rank: int | None, *shapes: dict[str, str],
          guards: tuple[Guard, ...] = (is_normalised,), constants: Mapping[str, Any] = POSITIVE,
          each: tuple[dict[str, Any], ...] = ({},), **attributes: Any) -> Rule:  # fmt: skip
    return Rule(
        name=f"matmul.{name}",
        formula=layers.formula_of(pattern),
        pattern=pattern,
        replace=replace,
        guards=(
            *([] if rank is None else [has_rank(rank)]),
            layers.only_the_result,
            *guards,
            layers.growth_is_bounded,
        ),
        exactness=Exactness.ROUNDING,
        source=SOURCE,
        test=RuleTest(
            shapes=shapes,
            attributes=[{**NORMALISATION, **attributes, **one} for one in each]
            if len(each) > 1
            else {**NORMALISATION, **attributes},
            constants=constants,
            redundant={"check of attribute training": layers.CANNOT_TRAIN},
        ),
    )


def _shapes(x: str, weight: str, **others: str) -> dict[str, str]:
    return {"x": x, "weight": weight, **dict.fromkeys(STATISTICS, "4"), **others}


RULES = [
    _batchnorm_rule(
        "fold_batchnorm_into_gemm",
        _normalised(_gemm(x).named("product")),
        op.Gemm(x, new_weight, new_bias, alpha=attr("alpha"), transA=attr("transA"), transB=attr("transB")),
        2,
        _shapes("4 4", "4 4", bias="4"),
        _shapes("4 4", "4 4", bias="1"),
        alpha=[1.0, 0.5],
        beta=[1.0, 2.0],
        transA=[0, 1],
        transB=[0, 1],
    ),
    _batchnorm_rule(
        "fold_batchnorm",
        _normalised(op.MatMul(x, weight).named("product") + opt(bias)),
        op.MatMul(x, new_weight) + new_bias,
        2,
        _shapes("n 3", "3 4", bias="4"),
    ),
    _batchnorm_rule(
        "fold_batchnorm_through_reshape",
        _normalised(op.Reshape(op.MatMul(x, weight).named("product") + opt(bias), target, allowzero=attr("allowzero"))),
        op.Reshape(op.MatMul(x, new_weight) + new_bias, target, allowzero=attr("allowzero")),
        2,
        _shapes("n 2 3", "3 4", bias="4", target="2"),
        guards=(has_rows, is_normalised),
        constants={**POSITIVE, "target": [-1, 4]},
        allowzero=[0, 1],
    ),
    _batchnorm_rule(
        "fold_batchnorm_through_flatten",
        _normalised(op.Flatten(op.MatMul(x, weight).named("product") + opt(bias), axis=attr("axis"))),
        op.Flatten(op.MatMul(x, new_weight) + new_bias, axis=attr("axis")),
        2,
        _shapes("n 2 3", "3 4", bias="4"),
        guards=(has_rows, is_normalised),
        axis=[2, -1],
    ),
    _batchnorm_rule(
        "fold_batchnorm_through_transpose",
        _normalised(op.Transpose(op.MatMul(x, weight).named("product") + opt(bias), perm=attr("perm"))),
        op.Transpose(op.MatMul(x, new_weight) + new_bias, perm=attr("perm")),
        None,
        _shapes("n 2 3", "3 4", bias="4"),
        _shapes("n 2 5 3", "3 4", bias="1 4"),
        guards=(turns_columns, is_normalised),
        each=({"perm": [(0, 2, 1), (1, 2, 0)]}, {"perm": [(0, 3, 1, 2)]}),
    ),
    _batchnorm_rule(
        "fold_input_batchnorm_through_transpose",
        op.MatMul(op.Transpose(_normalised(x), perm=attr("perm")), weight).named("product") + opt(bias),
        op.MatMul(op.Transpose(x, perm=attr("perm")), inputs_weight) + shifted_bias,
        None,
        _shapes("n 4 2", "4 3", bias="3"),
        _shapes("n 4 2 5", "4 3", bias="1 3"),
        guards=(turns_into_columns, is_normalised_before),
        each=({"perm": [(0, 2, 1), (2, 0, 1)]}, {"perm": [(0, 2, 3, 1)]}),
    ),
    _batchnorm_rule(
        "fold_batchnorm_into_left_weight",
        _normalised(op.MatMul(weight, x).named("product")),
        op.MatMul(new_weight, x) + as_column,
        3,
        _shapes("n 3 s", "4 3"),
    ),
    _batchnorm_rule(
        "fold_input_batchnorm_into_gemm",
        _gemm(_normalised(x)).named("product"),
        op.Gemm(x, inputs_weight, shifted_bias, alpha=attr("alpha"), transB=attr("transB")),
        2,
        _shapes("n 4", "4 4", bias="4"),
        _shapes("n 4", "4 4", bias="1"),
        guards=(is_normalised_before,),
        alpha=[1.0, 0.5],
        beta=[1.0, 2.0],
        transA=[0],
        transB=[0, 1],
    ),
    _batchnorm_rule(
        "fold_input_batchnorm",
        op.MatMul(_normalised(x), weight).named("product") + opt(bias),
        op.MatMul(x, inputs_weight) + shifted_bias,
        2,
        _shapes("n 4", "4 3", bias="3"),
        guards=(is_normalised_before,),
    ),
]
