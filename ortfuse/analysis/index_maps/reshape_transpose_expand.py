"""Index maps of operators that rearrange or repeat all elements, such as Reshape, Transpose, Expand, Tile and DepthToSpace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ortfuse.analysis.index_maps.element_expressions import Element, Select, lifted, number_of
from ortfuse.analysis.index_maps.index_map_query import Moving, element_map
from ortfuse.analysis.transfer.transfer_function_registry import UnknownError
from ortfuse.ir.dims import DimLike, floor_div, mod, product


@element_map("Identity")
def identity(op: Moving) -> Element:
    """The same elements."""
    return op.at(0, op.place)


@element_map("Dropout")
def dropout(op: Moving) -> Element:
    """The same elements, unless it is training."""
    training = op.has(2) and op.constants(2) != (0,)
    if training or op.version < 7 or op.node.outputs[0] is not op.output:
        raise UnknownError
    return op.at(0, op.place)


@element_map("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(op: Moving) -> Element:
    """The elements in the same row-major order."""
    return op.at(0, reshaped_place(op.place, op.shape_after, op.known_shape(0)))


def reshaped_place(
    place: Sequence[DimLike], after: Sequence[DimLike], before: Sequence[DimLike]
) -> tuple[DimLike, ...]:
    """Return the place in a tensor of shape `before` of the element at a place of the same tensor reshaped to `after`."""
    found: list[DimLike] = []
    for (start, end), (first, last) in reversed(list(_groups(before, after))):
        flat: DimLike = 0
        for number in range(first, last):
            flat = flat + place[number] * product(after[number + 1 : last])
        for number in range(start, end):
            along = floor_div(flat, product(before[number + 1 : end]))
            found.append(along if number == start else mod(along, before[number]))
    return tuple(found)


Span = tuple[int, int]


def _groups(before: Sequence[DimLike], after: Sequence[DimLike]) -> Iterator[tuple[Span, Span]]:
    """Axes that are reshaped together, the last first: as few as have provably as many elements."""
    end, last = len(before), len(after)
    left, right = _trailing(before), _trailing(after)
    first = last - 1
    while first >= 0:
        start = next((start for start in range(end, -1, -1) if left[start] == right[first]), None)
        if start is not None and start + first > 0:
            yield (start, end), (first, last)
            end, last = start, first
        first -= 1
    if end or last:
        yield (0, end), (0, last)


def _trailing(shape: Sequence[DimLike]) -> list[DimLike]:
    """The number of elements of the axes from each one on."""
    found: list[DimLike] = [1]
    for size in reversed(shape):
        found.append(found[-1] * size)
    return found[::-1]


@element_map("Transpose")
def transpose(op: Moving) -> Element:
    """The elements with their axes in another order."""
    place = op.place
    perm = op.attr_ints("perm") or tuple(reversed(range(len(place))))
    return op.at(0, [place[perm.index(number)] for number in range(len(place))])


@element_map("Expand")
def expand(op: Moving) -> Element:
    """The elements, repeated along axes of size 1."""
    return op.broadcast_at(0)


@element_map("Tile")
def tile(op: Moving) -> Element:
    """The elements, each axis several times as a whole."""
    before, after = op.known_shape(0), op.shape_after
    if len(before) != len(after):
        raise UnknownError
    along = [here if size == now else mod(here, size) for here, size, now in zip(op.place, before, after, strict=True)]
    return op.at(0, along)


@element_map("DepthToSpace")
def depth_to_space(op: Moving) -> Element:
    """Channels as pixels of blocks."""
    block, (batch, channel, row, column) = op.attr_int("blocksize", 0), op.place
    fewer = op.shape_after[1]
    (y, dy), (x, dx) = ((floor_div(one, block), mod(one, block)) for one in (row, column))
    within = dy * block + dx
    by_channel = op.attr_str("mode", "DCR") == "CRD"
    return op.at(0, (batch, channel * block * block + within if by_channel else within * fewer + channel, y, x))


@element_map("SpaceToDepth")
def space_to_depth(op: Moving) -> Element:
    """Pixels of blocks as channels."""
    block, (batch, channel, row, column) = op.attr_int("blocksize", 0), op.place
    channels = op.known_shape(0)[1]
    within, source = floor_div(channel, channels), mod(channel, channels)
    return op.at(0, (batch, source, row * block + floor_div(within, block), column * block + mod(within, block)))


@element_map("ReverseSequence")
def reverse_sequence(op: Moving) -> Element:
    """The first elements of each sequence backwards, as many as its length."""
    time, batch, place = op.attr_int("time_axis", 0), op.attr_int("batch_axis", 1), op.place

    def reversed_by(length: Element) -> Element:
        last = number_of(length) - 1
        backwards = [last - here if number == time else here for number, here in enumerate(place)]
        return Select(last - place[time], op.at(0, backwards), op.at(0, place))

    return lifted(reversed_by, op.at(1, (place[batch],)))
