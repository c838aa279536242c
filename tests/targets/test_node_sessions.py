"""Sessions in Node.js: the messages and errors with a program that stands in for it; real runs where node and the package are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortfuse
from ortfuse.errors import VerificationError
from ortfuse.runtime import node_sessions
from ortfuse.runtime.current_execution_target import executing_for
from ortfuse.runtime.node_sessions import NodeError, node_process
from ortfuse.runtime.node_sessions.logs import placement_in
from ortfuse.runtime.node_sessions.model_content import load_arguments
from ortfuse.runtime.node_sessions.session_options import js_options
from ortfuse.runtime.placement import placement
from ortfuse.runtime.session import Session
from ortfuse.runtime.session_subprocess import Loaded, Settings
from ortfuse.targets import spec_of

FAKE = '''#!{python} -SE
"""Stands in for Node.js: answers each request with what the script for its action makes of it."""
import json, os, struct, sys

package, descriptor, threads = sys.argv[2:5]
answers = os.fdopen(int(descriptor), "wb")


def send(answer, *buffers):
    head = json.dumps({{**answer, "buffers": [len(one) for one in buffers]}}).encode()
    answers.write(struct.pack("<I", len(head)) + head + b"".join(buffers))
    answers.flush()


print("a line of diagnostics", flush=True)
{start}
send({{"ok": True}})
while length := sys.stdin.buffer.read(4):
    request = json.loads(sys.stdin.buffer.read(struct.unpack("<I", length)[0]))
    buffers = [sys.stdin.buffer.read(size) for size in request["buffers"]]
    if request["action"] == "open":
        send({{"ok": True, "inputs": ["x"], "outputs": ["y"]}})
    elif request["action"] == "run":
        {run}
    elif request["action"] == "timed":
        send({{"ok": True, "seconds": [0.5] * request["runs"]}})
    else:
        send({{"ok": True}})
'''

ECHO = 'send({"ok": True, "outputs": request["described"]}, *buffers)'

Fake = Callable[..., Any]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Makes a session of a model of one input, whose process runs scripts at its start and at each run."""
    (tmp_path / "node_modules" / "toy").mkdir(parents=True)
    (tmp_path / "node_modules" / "toy" / "package.json").write_text("{}")
    monkeypatch.setenv(node_sessions.MODULES, str(tmp_path))
    monkeypatch.setattr(node_process, "_running", {})

    def made(run: str = ECHO, start: str = "", **settings: Any) -> Any:
        program = tmp_path / "node"
        program.write_text(FAKE.format(python=sys.executable, start=start, run=run))
        program.chmod(0o755)
        monkeypatch.setenv(node_sessions.NODE, str(program))
        source = onnx.ModelProto(ir_version=8).SerializeToString()
        return node_sessions.class_for(Loaded, "toy", "wasm", writes_files=False)(source, {}, Settings((), **settings))

    return made


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"],
)
def test_arrays_of_every_type_and_rank_are_exchanged(fake: Fake, dtype: str) -> None:
    session = fake()
    for array in (np.arange(6).reshape(2, 3), np.array(1), np.zeros((0, 2)), np.arange(6).reshape(2, 3).T):
        (found,) = session.run({"x": array.astype(dtype)})
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, array.astype(dtype))


def test_texts_are_exchanged(fake: Fake) -> None:
    (found,) = fake().run({"x": np.array([["ä", 'a "b"\n']], object)})
    assert found.tolist() == [["ä", 'a "b"\n']]


def test_what_javascript_has_no_tensors_of_is_refused_by_name(fake: Fake) -> None:
    session = fake()
    with pytest.raises(NodeError, match="input x: JavaScript takes tensors only"):
        session.run({"x": [np.zeros(2)]})
    with pytest.raises(NodeError, match="input x: JavaScript has no tensors of complex64"):
        session.run({"x": np.zeros(2, np.complex64)})


def test_runs_are_timed_by_the_process(fake: Fake) -> None:
    session = fake()
    session.take({"x": np.zeros(2)})
    assert session.timed(3) == [0.5] * 3


def test_a_refusal_is_the_error_and_the_session_goes_on(fake: Fake) -> None:
    session = fake('send({"ok": False, "error": "no\\n such"}) if len(buffers[0]) > 8 else ' + ECHO)
    with pytest.raises(NodeError, match=r"^no such$"):
        session.run({"x": np.zeros(2)})
    assert session.run({"x": np.zeros(1)})[0].shape == (1,)


@pytest.mark.parametrize(
    ("run", "error"),
    [
        (
            "print('Error: out of memory'); sys.stdout.flush(); os._exit(7)",
            r"executes the model \(exit code 7\): Error: out of memory",
        ),
        ("os.kill(os.getpid(), 11)", r"executes the model \(signal 11\): a line of diagnostics"),
        ("answers.write(b'9999nonsense'); answers.close(); os._exit(0)", "ends when it executes the model"),
    ],
)
def test_a_process_that_dies_is_an_error_and_the_session_is_opened_again(fake: Fake, run: str, error: str) -> None:
    """The next run of this session, or of another one that the process had, starts a new process."""
    session = fake(f"if len(buffers[0]) > 8: {run}\n        {ECHO}")
    other = fake(f"if len(buffers[0]) > 8: {run}\n        {ECHO}")
    with pytest.raises(NodeError, match=error):
        session.run({"x": np.zeros(2)})
    for one in (other, session):
        assert one.run({"x": np.zeros(1)})[0].shape == (1,)


