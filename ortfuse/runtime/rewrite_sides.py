"""Extract the two sides of a rewrite as standalone models: the matched nodes, and the nodes that replace them.

Both have the real weights and the same inputs: the values at the border of the rewrite. Facts from the rest of the
model about these values are preserved where possible:

- Integers in shape tensors, which the facts give as formulas of the model's sizes, are computed from the sizes of the run.
- Values computed only from integer inputs of the model, sizes and small constants (positions, masks) are computed by the
  model's own nodes, which are included in both models.
- The output of an operator with a limited range (Softmax, Relu, Exp, ...) is computed by that operator.
- Values that only the old nodes read are computed from those that the new nodes read, if they are in the model.
- Everything else is random, in the shape given by the facts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import VerificationError
from ortfuse.ir import walk
from ortfuse.ir.dims import DimLike, symbol
from ortfuse.ir.edit import Edit
from ortfuse.ir.purity import draws_random
from ortfuse.ir.traits import LAYER, RANGED, SIZES, has
from ortfuse.runtime.inputs.input_roles import Role, role_of
from ortfuse.runtime.inputs.random_inputs import Array, InputSpec
from ortfuse.runtime.submodel import model_of, taken, upstream

SMALL = 1 << 16
"""Limit in bytes on constants that an input of a rewrite is computed from; larger ones are tables or weights."""

MOST_NODES = 150
"""The most nodes that one input of a rewrite is computed by."""

_MOST_RANGED = 4

_MOST_BETWEEN = 64
"""The most nodes above the old nodes that are searched for values which the new nodes read."""


@dataclass(frozen=True)
class Sides:
    """The two sides of a rewrite as models.

    Attributes:
        before: The model of the old nodes; its outputs are named after the values they stand for.
        after: The model of the new nodes, with the same names.
        inputs: The inputs of both models.
        border: The values of the whole model that these inputs correspond to.
    """

    before: ir.Model
    after: ir.Model
    inputs: list[InputSpec]
    border: list[ir.Value]


def sides(site: Edit, *, prelude: bool = True, observed: Mapping[str, Array] | None = None) -> Sides:
    """Cut a rewrite out of its model, which is not changed.

    Args:
        site: The rewrite.
        prelude: Whether to compute inputs that depend only on integer inputs of the model and constants.
        observed: Values that the model computed, by name: their shapes are used where no other is known.

    Raises:
        VerificationError: The rewrite cannot be cut out; the message says why.
    """
    matched, added = set(site.nodes), set(site.added)
    olds, news = [old for old, _ in site.outputs], [new for _, new in site.outputs]
    inside = set(upstream(olds, matched.__contains__)) | set(upstream(news, (matched | added).__contains__))
    inside |= _between(_border(olds, inside - added), _border(news, inside), inside, site)
    for value in _border([*olds, *news], inside) if prelude else ():
        if _known_integers(value, site.facts) is None:
            inside |= _prelude(value, site)
    border = [value for value in _border([*olds, *news], inside) if not _is_constant(value)]
    names = _names(border, olds)
    known = _Known(site.facts, observed or {})
    before = _model(olds, olds, inside - added, names, site, known)
    after = _model(olds, news, inside, names, site, known)
    return Sides(before, after, _specs(before, border, known), border)


class _Known:
    """The sources of an input's type and shape: the facts, else observed values, else the declaration, which may be wrong."""

    def __init__(self, facts: Facts, observed: Mapping[str, Array]) -> None:
        self.facts, self._observed = facts, observed

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """The element type of a value."""
        array = self._observed.get(value.name or "")
        seen = None if array is None else ir.DataType.from_numpy(array.dtype)
        return self.facts.dtype(value) or seen or value.dtype

    def shape(self, value: ir.Value) -> tuple[DimLike, ...] | None:
        """The shape of a value."""
        shape, array = self.facts.shape(value), self._observed.get(value.name or "")
        if shape is not None:
            return shape
        if array is not None:
            return tuple(int(size) for size in array.shape)
        if value.shape is None or any(not isinstance(dim, int) and dim.value is None for dim in value.shape):
            return None
        return tuple(dim if isinstance(dim, int) else symbol(dim.value or "") for dim in value.shape)


