"""Convert an ONNX model to the pattern or the replacement of a rule.

The inputs of the model are variables: any values of their element types and shapes, where a number is exactly that size and a
name any size, the same wherever it occurs. An initializer is a constant of exactly its numbers. Free operands and
attributes are captured instead:

- an initializer with the values of an input (one that ONNX lets a caller override), or named as free, is any constant of its
  element type and shape; one with a single number is any number, and a vector of integers any parameter (axes, a shape);
- an attribute named as free, `NODE.ATTRIBUTE`, is any value. A node is named by its own name or that of an output.

Free things of both models are the same if their names are; the name of an attribute is its own; `NODE.ATTRIBUTE=NAME` gives
it another. A file can name what is free by itself, in its metadata under `ortfuse.free`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import RuleError, TargetError
from ortfuse.interop.function_rules.convert_function_to_nodes import Body, Given
from ortfuse.io.convert_model_objects import AnyModel, enter
from ortfuse.targets import installed, raise_opset

METADATA = "ortfuse.free"
"""The key of a model's metadata under which the file names what is free in it."""

_SYMBOL = re.compile(r"[A-Za-z]\w*")


@dataclass
class Formula:
    """A model as a formula, and what is free in it.

    Attributes:
        name: The name of the file or graph in messages.
        model: The model, in a copy of its own.
        values: The captured constants.
        numbers: The captured numbers and parameters, by the names of their initializers.
        attributes: The captured attributes of nodes.
        unknown: The names given as free that the model does not have.
    """

    name: str
    model: ir.Model
    values: set[str] = field(default_factory=set)
    numbers: dict[str, Given] = field(default_factory=dict)
    attributes: dict[tuple[ir.Node, str], Given] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, model: AnyModel, free: Iterable[str] = ()) -> Formula:
        """A model of any kind as a formula.

        Raises:
            RuleError: What the file itself names as free is not in it, or cannot be free.
            OrtfuseError: The model cannot be used.
        """
        inside, source = enter(model)
        return cls.inside(inside, source.path.name if source.path is not None else source.name, free)

    @classmethod
    def inside(cls, model: ir.Model, name: str, free: Iterable[str]) -> Formula:
        """As `of`, for a model that is already a graph of our own."""
        made = cls(name, model)
        if not model.graph.outputs or not len(model.graph):
            raise RuleError(f"{name}: there are no nodes that compute an output, so that there is nothing to find")
        overridden = [value.name or "" for value in model.graph.inputs if value.const_value is not None]
        own = model.metadata_props.get(METADATA, "").replace(",", " ").split()
        for text in (*overridden, *own):
            made._free(text)
        if made.unknown:
            raise RuleError(f"{name}: {METADATA} names {_listed(made.unknown)}, which it does not have")
        for text in free:
            made._free(text)
        return made

    @property
    def graph(self) -> ir.Graph:
        """The main graph."""
        return self.model.graph

    @property
    def inputs(self) -> list[ir.Value]:
        """The inputs that are variables."""
        return [value for value in self.graph.inputs if value.const_value is None]

    def raised(self, free: Iterable[str]) -> Formula | None:
        """The same formula at the newest opset, if that is written differently and what is free can still be named so."""
        copy = self.model.clone()
        try:
            raise_opset(copy, installed().known_opset)
            made = Formula.inside(copy, self.name, free)
        except (RuleError, TargetError):
            return None
        return None if _forms(copy) == _forms(self.model) or made.unknown != self.unknown else made

    def body(self, names: dict[str, str] | None = None, outputs: Sequence[ir.Value] = ()) -> Body:
        """The nodes as the body of a function; `names` says what its inputs are called in the other model."""
        defaults = {given.name: _default(self.graph.initializers[name]) for name, given in self.numbers.items()}
        defaults |= {given.name: node.attributes[name].value for (node, name), given in self.attributes.items()}
        kinds = {given.name: given.type for given in (*self.numbers.values(), *self.attributes.values())}
        attributes = [ir.Attr(name, kinds[name], default) for name, default in defaults.items()]
        function = ir.Function("", self.name, graph=self.graph, attributes=attributes)
        return Body(
            self.name,
            function,
            dict(self.model.functions.items()),
            shapes=self.shapes(),
            names=names or {},
            constants=frozenset(self.values),
            given=self.numbers,
            given_attributes=self.attributes,
            outputs=tuple(outputs),
            is_typed=True,
            integers=frozenset(self._integers()),
        )

    def _integers(self) -> Iterator[ir.Value]:
        """The values that are integers, unless the whole formula is one of integers."""
        if not any(dtype.is_floating_point() for dtype in self.dtypes().values()):
            return
        facts = Facts(self.model)
        for node in self.graph:
            for value in (*node.inputs, *node.outputs):
                dtype = facts.dtype(value) if value is not None else None
                if value is not None and dtype is not None and dtype.is_integer():
                    yield value

    def shapes(self) -> dict[str, str]:
        """The shapes of variables and captured constants, in the words of patterns; those without one are left out.

        Raises:
            RuleError: A dimension has neither a size nor a name.
        """
        words: dict[str, str] = {}
        found = {}
        for value in self._captured():
            if value.shape is not None:
                found[value.name or ""] = " ".join(self._word(value, dim, words) for dim in value.shape)
        return found

    def sizes(self) -> dict[str, int]:
        """The sizes of named dimensions, as far as constants tell them."""
        words: dict[str, str] = {}
        sizes: dict[str, int] = {}
        for value in self._captured():
            known = () if value.const_value is None else value.const_value.shape.numpy()
            for dim, size in zip(value.shape or (), known, strict=False):
                if not isinstance(dim, int):
                    sizes[self._word(value, dim, words)] = int(size)
        return sizes

    def dtypes(self) -> dict[str, ir.DataType]:
        """The element types of variables and captured constants."""
        return {value.name or "": value.dtype for value in self._captured() if value.dtype is not None}

    def _captured(self) -> list[ir.Value]:
        constants = [self.graph.initializers[name] for name in sorted(self.values)]
        return [value for value in (*self.inputs, *constants) if value.uses()]

    def _word(self, value: ir.Value, dim: Any, words: dict[str, str]) -> str:
        """One dimension as patterns write it: names that these cannot have are numbered."""
        if isinstance(dim, int):
            return str(dim)
        if dim.value is None:
            raise RuleError(
                f"{self.name}: a dimension of '{value.name}' has neither a size nor a name; give it a name if any size will do"
            )
        fits = _SYMBOL.fullmatch(dim.value)
        return words.setdefault(dim.value, dim.value if fits else f"dim{len(words)}")

    def _free(self, text: str) -> None:
        """Note what a text such as `weight` or `softmax.axis=axis` names as free."""
        place, _, capture = text.partition("=")
        if place in self.graph.initializers:
            self._free_constant(self.graph.initializers[place], capture or place)
            return
        name, _, attribute = place.rpartition(".")
        named = [node for node in self.graph if name and name in (node.name, *(out.name for out in node.outputs))]
        nodes = [node for node in named if attribute in node.attributes]
        if not nodes:
            self.unknown.add(text)
        for node in nodes:
            self.attributes[node, attribute] = Given(capture or attribute, node.attributes[attribute].type)

    def _free_constant(self, value: ir.Value, capture: str) -> None:
        name, tensor = value.name or "", value.const_value
        assert tensor is not None
        if tensor.dtype.is_floating_point() and tensor.size == 1:
            self.numbers[name] = Given(capture, ir.AttributeType.FLOAT)
        elif tensor.dtype.is_integer() and len(tensor.shape) <= 1:
            self.numbers[name] = Given(capture, ir.AttributeType.INTS if len(tensor.shape) else ir.AttributeType.INT)
        elif capture != name:
            raise RuleError(f"{self.name}: {name} is a tensor, which is captured by its own name, not as {capture}")
        else:
            self.values.add(name)