def test_after_a_trap_of_webassembly_the_process_is_not_used_again(fake: Fake) -> None:
    session = fake('send({"ok": False, "error": "memory access out of bounds", "kind": "RuntimeError"})')
    process = session._node
    with pytest.raises(NodeError, match=r"^memory access out of bounds$"):
        session.run({"x": np.zeros(1)})
    assert not process.alive


def test_a_package_that_does_not_load_is_one_line(fake: Fake) -> None:
    with pytest.raises(NodeError, match=r"Node.js cannot load .*toy: Cannot find module$"):
        fake(start='send({"ok": False, "error": "Cannot find\\n module"}); sys.exit(1)')


def test_sessions_share_a_process_for_each_number_of_threads(fake: Fake) -> None:
    first, second, other = fake(threads=1), fake(threads=1), fake(threads=2)
    assert first._node is second._node is not other._node


def test_a_missing_program_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(node_sessions.NODE, "/nowhere/node")
    with pytest.raises(NodeError, match=r"Node.js is missing: ORTFUSE_NODE=/nowhere/node is no program; install it"):
        node_sessions.find_node()
    monkeypatch.delenv(node_sessions.NODE)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NodeError, match=r"Node.js is missing: it is not on PATH"):
        node_sessions.find_node()


def test_a_package_beside_a_model_is_never_run_and_a_missing_one_told_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node_modules" / "toy").mkdir(parents=True)
    (tmp_path / "node_modules" / "toy" / "package.json").write_text("{}")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    monkeypatch.delenv(node_sessions.MODULES, raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path / "deep" / "er")
    for package in ("toy", "other"):
        said = rf"npm package {package} is missing: run `npm install --global --ignore-scripts {package}`"
        with pytest.raises(NodeError, match=said):
            node_sessions.find_package(package)
    monkeypatch.setenv(node_sessions.MODULES, str(tmp_path))
    assert node_sessions.find_package("toy") == tmp_path / "node_modules" / "toy"
    monkeypatch.setenv(node_sessions.MODULES, str(tmp_path / "deep"))
    with pytest.raises(NodeError, match="toy is missing"):
        node_sessions.find_package("toy")


def test_settings_are_options_of_javascript() -> None:
    settings = Settings((), level="basic", lean=True, disabled=("GeluFusion",))
    others = {
        "execution_mode": "parallel",
        "session.x": "1",
        "graph_optimization_level": "none",
        "enable_mem_pattern": True,
    }
    assert js_options(settings, others, "wasm") == {
        "executionProviders": ["wasm"],
        "graphOptimizationLevel": "disabled",
        "logSeverityLevel": 4,
        "logVerbosityLevel": 0,
        "enableCpuMemArena": False,
        "enableMemPattern": True,
        "executionMode": "parallel",
        "extra": {
            "session.disable_prepacking": "1",
            "session.x": "1",
            "optimization.disable_specified_optimizers": "GeluFusion",
        },
    }
    with pytest.raises(NodeError, match="the session option use_deterministic_compute does not exist in JavaScript"):
        js_options(settings, {"use_deterministic_compute": True}, "wasm")


def test_settings_that_javascript_lacks_are_refused(fake: Fake) -> None:
    with pytest.raises(NodeError, match="custom operators cannot be loaded"):
        fake(libraries=("a.so",))
    with pytest.raises(NodeError, match="no files"):
        fake(dump="model.onnx")


