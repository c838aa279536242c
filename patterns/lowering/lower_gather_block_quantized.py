"""Lower com.microsoft GatherBlockQuantized to operators of the standard.

gather_block_quantized(T, i, s, z) = (T[i] - z[i]) s[i]          z, s: repeated for the numbers of a block

Quantisers to 4 bits write it for embeddings. Numbers of 4 bits become bytes: Gather of the standard takes none smaller.

*Requires:* a table, scales and zero points that are constants; float32. *Does not handle:* numbers of 2 bits and floats of 8 or
4 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Match, Pattern, attr, built, computed, const, ms, op, opt, var

PASS = "canonicalize"

table, indices, scales, zeros = const("table"), var("indices"), const("scales"), const("zeros")

_PACKED = ir.DataType.UINT8
_SMALL = (ir.DataType.INT4, ir.DataType.UINT4)


def is_known_table(match: Match) -> Refusal | None:
    """The numbers have 4 or 8 bits, with a scale in float32 for each block of an axis."""
    found = match.unless_dtype("table", _PACKED, *_SMALL) or match.unless_dtype("scales", ir.DataType.FLOAT)
    if found is not None:
        return found
    bits, shape = _bits(match), _shape(match)
    rank = len(shape)
    for name, axis in (("gather_axis", match["gather_axis"] or 0), ("quantize_axis", _blocked(match))):
        if not -rank <= axis < rank:
            return match.refuse("attribute", name, f"an axis of {rank}")
    if _block(match) < 1:
        return match.refuse("attribute", "block_size", "at least 1")
    found = match.unless_value("bits", bits in (4, 8) and (bits == 4 or match.dtype("table") is _PACKED), "4 or 8")
    if found is not None:
        return found
    gathered, blocked = _axes(match)
    if gathered == blocked:
        return match.refuse("attribute", "gather_axis", "another axis than that of blocks")
    if match.dtype("table") is _PACKED and bits == 4 and gathered == len(shape) - 1:
        return match.refuse("attribute", "gather_axis", "another axis than that of packed numbers")
    wanted = [*shape]
    wanted[blocked] = -(-shape[blocked] // _block(match))
    found = match.unless_shape(tuple(wanted), "scales")
    if found is not None or match.get("zeros") is None:
        return found
    if match.dtype("table") is _PACKED and bits == 4:
        wanted[-1] = -(-wanted[-1] // 2)
    return match.unless_shape(tuple(wanted), "zeros") or match.unless_value(
        "zeros", match.dtype("zeros") is match.dtype("table"), "of the type of the table"
    )


def _bits(match: Match) -> int:
    return 4 if match["bits"] is None else int(match["bits"])


def _block(match: Match) -> int:
    return 128 if match["block_size"] is None else int(match["block_size"])


def _shape(match: Match) -> tuple[int, ...]:
    """The shape of the numbers."""
    shape = match.const("table").shape
    is_packed = match.dtype("table") is _PACKED and _bits(match) == 4
    return (*shape[:-1], 2 * shape[-1]) if is_packed else shape


def _axes(match: Match) -> tuple[int, int]:
    """The axis of which rows are gathered, and that of blocks."""
    rank = len(_shape(match))
    return int(match["gather_axis"] or 0) % rank, _blocked(match) % rank


def _blocked(match: Match) -> int:
    return 1 if match["quantize_axis"] is None else int(match["quantize_axis"])


def _numbers(match: Match, name: str, last: int) -> np.ndarray[Any, Any]:
    """The numbers of a table, one for each element, of which the last axis has `last`."""
    found: np.ndarray[Any, Any] = match.const(name)
    if match.dtype(name) is not _PACKED:
        wide = np.int8 if match.dtype(name) is ir.DataType.INT4 else np.uint8
        return np.asarray(found, wide)
    if _bits(match) == 8:
        return found
    apart = np.stack([found & 15, found >> 4], axis=-1)
    return apart.reshape(*found.shape[:-1], 2 * found.shape[-1])[..., :last]


def _rows(match: Match, given: Pattern) -> Pattern:
    made: Pattern = op.Gather(given, indices, axis=_axes(match)[0])
    return made


def _of_elements(match: Match, given: Pattern) -> Pattern:
    """Numbers of blocks in rows that were gathered, repeated for each element."""
    gathered, blocked = _axes(match)
    shape, block = _shape(match), _block(match)
    places = computed("places", lambda match: np.arange(shape[blocked]) // block)
    made: Pattern = op.Gather(given, places, axis=blocked if blocked < gathered else blocked - len(shape))
    return made


def _dequantized(match: Match) -> Pattern:
    last = match.const("scales").shape[-1]
    numbers = computed("numbers", lambda match: _numbers(match, "table", _shape(match)[-1]))
    made: Pattern = op.Cast(_rows(match, numbers), to=ir.DataType.FLOAT)
    if match.get("zeros") is not None:
        middle = computed("middle", lambda match: _numbers(match, "zeros", last).astype(np.float32))
        made = op.Sub(made, _of_elements(match, _rows(match, middle)))
    elif match.dtype("table") is _PACKED:
        made = op.Sub(made, computed("half", lambda match: np.float32(1 << (_bits(match) - 1))))
    return op.Mul(made, _of_elements(match, _rows(match, scales)))


def _integers(build: Any, name: str) -> ir.Value:
    """For rule tests: random numbers of a type by the rows of the table."""
    dtype = {5: np.uint8, 6: ml_dtypes.uint4, 7: ml_dtypes.int4}[build.dims("table")[0]]
    numbers = np.random.default_rng(len(name)).integers(0, 256, build.dims(name)).astype(np.uint8)
    made: ir.Value = build.constant(numbers if dtype is np.uint8 else (numbers % 8).astype(dtype))
    return made


def _indices(build: Any) -> ir.Value:
    """For rule tests: indices from either end."""
    made: ir.Value = build.constant(np.random.default_rng(1).integers(-3, 3, build.dims("indices")))
    return made


_CASES: Sequence[tuple[Mapping[str, str], Mapping[str, Sequence[Any]]]] = (
    ({"table": "5 32", "scales": "5 4", "zeros": "5 2"}, {"bits": [4, None], "quantize_axis": [1, -1]}),
    ({"table": "5 40", "scales": "5 3", "zeros": "5 3"}, {"bits": [8], "quantize_axis": [1, None]}),
    ({"table": "6 40", "scales": "6 3", "zeros": "6 3"}, {"bits": [4], "quantize_axis": [1]}),
    ({"table": "7 4 6", "scales": "1 4 6", "zeros": "1 4 6"}, {"bits": [4], "quantize_axis": [0], "gather_axis": [1]}),
)

RULES = [
    Rule(
        name="embedding.lower_gather_block_quantized",
        formula="com.microsoft.GatherBlockQuantized(table, indices, scales, zeros)",
        pattern=ms.GatherBlockQuantized(
            table, indices, scales, opt(zeros), bits=attr("bits"), block_size=attr("block_size"),
            gather_axis=attr("gather_axis"), quantize_axis=attr("quantize_axis"),
        ),
        replace=built(_dequantized, makes=("Gather", "Cast", "Sub", "Mul")),
        is_refinement=True,
        spells_out=True,
        guards=(is_known_table,),
        exactness=Exactness.EXACT,
        source="com.microsoft operator GatherBlockQuantized",
        test=RuleTest(
            shapes=tuple({"indices": "2 3", **shapes} for shapes, _ in _CASES),
            attributes=tuple({"block_size": [16], "gather_axis": [0, None], **given} for _, given in _CASES),
            inputs={
                "indices": _indices,
                "table": lambda build: _integers(build, "table"),
                "zeros": lambda build: _integers(build, "zeros"),
            },
            constants={"scales": "positive"},
            assumes={"input 1 of GatherBlockQuantized is *-6*": "indices are rows of the table: the kernel reads beyond it"},
        ),
    )
]  # fmt: skip
