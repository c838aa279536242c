"""The ways in which models that say the same differ: each variation takes a model and yields variants of it, with a label."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Variation = Callable[[ModelProto], Iterator[tuple[str, ModelProto]]]

VARIATIONS: dict[str, Variation] = {}


def _variation(make: Variation) -> Variation:
    VARIATIONS[make.__name__.strip("_")] = make
    return make


def copied(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def _declare(value: onnx.ValueInfoProto, dim: str | int) -> None:
    """Declare every size of a value as the same name or number."""
    for one in value.type.tensor_type.shape.dim:
        one.Clear()
        if isinstance(dim, str):
            one.dim_param = dim
        else:
            one.dim_value = dim


def _at_each_node(
    model: ModelProto, label: str, change: Callable[[NodeProto], object]
) -> Iterator[tuple[str, ModelProto]]:
    for index, node in enumerate(model.graph.node):
        copy = copied(model)
        if change(copy.graph.node[index]) is not False:
            yield f"{label} of {node.op_type} {index}", copy


@_variation
def _unknown_attributes(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    for name, value in {"epsion": 1e-5, "__hint": 1, "axiss": [1, 2], "note": "text", "nothing": None}.items():

        def add(node: NodeProto, name: str = name, value: object = value) -> None:
            made = helper.make_attribute(
                name, [] if value is None else value, attr_type=AttributeProto.INTS if value is None else None
            )
            node.attribute.append(made)

        yield from _at_each_node(model, name, add)


@_variation
def _attributes(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    for index, node in enumerate(model.graph.node):
        for at, attribute in enumerate(node.attribute):
            where = f"{attribute.name} of {node.op_type}"
            changed = copied(model)
            changed.graph.node[index].attribute[at].name += "e"
            yield f"misspelt {where}", changed
            changed = copied(model)
            del changed.graph.node[index].attribute[at]
            yield f"without {where}", changed
            changed = copied(model)
            changed.graph.node[index].attribute.append(attribute)
            yield f"twice {where}", changed
            changed = copied(model)
            changed.graph.node[index].attribute[at].doc_string = "what it is"
            yield f"documented {where}", changed
            changed = copied(model)
            changed.graph.node[index].attribute[at].type = AttributeProto.UNDEFINED
            yield f"untyped {where}", changed
            if attribute.type == AttributeProto.INT:
                changed = copied(model)
                changed.graph.node[index].attribute[at].CopyFrom(
                    helper.make_attribute(attribute.name, float(attribute.i))
                )
                yield f"real {where}", changed
            if attribute.type == AttributeProto.FLOAT:
                changed = copied(model)
                changed.graph.node[index].attribute[at].f = float("nan")
                yield f"NaN {where}", changed


@_variation
def _imports(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    for index, entry in enumerate(model.opset_import):
        missing = copied(model)
        del missing.opset_import[index]
        yield f"without {entry.domain or 'ai.onnx'}", missing
        twice = copied(model)
        twice.opset_import.append(entry)
        yield f"twice {entry.domain or 'ai.onnx'}", twice
    for version in range(6, 27):
        other = copied(model)
        other.opset_import[0].version = version
        yield f"opset {version}", other
    for domain, version in (
        ("com.microsoft", 1), ("com.microsoft", 2), ("com.microsoft", 10000), ("com.microsoft", 0), ("ai.onnx.ml", 1),
        ("ai.onnx.ml", 5), ("ai.onnx.ml", 99), ("ai.onnx.training", 1), ("ai.onnx.preview.training", 1), ("nobody.knows", 7),
        ("com.microsoft.nchwc", 1), ("org.pytorch.aten", 1), ("com.ms.internal.nhwc", 20), ("ai.onnx", 9),
    ):  # fmt: skip
        other = copied(model)
        entries = [entry for entry in other.opset_import if entry.domain == domain] or [
            other.opset_import.add(domain=domain)
        ]
        entries[0].version = version
        yield f"{domain} {version}", other
    spelled = copied(model)
    spelled.opset_import[0].domain = "ai.onnx"
    yield "ai.onnx spelled out", spelled
    both = copied(model)
    both.opset_import.add(domain="ai.onnx", version=both.opset_import[0].version)
    yield "both spellings of ai.onnx", both


@_variation
def _domains_of_nodes(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    spelled = copied(model)
    for node in spelled.graph.node:
        node.domain = node.domain or "ai.onnx"
    yield "ai.onnx spelled out", spelled
    for domain in ("com.microsoft", "nobody.knows"):

        def move(node: NodeProto, domain: str = domain) -> None:
            node.domain = domain

        for label, changed in _at_each_node(model, domain, move):
            changed.opset_import.add(domain=domain, version=1)
            yield label, changed


@_variation
def _versions(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    for version in range(14):
        other = copied(model)
        other.ir_version = version
        if version < 4:
            _declare_initializers(other)
        yield f"IR {version}", other
        if version == 3:
            yield "IR 3, initializers that are no inputs", _with_ir(model, 3)


def _with_ir(model: ModelProto, version: int) -> ModelProto:
    other = copied(model)
    other.ir_version = version
    return other


def _declare_initializers(model: ModelProto, *, typed: bool = True, sized: bool = True) -> None:
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims) if sized else None)
            if typed
            else onnx.ValueInfoProto(name=tensor.name)
        )


@_variation
def _initializers(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    if not model.graph.initializer:
        return
    for label, given in {
        "inputs": {},
        "inputs without a shape": {"sized": False},
        "inputs without a type": {"typed": False},
    }.items():
        other = copied(model)
        _declare_initializers(other, **given)
        yield label, other
    other = copied(model)
    _declare_initializers(other)
    for value in other.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_param = f"some_{value.name}"
    yield "inputs of symbolic sizes", other
    for index, tensor in enumerate(model.graph.initializer):
        name = tensor.name
        other = copied(model)
        other.graph.initializer.append(tensor)
        yield f"{name} twice", other
        other = copied(model)
        other.graph.initializer[index].CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 1, name))
        other.graph.initializer.append(tensor)
        yield f"{name} twice, with other values", other
        other = copied(model)
        other.graph.output.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
        yield f"{name} as an output", other
        other = copied(model)
        other.graph.value_info.append(helper.make_tensor_value_info(name, tensor.data_type, [*tensor.dims, 7]))
        yield f"{name} of another declared shape", other
        for key in ("value", "twice", "beside"):
            other = copied(model)
            node = helper.make_node("Constant", [], [name], value=tensor)
            other.graph.node.insert(0, node)
            if key == "twice":
                other.graph.node.insert(0, node)
            if key != "beside":
                del other.graph.initializer[index]
            yield f"{name} from a Constant, {key}", other
        if tensor.data_type == TensorProto.FLOAT and tensor.dims:
            array = numpy_helper.to_array(tensor)
            flat = helper.make_tensor("", TensorProto.INT64, [array.size], range(array.size))
            values = numpy_helper.from_array(array.reshape(-1), name)
            sparse = helper.make_sparse_tensor(values, flat, list(array.shape))
            other = copied(model)
            del other.graph.initializer[index]
            other.graph.sparse_initializer.append(sparse)
            yield f"{name} sparse", other
            places = np.stack(np.unravel_index(np.arange(array.size), array.shape), 1)
            sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(places, ""), list(array.shape))
            other = copied(model)
            del other.graph.initializer[index]
            other.graph.sparse_initializer.append(sparse)
            yield f"{name} sparse by coordinates", other
            if array.ndim == 1:
                other = copied(model)
                del other.graph.initializer[index]
                other.graph.node.insert(0, helper.make_node("Constant", [], [name], sparse_value=sparse))
                yield f"{name} from a sparse Constant", other
        other = copied(model)
        packed = TensorProto(name=name, data_type=tensor.data_type, dims=tensor.dims)
        array = numpy_helper.to_array(tensor)
        other.graph.initializer[index].CopyFrom(
            helper.make_tensor(name, tensor.data_type, tensor.dims, array.reshape(-1).tolist())
            if not tensor.HasField("raw_data")
            else packed
        )
        if not tensor.HasField("raw_data"):
            other.graph.initializer[index].CopyFrom(numpy_helper.from_array(array, name))
        yield f"{name} stored otherwise", other
    unused = copied(model)
    unused.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "nobody uses this"))
    unused.graph.initializer.append(numpy_helper.from_array(np.ones((0, 3), np.float32), "empty"))
    unused.graph.initializer.append(TensorProto(name="no dims", data_type=TensorProto.FLOAT, raw_data=bytes(4)))
    yield "unused ones", unused
    nameless = copied(model)
    nameless.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), ""))
    yield "one without a name", nameless


@_variation
def _order(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    if len(model.graph.node) < 2:
        return
    turned = copied(model)
    nodes = list(model.graph.node)
    del turned.graph.node[:]
    turned.graph.node.extend(reversed(nodes))
    yield "of nodes turned round", turned


@_variation
def _names(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    for name in ("", "same", "a/b:c 0", "x", "\u00e9\u4e2d", "long" * 500):
        other = copied(model)
        for node in other.graph.node:
            node.name = name
        yield f"of nodes all {name[:8]!r}", other
    inner = [output for node in model.graph.node for output in node.output if output]
    for name in inner[:2]:
        for new in ("Shape", "1", "\u00e9", "a b", "ortfuse_const_0", "com.microsoft", "a" * 3000):
            yield f"{name} becomes {new[:12]!r}", renamed(model, name, new)
    other = copied(model)
    other.graph.name = ""
    yield "no graph name", other
    producer = copied(model)
    producer.producer_name, producer.producer_version, producer.domain, producer.model_version = (
        "pytorch",
        "\u00e9",
        "a b",
        -(2**62),
    )
    producer.doc_string = producer.graph.doc_string = "text " * 100
    yield "of producers", producer


def renamed(model: ModelProto, old: str, new: str) -> ModelProto:
    other = copied(model)
    for node in other.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == old:
                    names[index] = new
    for value in (*other.graph.input, *other.graph.output, *other.graph.initializer):
        if value.name == old:
            value.name = new
    return other


@_variation
def _operands(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    yield from _at_each_node(model, "an empty last input", lambda node: node.input.append(""))
    yield from _at_each_node(model, "an empty last output", lambda node: node.output.append(""))
    yield from _at_each_node(model, "an unused last output", lambda node: node.output.append(f"{node.output[0]}_more"))
    yield from _at_each_node(model, "a documentation", lambda node: setattr(node, "doc_string", "text"))
    yield from _at_each_node(model, "an overload", lambda node: setattr(node, "overload", "one"))
    yield from _at_each_node(model, "metadata", lambda node: node.metadata_props.add(key="a", value="b"))

    def shorten(node: NodeProto) -> bool:
        if len(node.input) > 1:
            node.input.pop()
        return len(node.input) > 1

    yield from _at_each_node(model, "the last input left out", shorten)


@_variation
def _ends(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    graph = model.graph
    kinds = {value.name: value for value in (*graph.input, *graph.output)}
    other = copied(model)
    del other.graph.output[:]
    yield "no outputs", other
    for index, value in enumerate(graph.output):
        other = copied(model)
        other.graph.output[index].ClearField("type")
        yield f"output {value.name} without a type", other
        other = copied(model)
        other.graph.output[index].type.tensor_type.ClearField("shape")
        yield f"output {value.name} without a shape", other
        for dim in ("", "?0", "1", "b + 1", -1, 0, 77):
            other = copied(model)
            _declare(other.graph.output[index], dim)
            yield f"output {value.name} of sizes {dim!r}", other
        other = copied(model)
        other.graph.output.append(value)
        yield f"output {value.name} twice", other
        other = copied(model)
        other.graph.node.append(helper.make_node("Identity", [value.name], ["more"]))
        other.graph.output.append(onnx.ValueInfoProto(name="more", type=value.type))
        yield f"output {value.name} used again", other
    for index, value in enumerate(graph.input):
        other = copied(model)
        other.graph.input[index].type.tensor_type.ClearField("shape")
        yield f"input {value.name} without a shape", other
        for dim in ("", "?0", "1", "b + 1", "same", -1, 0):
            other = copied(model)
            _declare(other.graph.input[index], dim)
            yield f"input {value.name} of sizes {dim!r}", other
        other = copied(model)
        other.graph.output.append(value)
        yield f"input {value.name} is an output", other
        other = copied(model)
        other.graph.input.append(value)
        yield f"input {value.name} twice", other
    unused = copied(model)
    unused.graph.input.append(helper.make_tensor_value_info("unused", TensorProto.FLOAT, ["k"]))
    yield "unused input", unused
    for node in graph.node:
        for output in node.output:
            if output and output not in kinds:
                other = copied(model)
                other.graph.output.append(onnx.ValueInfoProto(name=output))
                yield f"inner {output} as an output without a type", other


@_variation
def _more_nodes(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    first = model.graph.input[0].name
    dead = copied(model)
    dead.graph.node.append(helper.make_node("Identity", [first], ["dead end"]))
    yield "a dead end", dead
    nothing = copied(model)
    nothing.graph.node.append(helper.make_node("Identity", [first], [""]))
    yield "a node without outputs", nothing
    for node in model.graph.node:
        again = copied(model)
        again.graph.node.append(node)
        yield f"{node.op_type} twice", again


@_variation
def _value_info(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    inner = [output for node in model.graph.node for output in node.output if output]
    outputs = {value.name for value in model.graph.output}
    names = [name for name in inner if name not in outputs]
    for label, dims in {
        "of no shape": None,
        "of unknown sizes": [None, None],
        "of named sizes": ["?", "n+1"],
        "": [],
    }.items():
        other = copied(model)
        other.graph.value_info.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in names[:1]
        )
        if label or not names:
            yield f"{label} for {names[:1]}", other
    empty = copied(model)
    empty.graph.value_info.extend(onnx.ValueInfoProto(name=name) for name in [*names, "of nothing"])
    yield "without types", empty
    twice = copied(model)
    twice.graph.value_info.extend([helper.make_tensor_value_info("of nothing", TensorProto.INT64, [3])] * 2)
    yield "twice, of a value that is none", twice
    annotated = copied(model)
    annotated.graph.quantization_annotation.add(tensor_name=inner[0]).quant_parameter_tensor_names.add(
        key="SCALE_TENSOR", value="s"
    )
    yield "with a quantization annotation", annotated
    metadata = copied(model)
    metadata.metadata_props.add(key="a", value="1")
    metadata.metadata_props.add(key="a", value="1")
    metadata.graph.metadata_props.add(key="", value="")
    yield "with metadata", metadata
    doubled = copied(model)
    doubled.metadata_props.add(key="a", value="1")
    doubled.metadata_props.add(key="a", value="2")
    yield "with contradicting metadata", doubled
    training = copied(model)
    training.training_info.add().algorithm.name = "sgd"
    yield "with training information", training
    if hasattr(model, "configuration"):
        devices = copied(model)
        devices.configuration.add(name="two", num_devices=2)
        devices.ir_version = 11
        yield "with a device configuration", devices


@_variation
def _in_functions(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    """All nodes but subgraphs' in one model-local function, of the model's or another opset."""
    graph = model.graph
    inputs = [value.name for value in (*graph.input, *graph.initializer)]
    outputs = [value.name for value in graph.output]
    for label, domain, version in (("of the same opset", "local", 0), ("of the next opset", "local", 1), ("without a domain", "", 0),
                                   ("in com.microsoft", "com.microsoft", 0), ("unused", "unused", 0)):  # fmt: skip
        other = copied(model)
        imports = [
            helper.make_opsetid(entry.domain, entry.version + (version if not entry.domain else 0))
            for entry in model.opset_import
        ]
        function = helper.make_function(domain, "all", inputs, outputs, graph.node, imports)
        other.functions.append(function)
        if domain and not any(entry.domain == domain for entry in other.opset_import):
            other.opset_import.add(domain=domain, version=1)
        if label != "unused":
            del other.graph.node[:]
            other.graph.node.append(helper.make_node("all", inputs, outputs, domain=domain))
        yield label, other


@_variation
def _in_branches(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    """All nodes in the branches of an If, with initializers inside or outside."""
    graph = model.graph
    for label, inside in (("initializers outside", False), ("initializers inside", True)):
        other = copied(model)
        branch = helper.make_graph(
            list(graph.node), "branch", [], list(graph.output), list(graph.initializer) if inside else []
        )
        del other.graph.node[:]
        if inside:
            del other.graph.initializer[:]
        other.graph.input.append(helper.make_tensor_value_info("which", TensorProto.BOOL, []))
        names = [value.name for value in graph.output]
        both = {"then_branch": branch, "else_branch": branch}
        other.graph.node.append(helper.make_node("If", ["which"], [f"{name}_out" for name in names], **both))
        for value in other.graph.output:
            value.name = f"{value.name}_out"
        yield label, other
