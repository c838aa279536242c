import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from model_files import GOLDEN, large, run, weight_of, write_external, write_linear
from onnx import TensorProto, helper, numpy_helper, parser

import ortfuse
import ortfuse.io.write
from ortfuse.errors import InvalidModelError, ModelFileError, OutputError
from ortfuse.io import wire_format
from ortfuse.io.copy_model import copy_model
from ortfuse.io.load_and_save import load, save


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_real_export_comes_back_the_same(path: Path, tmp_path: Path) -> None:
    save(load(path), tmp_path / "out.onnx")
    before, after = onnx.load(path), onnx.load(tmp_path / "out.onnx")
    assert list(after.graph.node) == list(before.graph.node)
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    assert list(after.functions) == list(before.functions)
    assert [t.name for t in after.graph.initializer] == [t.name for t in before.graph.initializer]
    for one, other in zip(run(path), run(tmp_path / "out.onnx"), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_function_of_the_default_domain_says_so_as_the_checker_demands(tmp_path: Path) -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]> g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }
        <domain: "", opset_import: ["": 20]> Relu (x) => (y) { y = Add(x, x) }"""
    )
    onnx.save(model, tmp_path / "model.onnx")
    onnx.checker.check_model(tmp_path / "model.onnx")
    save(load(tmp_path / "model.onnx"), tmp_path / "out.onnx")
    onnx.checker.check_model(tmp_path / "out.onnx")


def test_everything_a_model_says_about_itself_is_kept(tmp_path: Path) -> None:
    model = parser.parse_model(
        """
        <ir_version: 10, opset_import: ["": 20, "mine": 1], producer_name: "exporter", producer_version: "2",
         domain: "org.example", model_version: 7, doc_string: "about the model", metadata_props: ["key": "value"]>
        g (float[n, 4] x) => (float[n, 4] y)
        <float[4] w = {1, 2, 3, 4}, float[n, 4] h> { h = mine.Scaled <factor = 2.0> (x, w) y = Identity(h) }
        <domain: "mine", opset_import: ["": 20]>
        Scaled <factor> (a, b) => (c) { f = Constant <value_float: float = @factor> () d = Mul(a, b) c = Mul(d, f) }
        """
    )
    model.graph.doc_string = "about the graph"
    model.graph.node[0].doc_string = "about the node"
    model.graph.node[0].name = "the node"
    model.graph.node[0].metadata_props.add(key="of", value="node")
    model.graph.metadata_props.add(key="of", value="graph")
    model.graph.initializer[0].doc_string = "about the weight"
    model.graph.initializer[0].metadata_props.add(key="of", value="weight")
    annotation = model.graph.quantization_annotation.add(tensor_name="h")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    for node in [*model.graph.node, *model.functions[0].node]:
        if not node.domain:
            node.ClearField("domain")  # the parser sets it to "", which says the same as leaving it out
    onnx.save(model, tmp_path / "in.onnx")
    save(load(tmp_path / "in.onnx"), tmp_path / "out.onnx")
    assert onnx.load(tmp_path / "out.onnx") == model


@pytest.mark.parametrize(
    "tensor",
    [
        helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0]),
        helper.make_tensor("w", TensorProto.STRING, [2], [b"a", b"b"]),
        helper.make_tensor("w", TensorProto.BOOL, [3], [True, False, True]),
        helper.make_tensor("w", TensorProto.COMPLEX64, [2], [1 + 2j, 3j]),
        helper.make_tensor("w", TensorProto.BFLOAT16, [2], [1.0, 2.0]),
        helper.make_tensor("w", TensorProto.INT4, [3], [1, -2, 3]),
        helper.make_tensor("w", TensorProto.FLOAT8E4M3FN, [2], [1.0, 2.0]),
        helper.make_tensor("w", TensorProto.FLOAT, [0, 3], []),
        numpy_helper.from_array(np.arange(700, dtype=np.int64), "w"),
        numpy_helper.from_array(large().astype(np.float16), "w"),
        helper.make_tensor("w", TensorProto.INT4, [200_001], np.arange(100_001, dtype=np.uint8).tobytes(), raw=True),
    ],
    ids=lambda tensor: f"{TensorProto.DataType.Name(tensor.data_type)}{list(tensor.dims)}",
)
def test_every_kind_of_tensor_comes_back_the_same(tensor: onnx.TensorProto, tmp_path: Path) -> None:
    model = parser.parse_model('<ir_version: 10, opset_import: ["": 20]> g () => (float[n] y) { y = CastLike(w, w) }')
    model.graph.initializer.append(tensor)
    onnx.save(model, tmp_path / "in.onnx")
    loaded = load(tmp_path / "in.onnx")
    save(loaded, tmp_path / "out.onnx")
    expected = numpy_helper.to_array(tensor)
    np.testing.assert_array_equal(
        numpy_helper.to_array(onnx.load(tmp_path / "out.onnx").graph.initializer[0]), expected
    )
    if tensor.data_type != TensorProto.STRING:
        assert weight_of(loaded).astype(expected.dtype).tobytes() == expected.tobytes()


def test_a_file_in_two_parts_is_one_model(tmp_path: Path) -> None:
    """Protobuf files may be concatenated; weights are then in both parts."""
    second = onnx.ModelProto()
    second.graph.initializer.append(numpy_helper.from_array(large() * 2, "v"))
    path = write_linear(tmp_path / "m.onnx")
    path.write_bytes(path.read_bytes() + second.SerializeToString())
    model = load(path)
    np.testing.assert_array_equal(weight_of(model), large())
    np.testing.assert_array_equal(weight_of(model, "v"), large() * 2)


def test_a_weight_given_twice_in_one_tensor_counts_as_protobuf_says(tmp_path: Path) -> None:
    path = write_linear(tmp_path / "m.onnx")
    proto = onnx.load(path)
    del proto.graph.initializer[:]
    old, new = (numpy_helper.from_array(weight, "w") for weight in (large(), large() * 2))
    tensor = old.SerializeToString() + wire_format.header(wire_format.RAW_DATA, len(new.raw_data)) + new.raw_data
    graph = proto.graph.SerializeToString() + wire_format.header(wire_format.INITIALIZER, len(tensor)) + tensor
    proto.ClearField("graph")
    path.write_bytes(proto.SerializeToString() + wire_format.header(wire_format.GRAPH, len(graph)) + graph)
    np.testing.assert_array_equal(weight_of(load(path)), large() * 2)


def test_nodes_come_in_topological_order(tmp_path: Path) -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[n] x) => (float[n] y) { y = Neg(b) b = Exp(a) a = Abs(x) }'
    )
    onnx.save(model, tmp_path / "m.onnx")
    assert [node.op_type for node in load(tmp_path / "m.onnx").graph] == ["Abs", "Exp", "Neg"]


def test_a_weight_is_read_when_it_is_asked_for_and_not_held(tmp_path: Path) -> None:
    model = load(write_linear(tmp_path / "m.onnx"))
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    array = tensor.numpy()
    assert array is tensor.numpy(), "shared while in use"
    assert not array.flags.writeable
    np.testing.assert_array_equal(array, large())


@pytest.mark.parametrize("write", [write_linear, write_external])
def test_a_model_survives_the_deletion_of_its_files(write: Callable[[Path], Path], tmp_path: Path) -> None:
    model = load(write(tmp_path / "m.onnx"))
    for file in tmp_path.iterdir():
        file.unlink()
    np.testing.assert_array_equal(weight_of(model), large())


def test_a_file_that_was_written_over_is_reported(tmp_path: Path) -> None:
    path = write_linear(tmp_path / "m.onnx")
    model = load(path)
    os.truncate(path, 1000)
    with pytest.raises(ModelFileError, match=r"m\.onnx: changed after the model was loaded"):
        weight_of(model)


@pytest.mark.parametrize("write", [write_linear, write_external])
def test_a_model_can_be_saved_over_itself_and_again(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx")
    model, expected = load(path), run(path)
    for target in (path, path, tmp_path / "other.onnx"):
        save(model, target)
        np.testing.assert_array_equal(run(target), expected)
    np.testing.assert_array_equal(weight_of(model), large())


def test_external_weights_stay_external(tmp_path: Path) -> None:
    path = write_external(tmp_path / "m.onnx")
    (tmp_path / "out").mkdir()
    save(load(path), tmp_path / "out" / "o.onnx")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["o.onnx", "o.onnx.data"]
    assert (tmp_path / "out" / "o.onnx").stat().st_size < 1000
    np.testing.assert_array_equal(run(tmp_path / "out" / "o.onnx"), run(path))


def test_external_data_that_are_all_needed_are_copied_and_on_request_linked(tmp_path: Path) -> None:
    model = load(write_external(tmp_path / "m.onnx"))
    save(model, tmp_path / "copied.onnx")
    onnx.checker.check_model(tmp_path / "copied.onnx")  # refuses data files with two names
    save(model, tmp_path / "linked.onnx", link=True)
    assert (tmp_path / "linked.onnx.data").samefile(tmp_path / "weights.bin")
    assert not (tmp_path / "copied.onnx.data").samefile(tmp_path / "weights.bin")
    expected = run(tmp_path / "m.onnx")
    (tmp_path / "weights.bin").unlink()
    for name in ("linked.onnx", "copied.onnx"):
        np.testing.assert_array_equal(run(tmp_path / name), expected)


def test_weights_that_changed_get_a_data_file_of_their_own_beside_the_linked_one(tmp_path: Path) -> None:
    model = load(write_external(tmp_path / "m.onnx"))
    extra = np.arange(5000, dtype=np.float32)
    model.graph.register_initializer(onnx_ir.Value(name="new", const_value=onnx_ir.tensor(extra, name="new")))
    save(model, tmp_path / "o.onnx", link=True)
    assert (tmp_path / "o.onnx.data").samefile(tmp_path / "weights.bin")
    assert (tmp_path / "o.onnx.data.1").stat().st_size == extra.nbytes
    np.testing.assert_array_equal(weight_of(load(tmp_path / "o.onnx")), large())
    np.testing.assert_array_equal(weight_of(load(tmp_path / "o.onnx"), "new"), extra)


def test_an_external_file_of_which_little_is_needed_is_not_kept(tmp_path: Path) -> None:
    path = write_external(tmp_path / "m.onnx")
    with (tmp_path / "weights.bin").open("ab") as file:
        file.truncate(3 * large().nbytes)
    save(load(path), tmp_path / "o.onnx", link=True)
    assert (tmp_path / "o.onnx.data").stat().st_size == large().nbytes
    np.testing.assert_array_equal(run(tmp_path / "o.onnx"), run(path))


def test_where_there_can_be_no_link_weights_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_external(tmp_path / "m.onnx")
    model = load(path)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    save(model, tmp_path / "o.onnx", link=True)
    assert not (tmp_path / "o.onnx.data").samefile(tmp_path / "weights.bin")
    np.testing.assert_array_equal(run(tmp_path / "o.onnx"), run(path))


def test_a_file_that_took_the_place_of_the_loaded_one_is_not_linked(tmp_path: Path) -> None:
    path = write_external(tmp_path / "m.onnx")
    model, expected = load(path), run(path)
    (tmp_path / "other").write_bytes(bytes(large().nbytes))
    (tmp_path / "other").replace(tmp_path / "weights.bin")
    save(model, tmp_path / "o.onnx", link=True)
    np.testing.assert_array_equal(run(tmp_path / "o.onnx"), expected)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.onnx", "o.onnx", "o.onnx.data", "weights.bin"]


def test_a_model_saved_over_itself_keeps_its_data_file(tmp_path: Path) -> None:
    path = write_external(tmp_path / "m.onnx", "m.onnx.data")
    before, expected = (tmp_path / "m.onnx.data").stat().st_ino, run(path)
    save(load(path), path, link=True)
    assert (tmp_path / "m.onnx.data").stat().st_ino == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    np.testing.assert_array_equal(run(path), expected)


def test_a_model_never_replaces_its_own_weights(tmp_path: Path) -> None:
    path = write_external(tmp_path / "m.onnx")
    before = run(path)
    for write in (lambda to: save(load(path), to), lambda to: copy_model(path, to)):
        with pytest.raises(OutputError, match="holds weights of the model"):
            write(tmp_path / "weights.bin")
    assert all(map(np.array_equal, before, run(path)))


def test_two_models_that_share_data_can_be_saved_over(tmp_path: Path) -> None:
    path = write_external(tmp_path / "m.onnx", "m.onnx.data")
    expected = run(path)
    save(load(path), tmp_path / "o.onnx", link=True)
    changed = load(path)
    changed.graph.initializers["w"].const_value = onnx_ir.tensor(2 * large(), name="w")
    kept = onnx_ir.Value(name="kept", const_value=load(path).graph.initializers["w"].const_value)
    changed.graph.register_initializer(kept)
    save(changed, path)
    np.testing.assert_array_equal(weight_of(load(path)), 2 * large())
    np.testing.assert_array_equal(run(tmp_path / "o.onnx"), expected)


def test_external_tensors_in_subgraphs_and_attributes_move_with_the_model(tmp_path: Path) -> None:
    model = parser.parse_model(
        """
        <ir_version: 10, opset_import: ["": 20]> g (bool c) => (float[n] y) {
            k = Constant <value = float[1] {1.0}> ()
            t = If (c) <then_branch = a () => (float[n] p) <float[1] w = {1.0}> { p = Identity(w) },
                        else_branch = b () => (float[n] q) { q = Identity(k) }>
            y = Identity(t)
        }
        """
    )
    weight = numpy_helper.from_array(np.arange(5000, dtype=np.float32))
    branch = model.graph.node[1].attribute[0].g
    for tensor in (model.graph.node[0].attribute[0].t, branch.initializer[0]):
        name = tensor.name
        tensor.CopyFrom(weight)
        tensor.name = name
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0, convert_attribute=True
    )
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    initializer = proto.graph.node[1].attribute[0].g.initializer[0]
    (tmp_path / "v").write_bytes(weight.raw_data)
    initializer.ClearField("raw_data")
    initializer.data_location = TensorProto.EXTERNAL
    initializer.external_data.add(key="location", value="v")
    onnx.save(proto, tmp_path / "m.onnx")
    (tmp_path / "out").mkdir()
    save(load(tmp_path / "m.onnx"), tmp_path / "out" / "o.onnx")
    (tmp_path / "w").unlink()
    (tmp_path / "v").unlink()
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["o.onnx", "o.onnx.data"]
    again = load(tmp_path / "out" / "o.onnx")
    constant, choice, _ = again.graph
    inner = choice.attributes["then_branch"].as_graph().initializers["w"].const_value
    for tensor in (constant.attributes["value"].as_tensor(), inner):
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), np.arange(5000, dtype=np.float32))


def test_a_model_too_large_for_one_file_gets_a_data_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ortfuse.io.write, "MAX_FILE", 10_000)
    path = write_linear(tmp_path / "m.onnx")
    save(load(path), tmp_path / "o.onnx")
    assert (tmp_path / "o.onnx.data").stat().st_size == large().nbytes
    np.testing.assert_array_equal(run(tmp_path / "o.onnx"), run(path))


def test_a_model_too_large_even_without_its_weights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ortfuse.io.write, "MAX_FILE", 10)
    with pytest.raises(OutputError, match=r"o\.onnx: the model is larger than 2 GB without its weights"):
        save(load(write_linear(tmp_path / "m.onnx")), tmp_path / "o.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_one_tensor_of_two_initializers_is_stored_once_in_the_data_file(tmp_path: Path) -> None:
    model = load(write_external(tmp_path / "m.onnx"))
    tied = onnx_ir.Value(name="tied", const_value=model.graph.initializers["w"].const_value)
    model.graph.register_initializer(tied)
    save(model, tmp_path / "o.onnx")
    assert (tmp_path / "o.onnx.data").stat().st_size == large().nbytes


def test_one_place_that_two_initializers_have_in_a_data_file_stays_one(tmp_path: Path) -> None:
    path = write_external(tmp_path / "m.onnx")
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer.add().CopyFrom(proto.graph.initializer[0])
    proto.graph.initializer[1].name = "tied"
    onnx.save(proto, path)
    save(load(path), tmp_path / "o.onnx")
    assert (tmp_path / "o.onnx.data").stat().st_size == large().nbytes
    np.testing.assert_array_equal(weight_of(load(tmp_path / "o.onnx"), "tied"), large())


def test_saving_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = load(write_external(tmp_path / "m.onnx"))
    before = onnx_ir.to_proto(model)
    save(model, tmp_path / "o.onnx")
    assert onnx_ir.to_proto(model) == before


def test_an_external_tensor_of_onnx_ir_survives_the_replacement_of_its_file(tmp_path: Path) -> None:
    path = write_external(tmp_path / "m.onnx", "m.onnx.data")
    model = onnx_ir.load(path)
    extra = onnx_ir.Value(name="a", const_value=onnx_ir.tensor(np.ones(5000, np.float32), name="a"))
    model.graph.initializers.clear()
    model.graph.register_initializer(extra)
    model.graph.register_initializer(next(iter(model.graph)).inputs[1])
    save(model, path)  # the weight now lies at another offset
    np.testing.assert_array_equal(weight_of(model), large())


def test_an_initializer_without_data_cannot_be_saved(tmp_path: Path) -> None:
    model = load(write_linear(tmp_path / "m.onnx"))
    model.graph.initializers["w"].const_value = None
    with pytest.raises(InvalidModelError, match="initializer 'w' has no data"):
        save(model, tmp_path / "o.onnx")


def test_weights_go_from_file_to_file_without_being_in_memory(tmp_path: Path) -> None:
    path = write_linear(tmp_path / "m.onnx", np.zeros((4096, 4096), np.float32))
    script = f"""
