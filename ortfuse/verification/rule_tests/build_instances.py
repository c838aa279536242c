"""Build instances of a rule: small models that its pattern matches, built from the declaration alone.

Every degree of freedom of the pattern (operand order, association, division or multiplication by the reciprocal,
alternatives, optional parts, rank of scalar constants, constants or inputs, attributes written or left out, and the element
type, opset and shapes) is a choice of a `Chooser`, so that the same choices give the same spelling in another element type.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import RuleError
from ortfuse.ir.schemas import attribute_default, kept_outputs
from ortfuse.ir.traits import COMMUTES, PARAMETER_INPUTS
from ortfuse.rewrite import Rule
from ortfuse.rewrite.pattern.axis_names import Axes
from ortfuse.rewrite.pattern.language import (
    Alt,
    Attr,
    Body,
    Chain,
    Const,
    Op,
    Opt,
    Out,
    Part,
    Pattern,
    Product,
    Rest,
    Scalar,
    Var,
)
from ortfuse.rewrite.pattern.rearrangement import Rearrange
from ortfuse.rewrite.pattern.siblings import Siblings
from ortfuse.verification.rule_tests.instance import Instance, random_array
from ortfuse.verification.rule_tests.instance_shapes import Sizes
from ortfuse.verification.rule_tests.movement_variants import part_of, rearrangement
from ortfuse.verification.rule_tests.spelling_choices import Chooser

OPSETS = (23, 20, 17, 13)
"""The ai.onnx versions that instances are tried at, where the pattern's operators exist."""

_LONGEST_LABEL = 60


def element_type(name: str) -> ir.DataType:
    """The element type of a rule test's `dtypes`: `float32`, `float16`, `int64`, ..."""
    return ir.DataType[{"float32": "FLOAT", "float64": "DOUBLE"}.get(name, name.upper())]


