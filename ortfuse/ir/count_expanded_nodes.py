"""Count the nodes that a model has after inlining all functions, without inlining them.

Functions that call each other twice double the nodes at each level: a file of 5 kB stands for 2^60 nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Mapping
from typing import TypeVar

import onnx_ir as ir

from ortfuse.ir.walk import nodes_within

MOST_NODES = 50_000
"""The most nodes that calls of functions are replaced by; beyond that all calls stay calls."""

_SPOKEN = 10**18
"""Numbers of nodes beyond this one are not written out."""

Name = TypeVar("Name", bound=Hashable)


def expanded_nodes(model: ir.Model, kept: Container[tuple[str, str]] = ()) -> int | None:
    """Count the nodes that all calls in the main graph stand for; `None` if functions call each other in a circle.

    Args:
        model: The model.
        kept: Domains and names of operators that are executed as they are, although there are functions for them.
    """
    sizes = {
        name: sum(1 for _ in nodes_within(function.graph))
        for name, function in model.functions.items()
        if name[:2] not in kept
    }
    calls = {name: _calls(function.graph, sizes) for name, function in model.functions.items() if name in sizes}
    return total(sizes, calls, _calls(model.graph, sizes))


def total(sizes: Mapping[Name, int], calls: Mapping[Name, Mapping[Name, int]], main: Mapping[Name, int]) -> int | None:
    """Count the nodes that all calls in a graph stand for, over the call graph; `None` if that has a circle.

    Args:
        sizes: The nodes of each function, calls of other functions among them.
        calls: How often each function calls which functions.
        main: How often the graph calls which functions.
    """
    found: dict[Name, int] = {}
    waiting, entered = list(main), set[Name]()
    while waiting:
        name = waiting[-1]
        missing = [other for other in calls[name] if other not in found]
        if name in found or not missing:
            found[name] = sizes[name] + sum(times * found[other] for other, times in calls[name].items())
            waiting.pop()
        elif name in entered:
            return None
        else:
            entered.add(name)
            waiting += missing
    return sum(times * found[name] for name, times in main.items())


def calls_in_all(model: ir.Model) -> Counter[ir.OperatorIdentifier]:
    """Count the calls of each function with the functions in the place of all calls.

    The functions must not call each other in a circle.
    """
    functions = model.functions
    calls = {name: _calls(function.graph, functions) for name, function in functions.items()}
    callers = Counter(other for found in calls.values() for other in found)
    times, ready = _calls(model.graph, functions), [name for name in functions if not callers[name]]
    while ready:
        name = ready.pop()
        for other, number in calls[name].items():
            times[other] += number * times[name]
            callers[other] -= 1
            if not callers[other]:
                ready.append(other)
    return times


def beyond(nodes: int | None, most: int = MOST_NODES) -> str | None:
    """A phrase that says why calls are not replaced by so many nodes; `None` if they may be.

    Args:
        nodes: What `expanded_nodes` counted.
        most: The most that they may be.
    """
    if nodes is None:
        return "functions call themselves"
    if nodes <= most:
        return None
    spoken = f"{nodes:,}" if nodes < _SPOKEN else f"more than 10^{18}"
    return f"calls of functions stand for {spoken} nodes; the limit is {most:,}"


def _calls(graph: ir.Graph, functions: Container[ir.OperatorIdentifier]) -> Counter[ir.OperatorIdentifier]:
    """The functions that the nodes of a graph call, and how often."""
    return Counter(node.op_identifier() for node in nodes_within(graph) if node.op_identifier() in functions)
