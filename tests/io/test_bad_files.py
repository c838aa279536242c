import gzip
import os
import random
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from model_files import large, linear, weight_of, write_external, write_linear
from onnx import TensorProto, numpy_helper, parser
from typer.testing import CliRunner

from ortfuse.cli.app import app
from ortfuse.errors import ModelFileError, OrtfuseError
from ortfuse.io import load_and_save
from ortfuse.io.load_and_save import load, save
from ortfuse.ir.enumerate_tensors import tensors

GOLDEN = Path(__file__).parents[2] / "golden" / "models"


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"nowhere\.onnx: no such file; check the path"):
        load(tmp_path / "nowhere.onnx")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="is a folder; give the path of a model file in it"):
        load(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    with pytest.raises(ModelFileError, match=r"m\.onnx: is a device or a pipe"):
        load(tmp_path / "m.onnx")


def test_a_path_that_cannot_be() -> None:
    with pytest.raises(ModelFileError, match="cannot be opened"):
        load("a\0b")
    with pytest.raises(ModelFileError, match="cannot be opened"):
        load("x" * 5000)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")  # root may read everything

    path = write_linear(tmp_path / "m.onnx")
    monkeypatch.setattr(load_and_save.os, "open", refuse)
    with pytest.raises(ModelFileError, match=r"m\.onnx: cannot be opened: .*Permission denied"):
        load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty; was the export or the download interrupted"),
        (b"ir_version: 8\ngraph {\n}\n", "is a text file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer.*git lfs pull"),
        (gzip.compress(b"model", mtime=0), "gzip archive: unpack it first"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "HDF5 file"),
        (b"\x1c\x00\x00\x00TFL3" + bytes(100), "TensorFlow Lite model"),
        (b"\x1c\x00\x00\x00ORTM" + bytes(100), r"ORT format, which cannot be changed: take the \.onnx file"),
        (random.Random(0).randbytes(2000), "is not an ONNX model"),
        (b"\xff" * 100, "is not an ONNX model"),
        (b"\x08\x0a", "has no graph"),
        (bytes([18, 4]) + b"text", "has no graph"),
    ],
)
def test_a_file_that_is_not_onnx(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=f"m\\.onnx: .*{message}"):
        load(path)


def test_a_pytorch_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.onnx", "w") as archive:
        archive.writestr("data.pkl", b"")
    with pytest.raises(ModelFileError, match=r"not ONNX but a zip archive .*export it with torch\.onnx\.export"):
        load(tmp_path / "m.onnx")


