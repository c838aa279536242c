"""Pipes, devices, bombs and deep nesting in the place of any file that is read: an error in one line, at once."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from limits import limited

import ortfuse
from ortfuse.cli.app import main
from ortfuse.errors import OrtfuseError, OutputError, VerificationError
from ortfuse.io import bounded_text_files, memory_limits
from ortfuse.io.sqlite import opened
from ortfuse.quantization.measurement_store import Store
from ortfuse.runtime import machine_lock
from ortfuse.runtime.inputs import read_input_files
from ortfuse.runtime.inputs.read_input_files import read_inputs
from ortfuse.serialization.dataclass_from_json import of_type, record
from ortfuse.sweeping import run_sweep
from ortfuse.sweeping.result_row import Row
from ortfuse.targets import custom_operators
from ortfuse.targets.measurement_file import keep, kept
from ortfuse.tuning.outcome import Point

TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[n,4] x) => (float[n,4] y) { y = Relu(x) }'
IMAGE = '<ir_version: 10, opset_import: ["": 21]> g (float[n,3,h,w] x) => (float[n,3,h,w] y) { y = Relu(x) }'
MEMORY = 3 << 30


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    """Time and memory end, so that a hang is a failing test."""
    with limited(100, MEMORY):
        yield


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(custom_operators, "_libraries", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("in", "rules", "lists", "models"):
        Path(name).mkdir()
    onnx.save(onnx.parser.parse_model(TEXT), "m.onnx")
    onnx.save(onnx.parser.parse_model(IMAGE), "image.onnx")
    np.savez("good.npz", x=np.ones((2, 4), np.float32))
    return tmp_path


def pipe(path: str) -> None:
    os.mkfifo(path)


def zero(path: str) -> None:
    """A link to a device without an end, and never to one of the system: whoever may replace that would."""
    device = Path("endless").absolute()
    if not device.exists():
        try:
            os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 5))
            device.open("rb").close()
        except OSError:  # not every user, and not every file system, may have one
            device.unlink(missing_ok=True)
            os.mkfifo(device)
    Path(path).symlink_to(device)


def circle(path: str) -> None:
    Path(path).symlink_to(Path(path).name)


def directory(path: str) -> None:
    Path(path).mkdir()


def deep(path: str) -> None:
    Path(path).write_text(("a = " if path.endswith(".toml") else "") + "[" * 100_000)


def deep_table(path: str) -> None:
    Path(path).write_text(
        ("a = " if path.endswith(".toml") else "") + '{"a":' * 5000 if path.endswith(".json") else "a." * 5000 + "a = 1"
    )


def binary(path: str) -> None:
    Path(path).write_bytes(bytes(range(256)) * 100)


KINDS = [pipe, zero, circle, directory, deep, deep_table, binary]

PLACES = {
    "model": ("x.onnx", "inspect x.onnx"),
    "second model": ("x.onnx", "verify m.onnx x.onnx"),
    "inputs": ("x.npz", "verify m.onnx m.onnx --inputs x.npz"),
    "inputs of one array": ("x.npy", "verify m.onnx m.onnx --inputs x.npy"),
    "inputs in a folder": ("in/x.npz", "verify m.onnx m.onnx --inputs in"),
    "array in a folder": ("in/x.npy", "verify m.onnx m.onnx --inputs in"),
    "protobuf in a folder": ("in/input_0.pb", "verify m.onnx m.onnx --inputs in"),
    "image in a folder": ("in/x.png", "verify image.onnx image.onnx --inputs in"),
    "image": ("x.tiff", "verify image.onnx image.onnx --inputs x.tiff"),
    "labels": ("x.npy", "quantize m.onnx --max-error 0.1 --metric l2 --inputs good.npz --labels x.npy"),
    "labels in lines": ("x.csv", "quantize m.onnx --max-error 0.1 --metric l2 --inputs good.npz --labels x.csv"),
    "options": ("x.toml", "optimize m.onnx --config x.toml"),
    "pass list": ("x.toml", "optimize m.onnx --passes x.toml"),
    "list of the user": ("x.toml", "optimize m.onnx --lists x.toml"),
    "list in a folder": ("lists/x.toml", "passes --lists lists"),
    "rules": ("x.py", "test-rules x.py"),
    "rules in a folder": ("rules/x.py", "test-rules rules"),
    "package of rules": ("rules/__init__.py", "test-rules rules"),
    "kernel table": ("x.json", "optimize m.onnx --target x.json"),
    "stored report": ("x.json", "bench m.onnx --rounds 1 --check x.json"),
    "settings beside a model": ("m.onnx.session.json", "bench m.onnx --rounds 1"),
    "library": ("x.so", "optimize m.onnx --custom-ops x.so"),
    "list of models": ("x.txt", "sweep x.txt --no-bench"),
    "rows": ("x.jsonl", "sweep m.onnx --no-bench --store x.jsonl"),
    "store": ("x.sqlite", "quantize m.onnx --max-error 0.1 --store x.sqlite"),
    "study": ("x.sqlite", "tune m.onnx --budget 1s --study x.sqlite"),
    "subgraph": ("x.onnx", "substitute m.onnx --find x.onnx --replace m.onnx"),
    "report": ("x.json", "verify m.onnx m.onnx --json x.json"),
    "page": ("x.html", "diff m.onnx m.onnx --report x.html"),
    "result": ("x.onnx", "convert m.onnx -o x.onnx"),
}
FINE = {
    (place, kind)
    for place in ("report", "page", "result", "rows", "library", "list of models")
    for kind in (deep, deep_table, binary)
}
"""Files that are replaced, or of which what is damaged is passed over or is a row."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_whatever_a_file_is_it_ends_in_one_line(
    place: str, kind: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    name, command = PLACES[place]
    if (place, kind) in FINE:
        return
    kind(name)
    with pytest.raises(SystemExit) as end:
        main(command.split())
    said = capsys.readouterr()
    assert end.value.code == 2, said
    assert len(said.err.strip().splitlines()) == 1
    assert Path(name).name in said.err or Path(name).parts[0] in said.err


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", ["calibration.json", "sessions.json", "peaks.json"])
def test_whatever_is_in_the_cache_is_passed_over(name: str, kind: Callable[[str], None]) -> None:
    Path("cache/ortfuse").mkdir(parents=True)
    path = Path("cache/ortfuse") / name
    kind(str(path))
    assert kept(path) == {}
    if keep(path, {"a": 1}):
        assert kept(path) == {"a": 1}
    assert Path("cache/ortfuse").stat().st_size