def _default(value: ir.Value) -> Any:
    assert value.const_value is not None
    array = value.const_value.numpy()
    return float(array.reshape(-1)[0]) if array.dtype.kind not in "iu" else array.tolist()


def _forms(model: ir.Model) -> list[tuple[str, frozenset[str], int]]:
    """How the nodes are written: what they are, their attributes and the number of inputs."""
    return [(node.op_type, frozenset(node.attributes), len(node.inputs)) for node in model.graph]


def corresponding(find: Formula, replace: Formula) -> tuple[dict[str, str], list[ir.Value]]:
    """The inputs of the replacement by what they are called in the other model, and its outputs in the order of that.

    They correspond by name or, if no name is shared, by position.

    Raises:
        RuleError: Their numbers, names, element types or shapes do not agree; the message names the files and values.
    """
    free = [find.graph.initializers[name] for name in (*sorted(find.values), *find.numbers)]
    theirs = _paired(find, replace, "inputs", find.inputs, replace.inputs, free)
    results = _paired(find, replace, "outputs", find.graph.outputs, replace.graph.outputs)
    if len(results) != len(find.graph.outputs):
        raise RuleError(
            f"{replace.name} has {len(results)} outputs, and {find.name} {len(find.graph.outputs)}: both must have the same"
        )
    for ours, other in (*theirs, *results):
        _check_types(find, ours, replace, other)
    ordered = dict(results)
    names = {other.name or "": ours.name or "" for ours, other in theirs}
    return names, [ordered[value] for value in find.graph.outputs]