class Builder:
    """Build one instance; a rule test's own input makers use it too (`input`, `constant`, `node`)."""

    def __init__(self, rule: Rule, shape_set: int, dtype: ir.DataType, opset: int, chooser: Chooser | None = None, *,
                 typical: bool = False) -> None:  # fmt: skip
        """`shape_set` is an index into the rule test's shape sets or, with `typical`, into its typical sizes."""
        self.rule, self.test, self.dtype, self.opset, self._is_typical = rule, rule.test, dtype, opset, typical
        self.shapes = self.test.typical[shape_set] if typical else self.test.shape_sets()[shape_set]
        self.attributes = self.test.attribute_set(0 if typical else shape_set)
        self._alternatives = self.test.alternative_set(0 if typical else shape_set)
        if typical and self.test.typical_attributes:
            fitting = {name: [value] for name, value in self.test.typical_attributes[shape_set].items()}
            self.attributes = {**self.attributes, **fitting}
        self.chooser = chooser or Chooser()
        self.sizes = Sizes(rule, self.shapes)
        # Numbers come from a separate generator, so that they do not depend on the spelling.
        self.numbers = np.random.default_rng(shape_set)
        domains = {part.domain for part in rule.pattern.walk() if isinstance(part, Op) and part.domain}
        imports = {"": opset, "com.microsoft": 1, **dict.fromkeys(domains, 1)}
        self.graph = self._main = ir.Graph([], [], nodes=[], opset_imports=imports, name=rule.name)
        self._values: dict[Any, ir.Value | None] = {}
        self._nodes: dict[int, ir.Node] = {}
        self._axes: dict[str, Axes] = {}
        self.splits: dict[tuple[ir.Value, int], ir.Node] = {}

    def instance(self, text: str = "") -> Instance:
        """The finished model; its outputs are the roots of the pattern."""
        pattern = self.rule.pattern
        built = [self.build(one) for one in (pattern.roots if isinstance(pattern, Siblings) else (pattern,))]
        roots = [self._after(root) for root in built]
        self.graph.outputs.extend(roots)
        for number, node in enumerate(self.graph):
            for index, output in enumerate(node.outputs):
                output.name = output.name or f"v{number}_{index}"
        model = ir.Model(self.graph, ir_version=10)
        facts = Facts(model)
        for root in roots:
            shape = facts.shape(root)
            root.type = ir.TensorType(facts.dtype(root) or self.dtype)
            root.shape = (
                None if shape is None else ir.Shape([dim if isinstance(dim, int) else str(dim) for dim in shape])
            )
        return Instance(model, text)

    def _after(self, root: ir.Value | None) -> ir.Value:
        """The output that is made of a root of the pattern."""
        if root is None:
            raise RuleError(f"rule {self.rule.name}: its pattern has no value at the root")
        made = [one for whole in self.rule.replacements for one in (whole, *whole.children())]
        if any(isinstance(one, Var) for one in self.rule.replacements) or (
            isinstance(self.rule.pattern, Siblings) and any(isinstance(one, Var) for one in made)
        ):
            # A graph output keeps its name, so an input could not replace it.
            root = self.node("Identity", [root]).outputs[0]
        after = self.test.followed_by
        if after is not None:
            root = after(self, root) if callable(after) else self.node(after, [root]).outputs[0]
        return root

    def dims(self, name: str) -> list[int | str]:
        """The shape of a captured value: as the rule test or the pattern declares it, chosen where these leave a choice."""
        declared = self.shapes.get(name)
        if isinstance(declared, str):
            sizes, fixed = self.sizes, self.sizes.of_constants
            return [int(dim) if dim.isdigit() else sizes.size(dim) if dim in fixed else dim for dim in declared.split()]
        axes = self._axes.get(name)
        options = self.sizes.shapes(axes) if axes is not None else self.sizes.of(name)
        if not options:
            raise RuleError(f"rule {self.rule.name}: its rule test gives no shape for {name}")
        words = [" ".join(map(str, dims)) or "no axes" for dims in options]
        return list(
            options[self.chooser.pick(f"shape of {name}" if axes is None else f"shape of {name} ({axes})", words)]
        )

    def input(self, name: str, shape: Sequence[int | str], dtype: ir.DataType | None = None) -> ir.Value:
        """A graph input."""
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype or self.dtype))
        self._main.inputs.append(value)
        return value

    def constant(self, array: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """A constant; it has the instance's element type unless its numbers are integers or booleans."""
        found = np.asarray(array)
        if dtype is not None or found.dtype.kind == "f":
            with np.errstate(all="ignore"):
                found = found.astype((dtype or self.dtype).numpy())
        if self.chooser.pick("constants", ("initializers", "Constant nodes")):
            return self.node("Constant", [], {"value": ir.Tensor(found)}).outputs[0]
        tensor = ir.Tensor(found, name=f"c{len(self._main.initializers)}")
        value = ir.Value(
            name=tensor.name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(found.shape)
        )
        self._main.register_initializer(value)
        return value

    def node(self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any] | None = None,
             domain: str = "", outputs: int = 1) -> ir.Node:  # fmt: skip
        """A node at the end of the graph."""
        present = {name: value for name, value in (attributes or {}).items() if value is not None}
        node = ir.Node(domain, op_type, inputs, ir.convenience.convert_attributes(present), num_outputs=outputs)
        self.graph.append(node)
        return node

    def build(self, pattern: Pattern) -> ir.Value | None:
        """The value that `pattern` describes, in the spelling the chooser decides."""
        key: Any = ("var", pattern.name) if isinstance(pattern, Var) else id(pattern)
        if key not in self._values:
            self._values[key] = self._build(pattern)
        return self._values[key]

    def _build(self, pattern: Pattern) -> ir.Value | None:
        if isinstance(pattern, Var):
            return self._variable(pattern)
        if isinstance(pattern, Const):
            return self._number(pattern.value, self._label(pattern))
        if isinstance(pattern, Scalar):
            return self._number(self._scalar(pattern.name), self._label(pattern))
        if isinstance(pattern, Opt):
            return self._optional(pattern)
        if isinstance(pattern, Alt):
            label = self._label(pattern)
            options = [_shortened(str(option)) for option in pattern.options]
            chosen = self.chooser.pick(label, options, self._alternatives.get(pattern.label or ""))
            with self.chooser.below(label):
                return self.build(pattern.options[chosen])
        if isinstance(pattern, Out):
            assert isinstance(pattern.node, Op)
            return self._op(pattern.node).outputs[pattern.index]
        if isinstance(pattern, Op):
            return self._op(pattern).outputs[0]
        if isinstance(pattern, Chain):
            return self._chain(pattern)
        if isinstance(pattern, (Rearrange, Part)):
            label = self._label(pattern)
            with self.chooser.below(label):
                operand = self.build(pattern.inner)
            if operand is None:
                return None
            if isinstance(pattern, Rearrange):
                return rearrangement(self, pattern, operand, label)
            return part_of(self, pattern, operand)
        raise RuleError(f"rule {self.rule.name}: no instance can be built of {type(pattern).__name__}")

    def _label(self, pattern: Pattern) -> str:
        """The label of a degree of freedom."""
        return _labels(self.rule.pattern)[id(pattern)]

    def _optional(self, pattern: Opt) -> ir.Value | None:
        inner = pattern.inner
        known = isinstance(inner, Var) and (inner.name in self.shapes or self.sizes.of(inner.name))
        # Typical sizes are whole: what they do not name is absent, also if the rule test can make one.
        made = not self._is_typical and isinstance(inner, Var) and inner.name in self.test.inputs
        undeclared = isinstance(inner, Var) and not known and not made
        label = self._label(pattern)
        if self.chooser.pick(label, ("present", "absent"), 1 if undeclared else None):
            return None
        with self.chooser.below(label):
            return self.build(inner)

    def _number(self, number: float, label: str) -> ir.Value:
        # If a value has no axes at all, a constant with one would add an axis to the result.
        with_axis = all(shape != "" for shape in self.shapes.values()) and self.chooser.pick(
            f"rank of {label}", ("0", "1")
        )
        return self.constant(np.asarray([number] if with_axis else number, dtype=np.float64))

    def _scalar(self, name: str) -> float:
        return float(self._choice(name, self.test.scalars.get(name, (0.5, 2.0))))

    def _choice(self, name: str, options: Sequence[Any]) -> Any:
        return options[self.chooser.pick(name, [str(option) for option in options])]

    def _variable(self, pattern: Var) -> ir.Value:
        name = pattern.name
        if pattern.axes is not None:
            self._axes[name] = pattern.axes
        maker = self.test.inputs.get(name)
        if callable(maker):
            made: ir.Value = maker(self)
            return made
        dims = self.dims(name)
        declared = self.test.constants.get(name)
        if declared is not None and not isinstance(declared, str):
            return self.constant(self._shaped(name, np.asarray(declared), dims))
        dtype = element_type(maker) if maker is not None else self.dtype
        static = all(isinstance(dim, int) for dim in dims)
        made_constant = pattern.constant or declared is not None
        if made_constant or (static and dims and maker is None and self._made_constant(name)):
            kind: Any = declared or "normal"
            if not static:
                raise RuleError(
                    f"rule {self.rule.name}: its rule test must give numbers for the dimensions of the constant {name}"
                )
            array = random_array(self.numbers, [int(dim) for dim in dims], ir.DataType.DOUBLE, kind)
            return self.constant(array.astype(dtype.numpy()), dtype)
        return self.input(name, dims, dtype)

    def _shaped(self, name: str, array: Any, dims: Sequence[int | str]) -> Any:
        """The numbers of a constant in the shape that it is said to have."""
        try:
            return array.reshape([int(dim) for dim in dims])
        except ValueError:
            shape = ", ".join(map(str, dims))
            raise RuleError(
                f"rule {self.rule.name}: its rule test gives {array.size} numbers for the constant {name}, of shape [{shape}]"
            ) from None

    def _made_constant(self, name: str) -> bool:
        return bool(self.chooser.pick(f"{name} is", ("an input", "a constant")))

    def _op(self, pattern: Op) -> ir.Node:
        if id(pattern) not in self._nodes:
            self._nodes[id(pattern)] = self._make(pattern)
        return self._nodes[id(pattern)]

    def _make(self, pattern: Op) -> ir.Node:
        positions = _positions(pattern)
        inputs = [
            None if operand is None else self._operand(pattern, operand, position)
            for operand, position in zip(pattern.inputs, positions, strict=True)
            if not isinstance(operand, Rest)
        ]
        if pattern.inputs and isinstance(pattern.inputs[-1], Rest):
            inputs += self._variadic(pattern.inputs[-1].name)
        if (
            len(inputs) == 2
            and pattern.op_type in COMMUTES
            and self.chooser.pick(f"order of {self._label(pattern)}", ("as written", "exchanged"))
        ):
            inputs.reverse()
        attributes: dict[str, Any] = {}
        if pattern.all_attributes is not None:
            attributes |= self._choice(pattern.all_attributes.name, self.attributes[pattern.all_attributes.name])
        parameters: dict[int, ir.Value] = {}
        for name, wanted in pattern.attributes.items():
            value = self._choice(wanted.name, self._values_of(wanted.name)) if isinstance(wanted, Attr) else wanted
            if value is None:
                continue
            position = PARAMETER_INPUTS.get(pattern.op_type, {}).get(name)
            if self._is_attribute(pattern, name):
                if not self._left_out(pattern, name, value):
                    attributes[name] = value
            elif position is not None:
                dtype = None if isinstance(value, (tuple, list, bool)) else self.dtype
                array = np.asarray(value, np.int64) if isinstance(value, (tuple, list)) else np.asarray(value)
                parameters[position] = self.constant(array, dtype)
        for position in sorted(parameters):
            inputs += [None] * (position - len(inputs))
            inputs.insert(position, parameters[position])
        while inputs and inputs[-1] is None:
            inputs.pop()
        attributes |= {name: self._body(body) for name, body in pattern.bodies.items()}
        node = self.node(pattern.op_type, inputs, attributes, pattern.domain, pattern.output_count)
        if kept := kept_outputs(node):
            node.resize_outputs(max(pattern.output_count, max(kept) + 1))
        return node

    def _body(self, body: Body) -> ir.Graph:
        """The graph of an attribute, whose formal inputs have the shapes and types that the rule test gives them."""
        around, self.graph = self.graph, ir.Graph([], [], nodes=[], name="body")
        for name in body.inputs:
            kind = self.test.inputs.get(name)
            dtype = element_type(kind) if isinstance(kind, str) else self.dtype
            formal = ir.Value(name=name, shape=ir.Shape(self.dims(name)), type=ir.TensorType(dtype))
            self.graph.inputs.append(formal)
            self._values["var", name] = formal
        for number, result in enumerate(body.results):
            output = self.node("Identity", [self.build(result)]).outputs[0]
            output.name = f"result_{number}"
            self.graph.outputs.append(output)
        for number, node in enumerate(self.graph):
            for index, value in enumerate(node.outputs):
                value.name = value.name if value.is_graph_output() else f"inner{number}_{index}"
        made, self.graph = self.graph, around
        return made

    def _variadic(self, name: str) -> Sequence[ir.Value]:
        """All remaining inputs of an operator: as the rule test makes them, or of the shapes it gives (`"b 2 | b 3"`)."""
        maker = self.test.inputs.get(name)
        if callable(maker):
            made: Sequence[ir.Value] = maker(self)
            return made
        shapes = [shape.split() for shape in str(self.shapes[name]).split("|")]
        return [
            self.input(f"{name}_{number}", [int(dim) if dim.isdigit() else dim for dim in dims])
            for number, dims in enumerate(shapes)
        ]

    def _operand(self, pattern: Op, operand: Pattern, position: int) -> ir.Value | None:
        """An operator's input; the schema decides whether an optional one can be present (or absent) at this opset."""
        schema = _schema(pattern, self.opset)
        if isinstance(operand, Opt) and schema is not None and schema.inputs:
            formal = schema.inputs[min(position, len(schema.inputs) - 1)]
            variadic = formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
            if position >= len(schema.inputs) and not variadic:
                return None
            if formal.option == onnx.defs.OpSchema.FormalParameterOption.Single:
                return self.build(operand.inner)
        return self.build(operand)

    def _left_out(self, pattern: Op, name: str, value: Any) -> bool:
        """Whether to leave out an attribute that has its default value."""
        default = attribute_default(pattern.domain, pattern.op_type, self.opset, name)
        if default is None or default != value:
            return False
        return bool(self.chooser.pick(f"{name} of {self._label(pattern)}", ("written", "left out")))

    def _values_of(self, name: str) -> Sequence[Any]:
        if name not in self.attributes:
            raise RuleError(
                f"rule {self.rule.name}: its rule test gives no values for the attribute captured as {name}"
            )
        return self.attributes[name]

    def _is_attribute(self, pattern: Op, name: str) -> bool:
        schema = _schema(pattern, self.opset)
        return schema is None or name in schema.attributes

    def _chain(self, pattern: Chain) -> ir.Value | None:
        product = isinstance(pattern, Product)
        number = pattern.scalar
        if pattern.capture is not None:
            captured = self._scalar(pattern.capture.name)
            number = number * captured if product else number + captured
        parts = [(sign, self.build(part)) for sign, part in pattern.parts]
        operands = [(sign, value) for sign, value in parts if value is not None]
        label = self._label(pattern)
        if number != pattern.neutral or not any(sign > 0 for sign, _ in operands):
            operands.append(self._scalar_operand(number, product, label))
        # Any order and association.
        while len(operands) > 1:
            count = len(operands)
            pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
            words = [f"parts {i + 1} and {j + 1} first" for i, j in pairs]
            first, second = pairs[self.chooser.pick(f"{count} parts of {label}", words)]
            pair = [operands[first], operands[second]]
            del operands[second]
            with self.chooser.below(f"{count} parts of {label}"):
                operands[first] = self._combine(pair, product, f"{count} parts of {label}")
        sign, value = operands[0]
        if sign < 0:
            return self.node("Reciprocal" if product else "Neg", [value]).outputs[0]
        return value

    def _scalar_operand(self, number: float, product: bool, label: str) -> tuple[int, ir.Value]:
        words = ("multiplied", "divided by its reciprocal") if product else ("added", "its negative subtracted")
        # Integers have no reciprocals: division of them rounds, and the smallest by -1 is no number of theirs.
        has_inverse = not product or self.dtype.is_floating_point()
        if number != 0 and has_inverse and self.chooser.pick(f"number of {label}", words):
            return -1, self._number(1 / number if product else -number, f"number of {label}")
        return 1, self._number(number, f"number of {label}")

    def _combine(self, pair: list[tuple[int, ir.Value]], product: bool, label: str) -> tuple[int, ir.Value]:
        (first_sign, first), (second_sign, second) = pair
        plus, minus = ("Mul", "Div") if product else ("Add", "Sub")
        if first_sign == second_sign:
            exchanged = self.chooser.pick(f"order of {label}", ("as written", "exchanged"))
            operands = [second, first] if exchanged else [first, second]
            return first_sign, self.node(plus, operands).outputs[0]
        operands = [first, second] if first_sign > 0 else [second, first]
        return 1, self.node(minus, operands).outputs[0]


