"""Serialize models to files: the small parts through protobuf, the weights streamed from where they are stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, TypeAlias

import onnx
import onnx_ir

from ortfuse.errors import OutputError
from ortfuse.io import wire_format
from ortfuse.io.atomic_write import Staging, real
from ortfuse.io.convert_modelproto import Weight, separate
from ortfuse.io.data_file import DataFile
from ortfuse.io.list_external_data_files import locations
from ortfuse.io.stored_tensor import ExternalStoredTensor, in_file
from ortfuse.ir import walk
from ortfuse.ir.enumerate_tensors import tensors, tensors_of

MAX_FILE = 2**31 - 1
"""The largest message in bytes that protobuf can read."""

_STREAMED = 1024
"""Initializers of at least this many bytes are streamed, or put into the data file if there is one. ONNX Runtime needs
the small ones, which may be shapes, inside the model file."""

_PAGE, _LINE = 4096, 64
"""Alignments in the data file: of tensors larger than a few pages, so that they can be mapped and can share blocks with the
file they come from, and of the others."""

_WORTH_LINKING = 0.5
"""An external file is kept whole if the model needs at least this fraction of it; otherwise the needed part is copied."""

Check: TypeAlias = Callable[[Path, Mapping[str, Path]], Callable[[], object]]
"""Starts to check a model that is written but not yet in place: the model file, and its data files by the names that it has for
them. The returned function is called when all is on the disk, and waits for the finding; an exception of either undoes all."""


def _approve(model: Path, data: Mapping[str, Path]) -> Callable[[], object]:
    """Approve of anything."""
    return lambda: None


Pair = tuple[onnx.TensorProto, onnx_ir.TensorProtocol]


class Placed(NamedTuple):
    """A tensor's protobuf, and the location of its data: index of the data file, offset, number of bytes."""

    proto: onnx.TensorProto
    file: int
    offset: int
    length: int


def write(
    model: onnx_ir.Model, target: Path, *, link: bool, external_data: bool = False, check: Check | None = None
) -> None:
    """Write a model to `target`, with data files `<target>.data`, ... if it has external weights, is too large
    for one file, or they are asked for.

    Args:
        model: The model.
        target: The path of the model file. Data files that do not belong to the model that was there are not replaced: the next
            free name is taken.
        link: Whether external files that are still needed may become data files through hard links.
        external_data: Whether weights go to a data file in any case.
        check: Checks what is written before it is moved into place.

    Raises:
        OutputError: The model does not fit into the file format, or would replace its own weights.
        OSError: A file cannot be written.
        InvalidModelError, ModelFileError: The model or its weights cannot be read.
    """
    proto, weights = separate(model, _STREAMED)
    nested = _nested_external(model, proto)
    external = external_data or bool(nested) or any(isinstance(w.tensor, onnx_ir.ExternalTensor) for w in weights)
    if not external:
        external = _size(proto, weights) > MAX_FILE
    avoided = _data_of_others(model, target)
    if real(target) in avoided:
        raise OutputError(f"{target}: holds weights of the model; give the result another name")
    with Staging(target, avoided | _strangers(target)) as staging:
        if external:
            pairs = [*nested, *((w.header, w.tensor) for w in weights if w.tensor is not None)]
            placed = _place_data(pairs, staging, link=link)
            weights = [Weight(w.header, None) for w in weights]
            if (interim := staging.interim_data_names()) is not None:
                _refer(placed, interim)
                _write_model(proto, weights, staging.open("interim"))
            _refer(placed, [path.name for path in staging.data])
        if _size(proto, weights) > MAX_FILE:
            raise OutputError(f"{target}: the model is larger than 2 GB without its weights; no ONNX file can hold it")
        _write_model(proto, weights, staging.open("model"))
        _hold_open(model, (staging.model, *staging.data))
        approve = (check or _approve)(*staging.written())
        staging.sync()
        approve()
        staging.commit()


def _data_of_others(model: onnx_ir.Model, target: Path) -> set[Path]:
    """The data files of the model that belong to another model file than `target`, the one it was loaded from."""
    files = {slot.tensor.data.file for slot in tensors(model) if isinstance(slot.tensor, ExternalStoredTensor)}
    return {real(file.path) for file in files if not _belongs_to(file, target)}


