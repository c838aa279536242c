"""Declare sizes of a model's inputs as equal, bounded or fixed, in the model itself.

Names become other names, formulas or numbers wherever a declared shape has them, so that the analysis, the inputs that are
generated and the file that is written know them without more. An axis without a name is called `input[axis]`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import onnx_ir as ir

from ortfuse.errors import OptionError
from ortfuse.ir import walk
from ortfuse.ir.declared_sizes import Bounds, DeclaredSizes, declared_sizes
from ortfuse.ir.dims import DimLike, parse, substituted, symbol, symbols

_AXIS = re.compile(r"(.+)\[(\d+)\]")


def shapes_as_sizes(model: ir.Model, declared: DeclaredSizes) -> DeclaredSizes:
    """Return declarations with the sizes of open dimensions in place of the shapes of inputs.

    An input of which no shape is declared gets one of unnamed dimensions, in place.

    Raises:
        OptionError: There is no such input, its shape is another, or a dimension would have two sizes.
    """
    fix, inputs = dict(declared.fix), {value.name: value for value in model.graph.inputs}
    for name, shape in declared.shapes.items():
        value, text = inputs.get(name), "x".join(map(str, shape))
        if value is None:
            there = ", ".join(str(known) for known in inputs)
            raise OptionError("fix", f"the model has no input {name!r} that could be {text}; it has {there}")
        if value.shape is None:
            value.shape = ir.Shape([None] * len(shape))
        dims = value.shape.dims
        if len(dims) != len(shape) or any(
            isinstance(dim, int) and dim != size for dim, size in zip(dims, shape, strict=True)
        ):
            raise OptionError("fix", f"the input {name} is declared as {_shape_text(dims)}, and cannot be {text}")
        for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
            if isinstance(dim, int):
                continue
            open_one = dim.value if dim.value and parse(dim.value) == symbol(dim.value) else f"{name}[{axis}]"
            if fix.setdefault(open_one, size) != size:
                raise OptionError("fix", f"{open_one} has two sizes, {fix[open_one]} and {size}; write one of them")
    return replace(declared, fix=fix, shapes={})


def _shape_text(dims: Iterable[int | ir.SymbolicDim]) -> str:
    return "x".join(str(dim) if isinstance(dim, int) else dim.value or "?" for dim in dims) or "a scalar"


def declare_sizes(model: ir.Model, declared: DeclaredSizes) -> dict[str, DimLike]:
    """Declare sizes in a model, in place.

    Returns:
        What each dimension that is no longer open equals.

    Raises:
        OptionError: There is no open dimension of a name, or declarations contradict each other.
    """
    declared = shapes_as_sizes(model, declared)
    names = _Names(model)
    for name, size in declared.fix.items():
        if size < 1:
            raise OptionError("fix", f"{name} cannot be {size} in every run: nothing would be computed; give 1 or more")
    fixed = {names.of("fix", name): size for name, size in declared.fix.items()}
    same = {names.of("same", name): names.formula(name, text) for name, text in declared.same.items()}
    ranges = {names.of("size_range", name): bounds for name, bounds in declared.size_range.items()}
    ranges = names.earlier_bounds(ranges) | ranges
    sizes = _solved(same, fixed)
    _check_ranges(ranges, sizes)
    _rename(model, sizes)
    DeclaredSizes(declared.same, _open_ranges(ranges, sizes), declared.fix).store(model)
    return sizes


def restrict_to_sizes_of(model: ir.Model, others: Iterable[ir.Model], but: Collection[str] = ()) -> None:
    """Declare of a model, in place, the sizes at which others run too: those declared of them, and those of fixed shapes.

    Declarations that say nothing of the model, or contradict it or earlier ones, are left out.

    Args:
        model: The model.
        others: The others, which have the same inputs.
        but: Names of dimensions that are left open.
    """
    for other in others:
        declared = declared_sizes(other)
        single = [
            *(DeclaredSizes(same={name: text}) for name, text in declared.same.items() if name not in but),
            *(DeclaredSizes(fix={name: size}) for name, size in declared.fix.items() if name not in but),
            *(DeclaredSizes(fix={name: size}) for name, size in _fixed_in(other, model) if name not in but),
        ]
        for one in single:
            with contextlib.suppress(OptionError):
                declare_sizes(model, one)
        for name, (low, high) in declared.size_range.items():
            least, most = declared_sizes(model).size_range.get(name, (low, high))
            both = max(low, least), min(high, most)
            if name not in but and both[0] <= both[1]:
                with contextlib.suppress(OptionError):
                    declare_sizes(model, DeclaredSizes(size_range={name: both}))


def _fixed_in(other: ir.Model, model: ir.Model) -> list[tuple[str, int]]:
    """The open dimensions of a model's inputs that are numbers in another model, by name or as `input[axis]`."""
    there = {value.name: value.shape.dims for value in other.graph.inputs if value.shape is not None}
    return [
        (dim.value or f"{value.name}[{axis}]", size)
        for value in model.graph.inputs
        if value.shape is not None and len(value.shape) == len(there.get(value.name, ()))
        for axis, (dim, size) in enumerate(zip(value.shape.dims, there[value.name], strict=True))
        if isinstance(dim, ir.SymbolicDim) and isinstance(size, int)
    ]


