"""Match data movement: rearrangements in any equivalent form, and slices of the last axis.

The chain of data-moving nodes that leads to a value is followed upwards, one node at a time. For each prefix of the chain
the effect on the elementary axes of its input is computed; if that is provably the effect that the pattern asks for, the
input of the prefix may be the rearranged value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.node_parameters import UNKNOWN, parameter
from ortfuse.ir.dims import DimLike, total
from ortfuse.ir.refusal import Subject, refuse
from ortfuse.rewrite.pattern.axis_names import Axes
from ortfuse.rewrite.pattern.backtracking_machine import FAIL, Goals, Machine, computed_by
from ortfuse.rewrite.pattern.language import Part
from ortfuse.rewrite.pattern.rearrangement import MOST_MOVES, Rearrange
from ortfuse.rewrite.pattern.unify_dims import Bound, Place, has_axes, labelled, settle, size_of

Piece = tuple[str, DimLike]
"""An elementary axis: its name (`""` for one along which elements are repeated) and its size, which is not 1."""

_FAR = 1 << 31
"""A Slice whose end is at least this goes to the end of the axis."""


def match_rearrangement(m: Machine, pattern: Rearrange, value: ir.Value | None, rest: Goals) -> Goals:
    """Find nodes that provably do the rearrangement, and continue with their input."""
    known = m.memo.get(id(pattern)) if id(pattern) in m.matcher.shared else None
    if known is not None:
        return rest if known is value else m.fail(lambda: refuse("not_same", value, needed=known))
    if value is None:
        return m.fail(lambda: refuse("missing_input", Subject("operand", m.root.name or "", capture=str(pattern))))
    return m.choose(_rearranged(m, pattern, value, rest))


def _rearranged(m: Machine, pattern: Rearrange, value: ir.Value, rest: Goals) -> Iterator[Goals]:
    chain: list[ir.Node] = []
    source, heads = value, pattern.heads or frozenset()
    while len(chain) < MOST_MOVES:
        node = source.producer()
        if node is None or node.domain or node.op_type not in heads or not m.is_reached(node.graph):
            break
        chain.insert(0, node)
        operand = node.inputs[0]
        if operand is None:
            break
        source, mark = operand, len(m.trail)
        for one in chain:
            if one not in m.nodes and one not in m.inner:
                m.take(one, True)
                m.put(m.moves, one, True)
        if _is_rearrangement(m, pattern, source, value, chain) and labelled(m, pattern, value):
            if id(pattern) in m.matcher.shared:
                m.put(m.memo, id(pattern), value)
            yield (pattern.inner, source, rest)
        else:
            m.undo(mark)
    if not chain:
        m.fail(lambda: refuse("operator", value, found=computed_by(value.producer()), needed=str(pattern)))


def _is_rearrangement(
    m: Machine, pattern: Rearrange, source: ir.Value, value: ir.Value, chain: Sequence[ir.Node]
) -> bool:
    if not (has_axes(m, pattern.after, value, "") and has_axes(m, pattern.before, source, "")):
        return False
    if m.pending and not settle(m):
        return False
    start, end = _pieces(m, pattern.before, frozenset()), _pieces(m, pattern.after, pattern.repeated)
    found = None if start is None or end is None else _moved(start, chain, m.facts)
    if found is None or found != end:
        m.fail(
            lambda: refuse("operator", value, found=" and ".join(node.op_type for node in chain), needed=str(pattern))
        )
        return False
    return True


def _pieces(m: Machine, axes: Axes, repeated: frozenset[str]) -> list[list[Piece]] | None:
    """The elementary axes that make up each axis, without those of size 1; `None` if a size is unknown."""
    found = []
    for axis in axes.axes:
        sizes = [(factor, size_of(m, (factor,))) for factor in axis.factors]
        if any(size is None for _, size in sizes):
            return None
        found.append([("" if factor in repeated else str(factor), size) for factor, size in sizes
                      if size is not None and size != 1])  # fmt: skip
    return found


def _moved(axes: list[list[Piece]], chain: Sequence[ir.Node], facts: Facts) -> list[list[Piece]] | None:
    """The elementary axes after the nodes have moved them; `None` if unknown."""
    for node in chain:
        after = facts.shape(node.outputs[0])
        if after is None:
            return None
        if node.op_type == "Transpose":
            perm = parameter(node, "perm", facts)
            if not isinstance(perm, tuple | list) or len(perm) != len(axes):
                return None
            axes = [axes[axis] for axis in perm]
        elif node.op_type in ("Expand", "Tile"):
            repeated = _repeated(axes, after)
            if repeated is None:
                return None
            axes = repeated
        else:
            grouped = _grouped([piece for axis in axes for piece in axis], after)
            if grouped is None:
                return None
            axes = grouped
    return axes


def _grouped(pieces: list[Piece], shape: Sequence[DimLike]) -> list[list[Piece]] | None:
    """The elementary axes, in order, grouped into the axes of a shape."""
    found: list[list[Piece]] = []
    position = 0
    for dim in shape:
        group: list[Piece] = []
        size: DimLike = 1
        while size != dim and position < len(pieces):
            group.append(pieces[position])
            size = size * pieces[position][1]
            position += 1
        if size != dim:
            return None
        found.append(group)
    return found if position == len(pieces) else None


def _repeated(axes: list[list[Piece]], shape: Sequence[DimLike]) -> list[list[Piece]] | None:
    """The axes after an Expand (or Tile) to a shape, which may lengthen axes of size 1 and add leading axes."""
    found: list[list[Piece]] = []
    axes = [[] for _ in range(len(shape) - len(axes))] + axes
    if len(axes) != len(shape):
        return None
    for axis, dim in zip(axes, shape, strict=True):
        size: DimLike = 1
        for _, length in axis:
            size = size * length
        if axis and size != dim:
            return None
        found.append(axis if axis or dim == 1 else [("", dim)])
    return found


def match_part(m: Machine, pattern: Part, value: ir.Value | None, rest: Goals) -> Goals:
    """Match a Slice of the last axis, an output of a Split along it, or a Gather of evenly spaced elements."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.domain or node.op_type not in _TAKING_PARTS:
        return m.fail(lambda: refuse("operator", value, found=computed_by(node), needed=pattern.heads))
    if not m.is_reached(node.graph):
        return m.fail(lambda: refuse("other_graph", node, needed=m.root))
    before, after = m.facts.shape(node.inputs[0]), m.facts.shape(value)
    if not before or not after:
        return m.fail(lambda: refuse("shape", value if after is None else node.inputs[0], found=None))
    found = _TAKING_PARTS[node.op_type](node, value, before[-1], len(before) - 1, m.facts)
    if found is None or not _is_part(m, pattern, found, before[-1], after[-1], value):
        bounds = "a part that is not known" if found is None else "[{}:{}:{}]".format(*found)
        return m.fail(lambda: refuse("value", node, found=bounds, needed=str(pattern)))
    if not labelled(m, pattern, value):
        return FAIL
    m.take(node, False)
    return (pattern.inner, node.inputs[0], rest)