def _strangers(target: Path) -> set[Path]:
    """Files with the names of data files of a result that the model that it replaces does not have: they are somebody else's."""
    beside = re.compile(re.escape(target.name) + r"\.data(\.[0-9]+)?")
    found = [path for path in target.parent.iterdir() if beside.fullmatch(path.name)]
    if not found:
        return set()
    try:
        known = {real(target.parent / location) for location in locations(target)}
    except (OSError, ValueError):
        known = set[Path]()
    return {place for place in map(real, found) if place not in known}


def _belongs_to(file: DataFile, target: Path) -> bool:
    """Whether a data file may be replaced together with `target`; not known of tensors that the caller made."""
    return target.exists() and (file.model is None or real(file.model) == real(target))


def _size(proto: onnx.ModelProto, weights: Iterable[Weight]) -> int:
    """An upper bound of the size of the model file in bytes, only slightly too large."""
    framing = 16
    headers: int = sum(w.header.ByteSize() + framing for w in weights)
    tensors = sum(w.tensor.nbytes for w in weights if w.tensor is not None)
    return int(proto.ByteSize()) + headers + tensors


def _write_model(proto: onnx.ModelProto, weights: list[Weight], file: IO[bytes]) -> None:
    """Write one protobuf message: `proto`, with the weights as the last fields of its graph."""
    graph = proto.graph.SerializeToString()
    initializers = [(w.header.SerializeToString(), w.tensor) for w in weights]
    file.write(_all_but_the_graph(proto).SerializeToString())
    frames = [_frame(header, tensor) for header, tensor in initializers]
    sizes = (
        len(frame) + (tensor.nbytes if tensor is not None else 0)
        for frame, (_, tensor) in zip(frames, initializers, strict=True)
    )
    file.write(wire_format.header(wire_format.GRAPH, len(graph) + sum(sizes)))
    file.write(graph)
    for frame, (_, tensor) in zip(frames, initializers, strict=True):
        file.write(frame)
        if tensor is not None:
            _write_tensor(tensor, file)


def _all_but_the_graph(proto: onnx.ModelProto) -> onnx.ModelProto:
    rest = onnx.ModelProto()
    for field, value in proto.ListFields():
        if field.name == "graph":
            continue
        if isinstance(value, int | str):
            setattr(rest, field.name, value)
        else:
            getattr(rest, field.name).MergeFrom(value)
    return rest


def _frame(header: bytes, tensor: onnx_ir.TensorProtocol | None) -> bytes:
    """Everything of an initializer that precedes its raw data."""
    if tensor is None:
        return wire_format.header(wire_format.INITIALIZER, len(header)) + header
    raw = wire_format.header(wire_format.RAW_DATA, tensor.nbytes)
    return wire_format.header(wire_format.INITIALIZER, len(header) + len(raw) + tensor.nbytes) + header + raw


def _place_data(pairs: Iterable[Pair], staging: Staging, *, link: bool) -> list[Placed]:
    """Put the large tensors of `pairs` into data files, without duplicates; the small ones go into their protobufs."""
    large: list[Pair] = []
    for proto, tensor in pairs:
        if tensor.nbytes >= _STREAMED:
            large.append((proto, tensor))
            continue
        proto.ClearField("external_data")
        proto.ClearField("data_location")
        proto.raw_data = tensor.tobytes()
    linked = _link_files([tensor for _, tensor in large], staging) if link else {}
    placed: list[Placed] = []
    rest: list[Pair] = []
    for proto, tensor in large:
        if isinstance(tensor, ExternalStoredTensor) and (index := linked.get(tensor.data.file)) is not None:
            placed.append(Placed(proto, index, tensor.data.offset, tensor.data.length))
        else:
            rest.append((proto, tensor))
    if rest:
        placed += _write_data(rest, staging.open("data"), len(linked))
    return placed