def _open_ranges(ranges: Mapping[str, Bounds], sizes: Mapping[str, DimLike]) -> dict[str, Bounds]:
    """The bounds of the dimensions that are still open; those of a dimension that became another one bound that one.

    Raises:
        OptionError: No size is within all bounds, or those of a formula are given.
    """
    kept: dict[str, Bounds] = {}
    for name, (low, high) in ranges.items():
        size = sizes.get(name, symbol(name))
        if isinstance(size, int):
            continue
        alone = next(iter(symbols(size)))
        if size != symbol(alone):
            raise OptionError(
                "size_range", f"{name} equals {size}; give bounds of {' and '.join(sorted(symbols(size)))}"
            )
        least, most = kept.get(alone, (low, high))
        kept[alone] = max(least, low), min(most, high)
        if kept[alone][0] > kept[alone][1]:
            raise OptionError(
                "size_range", f"{name} and {alone} are the same, and no size is within the bounds of both"
            )
    return kept


class _Names:
    """The open dimensions of a model's inputs, by the names that people give them."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._inputs = [value for value in model.graph.inputs if value.shape is not None]

    def of(self, option: str, name: str) -> str:
        """The name of a dimension in declared shapes; an axis without one gets one.

        Raises:
            OptionError: There is none.
        """
        if name in self._known():
            return name
        found = _AXIS.fullmatch(name)
        for value in self._inputs if found else ():
            assert found is not None
            assert value.shape is not None
            axis = int(found[2])
            if value.name == found[1] and axis < len(value.shape) and not isinstance(value.shape[axis], int):
                return self._named(value, axis)
        there = ", ".join(dict.fromkeys(self.all())) or "none: all their sizes are fixed"
        raise OptionError(option, f"the inputs have no open dimension {name!r}; there are {there}")

    def earlier_bounds(self, ranges: Mapping[str, Bounds]) -> dict[str, Bounds]:
        """The bounds of open dimensions for which the model was made already, which hold on.

        Raises:
            OptionError: New ones are wider.
        """
        known = self._known()
        found = {name: one for name, one in declared_sizes(self._model).size_range.items() if name in known}
        for name, (low, high) in ranges.items():
            least, most = found.get(name, (low, high))
            if low < least or high > most:
                text = f"{name} within {low}:{high} is too wide; the model was made for {least}:{most} alone"
                raise OptionError("size_range", text)
        return found

    def formula(self, name: str, text: str) -> DimLike:
        """The size or name that a dimension is declared to equal.

        Raises:
            OptionError: It is a number, or has a name that no input has.
        """
        if _AXIS.fullmatch(text.strip()):
            return symbol(self.of("same", text.strip()))
        found = parse(text)
        if isinstance(found, int):
            raise OptionError("same", f"{name} is to be a number; write --fix {name}={text}")
        for one in symbols(found):
            self.of("same", one)
        return found

    def all(self) -> Iterator[str]:
        """All open dimensions, those without a name as `input[axis]`."""
        for value in self._inputs:
            assert value.shape is not None
            for axis, dim in enumerate(value.shape.dims):
                if isinstance(dim, ir.SymbolicDim):
                    yield dim.value or f"{value.name}[{axis}]"

    def _known(self) -> set[str]:
        shapes = [value.shape.dims for value in self._inputs if value.shape is not None]
        texts = [dim.value for dims in shapes for dim in dims if isinstance(dim, ir.SymbolicDim) and dim.value]
        whole = {text for text in texts if parse(text) == symbol(text)}
        return whole | {name for text in texts for name in symbols(parse(text)) if symbols(parse(text)) <= whole}

    def _named(self, value: ir.Value, axis: int) -> str:
        assert value.shape is not None
        dim = value.shape[axis]
        if isinstance(dim, ir.SymbolicDim) and dim.value:
            return dim.value
        name = re.sub(r"\W", "_", f"{value.name}_{axis}")
        while name in self._known():
            name += "_"
        _set(value, {axis: ir.SymbolicDim(name)})
        return name


def _solved(same: Mapping[str, DimLike], fixed: Mapping[str, int]) -> dict[str, DimLike]:
    """Each dimension that is no longer open, in terms of those that are.

    Raises:
        OptionError: Declarations contradict each other, or a dimension is to equal a formula of itself.
    """
    found: dict[str, DimLike] = dict(fixed)
    for name, other in same.items():
        one, two = (_in_terms(dim, found) for dim in (symbol(name), other))
        if one == two:
            continue
        if isinstance(one, int) and isinstance(two, int):
            raise OptionError("same", f"{name} is to equal {other}, and they are fixed to {one} and {two}")
        target, value = (two, one) if isinstance(one, int) else (one, two)
        alone = symbols(target)
        if (
            len(alone) != 1
            or target != symbol(next(iter(alone)))
            or (not isinstance(value, int) and alone & symbols(value))
        ):
            raise OptionError("same", f"{name} = {other} cannot be solved for one dimension; declare it of another one")
        new = {next(iter(alone)): value}
        found = {known: _in_terms(dim, new) for known, dim in found.items()} | new
    for name, dim in found.items():
        if isinstance(dim, int) and dim < 0:
            raise OptionError("same", f"{name} would be {dim}; sizes are 0 or more")
    return found


def _in_terms(dim: DimLike, sizes: Mapping[str, DimLike]) -> DimLike:
    try:
        return substituted(dim, sizes)
    except ZeroDivisionError as error:
        raise OptionError("same", f"{dim} divides by 0") from error


def _check_ranges(ranges: Mapping[str, Bounds], sizes: Mapping[str, DimLike]) -> None:
    for name, (low, high) in ranges.items():
        size = sizes.get(name)
        if isinstance(size, int) and not low <= size <= high:
            raise OptionError("size_range", f"{name} is within {low}:{high}, and is fixed to {size}")


def _rename(model: ir.Model, sizes: Mapping[str, DimLike]) -> None:
    """Put what dimensions equal into all declared shapes."""
    functions = {function.graph for function in model.functions.values()}
    for graph in walk.graphs(model):
        if graph in functions:
            continue
        for value in dict.fromkeys((*walk.own_values(graph), *graph.outputs)):
            if value.shape is None:
                continue
            changed = {
                axis: new
                for axis, dim in enumerate(value.shape.dims)
                if isinstance(dim, ir.SymbolicDim) and dim.value and (new := _renamed(dim.value, sizes)) is not None
            }
            if changed:
                _set(value, changed)


def _renamed(text: str, sizes: Mapping[str, DimLike]) -> int | ir.SymbolicDim | None:
    """The replacement of a declared size; `None` if it stays."""
    if text in sizes:
        found = sizes[text]
    else:
        parsed = parse(text)
        if isinstance(parsed, int) or not symbols(parsed) & sizes.keys():
            return None
        try:
            found = substituted(parsed, sizes)
        except ZeroDivisionError:
            return None
    if isinstance(found, int):
        return found if found >= 0 else None
    return ir.SymbolicDim(str(found))


def _set(value: ir.Value, changed: Mapping[int, int | ir.SymbolicDim]) -> None:
    assert value.shape is not None
    value.shape = ir.Shape([changed.get(axis, dim) for axis, dim in enumerate(value.shape.dims)])
