"""Lower com.microsoft MultiHeadAttention to operators of the standard.

mha(q, k, v) = merged(softmax(scale split(q + bq) [past_k, split(k + bk)]^T + hidden + added) [past_v, split(v + bv)])

Heads are split from and merged into the last axis. `hidden` is `mask_filter_value` where the mask of keys is 0 or less, and
`added` the bias of the scores. Keys and values with heads in front stay as they are.

The mask may be the lengths of the sequences of keys instead, behind which keys are hidden.

Queries, keys and values may be packed into one operand, [batch, rows, heads, 3, size], or keys and values alone.

*Does not handle:* packed operands with a bias or a past; masks that are lengths and starts; causal attention with a mask, a past
or other than as many keys as queries.

Rationale: a row of which -inf hides all keys is NaN in the kernel, as in Softmax. Where the mask of keys hides all of them,
scores near -10000 are rounded to 0.001, in the kernel and here. The kernel of ONNX Runtime 1.32 ignores a past whose present
keys and values are not asked for, so that such a node stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from ortfuse.ir.dims import DimLike
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, ms, op, opt, var

from .._shared_guards import constant
from ._masked_scores import added, mask_of_keys, masked, padding
from ._present_outputs import presents_are_used, with_presents

PASS = "canonicalize"

_PARTS = ("query", "key", "value")
_PASTS = ("past_key", "past_value")

_PACKED = 5
"""The rank of packed operands."""

query, key, value, bias = (var(name) for name in (*_PARTS, "bias"))
past_key, past_value = (var(name) for name in _PASTS)


def heads_are_known(match: Match) -> Refusal | None:
    """The number of heads divides the known last axes, or heads stand in front of the rows of keys and values."""
    heads = match["num_heads"]
    apart = _is_apart(match, "key")
    for name in _PARTS:
        shape = _shape(match, name)
        last = None if shape is None else shape[-1]
        if shape is None or not isinstance(last, int) or not heads or last == 0:
            return match.refuse_dimension(name, -1, "a known size")
        is_split = len(shape) == 4 and name != "query" and shape[1] == heads
        if not (is_split if apart and name != "query" else len(shape) == 3 and last % heads == 0):
            return match.refuse_dimension(name, -1, "a multiple of the number of heads, or of a head of four axes")
    if apart and (match.get("bias") is not None or match.get("past_key") is not None):
        return match.refuse("shape", "key", "three axes where there is a bias or a past")
    return _alike(match)


def _alike(match: Match) -> Refusal | None:
    """Queries and keys have one size of heads, batches are equal, and so are the rows of keys and values."""
    rows = [_rows(match, name) for name in _PARTS]
    batches = {(_shape(match, name) or (None,))[0] for name in _PARTS}
    if _size(match, "query") != _size(match, "key") or len(batches) > 1 or rows[1] != rows[2]:
        return match.refuse("shape", "key", "the batch and size of the queries, and as many rows as the values")
    if (match.get("past_key") is None) != (match.get("past_value") is None):
        return match.refuse("missing_input", "past_value", "one where there is a past of keys")
    for name, part in zip(_PASTS, _PARTS[1:], strict=True):
        if match.get(name) is None:
            continue
        shape = match.shape(name)
        batch = (match.shape(part) or (None,))[0]
        if shape is None or len(shape) != 4 or (shape[0], shape[1], shape[3]) != (
            batch, match["num_heads"], _size(match, part)
        ):  # fmt: skip
            return match.refuse("shape", name, "heads and sizes of the new ones")
    pasts = [(match.shape(name) or (None,) * 3)[2] for name in _PASTS if match.get(name) is not None]
    if len({*pasts}) > 1:
        return match.refuse("shape", "past_value", "as many rows as the past of the keys")
    if match.get("bias") is not None:
        length = sum(_last(match, name) for name in _PARTS)
        return match.unless_shape((length,), "bias")
    return None


def masks_are_of_all_keys(match: Match) -> Refusal | None:
    """Masks have a column for each key, and causal attention has none."""
    total, rows = _total(match), _rows(match, "query")
    batch = (_shape(match, "query") or (None,))[0]
    if match["unidirectional"] not in (None, 0, 1):
        return match.refuse("attribute", "unidirectional", "0 or 1")
    if match["unidirectional"]:
        others = [name for name in ("padding", "added", "past_key") if match.get(name) is not None]
        if others or total != rows:
            return match.refuse("attribute", "unidirectional", "0, or no mask, no past and as many keys as queries")
    if match.get("padding") is not None and (found := match.unless_dtype("query", ir.DataType.FLOAT)) is not None:
        return found
    if match.get("padding") is not None and match.shape("padding") not in (
        (batch,), (batch, total), (batch, rows, total)
    ):  # fmt: skip
        return match.refuse("shape", "padding", "a number for each key of each batch, or a length for each")
    shape = match.shape("added")
    if match.get("added") is not None and (shape is None or len(shape) != 4 or shape[2:] != (rows, total)):
        return match.refuse("shape", "added", "a number for each query and key")
    return None


def _is_apart(match: Match, name: str) -> bool:
    """Whether heads stand in front of the rows."""
    return match.get(name) is not None and match.rank(name) == 4


def _operand(match: Match, name: str) -> str:
    """The operand that has the queries, keys or values."""
    if match.rank("query") == _PACKED:
        return "query"
    return "key" if name == "value" and match.rank("key") == _PACKED else name


def _shape(match: Match, name: str) -> tuple[DimLike, ...] | None:
    """The shape of queries, keys or values, of packed ones as if they stood alone; `None` if it is not known."""
    operand = _operand(match, name)
    shape = None if match.get(operand) is None else match.shape(operand)
    if shape is None or len(shape) != _PACKED:
        return None if shape is None else tuple(shape)
    batch, rows, heads, count, size = shape
    if (heads, count) != (match["num_heads"], 3 if operand == "query" else 2) or not isinstance(size, int):
        return None
    return batch, rows, heads * size


def _last(match: Match, name: str) -> int:
    shape = _shape(match, name)
    assert shape is not None and isinstance(shape[-1], int)
    return shape[-1]


def _size(match: Match, name: str) -> int:
    """The size of a head."""
    last = _last(match, name)
    return last if _is_apart(match, name) else last // int(match["num_heads"])


def _rows(match: Match, name: str) -> DimLike | None:
    return (_shape(match, name) or (None,) * 3)[2 if _is_apart(match, name) else 1]


def _total(match: Match) -> DimLike | None:
    """The number of keys, those of the past included."""
    new = _rows(match, "key")
    past = None if match.get("past_key") is None else match.shape("past_key")
    return new if past is None or new is None else past[2] + new


def _heads_first(match: Match, name: str) -> Pattern:
    """New queries, keys or values with their bias, [batch, heads, rows, size]."""
    operand = _operand(match, name)
    found: Pattern = var(operand)
    if match.rank(operand) == _PACKED:
        place = _PARTS.index(name) - (operand == "key")
        part = op.Squeeze(op.Slice(found, constant(place), constant(place + 1), constant(3)), constant(3))
        unpacked: Pattern = op.Transpose(part, perm=(0, 2, 1, 3))
        return unpacked
    if _is_apart(match, name):
        return found
    if match.get("bias") is not None:
        before = sum(_last(match, other) for other in _PARTS[: _PARTS.index(name)])
        found = op.Add(found, op.Slice(bias, constant(before), constant(before + _last(match, name)), constant(0)))
    made: Pattern = op.Transpose(
        op.Reshape(found, constant(0, 0, match["num_heads"], _size(match, name))), perm=(0, 2, 1, 3)
    )
    return made


def _present(match: Match, name: str, past: Pattern) -> Pattern:
    """All keys or values, [batch, heads, rows, size]."""
    new = _heads_first(match, name)
    if match.get("past_key") is not None:
        return op.Concat(past, new, axis=2)
    return op.Identity(new) if _is_apart(match, name) else new


def _keys(match: Match) -> Pattern:
    return _present(match, "key", past_key)


def _values(match: Match) -> Pattern:
    return _present(match, "value", past_value)


def _attended(match: Match) -> Pattern:
    scale = match["scale"] or 1 / math.sqrt(_size(match, "query"))
    queries = op.Mul(_heads_first(match, "query"), scale)
    scores = op.MatMul(queries, op.Transpose(_keys(match), perm=(0, 1, 3, 2)))
    found = op.MatMul(op.Softmax(masked(match, scores, _keys(match), query), axis=-1), _values(match))
    width = match["num_heads"] * _size(match, "value")
    merged: Pattern = op.Reshape(op.Transpose(found, perm=(0, 2, 1, 3)), constant(0, 0, width))
    return merged


_THREE = {"query": "b s 8", "key": "b t 8", "value": "b t 8"}
_FOUR = {"query": "b s 8", "key": "b 4 8", "value": "b 4 8"}
_APART = {"query": "b s 8", "key": "b 2 t 4", "value": "b 2 t 4"}
_AFTER_PAST = {"query": "2 3 8", "key": "2 4 8", "value": "2 4 8", "past_key": "2 2 5 4", "past_value": "2 2 5 4"}
_SEEN: Mapping[str, Sequence[Any]] = {
    "num_heads": [2],
    "scale": [None, 0.25],
    "unidirectional": [None, 0],
    "filler": [None],
}
_HIDING = {**_SEEN, "scale": [None], "filler": [None, -3.0]}
_CAUSAL = {**_SEEN, "unidirectional": [1]}

Case = tuple[Mapping[str, str], Mapping[str, Sequence[Any]]]


def _alone(node: ir.Node, opset: int) -> str | None:
    """For rule tests: the kernel of a CPU, which takes no packed operands, on what was packed."""
    given = [*node.inputs, *[None] * (6 - len(node.inputs))]
    ranks = [0 if value is None or value.shape is None else len(value.shape) for value in given]
    if _PACKED not in ranks[:2] or given[2] is not None or len(node.outputs) > 1 or "num_heads" not in node.attributes:
        return None
    packed, names = (0, "qkv") if ranks[0] == _PACKED else (1, "kv")
    shape = given[packed].shape  # type: ignore[union-attr]
    if shape is None or shape[3] != len(names):
        return None
    attributes = ", ".join(f"{name} = {attribute.value}" for name, attribute in node.attributes.items())
    parts = [
        f"a{place} = Constant <value_int = {place}> () b{place} = Gather <axis = 3> (i{packed}, a{place}) "
        f"{name} = Reshape(b{place}, flat)"
        for place, name in enumerate(names)
    ]
    rest = [name if value is not None else "" for name, value in zip(("i3", "i4", "i5"), given[3:6], strict=True)]
    return f"""<domain: "any", opset_import: ["": {opset}, "com.microsoft": 1]> any (i0, i1, i2, i3, i4, i5) => (y) {{
        flat = Constant <value_ints = [0, 0, -1]> () {" ".join(parts)} {"" if "q" in names else "q = Identity(i0)"}
        y = com.microsoft.MultiHeadAttention <{attributes}> ({", ".join(["q", "k", "v", *rest]).rstrip(", ")}) }}"""


def _rule(
    name: str, masks: Pattern | None, pasts: tuple[Pattern | None, ...], *cases: Case, packed: bool = False
) -> Rule:
    """The rule for attention that has a mask of keys and a past, or has none."""
    return Rule(
        name=f"attention.{name}",
        formula="com.microsoft.MultiHeadAttention(query, key, value, bias, padding, added, past_key, past_value)",
        pattern=ms.MultiHeadAttention(
            *((query, opt(key), None, None) if packed else (query, key, value, opt(bias))), masks, opt(added), *pasts,
            num_heads=attr("num_heads"), scale=attr("scale"), unidirectional=attr("unidirectional"),
            mask_filter_value=attr("filler"),
        ).naming(present_key=1, present_value=2),
        replace=built(
            _attended,
            makes=(
                *("Reshape", "Transpose", "Mul", "MatMul", "Softmax", "Add", "Slice", "Concat", "Where", "Greater"),
                *("Unsqueeze", "Identity", "Squeeze", "Shape", "Cast", "Gather", "Squeeze", "Range", "LessOrEqual"),
            ),
        ),
        intermediates={
            "present_key": built(_keys, makes=("Reshape", "Transpose", "Add", "Slice", "Concat", "Identity")),
            "present_value": built(_values, makes=("Reshape", "Transpose", "Add", "Slice", "Concat", "Identity")),
        },
        is_refinement=True,
        spells_out=True,
        guards=(heads_are_known, masks_are_of_all_keys, *((presents_are_used,) if pasts else ())),
        exactness=Exactness.ROUNDING,
        source="com.microsoft operators of ONNX Runtime; arXiv:1706.03762",
        test=RuleTest(
            shapes=tuple(shapes for shapes, _ in cases),
            attributes=tuple(attributes for _, attributes in cases),
            inputs={} if masks is None else {"padding": mask_of_keys},
            never_empty={"*": "the kernel refuses empty tensors"},
            assumes={
                "input 3 of MultiHeadAttention* is 1e5 times as large*": "scores of 1e10 are rounded by more than 1",
                **({"Min instead of Max": "scores of hidden keys alone are rounded to 0.001"} if packed else {}),
            },
            followed_by=with_presents if pasts else None,
            definitions={"com.microsoft.MultiHeadAttention": _alone} if packed else {},
        ),
    )  # fmt: skip


RULES = [
    _rule(
        "lower_multi_head_attention", None, (),
        (_THREE | {"bias": "24", "added": "1 1 s t"}, _SEEN), (_APART, _SEEN),
        ({"query": "b s 8", "key": "b s 8", "value": "b s 8"}, _CAUSAL),
    ),
    _rule(
        "lower_multi_head_attention_with_mask_of_keys", padding, (),
        (_FOUR | {"padding": "b 4", "bias": "24"}, _HIDING), (_FOUR | {"padding": "b"}, _HIDING),
        (_FOUR | {"padding": "b s 4", "added": "b 2 s 4"}, _HIDING),
    ),
    _rule(
        "lower_multi_head_attention_with_past", None, (past_key, past_value),
        (_AFTER_PAST | {"bias": "24", "added": "2 1 3 9"}, _SEEN),
    ),
    _rule(
        "lower_multi_head_attention_with_past_and_mask_of_keys", padding, (past_key, past_value),
        (_AFTER_PAST | {"padding": "2 9", "bias": "24", "added": "2 1 3 9"}, _HIDING),
    ),
    _rule(
        "lower_packed_multi_head_attention", None, (),
        ({"query": "b s 2 3 4", "added": "1 1 s s"}, _SEEN), ({"query": "b s 8", "key": "b t 2 2 4"}, _SEEN),
        ({"query": "b s 2 3 4"}, _CAUSAL), packed=True,
    ),
    _rule(
        "lower_packed_multi_head_attention_with_mask_of_keys", padding, (),
        ({"query": "b 4 2 3 4", "padding": "b 4 4", "added": "b 2 4 4"}, _HIDING),
        ({"query": "b s 8", "key": "b 4 2 2 4", "padding": "b"}, _HIDING), packed=True,
    ),
]  # fmt: skip
