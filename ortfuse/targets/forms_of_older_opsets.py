"""Write a node of ai.onnx as nodes that mean the same at an older opset.

Three ways are tried, in this order:

- the operator itself, without attributes that the older definition lacks and that have their default;
- another form of the operator: axes of a reduction as an attribute, the sizes of a Split for the number of its parts, a Slice of
  a Shape for a part of it, a Reshape whose target holds no 0 that would copy another size;
- the body in the definition of the operator, as of Gelu, Attention or GroupNormalization. Its nodes are written in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from ortfuse.analysis.facts import Facts
from ortfuse.ir.dims import exact_div, is_positive, product
from ortfuse.ir.editor import Editor
from ortfuse.ir.purity import draws_random
from ortfuse.ir.schemas import accepts, attribute_default, keeps_meaning, schema_at
from ortfuse.ir.walk import nested_nodes

AXES_AS_INPUT = {"ReduceSum": 13, "Squeeze": 13, "Unsqueeze": 13}
"""The opset at which axes became an input; of other reductions it is 18."""

PARTS_BY_NUMBER, SIZES_AS_INPUT = 18, 13
"""The opsets at which Split took a number of parts, and at which their sizes became an input."""

AXES_OF_ALL_REDUCTIONS = 18
"""The opset at which axes became an input of the reductions besides ReduceSum."""

SIZES_OF_RESHAPE_AS_INPUT, ZERO_AS_SIZE = 5, 14
"""The opsets at which the sizes of a Reshape became an input, and at which a 0 could be a size."""

BOUNDS_AS_INPUT, PARTS_OF_SHAPE = 10, 15
"""The opsets at which the bounds of a Slice became inputs, and at which Shape took some."""

SCALES_OF_CHANNELS = 21
"""The opset from which on GroupNormalization scales channels, not groups."""

_GROUP_TYPES: dict[ir.DataType | None, str] = {ir.DataType.FLOAT: "float", ir.DataType.DOUBLE: "double"}

NEGATIVE_AXES = 11
"""The opset at which most operators began to count axes from the end too."""


class NoOlderFormError(Exception):
    """A node cannot be written for an older opset; `args` hold the node, and perhaps why not, in words that follow its name."""


def means_the_same(node: ir.Node, version: int, older: int) -> bool:
    """Tell whether a node that is read at `version` of ai.onnx means the same at an older one."""
    return accepts(node, older) and keeps_meaning(node.op_type, older, version) and not _counts_back(node, older)


def _counts_back(node: ir.Node, older: int) -> bool:
    """Whether a node names an axis from the end by an attribute, at an opset where its operator does not take that yet."""
    then, later = schema_at(node.op_type, older), schema_at(node.op_type, NEGATIVE_AXES)
    if older >= NEGATIVE_AXES or then is None or later is None or then.since_version == later.since_version:
        return False
    numbers = (node.attributes.get(name) for name in ("axis", "axes"))
    return any(one is not None and not one.is_ref() and np.min(one.value, initial=0) < 0 for one in numbers)


def write_for_older(node: ir.Node, version: int, older: int, facts: Facts, editor: Editor) -> None:
    """Put nodes for `older` in the place of a node that is read at `version`, in the open change of an editor.

    The new nodes are marked with `older` as their version.

    Raises:
        NoOlderFormError: There is no way; the change has to be undone.
    """
    waiting = [(node, version)]
    while waiting:
        one, read_at = waiting.pop()
        if one.domain or means_the_same(one, read_at, older):
            editor.set_version(one, older)
            continue
        found = (
            _plainer(one, read_at, older)
            or _reduction(one, read_at, older, facts)
            or _split(one, older, facts, editor)
            or _reshape(one, older, facts, editor)
            or _shape(one, older, editor)
        )
        if found is not None and means_the_same(found, older, older):
            _replace(one, found, editor)
            continue
        body = _centred_groups(one, read_at, older, facts) or _body(one, read_at, older, facts)
        if body is None and one.op_type == "Reshape":
            raise NoOlderFormError(node, "may hold a size of 0, which would copy another size there")
        if body is None:
            raise NoOlderFormError(node)
        made, written_for = body
        waiting += [(inner, written_for) for inner in _inline(one, made, read_at, editor)]


def _replace(old: ir.Node, new: ir.Node, editor: Editor) -> None:
    editor.insert_before(old, new)
    for before, after in zip(old.outputs, new.outputs, strict=True):
        editor.replace(before, after)
    editor.remove(old)


def _with(node: ir.Node, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr], older: int) -> ir.Node:
    return ir.Node(
        node.domain, node.op_type, inputs, attributes, version=older, name=node.name, num_outputs=len(node.outputs),
        doc_string=node.doc_string, metadata_props=dict(node.metadata_props),
    )  # fmt: skip


def _plainer(node: ir.Node, version: int, older: int) -> ir.Node | None:
    """The node without attributes that the older definition lacks, if all of these have their default."""
    schema = schema_at(node.op_type, older)
    if schema is None or not keeps_meaning(node.op_type, older, version):
        return None
    unknown = [attribute for name, attribute in node.attributes.items() if name not in schema.attributes]
    if not unknown or any(
        attribute.is_ref() or attribute.value != attribute_default("", node.op_type, version, attribute.name)
        for attribute in unknown
    ):
        return None
    kept = [attribute for attribute in node.attributes.values() if attribute not in unknown]
    return _with(node, node.inputs, kept, older)


def _reduction(node: ir.Node, version: int, older: int, facts: Facts) -> ir.Node | None:
    """A reduction with constant axes as an attribute."""
    is_reduction = node.op_type.startswith("Reduce") or node.op_type in AXES_AS_INPUT
    schema = schema_at(node.op_type, older)
    boundary = AXES_AS_INPUT.get(node.op_type, 18)
    if not is_reduction or schema is None or not older < boundary <= version:
        return None
    given = node.inputs[1] if len(node.inputs) > 1 else None
    attributes = [one for name, one in node.attributes.items() if name != "noop_with_empty_axes"]
    if any(one.is_ref() or one.name not in schema.attributes for one in attributes):
        return None
    axes = np.zeros(0, np.int64) if given is None else facts.const(given)
    if axes is None:
        return None
    numbers = [int(axis) for axis in axes.reshape(-1)]
    if older < NEGATIVE_AXES and min(numbers, default=0) < 0:
        rank = facts.rank(node.outputs[0] if node.op_type == "Unsqueeze" else node.inputs[0])
        if rank is None:
            return None
        numbers = [axis % rank for axis in numbers]
    noop = node.attributes.get("noop_with_empty_axes")
    if not numbers and noop is not None and noop.as_int():
        made = ir.Node("", "Identity", node.inputs[:1], version=older, name=node.name)
        return made if node.op_type in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd") else None
    if numbers:
        attributes.append(ir.AttrInt64s("axes", numbers))
    elif given is not None and node.op_type in ("Squeeze", "Unsqueeze"):
        return None
    return _with(node, node.inputs[:1], attributes, older)


def _split(node: ir.Node, older: int, facts: Facts, editor: Editor) -> ir.Node | None:
    """A Split whose parts have sizes: none if they are equal, an input from opset 13 on, an attribute before."""
    if node.op_type != "Split" or older >= PARTS_BY_NUMBER:
        return None
    sizes = _sizes_of_parts(node, facts)
    if sizes is None:
        return None
    kept = [attribute for name, attribute in node.attributes.items() if name not in ("num_outputs", "split")]
    if len(set(sizes)) == 1:
        return _with(node, node.inputs[:1], kept, older)
    if older < SIZES_AS_INPUT:
        return _with(node, node.inputs[:1], [*kept, ir.AttrInt64s("split", sizes)], older)
    return _with(node, [node.inputs[0], editor.add_constant(node, ir.tensor(sizes, ir.DataType.INT64))], kept, older)


def _sizes_of_parts(node: ir.Node, facts: Facts) -> list[int] | None:
    """The sizes of the parts of a Split that names them or their number; `None` if they are not known."""
    shape, axis, count = facts.shape(node.inputs[0]), node.attributes.get_int("axis", 0), len(node.outputs)
    size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        given = facts.const(node.inputs[1])
        sizes = None if given is None else [int(one) for one in given.reshape(-1)]
        fits = sizes is not None and len(sizes) == count and (not isinstance(size, int) or sum(sizes) == size)
        return sizes if fits else None
    if "num_outputs" not in node.attributes or not isinstance(size, int):
        return None
    each = -(-size // count)
    last = size - each * (count - 1)
    return [each] * (count - 1) + [last] if last > 0 else None


def _reshape(node: ir.Node, older: int, facts: Facts, editor: Editor) -> ir.Node | None:
    """A Reshape that takes a 0 for a size, without the attribute, if a 0 in its target copies no other size.

    A single size that may be 0, such as batch * sequence, is left for the Reshape to find: -1 in its place.
    """
    is_reshape = node.op_type == "Reshape" and SIZES_OF_RESHAPE_AS_INPUT <= older < ZERO_AS_SIZE
    if not is_reshape or "allowzero" not in node.attributes or node.attributes["allowzero"].is_ref():
        return None
    target, shape = facts.ints(node.inputs[1]), facts.shape(node.inputs[0]) or ()
    if target is None or None in target.elements:
        return None
    sizes = [size for size in target.elements if size is not None]
    # A 0 copies what is 0, too, if the size there is a multiple of it.
    copied = {
        position
        for position, size in enumerate(sizes)
        if size != 0 and position < len(shape) and exact_div(shape[position], size) is not None
    }
    wrong = [
        position
        for position, size in enumerate(sizes)
        if position not in copied and size != -1 and not is_positive(size)
    ]
    kept = [attribute for name, attribute in node.attributes.items() if name != "allowzero"]
    if not wrong:
        return _with(node, node.inputs, kept, older)
    others = [size for position, size in enumerate(sizes) if position != wrong[0]]
    if len(wrong) > 1 or sizes[wrong[0]] == 0 or not all(isinstance(size, int) and size > 0 for size in others):
        return None
    if exact_div(product(shape), product(sizes)) != 1:
        return None
    numbers = [size if isinstance(size, int) else -1 for size in sizes]
    constant = editor.add_constant(node, ir.tensor(numbers, ir.DataType.INT64))
    return _with(node, [node.inputs[0], constant], kept, older)


def _shape(node: ir.Node, older: int, editor: Editor) -> ir.Node | None:
    """A Slice of the whole shape for a part of it: both count from the end and clamp in the same way."""
    if node.op_type != "Shape" or older >= PARTS_OF_SHAPE or any(one.is_ref() for one in node.attributes.values()):
        return None
    whole = ir.Node("", "Shape", node.inputs, version=older)
    bounds = {
        "starts": [node.attributes.get_int("start", 0)],
        "ends": [node.attributes.get_int("end", np.iinfo(np.int64).max)],
    }
    editor.insert_before(node, whole)
    if older < BOUNDS_AS_INPUT:
        attributes = [ir.AttrInt64s(name, numbers) for name, numbers in bounds.items()]
        return ir.Node("", "Slice", whole.outputs, attributes, version=older, name=node.name)
    inputs = [editor.add_constant(node, ir.tensor(numbers, ir.DataType.INT64)) for numbers in bounds.values()]
    return ir.Node("", "Slice", [*whole.outputs, *inputs], version=older, name=node.name)


def _centred_groups(node: ir.Node, version: int, older: int, facts: Facts) -> tuple[ir.Function, int] | None:
    """The body of a GroupNormalization with the variance as the mean of squared deviations, and the opset that it is written for.

    The body in its definition takes the difference of two means, which loses digits, and no fusion may take for the variance.
    """
    kind, rank = _GROUP_TYPES.get(facts.dtype(node.inputs[0])), facts.rank(node.inputs[0])
    if node.op_type != "GroupNormalization" or version < SCALES_OF_CHANNELS or kind is None or rank is None:
        return None
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    groups, epsilon = node.attributes["num_groups"].as_int(), node.attributes.get_float("epsilon", 1e-5)
    written_for, mean = (18, "({}, last)") if older >= AXES_OF_ALL_REDUCTIONS else (13, "<axes = [-1]> ({})")
    text = f"""<domain: "", opset_import: ["": {written_for}]> Groups (x, scale, bias) => (y) {{
        split_sizes = Constant <value = int64[3] {{0, {groups}, -1}}> ()
        beside_pixels = Constant <value = int64[{rank - 1}] {{{", ".join(["-1", *["1"] * (rank - 2)])}}}> ()
        last = Constant <value = int64[1] {{-1}}> ()
        epsilon = Constant <value = {kind} {{{epsilon!r}}}> ()
        split = Reshape(x, split_sizes)
        mean = ReduceMean {mean.format("split")}
        deviation = Sub(split, mean)
        squares = Mul(deviation, deviation)
        variance = ReduceMean {mean.format("squares")}
        more = Add(variance, epsilon)
        spread = Sqrt(more)
        normal = Div(deviation, spread)
        sizes = Shape(x)
        merged = Reshape(normal, sizes)
        factor = Reshape(scale, beside_pixels)
        term = Reshape(bias, beside_pixels)
        scaled = Mul(merged, factor)
        y = Add(scaled, term)
    }}"""
    return ir.serde.deserialize_function(onnx.parser.parse_function(text)), written_for


def _body(node: ir.Node, version: int, older: int, facts: Facts) -> tuple[ir.Function, int] | None:
    """The body in the definition of a node, and the opset that it is written for; `None` if there is none."""
    schema = schema_at(node.op_type, version)
    if schema is None or draws_random(node) or any(attribute.is_ref() for attribute in node.attributes.values()):
        return None  # other nodes draw other numbers of the same seed
    plain, dependent = schema.function_opset_versions, schema.context_dependent_function_opset_versions
    for written_for in sorted({*plain, *dependent}, key=lambda one: (one > older, abs(one - older))):
        if written_for > version:
            continue
        try:
            if written_for in plain:
                data = schema.get_function_with_opset_version(written_for)
            else:
                proto = ir.serde.serialize_node(node)
                types = [_type(value, facts) for value in node.inputs]
                data = schema.get_context_dependent_function_with_opset_version(
                    written_for, proto.SerializeToString(), types
                )
            return _deserialized(node, onnx.FunctionProto.FromString(data)), written_for
        except (RuntimeError, ValueError, DecodeError, ir.serde.SerdeError, _UnknownTypeError):
            continue
    return None


def _deserialized(node: ir.Node, body: onnx.FunctionProto) -> ir.Function:
    """A body whose outputs are those of the node; it need not compute further ones, which it declares all the same.

    Raises:
        ValueError: It does not compute an output that is used.
    """
    made = {*body.input, *(name for inner in body.node for name in inner.output)}
    wanted = list(body.output)[: len(node.outputs)]
    used = [value.name != "" and (bool(value.uses()) or value.is_graph_output()) for value in node.outputs]
    if any(is_used and name not in made for name, is_used in zip(wanted, used, strict=True)):
        raise ValueError(f"the body of {node.op_type} does not compute all outputs")
    del body.output[:]
    body.output.extend(name if name in made else wanted[0] for name in wanted)
    return ir.serde.deserialize_function(body)


class _UnknownTypeError(Exception):
    """The element type of an input is not known."""


def _type(value: ir.Value | None, facts: Facts) -> bytes:
    if value is None:
        return bytes(onnx.TypeProto().SerializeToString())
    dtype, shape = facts.dtype(value), facts.shape(value)
    if dtype is None:
        raise _UnknownTypeError
    dims = None if shape is None else [dim if isinstance(dim, int) else None for dim in shape]
    return bytes(onnx.helper.make_tensor_type_proto(int(dtype), dims).SerializeToString())


def _inline(node: ir.Node, body: ir.Function, version: int, editor: Editor) -> list[ir.Node]:
    """Put a body in the place of a node; returns its nodes, those in its subgraphs included."""
    given = [*node.inputs, *[None] * (len(body.inputs) - len(node.inputs))]
    attributes = {**_defaults(node, version), **node.attributes}
    assert isinstance(node.graph, ir.Graph)
    before = set(node.graph)
    results = editor.insert_copy(node, body.graph, given, attributes)
    made = [inner for inner in node.graph if inner not in before]
    made += [inner for outer in made for inner in nested_nodes(outer)]
    for old, new in zip(node.outputs, results or (), strict=False):
        editor.replace(old, new)
    editor.remove(node)
    return made


def _defaults(node: ir.Node, version: int) -> dict[str, ir.Attr]:
    schema = schema_at(node.op_type, version)
    protos = [] if schema is None else [attribute.default_value for attribute in schema.attributes.values()]
    return {proto.name: ir.serde.deserialize_attribute(proto) for proto in protos if proto.name}
