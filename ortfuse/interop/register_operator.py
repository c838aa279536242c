"""Register a custom operator with its traits, shape function, value range, cost and layout interface, in one call."""

from __future__ import annotations

from typing import Any

from ortfuse.analysis.costs import COSTS, CostOf
from ortfuse.analysis.index_maps import ELEMENT_MAPS, Moves
from ortfuse.analysis.ranges.queries import BY_ELEMENT, COLUMNS, RANGES, Answer
from ortfuse.analysis.transfer.transfer_function_registry import TRANSFERS, Transfer
from ortfuse.errors import OperatorError
from ortfuse.ir.operator_registry import Facet, describe, key_of
from ortfuse.ir.traits import BROADCASTS, ELEMENTWISE
from ortfuse.transforms.layout.layout_unit import LAYOUTS, Interface

_OF_ONNX_AND_RUNTIME = ("ai.onnx.", "com.microsoft")
"""Beginnings of the domains whose operators ortfuse describes, besides that of ai.onnx, which is empty."""


def describe_operator(
    operator: str,
    *,
    traits: str = "",
    shape: Transfer | None = None,
    value_range: Answer | None = None,
    end_column: Answer | None = None,
    cost: CostOf | None = None,
    layout: Interface | None = None,
    index_map: Moves | None = None,
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
        index_map: Takes a `Moving`, returns the `Element` of the output at `op.place`, of `ortfuse.analysis.index_maps`.
        replace: Whether to replace what ortfuse itself knows of an operator of ONNX or of the runtime.

    Raises:
        ValueError: There is no such trait.
        OperatorError: ortfuse itself describes the operator, and `replace` is not given.
    """
    key = key_of(operator)
    given: list[tuple[Facet[Any], object]] = [
        (TRANSFERS, shape),
        (RANGES, value_range),
        (COLUMNS, end_column),
        (COSTS, cost),
        (LAYOUTS, layout),
        (ELEMENT_MAPS, index_map),
    ]
    entries = [(facet, entry) for facet, entry in given if entry is not None]
    known = [facet.name for facet, _ in entries if key in facet]
    if known and not replace and (not key[0] or key[0].startswith(_OF_ONNX_AND_RUNTIME)):
        raise OperatorError(
            f"{operator}: ortfuse itself describes its {', '.join(known)}; leave that out, or pass `replace=True` to replace it"
        )
    describe(operator, traits=traits, **{facet.name: entry for facet, entry in entries})
    if value_range is not None and (operator in ELEMENTWISE or operator in BROADCASTS):
        BY_ELEMENT[key] = value_range