def _link_files(tensors: Iterable[onnx_ir.TensorProtocol], staging: Staging) -> dict[DataFile, int]:
    """Use whole external files as data files where possible and worthwhile; returns the index of each."""
    needed: dict[DataFile, dict[int, int]] = {}
    for tensor in tensors:
        if isinstance(tensor, ExternalStoredTensor):
            needed.setdefault(tensor.data.file, {})[tensor.data.offset] = tensor.data.length
    linked: dict[DataFile, int] = {}
    for file, extents in needed.items():
        if sum(extents.values()) >= _WORTH_LINKING * file.size and staging.link(file):
            linked[file] = len(linked)
    return linked


def _write_data(pairs: Iterable[Pair], file: IO[bytes], index: int) -> list[Placed]:
    """Write tensors to the data file with this index, without duplicates."""
    placed: list[Placed] = []
    offsets: dict[Hashable, int] = {}
    for proto, tensor in pairs:
        stored = in_file(tensor)
        source: Hashable = id(tensor) if stored is None else (stored.file, stored.offset, stored.length)
        if source not in offsets:
            alignment = _PAGE if tensor.nbytes >= 4 * _PAGE else _LINE
            file.write(bytes(-file.tell() % alignment))
            offsets[source] = file.tell()
            _write_tensor(tensor, file)
        placed.append(Placed(proto, index, offsets[source], tensor.nbytes))
    return placed


def _refer(placed: Iterable[Placed], names: Sequence[str]) -> None:
    """Make the protobufs refer to their data in the files with these names."""
    for proto, file, offset, length in placed:
        proto.ClearField("external_data")
        proto.data_location = onnx.TensorProto.EXTERNAL
        for key, value in {"location": names[file], "offset": str(offset), "length": str(length)}.items():
            proto.external_data.add(key=key, value=value)


def _write_tensor(tensor: onnx_ir.TensorProtocol, file: IO[bytes]) -> None:
    start = file.tell()
    stream = getattr(tensor, "tofile", None)  # not all tensor classes defined by other packages have it
    if stream is not None:
        stream(file)
    else:
        file.write(tensor.tobytes())
    if (written := file.tell() - start) != tensor.nbytes:
        raise OutputError(f"initializer '{tensor.name}' has {written:,} bytes instead of {tensor.nbytes:,}")


def _hold_open(model: onnx_ir.Model, replaced: Iterable[Path]) -> None:
    """Keep the model readable when a file that holds its weights is about to be replaced."""
    places = set(map(real, replaced))
    for slot in tensors(model):
        if isinstance(slot.tensor, ExternalStoredTensor) and real(slot.tensor.data.file.path) in places:
            slot.tensor.data.file.hold()


def _nested_external(model: onnx_ir.Model, proto: onnx.ModelProto) -> list[Pair]:
    """The external tensors in attributes and subgraphs, each paired with its protobuf in `proto`."""
    if not any(isinstance(slot.tensor, onnx_ir.ExternalTensor) for slot in tensors(model)):
        return []
    bodies = [
        (model.graph, proto.graph),
        *zip(walk.roots(model)[1:], proto.functions, strict=True),
    ]
    return [
        pair for graph, body in bodies for pair in _pairs(graph, body) if isinstance(pair[1], onnx_ir.ExternalTensor)
    ]


def _pairs(graph: onnx_ir.Graph, proto: onnx.GraphProto | onnx.FunctionProto) -> Iterator[Pair]:
    """The tensors in the nodes of a graph, paired with their protobufs; the conversion preserves all orders."""
    for node, node_proto in zip(graph, proto.node, strict=True):
        for attribute, content in zip(node.attributes.values(), node_proto.attribute, strict=True):
            if tensors := tensors_of(attribute):
                single = attribute.type == onnx_ir.AttributeType.TENSOR
                yield from zip([content.t] if single else content.tensors, tensors, strict=True)
            elif graphs := walk.graphs_of(attribute):
                single = attribute.type == onnx_ir.AttributeType.GRAPH
                for inner, body in zip(graphs, [content.g] if single else content.graphs, strict=True):
                    values = (v.const_value for v in inner.initializers.values() if v.const_value is not None)
                    yield from zip(body.initializer, values, strict=True)
                    yield from _pairs(inner, body)
