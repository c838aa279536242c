"""Assign one quantisation range to values that hold the same numbers, so that integers pass between sites.

Sites may derive ranges in different ways, but a value has one range: that of the site that computes it. If that site makes no
integers, the first site that asks decides.

The output of an operator that only moves or picks elements (a Reshape, a MaxPool) has the range of its input, although its
own numbers may have a smaller one. Both then have the same scale, and nothing is rounded in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from ortfuse.ir.traits import FILLS, JOINS, MOVES
from ortfuse.quantization.calibration import COLUMNS, MEANS, METHODS, MOMENTS, Calibration
from ortfuse.rewrite.pattern.match_result import Ranges

_KEEPING = (MOVES - JOINS - FILLS) | {"MaxPool"}
"""Operators whose results are numbers of their first input, and that the runtime has for integers of 8 bits."""

MOST_WIDER = 1.5
"""A range that is wider than this many times what the values themselves need is not shared: too many steps would be lost."""


def method_of(scheme: str) -> str:
    """How a scheme tells ranges: the method that its name begins with behind the dot; empty if there is none."""
    variant = scheme.partition(".")[2]
    return next((method for method in METHODS if variant == method or variant.startswith(f"{method}_")), "")


def ranges_of(graph: ir.Graph, calibration: Calibration, made_by: Mapping[str, str]) -> Ranges:
    """The ranges by name of value and method: those that the first observed values with these numbers have.

    Args:
        graph: The graph before schemes are applied.
        calibration: What was observed.
        made_by: The method of each site that makes integers, by the name of its value.
    """
    producers = {value.name: node for node in graph for value in node.outputs}
    methods = {name: method for name, method in made_by.items() if method}

    def seen(name: str, method: str) -> tuple[float, float] | None:
        return calibration.range(name, methods.setdefault(name, method))

    ways: dict[str, Callable[[str], Any]] = {
        COLUMNS: calibration.columns,
        MEANS: calibration.means,
        MOMENTS: calibration.moments,
    }

    def found(name: str, method: str) -> Any:
        if method in ways:
            return ways[method](name)
        own = known = seen(name, method)
        node = producers.get(name)
        while node is not None and not node.domain and node.op_type in _KEEPING and node.inputs[0] is not None:
            name = node.inputs[0].name or ""
            wider = seen(name, method)
            own = wider if own is None else own
            if own is not None and wider is not None and _width(wider) <= MOST_WIDER * _width(own):
                known = wider
            node = producers.get(name)
        return known

    return found


def _width(found: tuple[float, float]) -> float:
    return max(found[1], 0.0) - min(found[0], 0.0)