def opsets_for(rule: Rule) -> list[int]:
    """The opsets at which all operators of the pattern exist, newest first."""
    if rule.test.opset is not None:
        return [rule.test.opset]
    return [
        opset for opset in OPSETS if all(exists(part, opset) for part in rule.pattern.walk() if isinstance(part, Op))
    ]


def missing_at_all(rule: Rule) -> str:
    """The reason why no opset has a rule's instance: an operator or attribute that none has, or all parts together."""
    for part in rule.pattern.walk():
        if isinstance(part, Op) and not any(exists(part, opset) for opset in OPSETS):
            if all(_schema(part, opset) is None for opset in OPSETS):
                return f"the operator {part.op_type} of its pattern; correct the name, or pin RuleTest.opset"
            names = ", ".join(part.attributes)
            return f"an operator {part.op_type} with the attributes of its pattern ({names}); correct them"
    return "all operators of its pattern; pin RuleTest.opset"


def exists(pattern: Op, opset: int) -> bool:
    """Whether the operator, with the attributes that the pattern mentions, is defined at `opset`."""
    if pattern.domain:
        return True
    schema = _schema(pattern, opset)
    parameters = PARAMETER_INPUTS.get(pattern.op_type, {})
    return schema is not None and all(name in schema.attributes or name in parameters for name in pattern.attributes)


def _schema(pattern: Op, opset: int) -> Any:
    try:
        return None if pattern.domain else onnx.defs.get_schema(pattern.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


def _positions(pattern: Op) -> list[int]:
    """The positions of the pattern's inputs among the operator's, which include parameters written as keywords."""
    parameters = PARAMETER_INPUTS.get(pattern.op_type, {})
    taken = {parameters[name] for name in pattern.attributes if name in parameters}
    free = (position for position in range(len(pattern.inputs) + len(taken)) if position not in taken)
    return [next(free) for _ in pattern.inputs]


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_LABEL else text[:_LONGEST_LABEL] + "..."


@functools.lru_cache(maxsize=8)
def _labels(root: Pattern) -> dict[int, str]:
    """A description of each part of a pattern, with its number in the walk if the words alone are not unique."""
    parts = list(root.walk())
    texts = [_shortened(str(part.inner if isinstance(part, Opt) else part)) for part in parts]
    counts = Counter(text for text, part in zip(texts, parts, strict=True) if not isinstance(part, Opt))
    return {
        id(part): text if counts[text] < 2 or isinstance(part, Opt) else f"{text} #{number}"
        for number, (text, part) in enumerate(zip(texts, parts, strict=True))
    }