Bounds = tuple[DimLike, DimLike, int]


def _is_part(m: Machine, pattern: Part, found: Bounds, size: DimLike, length: DimLike, value: ir.Value) -> bool:
    """Whether the bounds are those of the pattern, and the slice really has the length that they imply."""
    start, stop, step = found
    if step != pattern.step:
        return False
    whole = isinstance(start, int) and isinstance(stop, int)
    if length != (stop - start if step == 1 else len(range(int(start), int(stop), step)) if whole else None):  # type: ignore[arg-type]
        return False
    wanted = ((pattern.start, start), (size if pattern.stop is None else pattern.stop, stop))
    return all(_binds(m, one, bound, value) if isinstance(one, str) else one == bound for one, bound in wanted)


def _binds(m: Machine, name: str, bound: DimLike, value: ir.Value) -> bool:
    """Whether the dimension `name` equals `bound`; binds the name if it is not bound yet."""
    if m.pending and not settle(m):
        return False
    if name not in m.dims:
        m.put(m.dims, name, Bound(bound, Place(value, "", -1)))
    return bool(m.dims[name].dim == bound)


def _sliced(node: ir.Node, value: ir.Value, size: DimLike, last: int, facts: Facts) -> Bounds | None:
    starts, ends, axes, steps = (_one(parameter(node, name, facts)) for name in ("starts", "ends", "axes", "steps"))
    if starts is None or ends is None or steps is UNKNOWN or not (axes == last or (axes is None and last == 0)):
        return None
    if any(bound is UNKNOWN for bound in (starts, ends)):
        return None
    step = 1 if steps is None else steps
    if not isinstance(step, int) or step < 1:
        return None
    return _to_the_end(_within(starts, size), _within(ends, size), step, size)


def _to_the_end(start: DimLike, stop: DimLike, step: int, size: DimLike) -> Bounds:
    """The same bounds, up to the end where no element follows: of eight elements, [0:7:2] is [0::2]."""
    if isinstance(start, int) and isinstance(stop, int) and isinstance(size, int) and stop < size:
        stop = size if len(range(start, stop, step)) == len(range(start, size, step)) else stop
    return start, stop, step


def _gathered(node: ir.Node, value: ir.Value, size: DimLike, last: int, facts: Facts) -> Bounds | None:
    axis, indices = parameter(node, "axis", facts), facts.const(node.inputs[1])
    if axis != last or indices is None or indices.ndim != 1 or not indices.size or not isinstance(size, int):
        return None
    places = [int(index) + size if index < 0 else int(index) for index in indices]
    step = places[1] - places[0] if len(places) > 1 else 1
    taken = range(places[0], places[-1] + 1, step) if step > 0 else range(0)
    if places != list(taken) or places[0] < 0 or places[-1] >= size:
        return None
    return _to_the_end(places[0], places[-1] + 1, step, size)


def _one(numbers: Any) -> Any:
    """The number in a list of one, `None` for no list, `UNKNOWN` for several or an unknown one."""
    if numbers is None or numbers is UNKNOWN:
        return numbers
    return numbers[0] if isinstance(numbers, tuple | list) and len(numbers) == 1 else UNKNOWN


def _within(bound: DimLike, size: DimLike) -> DimLike:
    """A bound counted from the front and, where that can be decided, clamped to the size."""
    if isinstance(bound, int) and bound < 0:
        bound = bound + size
        return max(bound, 0) if isinstance(bound, int) else bound
    if isinstance(bound, int) and (bound >= _FAR or (isinstance(size, int) and bound > size)):
        return size
    return bound


def _split(node: ir.Node, value: ir.Value, size: DimLike, last: int, facts: Facts) -> Bounds | None:
    if parameter(node, "axis", facts) != last:
        return None
    before = Counter[DimLike]()
    for output in node.outputs:
        shape = facts.shape(output)
        if shape is None:
            return None
        if output is value:
            start = total(dim * count for dim, count in before.items())
            return start, start + shape[-1], 1
        before[shape[-1]] += 1
    return None


_TAKING_PARTS = {"Slice": _sliced, "Split": _split, "Gather": _gathered}
