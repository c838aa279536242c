"""Index maps: which element of which value each element of a value is, for data movement of every kind.

A map gives the element at each position (`elements`): the element of a source at an index, an integer that the position
determines, or one of several by conditions. Indices, integers and conditions are formulas of `ortfuse.ir.dims` with the
positions along the axes as further variables (`box`), so that sizes may be symbols.

    transpose(x)            x[@1, @0]
    reshape(x, [6])         x[@0 // 3, @0 - 3*(@0 // 3)]              x of [2, 3]
    concat(x, y)            x[@0] if 1 - @0 >= 0 else y[@0 - 2]       x of [2]
    range(0, n)             @0

Integers are followed through arithmetic and comparisons, so that Gather and Scatter with computed indices are data movement, too.
"""

from ortfuse.analysis.index_maps import (
    concat_pad_where,
    indexing,
    integer_and_bool_operators,
    reshape_transpose_expand,
    scattering,
)
from ortfuse.analysis.index_maps.box import Box, axes, axis
from ortfuse.analysis.index_maps.element_expressions import Element, Fill, IndexMap, Number, Read, Select, leaves
from ortfuse.analysis.index_maps.evaluation import evaluated
from ortfuse.analysis.index_maps.index_map_query import (
    ELEMENT_MAPS,
    IndexMapOf,
    Moves,
    Moving,
    Taken,
    element_map,
    moves_elements,
)

__all__ = [
    "ELEMENT_MAPS",
    "Box",
    "Element",
    "Fill",
    "IndexMap",
    "IndexMapOf",
    "Moves",
    "Moving",
    "Number",
    "Read",
    "Select",
    "Taken",
    "axes",
    "axis",
    "concat_pad_where",
    "element_map",
    "evaluated",
    "indexing",
    "integer_and_bool_operators",
    "leaves",
    "moves_elements",
    "reshape_transpose_expand",
    "scattering",
]
