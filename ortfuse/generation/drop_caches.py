"""Remove caches that attention no longer reads from a decoder, and compute from other inputs the sizes that they told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.transfer.value_fact import Shape
from ortfuse.generation.decoder_interface import Cache, DecoderInterface
from ortfuse.generation.plan_nodes import PlanNodes
from ortfuse.generation.size_nodes import size_of
from ortfuse.ir.dims import symbols
from ortfuse.ir.value_names import unused_name
from ortfuse.ir.walk import used_values

Attended = Mapping[ir.Node, Collection[Cache]]
"""Attention that is replaced, each with the caches that it reads."""


def caches_of_unknown_sizes(model: ir.Model, facts: Facts, attended: Attended) -> set[Cache]:
    """The caches on which sizes depend that could not be computed without them."""
    caches = _caches(attended)
    known = set(_sized_inputs(model, facts, caches)) | {name for cache in caches if (name := _past_of(cache, facts))}
    found = set[Cache]()
    for node, owners in _queries(model, attended).items():
        dims = _asked(node, facts)
        if dims is None or any(name not in known for dim in dims for name in symbols(dim)):
            found |= owners
    return found


def drop_caches(
    model: ir.Model, facts: Facts, nodes: PlanNodes, attended: Attended, length_of: Callable[[Cache], ir.Value]
) -> None:
    """Remove caches in place, whose readers are replaced already.

    Args:
        model: The model.
        facts: Its facts before the readers were replaced.
        nodes: Adds nodes.
        attended: The attention that was replaced, with its caches.
        length_of: Adds nodes for the length of a cache, int64 [1], as attention read it.
    """
    graph, caches = model.graph, _caches(attended)
    sizes, queries = _sized_inputs(model, facts, caches), _queries(model, attended)
    asked = {name for node in queries for dim in _asked(node, facts) or () for name in symbols(dim)}
    known: dict[str, ir.Value] = {}
    for cache in caches:
        name = _past_of(cache, facts)
        if name in asked and name not in known:
            known[name] = length_of(cache)
    for name in asked - set(known):
        value, number = sizes[name]
        known[name] = nodes.add("Shape", [value], {"start": number, "end": number + 1})
    for node in queries:
        parts = [size_of(dim, known, nodes) for dim in _asked(node, facts) or ()]
        made = parts[0] if len(parts) == 1 else nodes.add("Concat", parts, {"axis": 0})
        assert made is not None
        _take_over(graph, node.outputs[0], made, nodes)
    for cache in caches:
        graph.outputs.remove(cache.present)
    for node in reversed(list(graph)):
        if not any(one.uses() or one.is_graph_output() for one in node.outputs):
            graph.remove(node, safe=True)
    for cache in caches:
        graph.inputs.remove(cache.past)


def _take_over(graph: ir.Graph, old: ir.Value, new: ir.Value, nodes: PlanNodes) -> None:
    """Let what reads a value read another, and an output of its name be that."""
    for use in tuple(old.uses()):
        use.node.replace_input_with(use.idx, new)
    if old.is_graph_output():
        name, handed_on = old.name, nodes.add("Identity", [new])
        handed_on.type, handed_on.shape = old.type, old.shape
        old.name, handed_on.name = nodes.name(), name
        graph.outputs[:] = [handed_on if output is old else output for output in graph.outputs]


def past_name(model: ir.Model, facts: Facts, interface: DecoderInterface) -> str:
    """The name of the number of tokens of the past, for the shapes of caches that take the place of others."""
    shapes = {value: facts.shape(value) or () for value in model.graph.inputs}
    whole = [shapes[cache.past][cache.axis] for cache in interface.caches if cache.kept is None]
    if interface.mask is not None and interface.mask_kept(facts) is None:
        whole.append(shapes[interface.mask][-1] - shapes[interface.tokens][1])
    names = [str(dim) for dim in whole if symbols(dim) == {str(dim)}]
    taken = {name for shape in shapes.values() for dim in shape for name in symbols(dim)}
    return names[0] if names else unused_name("past_tokens", taken)


def _caches(attended: Attended) -> list[Cache]:
    """The caches, each once."""
    return list(dict.fromkeys(cache for caches in attended.values() for cache in caches))


def _past_of(cache: Cache, facts: Facts) -> str:
    """The symbol that is the length of a cache; "" if it is none."""
    dim = (facts.shape(cache.past) or ())[cache.axis]
    return str(dim) if symbols(dim) == {str(dim)} else ""


def _asked(node: ir.Node, facts: Facts) -> Shape | None:
    """The sizes that a Shape tells."""
    dims = facts.shape(node.inputs[0])
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
    return None if dims is None else dims[start:end]


def _queries(model: ir.Model, attended: Attended) -> dict[ir.Node, set[Cache]]:
    """Nodes that ask for sizes of what is made of caches, with these."""
    made: dict[ir.Value, set[Cache]] = {cache.past: {cache} for cache in _caches(attended)}
    queries = {}
    for node in model.graph:
        used = {cache for value in used_values(node) for cache in made.get(value, ())}
        if not used or node in attended:
            continue
        if node.op_type == "Shape" and not node.domain:
            queries[node] = used
        else:
            made |= dict.fromkeys(node.outputs, used)
    return queries


def _sized_inputs(model: ir.Model, facts: Facts, dropped: Collection[Cache]) -> dict[str, tuple[ir.Value, int]]:
    """The input and axis that tell a size, by its name."""
    gone = {cache.past for cache in dropped}
    found: dict[str, tuple[ir.Value, int]] = {}
    for value in model.graph.inputs:
        for number, dim in enumerate(facts.shape(value) or ()):
            if value not in gone and symbols(dim) == {str(dim)}:
                found.setdefault(str(dim), (value, number))
    return found
