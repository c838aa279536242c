"""The ways in which files that say the same differ: in the model, in where its weights are, in the bytes themselves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from onnx import ModelProto, TensorProto, helper, numpy_helper

from .variations import VARIATIONS, copied, renamed


class Variant(NamedTuple):
    """A variant: a label, its model, the bytes of its file, and the other files beside it by name."""

    label: str
    content: bytes
    files: dict[str, bytes]


def variants(model: ModelProto) -> Iterator[Variant]:
    """Every variant of a model, itself first."""
    yield Variant("as it is", model.SerializeToString(), {})
    for name, variation in VARIATIONS.items():
        for label, changed in variation(model):
            yield Variant(f"{name}: {label}", changed.SerializeToString(), {})
    yield from _in_other_files(model)
    yield from _not_utf8(model)
    yield from _on_the_wire(model)


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
        other, files, whole = copied(model), {}, bytearray()
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
        copy = copied(model)
        change(copy)
        marked.append((label, copy))
    inner = next((output for node in model.graph.node[:-1] for output in node.output if output), None)
    for label, name in (
        ("a value", inner),
        ("an input", model.graph.input[0].name),
        ("an output", model.graph.output[0].name),
    ):
        if name is not None:
            marked.append((label, renamed(model, name, _MARK)))
    if model.graph.initializer:
        marked.append(("an initializer", renamed(model, model.graph.initializer[0].name, _MARK)))
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