def test_a_file_cut_off_anywhere(tmp_path: Path) -> None:
    content = write_linear(tmp_path / "whole.onnx").read_bytes()
    for length in [*range(1, 200), len(content) // 2, len(content) - 1]:
        (tmp_path / "m.onnx").write_bytes(content[:length])
        with pytest.raises(ModelFileError, match=r"m\.onnx: (is cut off or damaged|is not an ONNX model)"):
            load(tmp_path / "m.onnx")


def external(**entries: str) -> onnx.ModelProto:
    """A model with an external weight, described by the entries given."""
    model = linear(large())
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for a model, with a file of secrets outside of it."""
    (tmp_path / "secret").write_bytes(large().tobytes())
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def test_external_data_that_is_missing(folder: Path) -> None:
    path = write_external(folder / "m.onnx")
    (folder / "weights.bin").unlink()
    with pytest.raises(
        ModelFileError, match=r"m\.onnx: initializer 'w': its external data file .*weights\.bin is missing; it must lie"
    ):
        load(path)


@pytest.mark.parametrize(
    ("location", "message"),
    [
        (
            "../secret",
            r"leads through '\.\.' to .*/secret, outside the model's folder .*copy the file into that folder",
        ),
        ("below/../../secret", r"leads through '\.\.'"),
        ("link", "leads through a symbolic link to .*/secret"),
        ("linked/secret", "leads through a symbolic link to .*/secret"),
        ("C:\\secret", "absolute path"),
        ("", "no usable file name"),
        ("se\0cret", "no usable file name"),
        ("below", "is not a regular file"),
        ("pipe", "is not a regular file"),
        ("x" * 300, "cannot be opened: File name too long"),
    ],
)
def test_external_data_outside_the_folder_or_not_a_file(location: str, message: str, folder: Path) -> None:
    (folder / "below").mkdir()
    (folder / "link").symlink_to(folder.parent / "secret")
    (folder / "linked").symlink_to(folder.parent)
    os.mkfifo(folder / "pipe")
    onnx.save(external(location=location), folder / "m.onnx")
    with pytest.raises(ModelFileError, match=f"initializer 'w'.*{message}"):
        load(folder / "m.onnx")


def test_external_data_at_an_absolute_path(folder: Path) -> None:
    onnx.save(external(location=str(folder.parent / "secret")), folder / "m.onnx")
    with pytest.raises(ModelFileError, match=r"absolute path .*secret.*only files in the model's folder are read"):
        load(folder / "m.onnx")


@pytest.mark.parametrize(
    ("offset", "length", "message"),
    [
        ("4", None, "bytes 4 to 131,076 of .*weights.bin, which has only 131,072; the file is truncated"),
        ("-4", None, "initializer '.+' has the offset '-4' in its external data, which is no number of bytes"),
        (str(2**70), None, "the file is truncated or belongs to another model"),
        ("0", "8", "take 131,072 bytes, but its external data is 8 bytes long"),
        ("0", str(2**60), "take 131,072 bytes, but"),
        ("zero", None, "initializer '.+' has the offset 'zero' in its external data, which is no number of bytes"),
    ],
)
def test_external_data_out_of_range(offset: str, length: str | None, message: str, folder: Path) -> None:
    write_external(folder / "whole.onnx")
    entries = {"location": "weights.bin", "offset": offset} | ({"length": length} if length else {})
    onnx.save(external(**entries), folder / "m.onnx")
    with pytest.raises(OrtfuseError, match=message):
        load(folder / "m.onnx")


def test_links_that_stay_in_the_folder_are_followed(folder: Path) -> None:
    path = write_external(folder / "m.onnx")
    (folder / "weights.bin").rename(folder / "blob")
    (folder / "weights.bin").symlink_to("blob")
    np.testing.assert_array_equal(weight_of(load(path)), large())


def test_data_beside_the_file_that_a_linked_model_leads_to_are_read(folder: Path) -> None:
    """The layout of the Hugging Face cache, which ONNX Runtime accepts as well."""
    write_external(folder / "m.onnx")
    (folder / "m.onnx").rename(folder / "hash1")
    (folder / "weights.bin").rename(folder / "hash2")
    snapshot = folder.parent / "snapshot"
    snapshot.mkdir()
    (snapshot / "m.onnx").symlink_to(folder / "hash1")
    (snapshot / "weights.bin").symlink_to(folder / "hash2")
    np.testing.assert_array_equal(weight_of(load(snapshot / "m.onnx")), large())


def test_more_external_files_than_a_process_may_open(folder: Path) -> None:
    names = [f"w{number}" for number in range(200)]
    arguments = ", ".join(names)
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 20]> g () => (float[n] y) {{ y = Sum({arguments}) }}'
    )
    for number, name in enumerate(names):
        tensor = numpy_helper.from_array(np.full(10, number, np.float32), name)
        (folder / name).write_bytes(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=name)
        model.graph.initializer.append(tensor)
    onnx.save(model, folder / "m.onnx")
    before = len(list(Path("/proc/self/fd").iterdir()))
    loaded = load(folder / "m.onnx")
    assert len(list(Path("/proc/self/fd").iterdir())) - before < 100
    assert [slot.tensor.numpy()[0] for slot in tensors(loaded)] == list(range(200))
    (folder / "w199").unlink()
    with pytest.raises(ModelFileError, match=r"w199: the weights in it can no longer be read: No such file"):
        save(loaded, folder / "o.onnx")
    assert not (folder / "o.onnx").exists()


def every_feature() -> bytes:
    """A model file with a bit of everything that the format has."""
    model = parser.parse_model(
        """
        <ir_version: 10, opset_import: ["": 20, "mine": 1, "com.microsoft": 1], producer_name: "p",
         metadata_props: ["k": "v"]>
        g (float[b, 4] x) => (float[b, 4] y)
        <float[4, 4] w, float[4] v = {1, 2, 3, 4}, bool c = {1}, int64 three = {3}, float[b, 4] m> {
            m = MatMul(x, w)
            a = mine.Scaled <factor = 2.0> (m, v)
            i = If (c) <then_branch = t () => (float[b, 4] p) <float[4] u = {1, 1, 1, 1}> { p = Add(a, u) },
                        else_branch = e () => (float[b, 4] q) { q = Neg(a) }>
            l = Loop (three, c, i) <body = body (int64 n, bool go, float[b, 4] s) => (bool on, float[b, 4] r)
                                    { on = Identity(go) r = Abs(s) }>
            k = Constant <value = float[1, 4] {1, 2, 3, 4}> ()
            j = Clip (l, , v0)
            y = com.microsoft.FastGelu(j, k)
        }
        <domain: "mine", opset_import: ["": 20]>
        Scaled <factor> (a, b) => (c) { f = Constant <value_float: float = @factor> () d = Mul(a, b) c = Mul(d, f) }
        """
    )
    model.graph.node[0].metadata_props.add(key="of", value="node")
    weight = numpy_helper.from_array(np.arange(16, dtype=np.float32).reshape(4, 4), "w")
    zero = numpy_helper.from_array(np.array(0, np.float32), "v0")
    texts = onnx.helper.make_tensor("s", TensorProto.STRING, [2], [b"a", b"b"])
    packed = onnx.helper.make_tensor("i4", TensorProto.INT4, [3], [1, 2, 3])
    model.graph.initializer.extend([zero, texts, packed])
    kept = [tensor for tensor in model.graph.initializer if tensor.name != "w"]
    del model.graph.initializer[:]
    model.graph.initializer.extend([weight, *kept])
    return model.SerializeToString()


def mutated(content: bytes, rng: random.Random) -> bytes:
    out = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(out))
        kind = rng.randrange(5)
        if kind == 0:
            out[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 1:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del out[at : at + rng.randrange(1, 9)]
        elif kind == 3:
            out[at:at] = rng.randbytes(rng.randrange(1, 5))
        else:
            source = rng.randrange(len(out))
            out[at : at + 16] = out[source : source + 16]
    return bytes(out)


def test_the_model_with_every_feature_loads(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(every_feature())
    load(tmp_path / "m.onnx")


@pytest.mark.parametrize("left_in_file", [8, 1 << 16])
def test_a_damaged_file_is_an_error_or_a_model(
    left_in_file: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_and_save, "_LEFT_IN_FILE", left_in_file)
    whole, rng, loaded = every_feature(), random.Random(left_in_file), 0
    for number in range(600):
        (tmp_path / "m.onnx").write_bytes(mutated(whole, rng))
        try:
            model = load(tmp_path / "m.onnx")
            for slot in tensors(model):
                slot.tensor.numpy()
            save(model, tmp_path / "o.onnx")
            loaded += 1
        except OrtfuseError as error:
            assert len(str(error)) < 1000, number
    assert loaded > 20


def test_an_initializer_that_claims_more_than_it_has(tmp_path: Path) -> None:
    for dims in ([2**40], [2**62, 2**62], [-1, -4]):
        model = linear(np.ones((4, 4), np.float32))
        del model.graph.initializer[0].dims[:]
        model.graph.initializer[0].dims.extend(dims)
        onnx.save(model, tmp_path / "m.onnx")
        with pytest.raises(
            OrtfuseError, match=r"initializer 'w' (claims type FLOAT and shape|has the negative dimension)"
        ):
            load(tmp_path / "m.onnx")


def test_a_weight_that_is_wider_than_its_file_does_not_reach_the_parser(tmp_path: Path) -> None:
    content = bytearray(write_linear(tmp_path / "m.onnx").read_bytes())
    at = content.rindex(b"\x4a\x80\x80\x08")  # the tag and length of the raw data: 131,072 bytes
    content[at + 1 : at + 4] = b"\xff\xff\x7f"
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"is cut off or damaged \(the field at byte .* claims to end at byte"):
        load(tmp_path / "m.onnx")


@pytest.mark.parametrize("command", ["optimize", "convert", "tune", "inspect"])
@pytest.mark.parametrize("model", [".", "/", ""])
def test_a_folder_as_model_is_named_by_every_command(command: str, model: str, tmp_path: Path) -> None:
    options = [] if command == "inspect" else ["-o", str(tmp_path / "o.onnx")]
    options += ["--to", "float16"] if command == "convert" else []
    found = CliRunner().invoke(app, [command, model, *options])
    assert found.exit_code == 2
    assert "report it" not in found.output


@pytest.mark.parametrize("output", [".", "/", ""])
def test_a_folder_as_result_is_named(output: str) -> None:
    found = CliRunner().invoke(app, ["optimize", str(GOLDEN / "resnet.raw.onnx"), "-o", output])
    assert found.exit_code == 2
    assert "report it" not in found.output
