"""Describe an operator to ortfuse: its traits, shape function, value range, cost and layout interface, in one call."""

from __future__ import annotations

from ortfuse.analysis.costs import COSTS, CostOf
from ortfuse.analysis.ranges.queries import BY_ELEMENT, COLUMNS, RANGES, Answer
from ortfuse.analysis.transfer.op import TRANSFERS, Transfer
from ortfuse.errors import OperatorError
from ortfuse.ir.operators import describe, key_of, op_info
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE
from ortfuse.transforms.canonicalize.strided_views import INDEX_MAPS, IndexMap
from ortfuse.transforms.layout.layout_op import LAYOUTS, Interface

_BUILT_IN = {"", "ai.onnx.ml", "com.microsoft"}


def describe_operator(
    operator: str,
    *,
    traits: str = "",
    shape: Transfer | None = None,
    value_range: Answer | None = None,
    end_column: Answer | None = None,
    cost: CostOf | None = None,
    layout: Interface | None = None,
    index_map: IndexMap | None = None,
    replace: bool = False,
) -> None:
    """Enter an operator into the registry, or add to its entry.

    All analyses and passes of the process use the entry from then on. Traits tell cost and layout of most operators; a function
    takes precedence. Call `register_operators` first for an operator that rules make or that needs kernels.

    Args:
        operator: The operator with its domain: `my.domain.Square`.
        traits: Traits of `ortfuse.ir.traits`, separated by spaces: `pure elementwise`.
        shape: The shape function: takes an `Op`, returns the `Fact` of the first output, or a tuple with one per output.
        value_range: Takes an `Asking`, returns the `Range` of the elements of the output, or `None`.
        end_column: The same for the first and the last index of the last axis.
        cost: Takes a `NodeSizes`, returns the `Work` of one execution.
        layout: Takes a node and the facts, returns the unit that writes the node for another order of axes, or `None`.
        index_map: Takes a `View` of the first input, the node and the facts, returns the view that the output is, or `None`.
        replace: Whether to replace what ortfuse itself knows of an operator of ONNX or of the runtime.

    Raises:
        ValueError: There is no such trait.
        OperatorError: ortfuse itself describes the operator, and `replace` is not given.
    """
    key = key_of(operator)
    given = {
        TRANSFERS.name: shape,
        RANGES.name: value_range,
        COLUMNS.name: end_column,
        COSTS.name: cost,
        LAYOUTS.name: layout,
        INDEX_MAPS.name: index_map,
    }
    known = op_info(*key).facets
    twice = [name for name, entry in given.items() if entry is not None and name in known]
    if twice and not replace and key[0] in _BUILT_IN:
        raise OperatorError(
            f"{operator}: ortfuse itself describes its {', '.join(twice)}; leave that out, or pass `replace=True` to replace it"
        )
    describe(operator, traits=traits)
    if shape is not None:
        TRANSFERS[key] = shape
    if value_range is not None:
        RANGES[key] = value_range
        if operator in ELEMENTWISE or operator in BROADCASTS:
            BY_ELEMENT[key] = value_range
    if end_column is not None:
        COLUMNS[key] = end_column
    if cost is not None:
        COSTS[key] = cost
    if layout is not None:
        LAYOUTS[key] = layout
    if index_map is not None:
        INDEX_MAPS[key] = index_map