def _border(values: Iterable[ir.Value], inside: Collection[ir.Node]) -> list[ir.Value]:
    """The values from elsewhere that the nodes `inside` need in order to compute `values`."""
    values = list(values)
    used = [value for node in upstream(values, inside.__contains__) for value in walk.used_values(node)]
    return [value for value in dict.fromkeys([*used, *values]) if value.producer() not in inside]


def _is_constant(value: ir.Value) -> bool:
    return value.const_value is not None and value.producer() is None


def _known_integers(value: ir.Value, facts: Facts) -> tuple[DimLike, ...] | None:
    """The integers in a shape tensor, if all of them are known."""
    found = facts.ints(value)
    known = () if found is None else tuple(element for element in found.elements if element is not None)
    return known if found is not None and len(known) == len(found.elements) else None


def _between(old: Sequence[ir.Value], new: Sequence[ir.Value], inside: Collection[ir.Node], site: Edit) -> set[ir.Node]:
    """The nodes that compute values which the old nodes alone read from values that the new nodes read.

    A rewrite may go back to values above its nodes, as one that hoists a Reshape does. Random numbers in the place of both would
    contradict each other. Sizes agree without that.

    Args:
        old: The values from elsewhere that the old nodes read.
        new: Those that the new nodes read.
        inside: The old and the new nodes.
        site: The rewrite.
    """
    sized = {value for value in new if all(use.node.op_type in SIZES for use in value.uses() if use.node in inside)}
    ends = {value for value in new if value not in sized and not _is_constant(value)}
    computed = [value for value in old if value not in set(new)]
    near = set(_nearest_above(computed, ends, site))
    between: set[ir.Node] = set()
    for node in upstream(computed, near.__contains__):
        if any(value in ends or value.producer() in between for value in walk.used_values(node)):
            between.add(node)
    return between


def _nearest_above(values: Sequence[ir.Value], ends: Collection[ir.Value], site: Edit) -> Iterable[ir.Node]:
    """The nodes that are the fewest steps above values, without those that compute `ends` or cannot be cut out."""
    found: dict[ir.Node, None] = {}
    waiting = deque(values)
    while waiting and len(found) < _MOST_BETWEEN:
        value = waiting.popleft()
        node = value.producer()
        if node is None or node in found or value in ends or node in site.added or not _can_be_copied(node):
            continue
        found[node] = None
        waiting.extend(walk.used_values(node))
    return found


def _prelude(value: ir.Value, site: Edit) -> set[ir.Node]:
    """The nodes of the model that compute `value`; an empty set if it is to be random."""
    computed = _computed(value, site)
    return computed if computed is not None else _ranged(value, site.facts)


def _computed(value: ir.Value, site: Edit) -> set[ir.Node] | None:
    """All nodes upstream of a value that depends only on integer inputs of the model, sizes and small constants."""
    nodes: set[ir.Node] = set()
    stack = [value]
    while stack:
        above = stack.pop()
        producer = above.producer()
        if producer is None:
            if not _is_small(above) and not _is_integer_input(above, site):
                return None
        elif producer not in nodes:
            nodes.add(producer)
            is_layer = producer.domain or producer.op_type in LAYER
            if len(nodes) > MOST_NODES or is_layer or not _can_be_copied(producer) or producer in site.added:
                return None
            if producer.op_type not in SIZES:
                stack += [operand for operand in producer.inputs if operand is not None]
            elif site.facts.shape(producer.inputs[0]) is None:
                return None
    return nodes


def _is_small(value: ir.Value) -> bool:
    return value.const_value is not None and value.const_value.nbytes <= SMALL