@pytest.mark.parametrize("kind", [pipe, zero, circle], ids=lambda kind: kind.__name__)
def test_a_folder_of_no_files_has_no_models(kind: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    kind("models/x.onnx")
    with pytest.raises(SystemExit) as end:
        main(["sweep", "models", "--no-bench"])
    assert end.value.code == 2
    assert "no model" in capsys.readouterr().err


def test_a_listed_model_that_is_no_file_is_a_row() -> None:
    pipe("models/x.onnx")
    Path("models.txt").write_text("models/x.onnx\n")
    (row,) = ortfuse.sweep("models.txt", measured=False).rows
    assert row.status == "refused"
    assert "x.onnx" in row.reason


@pytest.mark.parametrize("name", ["ortfuse-turnstile.lock", "ortfuse-measuring.lock"])
@pytest.mark.parametrize("kind", [pipe, zero, circle, directory], ids=lambda kind: kind.__name__)
def test_what_stands_where_a_lock_belongs_is_said(
    name: str, kind: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_lock, "FOLDER", Path("models"))
    kind(f"models/{name}")
    with pytest.raises(OutputError, match="cannot be locked"):
        machine_lock.lock_file(name)
    with pytest.raises(OutputError, match="set TMPDIR"), machine_lock.alone(name):
        pass


def test_a_sweep_says_what_stands_where_its_lock_belongs(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("shared").mkdir()
    pipe("shared/ortfuse-turnstile.lock")
    monkeypatch.setenv("TMPDIR", str(Path("shared").absolute()))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (row,) = ortfuse.sweep("m.onnx", measured=False).rows
    assert row.status == "refused"
    assert "ortfuse-turnstile.lock: cannot be locked" in row.reason


def npz(entries: dict[str, bytes], path: str = "x.npz") -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in entries.items():
            packed.writestr(name, content)
    return path


def npy(shape: str, kind: str = "<f4", data: bytes = b"", extra: str = "") -> bytes:
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, {extra}}}".encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data


def pickled() -> bytes:
    made = io.BytesIO()
    np.save(made, np.array([print], object), allow_pickle=True)
    return made.getvalue()


ARRAYS = {
    "a terabyte": npy("(262144, 1048576)"),
    "more than there are addresses": npy(f"({2**62}, 4)"),
    "a negative size": npy("(-1, 4)"),
    "a name for a size": npy("('a', 4)"),
    "large elements": npy("(2, 4)", "|V2000000000"),
    "Python objects": pickled(),
    "objects by name": npy("(1,)", "|O", b"x"),
    "deep": npy("(" * 3000),
    "a call": npy("(1,)", extra="'x': __import__('os')"),
    "short": npy("(2, 4)", data=b"1"),
    "no header": b"\x93NUMPY",
    "nothing": b"",
    "text": b"hello",
}


