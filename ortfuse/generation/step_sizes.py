"""The sizes of a decoder's inputs in a step: one batch, one past of all caches, and a mask of past and new tokens.

Caches that keep the last tokens alone have a past of their own.

Exporters name the axes of each input apart, or not at all, so that a graph alone does not tell that a mask is as long as the
keys. A generator only ever runs such steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import product

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import OptionError
from ortfuse.generation.decoder_interface import Cache, DecoderInterface
from ortfuse.io.declare_sizes import declare_sizes
from ortfuse.ir.declared_sizes import DeclaredSizes
from ortfuse.ir.dims import parse, symbol, symbols

_BATCH, _LENGTH, _PAST = "batch", "new_tokens", "past_tokens"


def declare_step_sizes(model: ir.Model, interface: DecoderInterface) -> str:
    """Declare the sizes that a step has, in place; the name of the number of new tokens, "" if it is fixed.

    Axes without a name get one. What contradicts the declared shapes is left as it is.
    """
    _set_cut_apart(model, interface)
    parts = dict.fromkeys((_BATCH, _LENGTH, _PAST, *(part for _, _, part in _axes(interface))))
    names = {part: _name_of(model, interface, part) for part in parts}
    for value, axis, part in _axes(interface):
        dim = value.shape[axis] if value.shape is not None else None
        if isinstance(dim, ir.SymbolicDim) and dim.value is None and names[part]:
            _set(value, axis, names[part])
    wanted = [(value, axis, names[part]) for value, axis, part in _axes(interface)]
    mask = interface.mask
    if mask is not None and names[_PAST] and names[_LENGTH]:
        wanted.append((mask, len(mask.shape or ()) - 1, f"{names[_PAST]} + {names[_LENGTH]}"))
    for value, axis, text in wanted:
        dim = value.shape[axis] if value.shape is not None else None
        if not text or not isinstance(dim, ir.SymbolicDim):
            continue
        if dim.value is None:
            _set(value, axis, text)
        elif _is_plain(dim.value) and dim.value not in symbols(parse(text)):
            with contextlib.suppress(OptionError):
                declare_sizes(model, DeclaredSizes(same={dim.value: text}))
    for name, size in _joined_sizes(model, interface).items():
        with contextlib.suppress(OptionError):
            declare_sizes(model, DeclaredSizes(same={name: size}))
    return names[_LENGTH]


def fix_to_one_token(model: ir.Model, interface: DecoderInterface) -> None:
    """Let a decoder take one new token a run, in place."""
    tokens = interface.tokens
    dim = tokens.shape[1] if tokens.shape is not None else None
    if isinstance(dim, ir.SymbolicDim) and dim.value:
        declare_sizes(model, DeclaredSizes(fix={dim.value: 1}))
    elif tokens.shape is not None:
        tokens.shape = ir.Shape([tokens.shape[0], 1, *tokens.shape[2:]])


def _joined_sizes(model: ir.Model, interface: DecoderInterface) -> dict[str, str]:
    """The sizes that other axes of caches than those of tokens equal, by name.

    What a step hands out is the next input, and has the axes of what is joined to the cache.
    """
    facts = Facts(model)
    tokens = {name for dim in facts.shape(interface.tokens) or () for name in symbols(dim)}
    open_ones = {
        str(dim)
        for cache in interface.caches
        for axis, dim in enumerate(facts.shape(cache.past) or ())
        if axis != cache.axis and symbols(dim) == {str(dim)}
    } - tokens
    found: dict[str, str] = {}
    for cache in interface.caches:
        sizes = zip(facts.shape(cache.past) or (), facts.shape(cache.present) or (), strict=False)
        for axis, (before, after) in enumerate(sizes):
            if axis != cache.axis and str(before) in open_ones and symbols(after) and symbols(after) <= tokens:
                found.setdefault(str(before), str(after))
    for node in model.graph if open_ones else ():
        shapes = [facts.shape(value) for value in node.inputs] if node.op_type == "Concat" else []
        along = node.attributes.get_int("axis", 0) or 0
        for one, other in product(shapes, shapes):
            for axis, (size, wanted) in enumerate(zip(one or (), other or (), strict=False)):
                is_joined = axis == along % len(one or ())
                if not is_joined and str(size) in open_ones and symbols(wanted) and symbols(wanted) <= tokens:
                    found.setdefault(str(size), str(wanted))
    return found


def _axes(interface: DecoderInterface) -> Iterator[tuple[ir.Value, int, str]]:
    """The axes of the batch, of the new tokens and of the past."""
    yield from ((interface.tokens, axis, part) for axis, part in enumerate((_BATCH, _LENGTH)))
    for cache in interface.caches:
        yield cache.past, cache.axis, _past_of(cache)
        dims = cache.past.shape.dims if cache.past.shape is not None else ()
        is_open = [axis for axis, dim in enumerate(dims) if not isinstance(dim, int) and axis != cache.axis]
        is_whole = cache.is_plain or cache.kept is not None
        if is_whole and len(dims) == 4 and len(is_open) == 1:  # of three axes the heads may be those of all sequences
            yield cache.past, is_open[0], _BATCH
    if interface.mask is not None:
        yield interface.mask, 0, _BATCH
        if len(interface.mask.shape or ()) == 4:
            yield interface.mask, 2, _LENGTH
    if interface.positions is not None and interface.positions.shape is not None:
        rank = len(interface.positions.shape)
        yield from (
            (interface.positions, axis, part) for axis, part in ((rank - 2, _BATCH), (rank - 1, _LENGTH)) if axis >= 0
        )


def _past_of(cache: Cache) -> str:
    """The tokens of the past that a cache has: all, or the last ones."""
    return _PAST if cache.kept is None else f"last_{cache.kept}_{_PAST}"


def _set_cut_apart(model: ir.Model, interface: DecoderInterface) -> None:
    """Give caches that keep the last tokens names of their own, where they share one with caches that keep others or all."""
    owners: dict[str, str] = {}
    for cache in sorted(interface.caches, key=lambda one: one.kept is not None):
        dim = cache.past.shape[cache.axis] if cache.past.shape is not None else None
        if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
            part = _past_of(cache)
            if owners.setdefault(dim.value, part) != part:
                _set(cache.past, cache.axis, _unused(model, part))


def _name_of(model: ir.Model, interface: DecoderInterface, part: str) -> str:
    """The name of a size, that of the first axis of it; a new one if that has none, and "" if it is fixed or a formula."""
    value, axis = next(((value, axis) for value, axis, one in _axes(interface) if one == part), (None, 0))
    dim = value.shape[axis] if value is not None and value.shape is not None else None
    if not isinstance(dim, ir.SymbolicDim):
        return ""
    if dim.value is not None:
        return dim.value if _is_plain(dim.value) else ""
    return _unused(model, part)


def _unused(model: ir.Model, name: str) -> str:
    """A name for a size that no input or output has."""
    while any(name in symbols(parse(text)) for text in _texts(model)):
        name += "_"
    return name


def _texts(model: ir.Model) -> Iterator[str]:
    for value in (*model.graph.inputs, *model.graph.outputs):
        for dim in value.shape.dims if value.shape is not None else ():
            if isinstance(dim, ir.SymbolicDim) and dim.value:
                yield dim.value


def _is_plain(text: str) -> bool:
    return parse(text) == symbol(text)


def _set(value: ir.Value, axis: int, text: str) -> None:
    assert value.shape is not None
    dims = list(value.shape.dims)
    dims[axis] = ir.SymbolicDim(text)
    value.shape = ir.Shape(dims)
