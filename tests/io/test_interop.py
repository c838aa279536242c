from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon
import onnx_ir
import pytest
from model_files import GOLDEN, large, linear, run, weight_of, write_external, write_linear
from onnx import TensorProto, helper, numpy_helper, parser

from ortfuse.errors import InvalidModelError, ModelFileError
from ortfuse.io.convert_model_objects import enter, leave
from ortfuse.io.load_and_save import save
from ortfuse.ir import walk
from ortfuse.ir.enumerate_tensors import tensors

KINDS: dict[str, tuple[type, Callable[[Path], Any]]] = {
    "path": (onnx_ir.Model, lambda path: path),
    "string": (onnx_ir.Model, str),
    "proto": (onnx.ModelProto, onnx.load),
    "ir": (onnx_ir.Model, onnx_ir.load),
    "graphsurgeon": (onnx_graphsurgeon.Graph, lambda path: onnx_graphsurgeon.import_onnx(onnx.load(path))),
}


def write(model: Any, path: Path) -> None:
    """Write a model object by the means of its own package."""
    if isinstance(model, onnx_ir.Model):
        onnx_ir.save(model, path)
    else:
        onnx.save(model if isinstance(model, onnx.ModelProto) else onnx_graphsurgeon.export_onnx(model), path)


def has_empty_list(graph: onnx.GraphProto) -> bool:
    """Whether a graph has an attribute that onnx_graphsurgeon reads but cannot write."""
    return any(a.type == onnx.AttributeProto.INTS and not a.ints for node in graph.node for a in node.attribute)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back_as_the_same_function(kind: str, golden: Path, tmp_path: Path) -> None:
    expected_type, read = KINDS[kind]
    if kind == "graphsurgeon" and has_empty_list(onnx.load(golden).graph):
        with pytest.raises(
            InvalidModelError, match="onnx_graphsurgeon cannot export the graph: Could not infer attribute"
        ):
            enter(read(golden))
        return
    model, source = enter(read(golden))
    result = leave(model, source)
    assert isinstance(result, expected_type)
    write(result, tmp_path / "out.onnx")
    before, after = onnx.load(golden).graph, onnx.load(tmp_path / "out.onnx").graph
    assert [value.name for value in after.input] == [value.name for value in before.input]
    assert [value.name for value in after.output] == [value.name for value in before.output]
    assert {node.name for node in after.node} == {node.name for node in before.node}
    for one, other in zip(run(golden), run(tmp_path / "out.onnx"), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_knows_what_came_in(kind: str, tmp_path: Path) -> None:
    path = write_linear(tmp_path / "m.onnx")
    _, source = enter(KINDS[kind][1](path))
    if kind in ("path", "string"):
        assert (source.kind, source.name, source.path) == ("path", str(path), path)
    else:
        assert (source.kind, source.name, source.path) == (kind, "g", None)


def everything(path: Path) -> onnx.ModelProto:
    """A model whose tensors are of every origin: initializers large and small, attributes, subgraphs."""
    model = parser.parse_model(
        """
        <ir_version: 10, opset_import: ["": 20]> g (float[n, 256] x) => (float[n, m] y) <bool c = {1}> {
            k = Constant <value = float[1] {1.0}> ()
            p = MatMul(x, w)
            y = If (c) <then_branch = a () => (float[n, m] q) <float[1] u = {1.0}> { q = Add(p, u) },
                        else_branch = b () => (float[n, m] r) { r = Add(p, k) }>
        }
        """
    )
    model.graph.initializer.append(numpy_helper.from_array(large(), "w"))
    onnx.save(model, path)
    return model


@pytest.mark.parametrize("unsorted", [False, True])
@pytest.mark.parametrize("kind", ["proto", "ir", "graphsurgeon"])
def test_the_callers_object_is_never_changed(kind: str, unsorted: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    proto = everything(path)
    if unsorted:
        proto.graph.node.reverse()
        onnx.save(proto, path)
    theirs = KINDS[kind][1](path)
    write(theirs, tmp_path / "before.onnx")
    ours, _ = enter(theirs)
    for slot in tensors(ours):
        slot.tensor.name = f"changed {slot.tensor.name}"
        slot.tensor.metadata_props["changed"] = "yes"
    for graph in walk.graphs(ours):
        for node in graph:
            node.name, node.op_type = "changed", "Changed"
            for output in node.outputs:
                output.name = f"changed {output.name}"
        for value in list(graph.initializers.values()):
            value.name = f"changed {value.name}"
    ours.opset_imports["changed"] = 1
    ours.metadata_props["changed"] = "yes"
    write(theirs, tmp_path / "after.onnx")
    assert (tmp_path / "after.onnx").read_bytes() == (tmp_path / "before.onnx").read_bytes()


def test_weights_of_a_protobuf_and_of_a_graph_are_shared_not_copied(tmp_path: Path) -> None:
    proto = everything(tmp_path / "m.onnx")
    ours, _ = enter(proto)
    tensor = proto.graph.initializer[-1]
    tensor.raw_data = (large() * 3).tobytes()
    np.testing.assert_array_equal(weight_of(ours), large() * 3)
    theirs = onnx_ir.from_proto(everything(tmp_path / "m.onnx"))
    array = large()
    theirs.graph.initializers["w"].const_value = onnx_ir.Tensor(array, name="w")
    ours, _ = enter(theirs)
    assert np.shares_memory(weight_of(ours), array)


def test_every_class_of_tensor_is_taken_over(tmp_path: Path) -> None:
    path = write_external(tmp_path / "m.onnx")
    theirs = onnx_ir.load(path)
    shape = onnx_ir.Shape([2])
    tensors: dict[str, onnx_ir.TensorProtocol] = {
        "array": onnx_ir.tensor(np.ones(2, np.float32)),
        "lazy": onnx_ir.LazyTensor(lambda: onnx_ir.tensor([1.0, 1.0]), onnx_ir.DataType.FLOAT, shape),
        "string": onnx_ir.StringTensor([b"a", b"b"], shape=shape),
        "packed": onnx_ir.PackedTensor(np.array([0x21], np.uint8), onnx_ir.DataType.UINT4, shape=shape),
        "protobuf": onnx_ir.TensorProtoTensor(helper.make_tensor("protobuf", TensorProto.FLOAT, [2], [1.0, 1.0])),
    }
    for name, tensor in tensors.items():
        tensor.name = name
        theirs.graph.register_initializer(onnx_ir.Value(name=name, const_value=tensor))
    ours, source = enter(theirs)
    again, _ = enter(leave(ours, source))
    for name in [*tensors, "w"]:
        their_tensor = theirs.graph.initializers[name].const_value
        for model in (ours, again):
            tensor = model.graph.initializers[name].const_value
            assert tensor is not None
            assert tensor is not their_tensor
            assert (tensor.name, tensor.dtype, tensor.shape) == (name, their_tensor.dtype, their_tensor.shape)
            np.testing.assert_array_equal(tensor.numpy(), their_tensor.numpy())
    save(again, tmp_path / "o.onnx")
    np.testing.assert_array_equal(run(tmp_path / "o.onnx")[0], run(path)[0])


def test_a_graph_that_is_handed_over_is_changed_in_place(tmp_path: Path) -> None:
    theirs = onnx_ir.from_proto(everything(tmp_path / "m.onnx"))
    ours, source = enter(theirs, copy=False)
    assert ours is theirs
    assert leave(ours, source) is theirs


def test_a_protobuf_without_its_external_weights_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = onnx.load(write_external(tmp_path / "m.onnx"), load_external_data=False)
    with pytest.raises(ModelFileError, match=r"weights\.bin is missing; a ModelProto does not know the folder"):
        enter(proto)
    monkeypatch.chdir(tmp_path)
    ours, source = enter(proto)
    np.testing.assert_array_equal(weight_of(ours), large())
    assert leave(ours, source) == proto


def test_a_protobuf_cannot_lead_outside_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = onnx.load(write_external(tmp_path / "m.onnx"), load_external_data=False)
    proto.graph.initializer[0].external_data[0].value = "../secret"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFileError, match=r"leads through '\.\.' to"):
        enter(proto)


def test_a_result_can_be_saved_after_the_files_are_gone(tmp_path: Path) -> None:
    path = write_linear(tmp_path / "m.onnx")
    expected = run(path)
    model, source = enter(path)
    path.unlink()
    save(leave(model, source), tmp_path / "o.onnx")
    np.testing.assert_array_equal(run(tmp_path / "o.onnx"), expected)


def test_an_empty_protobuf_is_refused() -> None:
    with pytest.raises(Exception, match="has no graph"):
        enter(onnx.ModelProto())


@pytest.mark.parametrize("thing", [None, 3, linear(large()).graph, b"bytes"])
def test_what_is_no_model_is_refused(thing: Any) -> None:
    with pytest.raises(TypeError, match=r"a model is a path, an onnx\.ModelProto, .*, not"):
        enter(thing)


def test_what_pytorch_exports_is_taken_as_it_is() -> None:
    class Exported:
        """As `torch.onnx.ONNXProgram`."""

        model = onnx_ir.from_onnx_text(
            '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
        )

    program = Exported()
    entered, source = enter(program)
    assert entered is not program.model
    assert leave(entered, source) is entered
    assert [node.op_type for node in entered.graph] == ["Relu"]
