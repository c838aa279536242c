"""Replace GatherND and flattened Gather over a grid of indices by Slice or Gather.

x[rows, columns] = reshape(x[:, :n])       for n columns; the Reshape fails, as the GatherND does, where x has fewer
x[rows, columns] = reshape(x[:m, :n])      for m rows and n columns of a matrix, likewise
flat(x)[columns + rows * width] = reshape(x[:, :n])      likewise, for all rows
GatherND(x, [[i], [j], ...]) = Gather(x, [i, j, ...])

Rationale: PyTorch's exporters read padding masks so: `mask[batch, key]`, in the shape [batch, 1, 1, key]. torch.export writes
every `x[..., indices]` as the last.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.ir.dims import DimLike, is_nonnegative, is_positive, product
from ortfuse.ir.refusal import Refusal
from ortfuse.rewrite import Exactness, Rule, RuleTest, Variation
from ortfuse.rewrite.pattern import Guard, Match, Pattern, attr, computed, const, op, var

from .._shared_guards import ints, is_filled_with

SOURCE = "ONNX operator specification; PyTorch's index by tensors"

_SHAPE_HAS_ENDS = 15
"""The opset from which on Shape has `start` and `end`."""

_RESHAPE_ALLOWS_ZERO = 14
"""The opset from which on Reshape has `allowzero`."""

x = var("x", "b n")


def _counted(name: str) -> Pattern:
    """0, 1, ... along one axis."""
    counted = op.Range(
        var(f"{name}_start", is_filled_with(0), "0"),
        var(f"{name}_count"),
        var(f"{name}_step", is_filled_with(1), "1"),
    ).kept()
    made: Pattern = op.Unsqueeze(counted, axes=attr(f"{name}_axes")).kept().named(name)
    return made


def _of_place(indices: str) -> Pattern:
    """The places of rows or columns, one of the two parts of an index."""
    made: Pattern = (
        op.Unsqueeze(op.Expand(_counted(indices), var(f"{indices}_shape")).kept(), axes=attr(f"{indices}_last"))
        .kept()
        .named(f"{indices}_part")
    )
    return made


def _known_number(match: Match, name: str) -> DimLike | None:
    """A number that is known, perhaps as a size."""
    known = match.facts.ints(match[name])
    return None if known is None or len(known.elements) != 1 else known.elements[0]


def counts_all_rows(match: Match) -> Refusal | None:
    """As many rows are counted as x has, and a number of columns that is a size."""
    shape, columns = match.shape("x"), _known_number(match, "columns_count")
    if shape is None or _known_number(match, "rows_count") != shape[0]:
        return match.refuse("dimension", "rows_count", found="it is not known to be the number of rows")
    if columns is None or not is_nonnegative(columns) or match.rank("columns_count") != 0:
        return match.refuse("dimension", "columns_count", found="it is not known to be a size")
    if columns == shape[1]:
        return match.refuse("needless", "columns_count", found="all of x is taken")
    node = match.root.producer()
    if is_positive(columns) or (node is not None and match.facts.version(node) >= _SHAPE_HAS_ENDS):
        return None
    return match.refuse("attribute", "root", f"of opset {_SHAPE_HAS_ENDS} on, where there may be no columns")


def counts_some_rows(match: Match) -> Refusal | None:
    """Numbers of rows and columns that are sizes, not known to be those of x."""
    shape, counts = match.shape("x"), [_known_number(match, name) for name in ("rows_count", "columns_count")]
    for name, count in zip(("rows_count", "columns_count"), counts, strict=True):
        if count is None or not is_nonnegative(count) or match.rank(name) != 0:
            return match.refuse("dimension", name, found="it is not known to be a size")
    if shape is None or shape[0] == counts[0]:
        return match.refuse("needless", "rows_count", found="all rows are taken")
    node = match.root.producer()
    if node is not None and match.facts.version(node) >= _RESHAPE_ALLOWS_ZERO:
        return None
    return match.refuse(
        "attribute", "root", f"of opset {_RESHAPE_ALLOWS_ZERO} on, where there may be no rows or columns"
    )


def steps_by_width(match: Match) -> Refusal | None:
    """A row of flat x is as long as x is wide."""
    if match.get("flat") is None:
        return None
    shape = match.shape("x")
    if shape is None or _known_number(match, "width") != shape[1]:
        return match.refuse("dimension", "width", found="it is not known to be the number of columns")
    flat = match.shape("flat")
    return None if flat and flat[0] == product(shape) else match.refuse("shape", "flat", found=flat)


def parts_are_an_index(match: Match) -> Refusal | None:
    """The index pairs are a row and a column each."""
    if match.get("indices") is None:
        return None
    shapes = match.shapes("rows_part", "columns_part")
    if isinstance(shapes, Refusal):
        return shapes
    joined = match.shape("indices")
    if shapes[0] != shapes[1] or shapes[0][-1] != 1 or joined != (*shapes[0][:-1], 2):
        return match.refuse("shape", "indices", found=joined)
    return None


def is_rows_by_columns(match: Match) -> Refusal | None:
    """The result has the rows first, the columns last, and axes of size 1 between them alone."""
    shapes = match.shapes("rows", "columns", "root")
    if isinstance(shapes, Refusal):
        return shapes
    rows, columns, root = shapes
    ends = (_known_number(match, "rows_count"), _known_number(match, "columns_count"))
    if len(rows) != len(root) or (root[0], root[-1]) != ends or any(dim != 1 for dim in root[1:-1]):
        return match.refuse("shape", "root", found=root)
    along = rows == (root[0], *(1,) * (len(root) - 1)) and columns[-1] == root[-1] and _axis(columns) == -1
    return None if along else match.refuse("shape", "columns", found=columns)


def _first_columns(match: Match) -> Pattern:
    """The first columns of x, in as many axes as the result has, which fails where x does not have them all."""
    one = _int64_vector("one", 1)
    count = op.Reshape(var("columns_count"), _int64_vector("flat", -1))
    part = op.Slice(x, _int64_vector("none", 0), count, one)
    between = (1,) * (len(match.shape("root") or ()) - 2)
    columns = _known_number(match, "columns_count")
    if columns is not None and is_positive(columns):
        some: Pattern = op.Reshape(part, op.Concat(_int64_vector("leading", 0, *between), count, axis=0))
        return some
    sizes = op.Concat(op.Shape(x, start=0, end=1), _int64_vector("between", *between), count, axis=0)
    any_number: Pattern = op.Reshape(part, sizes, allowzero=1)
    return any_number


def _first_rows(match: Match) -> Pattern:
    """The first rows and columns of x, in as many axes as the result has.

    A number of rows or columns that x does not have leaves fewer elements than are asked for, so that this fails as well; of no
    rows or no columns nothing is asked.
    """
    between = (1,) * (len(match.shape("root") or ()) - 2)
    rows, columns = (op.Reshape(var(f"{name}_count"), _int64_vector("flat", -1)) for name in ("rows", "columns"))
    part = op.Slice(x, _int64_vector("starts", 0, 0), op.Concat(rows, columns, axis=0), _int64_vector("both", 0, 1))
    made: Pattern = op.Reshape(part, op.Concat(rows, _int64_vector("between", *between), columns, axis=0), allowzero=1)
    return made


def _int64_vector(name: str, *numbers: int) -> Pattern:
    return computed(name, partial(_listed, [*numbers]))


def _listed(numbers: list[int], match: Match) -> np.ndarray[Any, Any]:
    return ints(numbers)


def _axis(shape: tuple[DimLike, ...]) -> int:
    """Along which axis, counted from the end, is counted."""
    return next((axis - len(shape) for axis, dim in enumerate(shape) if dim != 1), -len(shape))


def _size(axis: int) -> Callable[[Any], ir.Value]:
    """A size of x, as a number."""

    def make(build: Any) -> ir.Value:
        source = next(value for value in build.graph.inputs if value.name == "x")
        made: ir.Value = build.node("Gather", [build.node("Shape", [source]).outputs[0], _scalar(axis)(build)]).outputs[
            0
        ]
        return made

    return make


def _scalar(number: int) -> Callable[[Any], ir.Value]:
    """A number of the type of indices."""
    return lambda build: build.constant(np.int64(number))


def _some(build: Any) -> ir.Value:
    """The size of another input, as a number, or one more than that."""
    made = _size_of(build, "cache", "n")
    if build.chooser.pick("columns", ("perhaps none", "some")) == 1:
        made = build.node("Add", [made, _scalar(1)(build)]).outputs[0]
    return made


def _some_rows(build: Any) -> ir.Value:
    """The size of another input, as a number."""
    return _size_of(build, "tokens", "m")


def _size_of(build: Any, name: str, dim: str) -> ir.Value:
    """The size of an input with one dimension, made if it is not there yet, as a number."""
    known = [value for value in build.graph.inputs if value.name == name]
    value = known[0] if known else build.input(name, [dim])
    made: ir.Value = build.node("Gather", [build.node("Shape", [value]).outputs[0], _scalar(0)(build)]).outputs[0]
    return made


def _repeated(rows: Callable[[Any], ir.Value], columns: Callable[[Any], ir.Value]) -> dict[str, Any]:
    """So many rows and columns, and the sizes that their places are repeated in."""

    def sizes(build: Any) -> ir.Value:
        one = build.constant([1])
        first, last = (
            build.node("Unsqueeze", [make(build), build.constant([0])]).outputs[0] for make in (rows, columns)
        )
        made: ir.Value = build.node("Concat", [first, one, one, last], {"axis": 0}).outputs[0]
        return made

    return {"rows_count": rows, "columns_count": columns, "rows_shape": sizes, "columns_shape": sizes}


COUNTED = {
    "rows_start": _scalar(0), "columns_start": _scalar(0), "rows_step": _scalar(1), "columns_step": _scalar(1),
    "rows_count": _size(0), "width": _size(1), "columns_count": _size(1),
}  # fmt: skip

data, indices = var("data"), var("indices")


def adds_last_axis(match: Match) -> Refusal | None:
    """The axis that Unsqueeze adds to the indices is the last one."""
    added = match["added"]
    last = added is not None and len(added) == 1 and added[0] in (-1, match.rank("indices"))
    return match.unless_value("added", last, "the last one")


def have_one_number(match: Match) -> Refusal | None:
    """Each place is one number."""
    return match.unless_value("places", match.const("places").shape[-1:] == (1,), "one number for each place")


def _along_first_axis(name: str, formula: str, places: Pattern, numbers: Pattern, *guards: Guard, **test: Any) -> Rule:
    return Rule(
        name=f"gather_nd.{name}",
        formula=formula,
        pattern=op.GatherND(data, places, batch_dims=0),
        replace=op.Gather(data, numbers, axis=0),
        guards=guards,
        exactness=Exactness.EXACT,
        source="ONNX operators Gather and GatherND",
        test=RuleTest(**test),
    )


_AXES_OF_INDICES: dict[str, list[Any]] = {
    "rows_axes": [(1, 2, 3)],
    "columns_axes": [(0, 1, 2)],
    "rows_last": [(4,)],
    "columns_last": [(4,)],
    "joined": [4],
}

_LINE = op.Reshape(
    op.Gather(
        (op.Flatten(x, axis=2) | op.Reshape(x, var("line"))).named("flat"),
        _counted("columns") + _counted("rows") * var("width"),
        axis=0,
    ),
    var("shape"),
)
_MATRIX = op.GatherND(
    x, op.Concat(_of_place("rows"), _of_place("columns"), axis=attr("joined")).named("indices"), batch_dims=0
)

RULES = [
    _along_first_axis(
        "unsqueezed_indices_to_gather", "GatherND(x, unsqueeze(indices, -1))",
        op.Unsqueeze(indices, axes=attr("added")), indices, adds_last_axis,
        shapes={"data": "3 b 2", "indices": "2 4"}, attributes={"added": [(-1,), (2,)]},
        constants={"indices": np.array([[0, 1, 2, 1], [-1, 0, 2, 2]])},
        counterexamples={
            "two numbers for each place": Variation(
                attributes={"added": (0,)}, shapes={"data": "3 4 5 6", "indices": "2"},
                constants={"indices": np.array([0, 1])},
            )
        },
    ),
    _along_first_axis(
        "constant_indices_to_gather", "GatherND(x, [[i], [j], ...])",
        const("places"), computed("numbers", lambda match: match.const("places")[..., 0]), have_one_number,
        shapes={"data": "3 b 2", "places": "4 1"}, constants={"places": np.array([[0], [2], [-1], [1]])},
        counterexamples={
            "two numbers for each place": Variation(
                shapes={"data": "3 3 2", "places": "2 2"}, constants={"places": np.array([[0, 2], [1, 1]])}
            )
        },
    ),
    Rule(
        name="gather.leading_columns_to_slice",
        formula="x[rows, columns], the first columns",
        pattern=_LINE | _MATRIX,
        replace=_first_columns,
        makes=("Slice", "Reshape", "Concat"),
        guards=(counts_all_rows, steps_by_width, parts_are_an_index, is_rows_by_columns),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "b 9", "line": "1", "shape": "4"},
            constants={"line": [-1], "shape": [0, 1, 1, -1]},
            attributes=_AXES_OF_INDICES,
            inputs={**COUNTED, **_repeated(_size(0), _some)},
            opset=15,
            counterexamples={"of an older opset": Variation(opset=13)},
        ),
    ),
    Rule(
        # The batch of a mask has a name of its own if the exporter was only told that it varies.
        name="gather_nd.leading_block_to_slice",
        formula="x[rows, columns], the first rows and columns",
        pattern=_MATRIX,
        replace=_first_rows,
        makes=("Slice", "Reshape", "Concat"),
        guards=(counts_some_rows, parts_are_an_index, is_rows_by_columns),
        exactness=Exactness.EXACT,
        source=SOURCE,
        test=RuleTest(
            shapes={"x": "9 9"},
            attributes=_AXES_OF_INDICES,
            inputs={**COUNTED, **_repeated(_some_rows, _some)},
            opset=14,
            counterexamples={"of an older opset": Variation(opset=13)},
        ),
    ),
]  # fmt: skip
