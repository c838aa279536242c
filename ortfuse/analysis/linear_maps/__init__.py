"""Linear maps: values as A x + b over channels, A diagonal or the weights of a layer, and how these compose.

- `diagonal`: nodes that scale and shift by constants;
- `layers`: convolutions and products with constant weights, in one form;
- `channels`: the channels of a layer in values that are moved or averaged from its result, by index maps;
- `carriers`: means and maxima through which maps of channels can be moved;
- `composition`: the arithmetic, in float64;
- `windows`: the positions that convolutions read.
"""

from ortfuse.analysis.linear_maps.carriers import CARRIERS, Carried, carried, leaves_channels
from ortfuse.analysis.linear_maps.diagonal import DIAGONALS, Diagonal, diagonal_of
from ortfuse.analysis.linear_maps.layers import LAYERS, Layer, layer_of
from ortfuse.analysis.linear_maps.trace_layer_channels import Reading, Readings, along, by_channel, readings_of
from ortfuse.analysis.linear_maps.windows import Window, placed, pointwise, united, window

__all__ = [
    "CARRIERS", "DIAGONALS", "LAYERS",
    "Carried", "Diagonal", "Layer", "Reading", "Readings", "Window", "along", "by_channel", "carried",
    "diagonal_of", "layer_of", "leaves_channels", "placed", "pointwise", "readings_of", "united", "window",
]  # fmt: skip