def _weighty(external: bool) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]> g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"""
    )
    if external:
        (weight,) = model.graph.initializer
        weight.ClearField("float_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="w.bin")
    return model


def test_weights_and_data_files_are_handed_over(tmp_path: Path) -> None:
    weights = {"w": np.array([3, 4], np.float32)}
    path, content, external = load_arguments(_weighty(True).SerializeToString(), weights, "")
    assert (path, external) == ("", [])
    assert onnx.numpy_helper.to_array(onnx.ModelProto.FromString(content).graph.initializer[0]).tolist() == [3, 4]
    onnx.save(_weighty(True), tmp_path / "m.onnx")
    found = load_arguments(str(tmp_path / "m.onnx"), {}, "")
    assert found == (str(tmp_path / "m.onnx"), b"", [{"name": "w.bin", "file": str(tmp_path / "w.bin")}])


LOG = """2026 [V:onnxruntime:, session_state.cc:1377 VerifyEachNodeIsAssignedToAnEp] Node placements
2026 [V:onnxruntime:, session_state.cc:1383 VerifyEachNodeIsAssignedToAnEp]  Node(s) placed on [CPUExecutionProvider]. Number of nodes: 1
2026 [V:onnxruntime:, session_state.cc:1385 VerifyEachNodeIsAssignedToAnEp]   Gather (/a/b)
2026 [V:onnxruntime:, session_state.cc:1383 VerifyEachNodeIsAssignedToAnEp]  Node(s) placed on [ToyProvider]. Number of nodes: 1
2026 [V:onnxruntime:, session_state.cc:1385 VerifyEachNodeIsAssignedToAnEp]   Relu ()
2026 [W:onnxruntime:, session_state.cc:1397 VerifyEachNodeIsAssignedToAnEp] Some nodes were not assigned
2026 [V:onnxruntime:, session_state.cc:186 CreateGraphInfo] SaveMLValueNameIndexMapping
2026 [V:onnxruntime:, session_state.cc:1380 VerifyEachNodeIsAssignedToAnEp]  All nodes placed on [ToyProvider]. Number of nodes: 2
"""


def test_the_placement_of_nodes_is_read_from_the_log() -> None:
    own = ("ToyProvider", [("", "", "")])
    assert placement_in(LOG) == [
        ("CPUExecutionProvider", [("", "Gather", "/a/b")]),
        ("ToyProvider", [("", "Relu", "")]),
        own,
        own,
    ]
    with pytest.raises(NodeError, match="names no providers"):
        placement_in("nothing")


def _missing() -> str:
    try:
        node_sessions.find_node()
        node_sessions.find_package("onnxruntime-web")
    except NodeError as error:
        return str(error)
    return ""


wasm = pytest.mark.skipif(bool(_missing()), reason=_missing())

TYPES = """<ir_version: 10, opset_import: ["": 20]>
g (float[a, 3] x, int64[a] i, bool[a] b, float16[a] h, int8[] k, string[a] s, uint8[0] z)
    => (float[a, 3] y, int64[a] j, bool[a] c, float16[a] g, int8[] l, string[a] t, uint8[0] e) {
    y = Mul(x, x)  j = Identity(i)  c = Not(b)  g = Identity(h)  l = Identity(k)  t = Identity(s)  e = Identity(z) }"""


@wasm
def test_webassembly_runs_models_of_all_types_and_refuses_others() -> None:
    given = {
        "x": np.full((2, 3), 2, np.float32), "i": np.array([1, -(2**60)]), "b": np.array([True, False]),
        "h": np.array([1, 2], np.float16), "k": np.array(-3, np.int8), "s": np.array(["ä", "b"], object),
        "z": np.zeros(0, np.uint8),
    }  # fmt: skip
    with executing_for(spec_of("wasm")):
        session = Session(ir.from_onnx_text(TYPES), threads=1)
        found = session.run(given)
        assert {name: array.tolist() for name, array in found.items()} == {
            "y": [[4] * 3] * 2, "j": [1, -(2**60)], "c": [False, True], "g": [1, 2], "l": -3, "t": ["ä", "b"], "e": [],
        }  # fmt: skip
        assert list(session.run(given, ["j"])) == ["j"]
        assert all(0 < seconds < 60 for seconds in session.timed(given, 2))
        with pytest.raises(VerificationError, match="index: 1 Got: 4 Expected: 3"):
            session.run({**given, "x": np.zeros((2, 4), np.float32)})
        with pytest.raises(VerificationError, match="refuses the model"):
            Session(b"nonsense", threads=1)


@wasm
def test_webassembly_reads_data_files(tmp_path: Path) -> None:
    onnx.save(_weighty(True), tmp_path / "m.onnx")
    (tmp_path / "w.bin").write_bytes(np.array([5, 6], np.float32).tobytes())
    with executing_for(spec_of("wasm")):
        assert Session(tmp_path / "m.onnx", threads=1).run({"x": np.ones(2, np.float32)})["y"].tolist() == [6, 7]


@wasm
def test_results_for_webassembly_are_verified_measured_and_profiled_there(tmp_path: Path) -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 20]> g (float[2, 8] x) => (float[2, 8] y)
        <float two = {1.4142135}, float one = {1.0}, float half = {0.5}> {
        s = Div(x, two)  e = Erf(s)  p = Add(e, one)  m = Mul(x, p)  y = Mul(m, half) }"""
    )
    result = ortfuse.optimize(
        model, target="wasm", verify=True, bench=True, rounds=1, bench_budget=0.0, threads=1, output=tmp_path / "m.onnx"
    )
    assert result.verdict is not None and result.verdict.ok
    assert [node.op_type for node in result.model.graph] == ["Gelu"]
    with executing_for(spec_of("wasm")):
        session = Session(tmp_path / "m.onnx", threads=1, profile=tmp_path / "log")
        session.run({"x": np.zeros((2, 8), np.float32)})
        assert "Gelu" in session.end_profile().read_text()
        assert placement(tmp_path / "m.onnx").own_partitions == 1
    with pytest.raises(VerificationError, match="npm package onnxruntime-web"):
        ortfuse.session(tmp_path / "m.onnx", {"providers": ["wasm"]})
