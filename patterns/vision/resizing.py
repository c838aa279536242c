"""Enlarged images.

repeat(x, r, s) = rearrange(x, b c h w -> b c (h r) (w s)) = resize(x, [1, 1, r, s])        the nearest pixel

Every pixel becomes a block: as Reshape, Expand and Reshape (4 to 40 times slower on four sizes), or as Gathers of rows and
columns (3 to 18 times slower).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortfuse.pattern import Match, Op, Pattern, computed, const, op, rearrange, var
from ortfuse.refusal import Refusal
from ortfuse.rewrite import Exactness, Proof, Rule, Variation

x = var("x")


def blocks_are_known(match: Match) -> Refusal | None:
    """Rows or columns are repeated, a known number of times."""
    sizes = [match.size(name) for name in ("r", "s") if name in match.dims]
    if None not in sizes and max(size or 0 for size in sizes) > 1:
        return None
    return match.refuse("condition", "root", "rows or columns repeated a known number of times", f"of {sizes}")


# Before opset 13 a region has to be given, although it means nothing here.
region = computed("region", lambda match: np.zeros(0, np.float32))


def _enlarged(scales: Any) -> Op:
    made: Op = op.Resize(x, region, computed("scales", lambda match: np.asarray([1, 1, *scales(match)], np.float32)),
                         mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    return made


def _repeats(match: Match, name: str, axis: int) -> int | None:
    """How many times constant indices repeat each element of an axis of known size; `None` if they do something else."""
    shape, indices = match.shape("x"), match.const(name)
    size = None if shape is None or len(shape) != 4 else shape[axis]
    if not isinstance(size, int) or not size or indices.ndim != 1 or len(indices) % size:
        return None
    times = len(indices) // size
    return times if times and np.array_equal(indices, np.repeat(np.arange(size), times)) else None


def repeat_rows_and_columns(match: Match) -> Refusal | None:
    """The indices name every row, and every column, the same number of times, in their order."""
    for name, axis in (("rows", 2), ("columns", 3)):
        if _repeats(match, name, axis) is None:
            return match.unless_value(name, False, f"every index of axis {axis} the same number of times")
    return None


def _both(match: Match) -> list[int | None]:
    return [_repeats(match, "rows", 2), _repeats(match, "columns", 3)]


rows, columns = const("rows"), const("columns")
gathered: Pattern = op.Gather(op.Gather(x, rows, axis=2), columns, axis=3)
gathered = gathered | op.Gather(op.Gather(x, columns, axis=3), rows, axis=2)


def _repeated(name: str, before: str, after: str, scales: Any) -> Rule:
    return Rule(
        name=f"resize.{name}",
        pattern=rearrange(f"{before} -> {after}", var("x", before)),
        replace=_enlarged(scales),
        guards=(blocks_are_known,),
        exactness=Exactness.EXACT,
        source="ONNX operator Resize",
        proof=Proof(shapes={"c": 3, "r": 2, "s": 3, "h": 4, "w": 5}),
    )


RULES = [
    _repeated("repeated", "b c h w", "b c (h r) (w s)", lambda match: [match.size("r"), match.size("s")]),
    _repeated("repeated_rows", "b c h w", "b c (h r) w", lambda match: [match.size("r"), 1]),
    _repeated("repeated_columns", "b c h w", "b c h (w r)", lambda match: [1, match.size("r")]),
    _repeated("repeated_samples", "b c h", "b c (h r)", lambda match: [match.size("r")]),
    Rule(
        name="resize.gathered",
        formula="x[..., rows, columns], each row and column several times",
        pattern=gathered,
        replace=_enlarged(_both),
        guards=(repeat_rows_and_columns,),
        exactness=Exactness.EXACT,
        source="ONNX operator Resize",
        proof=Proof(
            shapes={"x": "b 3 2 3", "rows": "4", "columns": "9"},
            constants={"rows": np.repeat(np.arange(2), 2), "columns": np.repeat(np.arange(3), 3)},
            counterexamples={
                "one is left out": Variation(constants={"rows": np.array([0, 0, 0, 0])}),
                "in another order": Variation(constants={"columns": np.tile(np.arange(3), 3)}),
            },
        ),
    ),
]