@pytest.mark.parametrize("content", ARRAYS.values(), ids=ARRAYS)
def test_an_array_that_claims_what_it_does_not_hold_is_an_error(content: bytes) -> None:
    value = ir.val("x", ir.DataType.FLOAT, ["n", 4])
    Path("x.npy").write_bytes(content)
    for path in ("x.npy", npz({"x.npy": content})):
        with pytest.raises(VerificationError, match=r"x\.np[yz]") as error:
            read_inputs(path, [value])
        assert len(str(error.value)) < 1000


def test_an_archive_that_unpacks_to_more_than_there_is_room_for_is_not_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_limits, "room", lambda: 1 << 20)
    value = ir.val("x", ir.DataType.FLOAT, ["n", 4])
    with pytest.raises(VerificationError, match="there is room for"):
        read_inputs(npz({"x.npy": npy("(1000000, 4)", data=bytes(16_000_000))}), [value])


def test_an_archive_of_very_many_arrays_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_input_files, "MOST_ARRAYS", 3)
    value = ir.val("x", ir.DataType.FLOAT, ["n", 4])
    with pytest.raises(VerificationError, match="may hold 3"):
        read_inputs(npz({str(number): b"" for number in range(4)}), [value])


def protobuf(**entries: str) -> bytes:
    tensor = onnx.TensorProto(data_type=1, dims=[600], name="x", data_location=onnx.TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return bytes(tensor.SerializeToString())


@pytest.mark.parametrize("location", ["secret", "/etc/hostname", "../secret", "in/pipe"])
def test_a_protobuf_of_inputs_reads_no_other_file(location: str) -> None:
    Path("secret").write_bytes(bytes(2400))
    pipe("in/pipe")
    Path("in/input_0.pb").write_bytes(protobuf(location=location))
    with pytest.raises(VerificationError, match="data are in another file"):
        read_inputs("in", [ir.val("x", ir.DataType.FLOAT, [600])])


@pytest.mark.parametrize("dims", [[2**40], [2**62, 4], [-1], [3]])
def test_a_protobuf_that_claims_another_size_is_an_error(dims: list[int]) -> None:
    Path("in/input_0.pb").write_bytes(
        onnx.TensorProto(data_type=1, dims=dims, name="x", raw_data=bytes(8)).SerializeToString()
    )
    with pytest.raises(VerificationError, match=r"input_0\.pb"):
        read_inputs("in", [ir.val("x", ir.DataType.FLOAT, ["n"])])


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(ran) (w) file closefile\nshowpage\n"


@pytest.mark.parametrize("content", [png(100_000, 100_000), png(12_000, 12_000), png(2**31 - 1, 2**31 - 1), png(0, 0), png(10, 10)[:40], POSTSCRIPT],
                         ids=["bomb", "large", "huge", "empty", "cut off", "PostScript"])  # fmt: skip
def test_an_image_bomb_does_not_go_off(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("PIL")
    Path("in/x.png").write_bytes(content)
    with pytest.raises(SystemExit) as end:
        main(["verify", "image.onnx", "image.onnx", "--inputs", "in"])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "x.png" in line
    assert not Path("ran").exists()


def test_an_image_for_an_input_beyond_memory_is_an_error() -> None:
    pytest.importorskip("PIL")
    Path("x.png").write_bytes(png(10, 10))
    with pytest.raises(VerificationError, match="there is room for"):
        read_inputs("x.png", [ir.val("x", ir.DataType.FLOAT, [1, 3, 10**6, 10**6])])


@pytest.mark.parametrize(
    ("dims", "sizes"), [("n, 4", {"n": 2**31 - 1}), (f"n, {2**40}", {}), ("n, m", {"n": 10**6, "m": 10**6})]
)
def test_inputs_beyond_memory_are_an_error(dims: str, sizes: dict[str, int]) -> None:
    made = onnx.parser.parse_model(TEXT.replace("n,4", dims))
    with pytest.raises(OrtfuseError, match="there is room for"):
        ortfuse.benchmark({"m": made}, sizes=sizes, rounds=1)


SCHEMAS = {
    "a view without an end": "CREATE VIEW measured AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS key, x AS value FROM c",
    "a trigger": "CREATE TABLE measured (key TEXT PRIMARY KEY, value TEXT); CREATE TRIGGER t BEFORE INSERT ON measured BEGIN SELECT 1; END",
    "a generated column": "CREATE TABLE measured (key TEXT PRIMARY KEY, value TEXT GENERATED ALWAYS AS (zeroblob(1000000000)))",
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_database_that_computes_is_not_used(schema: str) -> None:
    with sqlite3.connect("s.sqlite") as database:
        database.executescript(schema)
    database.close()
    store = Store(Path("s.sqlite"))
    assert "cannot be used" in store.problem
    store.put(1, "a")
    assert store.get("a") == 1
    with pytest.raises(sqlite3.DatabaseError):
        opened(Path("s.sqlite"))


@pytest.mark.parametrize(
    "value",
    [
        "[" * 100_000,
        "{",
        '{"error": "x", "likely": 1}',
        '{"error": 1}',
        '{"error": 1, "likely": 1, "path": "/x"}',
        b"\xff",
        None,
        7,
    ],
)
def test_a_store_that_holds_something_else_is_measured_again(value: Any) -> None:
    from ortfuse.quantization.metrics import Measured

    store = Store(Path("s.sqlite"))
    store.put({"error": 1, "likely": 2.5}, "good")
    assert store.get_record(Measured, "good") == Measured(1, 2.5)
    with sqlite3.connect("s.sqlite") as database:
        database.execute("UPDATE measured SET value = ?", (value if value is not None else "null",))
    assert store.get_record(Measured, "good") is None


GOOD_ROW = Row(
    "m.onnx", "ok", 3, 2, {"gelu": 1}, 1.5, "equal", (1.0, 2.0), 2.0, (1.5, 2.5), "", "o.onnx", (3, 2)
).to_dict()


def test_a_row_is_read_back() -> None:
    assert Row.from_dict(json.loads(json.dumps(GOOD_ROW))).to_dict() == GOOD_ROW
    assert Row.from_dict(json.loads(json.dumps(Row("m", "hung").to_dict()))) == Row("m", "hung")


@pytest.mark.parametrize(("name", "value"), [("status", "fine"), ("seconds", "long"), ("families", {"gelu": "x"}), ("families", []), ("median_ms", [1]),
                                             ("median_ms", [1, "x"]), ("speedup_bounds", 3), ("model", 3), ("nodes_after", True), ("command", "rm")])  # fmt: skip
def test_a_row_of_something_else_is_none(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"is no|fields"):
        Row.from_dict({**GOOD_ROW, name: value})


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        3,
        {},
        {"number": 1},
        {"number": "1", "choice": {}},
        {"number": 1, "choice": {"a": []}},
        {"number": 1, "choice": {}, "x": 1},
    ],
)
def test_a_trial_of_something_else_is_none(data: Any) -> None:
    with pytest.raises(ValueError, match="Point"):
        Point.from_dict(data)


def test_declared_types_are_checked() -> None:
    assert of_type(tuple[int, ...] | None, [1, 2]) == (1, 2)
    assert of_type(dict[str, list[float]], {"a": [1, 2.5]}) == {"a": [1, 2.5]}
    with pytest.raises(ValueError, match="is no int"):
        of_type(int, True)
    assert record(Point, {"number": 1, "choice": {"a": "b", "c": 1, "d": True}}).choice == {"a": "b", "c": 1, "d": True}


def test_the_rows_of_a_folder_say_nothing_about_other_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of results that comes from elsewhere names files: only those that a sweep would write itself count."""
    asked: list[str] = []

    def done(what: dict[str, Any], *_: object) -> Row:
        asked.append(what["output"])
        Path("out").mkdir(exist_ok=True)
        Path(what["output"]).write_bytes(b"")
        return Row(what["model"], "ok", written=what["output"])

    monkeypatch.setattr(run_sweep, "in_process", done)
    for times in (1, 1):
        assert ortfuse.sweep("m.onnx", output="out", measured=False).rows[0].written == "out/m.onnx"
        assert len(asked) == times
    rows = Path("out/sweep.jsonl")
    rows.write_text(rows.read_text().replace('"out/m.onnx"', '"/etc/hostname"'))
    assert ortfuse.sweep("m.onnx", output="out", measured=False).rows[0].written == "out/m.onnx"
    assert len(asked) == 2


def test_a_small_file_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("x").write_bytes(bytes(1000))
    assert len(bounded_text_files.read_bytes("x", 1000)) == 1000
    with pytest.raises(OSError, match="more than 999 bytes"):
        bounded_text_files.read_bytes("x", 999)
    with Path("sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="more than"):
        bounded_text_files.read_text("sparse")