def _is_integer_input(value: ir.Value, site: Edit) -> bool:
    dtype = site.facts.dtype(value)
    whole = dtype is not None and (dtype.is_integer() or dtype == ir.DataType.BOOL)
    return value.is_graph_input() and value.const_value is None and value.graph is site.scope.root and whole


def _can_be_copied(node: ir.Node) -> bool:
    return not walk.subgraphs(node) and _can_be_cut_out(node)


def _can_be_cut_out(node: ir.Node) -> bool:
    nodes = [node, *walk.nested_nodes(node)]
    return not any(draws_random(one) or any(a.is_ref() for a in one.attributes.values()) for one in nodes)


def _ranged(value: ir.Value, facts: Facts) -> set[ir.Node]:
    nodes: set[ir.Node] = set()
    producer = value.producer()
    while producer is not None and has(producer, RANGED) and len(nodes) < _MOST_RANGED:
        operand = producer.inputs[0]
        if facts.shape(operand) is None or facts.dtype(operand) is None or not _can_be_copied(producer):
            break
        nodes.add(producer)
        producer = operand.producer() if operand is not None else None
    return nodes


def _names(border: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> dict[ir.Value, str]:
    """Unique names for the inputs and outputs of the models."""
    names: dict[ir.Value, str] = {}
    taken: set[str] = set()
    for number, value in enumerate(dict.fromkeys([*outputs, *border])):
        name = value.name or f"value_{number}"
        names[value] = name if name not in taken else f"{name}_{number}"
        taken.add(names[value])
    return names


def _model(
    outputs: Sequence[ir.Value],
    computed: Sequence[ir.Value],
    inside: Collection[ir.Node],
    names: dict[ir.Value, str],
    site: Edit,
    known: _Known,
) -> ir.Model:
    """A model of the nodes `inside` that outputs `computed` under the names of `outputs`."""
    nodes = upstream(computed, inside.__contains__)
    for node in nodes:
        if not _can_be_cut_out(node):
            raise VerificationError(f"{walk.describe(node)} draws random numbers or belongs to a function")
    both = [*(old for old, _ in site.outputs), *(new for _, new in site.outputs)]
    inputs = {value: names[value] for value in _border(both, {*inside, *site.added}) if not _is_constant(value)}
    used = dict.fromkeys([*taken(nodes), *computed])
    constants = {value: value.const_value for value in used if _is_constant(value) and value.const_value is not None}
    named = [(names[old], value) for old, value in zip(outputs, computed, strict=True)]
    model = model_of(nodes, inputs, named, constants, site.scope.root.opset_imports)
    for copy, value in [
        *zip(model.graph.inputs, inputs, strict=True),
        *zip(model.graph.outputs, outputs, strict=True),
    ]:
        _declare(copy, value, known)
    return model


def _declare(copy: ir.Value, value: ir.Value, known: _Known) -> None:
    """Give a copy of a value the type that is known, and the shape as far as it is a fact."""
    dtype, shape = known.dtype(value), known.facts.shape(value)
    if dtype is None:
        raise VerificationError(f"the element type of '{value.name}' is not known")
    copy.type = ir.TensorType(dtype)
    copy.shape = None if shape is None else ir.Shape([dim if isinstance(dim, int) else None for dim in shape])


def _specs(before: ir.Model, border: Sequence[ir.Value], known: _Known) -> list[InputSpec]:
    """Specify the inputs from the facts of the whole model and from how the old nodes use them."""
    own = Facts(before)
    found = []
    for value, copy in zip(border, before.graph.inputs, strict=True):
        dtype, shape = known.dtype(value), known.shape(value)
        if dtype is None or shape is None:
            raise VerificationError(f"the rank or element type of '{value.name}' is not known")
        elements = _known_integers(value, known.facts)
        role = role_of(copy, own) if elements is None else Role()
        found.append(InputSpec(copy.name or "", dtype, shape, role, elements))
    return found