def _paired(
    find: Formula,
    replace: Formula,
    what: str,
    ours: Sequence[ir.Value],
    others: Sequence[ir.Value],
    further: Sequence[ir.Value] = (),
) -> list[tuple[ir.Value, ir.Value]]:
    """Pairs of values of the two models: of the same names (`further` ones too) or, if no name is shared, in the same order."""
    by_name = {value.name: value for value in (*ours, *further)}
    shared = [value for value in others if value.name in by_name]
    if len(shared) == len(others):
        return [(by_name[value.name], value) for value in others]
    if not shared and len(ours) == len(others):
        return list(zip(ours, others, strict=True))
    raise RuleError(
        f"the {what} of {replace.name} ({_names(others)}) are not those of {find.name} ({_names(ours)}): call them the same, or "
        "have as many in the same order"
    )


def _check_types(find: Formula, ours: ir.Value, replace: Formula, other: ir.Value) -> None:
    if None not in (ours.dtype, other.dtype) and ours.dtype != other.dtype:
        found = f"{other.dtype} in {replace.name} and {ours.dtype} in {find.name}"
        raise RuleError(f"'{other.name}' is {found}: a replacement keeps the element types")
    if ours.shape is None or other.shape is None:
        return
    pairs = list(zip(ours.shape, other.shape, strict=False))
    if len(ours.shape) != len(other.shape) or any(_differ(one, two) for one, two in pairs):
        found = f"the shape {other.shape} in {replace.name} and {ours.shape} in {find.name}"
        raise RuleError(f"'{other.name}' has {found}: a replacement keeps the shapes")


def _differ(one: Any, two: Any) -> bool:
    return isinstance(one, int) and isinstance(two, int) and one != two


def _names(values: Iterable[ir.Value]) -> str:
    return ", ".join(str(value.name) for value in values) or "none"


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


def refuse_unknown(free: Iterable[str], *formulas: Formula) -> None:
    """Refuse names of free things that none of the models has.

    Raises:
        RuleError: There is one.
    """
    unknown = [text for text in free if all(text in formula.unknown for formula in formulas)]
    if unknown:
        files = " nor ".join(formula.name for formula in formulas)
        raise RuleError(
            f"{_listed(unknown)}: neither {files} has such an initializer or attribute; write the name of an initializer, or "
            "NODE.ATTRIBUTE, where a node is called by its name or that of an output, and the attribute is written in the file"
        )


def stem(name: str) -> str:
    """The name of a file or graph as the part of a rule's name."""
    return re.sub(r"\W+", "_", Path(name).stem.lower(), flags=re.ASCII).strip("_") or "pair"
