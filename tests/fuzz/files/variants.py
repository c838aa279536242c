"""The ways in which files that say the same differ: each variation takes a model and yields variants of it, with a label."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper


class Variant(NamedTuple):
    """A variant: a label, its model, the bytes of its file, and the other files beside it by name."""

    label: str
    content: bytes
    files: dict[str, bytes]


Variation = Callable[[ModelProto], Iterator[tuple[str, ModelProto]]]

VARIATIONS: dict[str, Variation] = {}


def _variation(make: Variation) -> Variation:
    VARIATIONS[make.__name__.strip("_")] = make
    return make


def variants(model: ModelProto) -> Iterator[Variant]:
    """Every variant of a model, itself first."""
    yield Variant("as it is", model.SerializeToString(), {})
    for name, variation in VARIATIONS.items():
        for label, changed in variation(model):
            yield Variant(f"{name}: {label}", changed.SerializeToString(), {})
    yield from _in_other_files(model)
    yield from _not_utf8(model)
    yield from _on_the_wire(model)


def _copy(model: ModelProto) -> ModelProto:
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
        copy = _copy(model)
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
            changed = _copy(model)
            changed.graph.node[index].attribute[at].name += "e"
            yield f"misspelt {where}", changed
            changed = _copy(model)
            del changed.graph.node[index].attribute[at]
            yield f"without {where}", changed
            changed = _copy(model)
            changed.graph.node[index].attribute.append(attribute)
            yield f"twice {where}", changed
            changed = _copy(model)
            changed.graph.node[index].attribute[at].doc_string = "what it is"
            yield f"documented {where}", changed
            changed = _copy(model)
            changed.graph.node[index].attribute[at].type = AttributeProto.UNDEFINED
            yield f"untyped {where}", changed
            if attribute.type == AttributeProto.INT:
                changed = _copy(model)
                changed.graph.node[index].attribute[at].CopyFrom(
                    helper.make_attribute(attribute.name, float(attribute.i))
                )
                yield f"real {where}", changed
            if attribute.type == AttributeProto.FLOAT:
                changed = _copy(model)
                changed.graph.node[index].attribute[at].f = float("nan")
                yield f"NaN {where}", changed


@_variation
def _imports(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    for index, entry in enumerate(model.opset_import):
        missing = _copy(model)
        del missing.opset_import[index]
        yield f"without {entry.domain or 'ai.onnx'}", missing
        twice = _copy(model)
        twice.opset_import.append(entry)
        yield f"twice {entry.domain or 'ai.onnx'}", twice
    for version in range(6, 27):
        other = _copy(model)
        other.opset_import[0].version = version
        yield f"opset {version}", other
    for domain, version in (
        ("com.microsoft", 1), ("com.microsoft", 2), ("com.microsoft", 10000), ("com.microsoft", 0), ("ai.onnx.ml", 1),
        ("ai.onnx.ml", 5), ("ai.onnx.ml", 99), ("ai.onnx.training", 1), ("ai.onnx.preview.training", 1), ("nobody.knows", 7),
        ("com.microsoft.nchwc", 1), ("org.pytorch.aten", 1), ("com.ms.internal.nhwc", 20), ("ai.onnx", 9),
    ):  # fmt: skip
        other = _copy(model)
        entries = [entry for entry in other.opset_import if entry.domain == domain] or [
            other.opset_import.add(domain=domain)
        ]
        entries[0].version = version
        yield f"{domain} {version}", other
    spelled = _copy(model)
    spelled.opset_import[0].domain = "ai.onnx"
    yield "ai.onnx spelled out", spelled
    both = _copy(model)
    both.opset_import.add(domain="ai.onnx", version=both.opset_import[0].version)
    yield "both spellings of ai.onnx", both


@_variation
def _domains_of_nodes(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    spelled = _copy(model)
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
        other = _copy(model)
        other.ir_version = version
        if version < 4:
            _declare_initializers(other)
        yield f"IR {version}", other
        if version == 3:
            yield "IR 3, initializers that are no inputs", _with_ir(model, 3)


def _with_ir(model: ModelProto, version: int) -> ModelProto:
    other = _copy(model)
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
        other = _copy(model)
        _declare_initializers(other, **given)
        yield label, other
    other = _copy(model)
    _declare_initializers(other)
    for value in other.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_param = f"some_{value.name}"
    yield "inputs of symbolic sizes", other
    for index, tensor in enumerate(model.graph.initializer):
        name = tensor.name
        other = _copy(model)
        other.graph.initializer.append(tensor)
        yield f"{name} twice", other
        other = _copy(model)
        other.graph.initializer[index].CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 1, name))
        other.graph.initializer.append(tensor)
        yield f"{name} twice, with other values", other
        other = _copy(model)
        other.graph.output.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
        yield f"{name} as an output", other
        other = _copy(model)
        other.graph.value_info.append(helper.make_tensor_value_info(name, tensor.data_type, [*tensor.dims, 7]))
        yield f"{name} of another declared shape", other
        for key in ("value", "twice", "beside"):
            other = _copy(model)
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
            other = _copy(model)
            del other.graph.initializer[index]
            other.graph.sparse_initializer.append(sparse)
            yield f"{name} sparse", other
            places = np.stack(np.unravel_index(np.arange(array.size), array.shape), 1)
            sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(places, ""), list(array.shape))
            other = _copy(model)
            del other.graph.initializer[index]
            other.graph.sparse_initializer.append(sparse)
            yield f"{name} sparse by coordinates", other
            if array.ndim == 1:
                other = _copy(model)
                del other.graph.initializer[index]
                other.graph.node.insert(0, helper.make_node("Constant", [], [name], sparse_value=sparse))
                yield f"{name} from a sparse Constant", other
        other = _copy(model)
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
    unused = _copy(model)
    unused.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "nobody uses this"))
    unused.graph.initializer.append(numpy_helper.from_array(np.ones((0, 3), np.float32), "empty"))
    unused.graph.initializer.append(TensorProto(name="no dims", data_type=TensorProto.FLOAT, raw_data=bytes(4)))
    yield "unused ones", unused
    nameless = _copy(model)
    nameless.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), ""))
    yield "one without a name", nameless


@_variation
def _order(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    if len(model.graph.node) < 2:
        return
    turned = _copy(model)
    nodes = list(model.graph.node)
    del turned.graph.node[:]
    turned.graph.node.extend(reversed(nodes))
    yield "of nodes turned round", turned


@_variation
def _names(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    for name in ("", "same", "a/b:c 0", "x", "\u00e9\u4e2d", "long" * 500):
        other = _copy(model)
        for node in other.graph.node:
            node.name = name
        yield f"of nodes all {name[:8]!r}", other
    inner = [output for node in model.graph.node for output in node.output if output]
    for name in inner[:2]:
        for new in ("Shape", "1", "\u00e9", "a b", "ortfuse_const_0", "com.microsoft", "a" * 3000):
            yield f"{name} becomes {new[:12]!r}", _renamed(model, name, new)
    other = _copy(model)
    other.graph.name = ""
    yield "no graph name", other
    producer = _copy(model)
    producer.producer_name, producer.producer_version, producer.domain, producer.model_version = (
        "pytorch",
        "\u00e9",
        "a b",
        -(2**62),
    )
    producer.doc_string = producer.graph.doc_string = "text " * 100
    yield "of producers", producer


def _renamed(model: ModelProto, old: str, new: str) -> ModelProto:
    other = _copy(model)
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
    other = _copy(model)
    del other.graph.output[:]
    yield "no outputs", other
    for index, value in enumerate(graph.output):
        other = _copy(model)
        other.graph.output[index].ClearField("type")
        yield f"output {value.name} without a type", other
        other = _copy(model)
        other.graph.output[index].type.tensor_type.ClearField("shape")
        yield f"output {value.name} without a shape", other
        for dim in ("", "?0", "1", "b + 1", -1, 0, 77):
            other = _copy(model)
            _declare(other.graph.output[index], dim)
            yield f"output {value.name} of sizes {dim!r}", other
        other = _copy(model)
        other.graph.output.append(value)
        yield f"output {value.name} twice", other
        other = _copy(model)
        other.graph.node.append(helper.make_node("Identity", [value.name], ["more"]))
        other.graph.output.append(onnx.ValueInfoProto(name="more", type=value.type))
        yield f"output {value.name} used again", other
    for index, value in enumerate(graph.input):
        other = _copy(model)
        other.graph.input[index].type.tensor_type.ClearField("shape")
        yield f"input {value.name} without a shape", other
        for dim in ("", "?0", "1", "b + 1", "same", -1, 0):
            other = _copy(model)
            _declare(other.graph.input[index], dim)
            yield f"input {value.name} of sizes {dim!r}", other
        other = _copy(model)
        other.graph.output.append(value)
        yield f"input {value.name} is an output", other
        other = _copy(model)
        other.graph.input.append(value)
        yield f"input {value.name} twice", other
    unused = _copy(model)
    unused.graph.input.append(helper.make_tensor_value_info("unused", TensorProto.FLOAT, ["k"]))
    yield "unused input", unused
    for node in graph.node:
        for output in node.output:
            if output and output not in kinds:
                other = _copy(model)
                other.graph.output.append(onnx.ValueInfoProto(name=output))
                yield f"inner {output} as an output without a type", other


@_variation
def _more_nodes(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    first = model.graph.input[0].name
    dead = _copy(model)
    dead.graph.node.append(helper.make_node("Identity", [first], ["dead end"]))
    yield "a dead end", dead
    nothing = _copy(model)
    nothing.graph.node.append(helper.make_node("Identity", [first], [""]))
    yield "a node without outputs", nothing
    for node in model.graph.node:
        again = _copy(model)
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
        other = _copy(model)
        other.graph.value_info.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in names[:1]
        )
        if label or not names:
            yield f"{label} for {names[:1]}", other
    empty = _copy(model)
    empty.graph.value_info.extend(onnx.ValueInfoProto(name=name) for name in [*names, "of nothing"])
    yield "without types", empty
    twice = _copy(model)
    twice.graph.value_info.extend([helper.make_tensor_value_info("of nothing", TensorProto.INT64, [3])] * 2)
    yield "twice, of a value that is none", twice
    annotated = _copy(model)
    annotated.graph.quantization_annotation.add(tensor_name=inner[0]).quant_parameter_tensor_names.add(
        key="SCALE_TENSOR", value="s"
    )
    yield "with a quantization annotation", annotated
    metadata = _copy(model)
    metadata.metadata_props.add(key="a", value="1")
    metadata.metadata_props.add(key="a", value="1")
    metadata.graph.metadata_props.add(key="", value="")
    yield "with metadata", metadata
    doubled = _copy(model)
    doubled.metadata_props.add(key="a", value="1")
    doubled.metadata_props.add(key="a", value="2")
    yield "with contradicting metadata", doubled
    training = _copy(model)
    training.training_info.add().algorithm.name = "sgd"
    yield "with training information", training
    if hasattr(model, "configuration"):
        devices = _copy(model)
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
        other = _copy(model)
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
        other = _copy(model)
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


def _in_other_files(model: ModelProto) -> Iterator[Variant]:
    """Initializers in data files, in the ways in which these are written."""
    if not model.graph.initializer:
        return
    kinds = {
        "plain": {"offset": True, "length": True},
        "from the start to the end": {"each": True},
        "with a checksum": {"offset": True, "length": True, "checksum": "0" * 40},
        "of unknown keys": {"offset": True, "length": True, "prepacked": "1"},
        "at odd places": {"offset": True, "length": True, "gap": 3},
        "below": {"offset": True, "length": True, "folder": "below/"},
        "by a path with dots": {"offset": True, "length": True, "folder": "./"},
        "by a backslash": {"offset": True, "length": True, "folder": ".\\"},
        "in one more folder and back": {"offset": True, "length": True, "folder": "below/../"},
    }
    for label, how in kinds.items():
        other, files, whole = _copy(model), {}, bytearray()
        for index, tensor in enumerate(other.graph.initializer):
            content = numpy_helper.to_array(tensor).tobytes()
            dims, kind = list(tensor.dims), tensor.data_type
            name = tensor.name
            tensor.Clear()
            tensor.name, tensor.data_type, tensor.data_location = name, kind, TensorProto.EXTERNAL
            tensor.dims.extend(dims)
            place = f"w{index}.bin" if "each" in how else "w.bin"
            whole += bytes(int(how.get("gap", 0)))
            entries = {"location": f"{how.get('folder', '')}{place}"}
            if "offset" in how:
                entries["offset"] = str(len(whole))
            if "length" in how:
                entries["length"] = str(len(content))
            entries |= {key: str(how[key]) for key in ("checksum", "prepacked") if key in how}
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=value)
            files[place] = content
            whole += content
        if "each" not in how:
            files = {"w.bin": bytes(whole)}
        if how.get("folder") == "below/":
            files = {f"below/{name}": content for name, content in files.items()}
        if how.get("folder") == "below/../":
            files["below/other"] = b""
        yield Variant(f"external data: {label}", other.SerializeToString(), files)


_MARK = "MARKMARK"


def _not_utf8(model: ModelProto) -> Iterator[Variant]:
    """Texts that are not UTF-8, which protobuf's own writer in Python refuses to write."""
    marked: list[tuple[str, ModelProto]] = []
    for label, change in {
        "documentation": lambda m: setattr(m, "doc_string", _MARK),
        "producer": lambda m: setattr(m, "producer_name", _MARK),
        "a node's documentation": lambda m: setattr(m.graph.node[0], "doc_string", _MARK),
        "a node's name": lambda m: setattr(m.graph.node[0], "name", _MARK),
        "the graph's name": lambda m: setattr(m.graph, "name", _MARK),
        "metadata": lambda m: m.metadata_props.add(key="a", value=_MARK),
        "an input's documentation": lambda m: setattr(m.graph.input[0], "doc_string", _MARK),
        "a dimension": lambda m: m.graph.value_info.append(
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [_MARK])
        ),
    }.items():
        copy = _copy(model)
        change(copy)
        marked.append((label, copy))
    inner = next((output for node in model.graph.node[:-1] for output in node.output if output), None)
    for label, name in (
        ("a value", inner),
        ("an input", model.graph.input[0].name),
        ("an output", model.graph.output[0].name),
    ):
        if name is not None:
            marked.append((label, _renamed(model, name, _MARK)))
    if model.graph.initializer:
        marked.append(("an initializer", _renamed(model, model.graph.initializer[0].name, _MARK)))
    for label, copy in marked:
        yield Variant(
            f"not UTF-8: {label}", copy.SerializeToString().replace(_MARK.encode(), b"\xe9t\xe9\xff.\xfe:0"), {}
        )


def _on_the_wire(model: ModelProto) -> Iterator[Variant]:
    """The same fields in unusual forms."""
    content = model.SerializeToString()
    yield Variant("wire: a field that nobody knows", content + b"\xf2\x3f\x03abc", {})
    parts = [ModelProto() for _ in range(2)]
    parts[0].CopyFrom(model)
    node = parts[0].graph.node.pop()
    parts[1].graph.node.append(node)
    yield Variant("wire: the graph in two pieces", b"".join(part.SerializeToString() for part in parts), {})


def pairs(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    """Variants of variants: one of each variation applied to each of another."""
    for one, other in itertools.permutations(VARIATIONS, 2):
        for label, changed in VARIATIONS[one](model):
            if not changed.graph.node or not changed.graph.input:
                continue
            for second, twice in VARIATIONS[other](changed):
                yield f"{one}: {label}; {other}: {second}", twice