import resource
from ortfuse.io import wire_format
from ortfuse.io.load_and_save import load, save
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
save(load({str(path)!r}), {str(tmp_path / "o.onnx")!r})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    kilobytes = int(done.stdout) / (1 if sys.platform != "darwin" else 1024)
    assert kilobytes < 24 * 1024, "the weight alone takes 64 MB"


BERT = next(path for path in GOLDEN if path.stem == "bert.sdpa.ts")


def test_weights_go_to_a_data_file_where_that_is_asked_for(tmp_path: Path) -> None:
    model = BERT
    result = ortfuse.optimize(model, output=tmp_path / "apart.onnx", external_data=True, verify=True)
    ortfuse.optimize(model, output=tmp_path / "inside.onnx")
    assert {path.name for path in tmp_path.iterdir()} == {"apart.onnx", "apart.onnx.data", "inside.onnx"}
    assert result.verdict is not None and result.verdict.ok
    assert ortfuse.verify(model, tmp_path / "apart.onnx").ok
    again = ortfuse.optimize(tmp_path / "apart.onnx", passes="dce", output=tmp_path / "again.onnx", external_data=True)
    assert again.written == tmp_path / "again.onnx" and (tmp_path / "again.onnx.data").exists()


def test_a_model_that_is_left_as_it_is_gets_a_data_file_too(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(onnx.load(BERT), model)
    result = ortfuse.optimize(model, passes="dce", output=tmp_path / "apart.onnx", external_data=True)
    assert result.report.before.nodes == result.report.after.nodes
    assert (tmp_path / "apart.onnx.data").stat().st_size > 1024
