"""Let a decoder hand out whole caches where it has outputs of the new tokens alone, which its caller appends to the inputs.

    whole = Concat(moved past, moved new)      what the decoder reads: whole[i] = past[f(i)], and new[j] behind it
    output[f(j)] = new[j]                      in the layout of the input

Then whoever appends the output to the input, along the axis of the tokens, gives the next step all that this one has read. The
output becomes that of a Concat of both.

Requires: each Concat behind the input to hold for the same output, at all indices; nothing of the input in an output.

Does not handle: new tokens in another layout than the input, which the caller would have to move before it appends them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.analysis.index_maps import Box, Element, Read, axes, axis, leaves, moves_elements
from ortfuse.generation.cache_elements import Elements
from ortfuse.generation.cache_pairs import may_be_cache
from ortfuse.generation.decoder_interface import PAST
from ortfuse.ir.declared_sizes import KEY, LARGEST, DeclaredSizes, declared_sizes
from ortfuse.ir.dims import Dim, DimLike, parse, substituted, symbol, symbols
from ortfuse.ir.value_names import unused_name, value_names


@dataclass(frozen=True)
class NewTokens:
    """An output of new tokens.

    Attributes:
        past: The input that they are appended to.
        output: The output.
        axis: The axis of the tokens.
        whole: A value of the graph that is both, in the layout of the input; `None` if there is none.
    """

    past: ir.Value
    output: ir.Value
    axis: int
    whole: ir.Value | None


def append_new_tokens(model: ir.Model) -> tuple[str, ...]:
    """Append outputs of new tokens to their inputs, in place; the names of these outputs.

    Args:
        model: A decoder, in topological order.
    """
    facts = _facts_of_a_step(model)
    found = list(find_new_tokens(model.graph, facts))
    names = value_names(model.graph)
    return tuple(_append(model.graph, one, names, facts) for one in found)


def _facts_of_a_step(model: ir.Model) -> Facts:
    """The facts of a model in a step, which has a new token or more: sizes of integers that no cache has are at least 1."""
    sizes: dict[bool, set[str]] = {True: set(), False: set()}
    for value in model.graph.inputs:
        is_integer = value.dtype is not None and value.dtype.is_integer()
        sizes[is_integer] |= {dim.value for dim in value.shape or () if isinstance(dim, ir.SymbolicDim) and dim.value}
    declared, stored = declared_sizes(model), model.metadata_props.get(KEY)
    names = [name for name in sizes[True] - sizes[False] if parse(name) == symbol(name)]
    bounds = {name: declared.size_range.get(name, (1, LARGEST)) for name in names}
    DeclaredSizes(size_range={name: (max(low, 1), high) for name, (low, high) in bounds.items()}).store(model)
    facts = Facts(model)
    if stored is None:
        del model.metadata_props[KEY]
    else:
        model.metadata_props[KEY] = stored
    return facts


def find_new_tokens(graph: ir.Graph, facts: Facts) -> Iterator[NewTokens]:
    """Yield the outputs of new tokens alone, each with the input that they are appended to."""
    inputs = [value for value in graph.inputs if value.name not in graph.initializers and may_be_cache(value, facts)]
    elements = Elements(facts, set(inputs))
    handed_on, outputs = set[ir.Value](), []
    for output in graph.outputs if inputs else ():
        if may_be_cache(output, facts):
            shape = facts.shape(output) or ()
            whole = elements.at(output, axes(len(shape)), Box.of_shape(shape))
            read = {leaf.value for leaf in leaves(whole) if isinstance(leaf, Read) and leaf.value in inputs}
            handed_on |= read
            outputs += [] if read else [output]
    for past in inputs:
        appended = [_Appended.of(node, past, elements, facts) for node in appending(past, facts)]
        if past in handed_on or not appended or None in appended:
            continue
        known = [one for one in appended if one is not None]
        for output in outputs:
            if len({one.axis for one in known}) == 1 and all(
                one.is_handed_out(output, elements, facts) for one in known
            ):
                outputs.remove(output)
                same = next((one.whole for one in known if one.index == axes(len(one.index))), None)
                yield NewTokens(past, output, known[0].axis, same)
                break


def appending(past: ir.Value, facts: Facts) -> list[ir.Node]:
    """The nodes that append to an input, as it is or moved: Concat, and attention with a past."""
    pending, seen, found = [past], {past}, dict[ir.Node, None]()
    while pending:
        for use in pending.pop().uses():
            node = use.node
            if (node.domain, node.op_type) == ("", "Concat") or use.idx in PAST.get(node.op_type, ()):
                found[node] = None
            elif moves_elements(node, facts.dtype):
                kept = [one for one in node.outputs if facts.dtype(one) == facts.dtype(past) and one not in seen]
                pending += kept
                seen.update(kept)
    return list(found)


@dataclass(frozen=True)
class _Appended:
    """A Concat of an input and new tokens.

    Attributes:
        index: Where in the input an element before the new tokens is.
        length: How many tokens the input has.
        new: The new tokens.
        shape: Their shape.
        axis: The axis of the tokens in the input.
        along: Their axis in the Concat.
        whole: What the Concat makes of both.
    """

    index: tuple[DimLike, ...]
    length: DimLike
    new: ir.Value
    shape: tuple[DimLike, ...]
    axis: int
    along: int
    whole: ir.Value

    @staticmethod
    def of(node: ir.Node, past: ir.Value, elements: Elements, facts: Facts) -> _Appended | None:
        """Read a Concat of all tokens of an input and new ones; `None` for another one."""
        is_pair = node.op_type == "Concat" and len(node.inputs) == 2
        old, new = node.inputs if is_pair else (None, None)
        if old is None or new is None:
            return None
        before, after, whole = facts.shape(old), facts.shape(new), facts.shape(past)
        if before is None or after is None or whole is None:
            return None
        along = (node.attributes.get_int("axis", 0) or 0) % len(before)
        read = elements.at(old, axes(len(before)), Box.of_shape(before))
        if not isinstance(read, Read) or read.value is not past:
            return None
        places = [number for number, one in enumerate(read.index) if one == axis(along)]
        others = [one for number, one in enumerate(read.index) if number not in places]
        if len(places) != 1 or any(str(axis(along)) in symbols(one) for one in others):
            return None
        if whole[places[0]] != before[along]:
            return None
        return _Appended(read.index, before[along], new, after, places[0], along, node.outputs[0])

    def is_handed_out(self, output: ir.Value, elements: Elements, facts: Facts) -> bool:
        """Whether an output has the new tokens in the layout of the input."""
        shape, box = facts.shape(output), Box.of_shape(self.shape)
        if shape is None or len(shape) != len(self.index) or facts.dtype(output) != facts.dtype(self.new):
            return False
        index, added = self.index, self.shape[self.along]
        if isinstance(self.length, Dim):
            index = tuple([substituted(one, {str(self.length): added}) for one in index])
        wanted: Element = elements.at(self.new, axes(len(self.shape)), box)
        return shape[self.axis] == added and elements.at(output, index, box) == wanted


def _append(graph: ir.Graph, found: NewTokens, names: set[str], facts: Facts) -> str:
    """Let an output be that of a Concat with its input; its name, which stays."""
    past, new, whole = found.past, found.output, found.whole
    if whole is None or whole.is_graph_output():
        node = ir.node("Concat", [past, new], {"axis": found.axis})
        graph.append(node)
        (whole,) = node.outputs
    dims = list(facts.shape(past) or ())
    dims[found.axis] = dims[found.axis] + (facts.shape(new) or ())[found.axis]
    whole.type, whole.shape = past.type, ir.Shape([dim if isinstance(dim, int) else str(dim) for dim in dims])
    for number, output in enumerate(list(graph.outputs)):
        if output is new:
            graph.outputs[number] = whole
    name = new.name or ""
    new.name, whole.name = unused_name(f"{name}_alone", names), name
    return name
