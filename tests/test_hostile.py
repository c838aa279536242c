"""Models made to do harm: each ends in an error of ortfuse's or in a safe result, within bounded time and memory."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import graphs
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from limits import limited
from onnx import TensorProto, helper, numpy_helper

import ortfuse
from ortfuse.errors import ModelFileError, OrtfuseError
from ortfuse.io.load_and_save import load

SECONDS = 120
"""Of the processor, not of the clock: far more than any of these takes, and far less than what is exponential in anything."""
MEMORY = 3 << 30
"""Bytes that optimising one model may take besides what the process has."""


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    """Time and memory end, so that a bomb is a failing test and not a dead machine."""
    with limited(SECONDS, MEMORY, of_processor=True):
        yield


model = partial(graphs.proto, inputs="float[n] x", outputs="float[] y", opset=20, ir_version=10, domains=["local"])


def constants(**values: object) -> str:
    """Constant nodes of int64, or of float if a number is one, or of the text given."""
    nodes = []
    for name, value in values.items():
        numbers = value if isinstance(value, list) else [value]
        kind = "float" if any(isinstance(number, float) for number in numbers) else "int64"
        dims = f"[{len(numbers)}]" if isinstance(value, list) else ""
        nodes.append(f"{name} = Constant <value = {kind}{dims} {{{', '.join(map(str, numbers))}}}> ()")
    return " ".join(nodes)


def chain(count: int, step: str) -> str:
    return " ".join(step.format(i=i, j=i + 1) for i in range(count))


MOST, LEAST = 2**63 - 1, -(2**63)
BOMBS = {
    "ConstantOfShape": constants(s=[1000000, 1000000]) + " y = ConstantOfShape(s)",
    "ConstantOfShape of a negative size": constants(s=[-5]) + " y = ConstantOfShape(s)",
    "Tile": constants(k=[1.0, 2.0], s=[4000000000]) + " y = Tile(k, s)",
    "Tile, negative": constants(k=[1.0, 2.0], s=[-4000000000]) + " y = Tile(k, s)",
    "Expand": constants(k=[1.0], s=[4000000000]) + " y = Expand(k, s)",
    "Expand, then one number of it": constants(k=[1.0], s=[4000000000]) + " e = Expand(k, s) y = ReduceSum(e)",
    "Range": constants(a=0, b=MOST, c=1) + " r = Range(a, b, c) y = Cast <to = 1> (r)",
    "Range of floats": constants(a=0.0, b=1e30, c=1e-30) + " y = Range(a, b, c)",
    "Range without an end": constants(a=0, b=9, c=0) + " r = Range(a, b, c) y = Cast <to = 1> (r)",
    "Pad": constants(k=[1.0], s=[4000000000, 0]) + " y = Pad(k, s)",
    "Resize": "k = Constant <value = float[1, 1, 1, 1] {1}> () " + constants(s=[1.0, 1.0, 1e5, 1e5]) + " y = Resize(k, , s)",
    "OneHot": constants(k=[1], s=8000000000, v=[0.0, 1.0]) + " y = OneHot(k, s, v)",
    "EyeLike": constants(s=[100000, 100000]) + " c = ConstantOfShape(s) y = EyeLike(c)",
    "HannWindow": constants(s=90000000000) + " y = HannWindow(s)",
    "outer sum": constants(k=[1.0], s=[100000, 1], t=[1, 100000]) + " a = Expand(k, s) b = Expand(k, t) y = Add(a, b)",
    "outer product": constants(k=[1.0], s=[100000, 1], t=[1, 100000]) + " a = Expand(k, s) b = Expand(k, t) y = MatMul(a, b)",
    "doubled sixty times": constants(c0=[1.0, 2.0]) + chain(60, " c{j} = Concat <axis = 0> (c{i}, c{i})") + " y = Neg(c60)",
    "a Loop of a trillion rounds": constants(m=1000000000000, z=0.0)
    + " q, y = Loop(m, , z) <body = b (int64 i, bool d, float s) => (bool o, float t, float u)"
    " { o = Identity(d) t = Add(s, s) u = Neg(s) }>",
    "index far out": constants(k=[1.0, 2.0], i=[MOST]) + " y = Gather(k, i)",
    "index far below": constants(k=[1.0, 2.0], i=[LEAST]) + " y = Gather(k, i)",
    "Reshape to an overflowing size": constants(s=[2**40, 2**40, -1]) + " y = Reshape(x, s)",
    "Reshape to two open sizes": constants(s=[-1, -1]) + " y = Reshape(x, s)",
    "Transpose that is no permutation": "t = Transpose <perm = [5, -1]> (x) y = Transpose <perm = [0, 0]> (t)",
    "Unsqueeze at the least axis": constants(a=[LEAST]) + " u = Unsqueeze(x, a) y = Unsqueeze(u, a)",
    "Slice in steps of zero": constants(z=[0]) + " y = Slice(x, z, z, z, z)",
    "Slice of a missing axis": constants(k=[1.0], z=[77]) + " y = Slice(k, z, z, z)",
    "Split into negative parts": constants(s=[-5, 99]) + " y, z = Split(x, s)",
    "division by zero": constants(a=[1, 2], z=[0]) + " d = Div(a, z) y = Cast <to = 1> (d)",
    "the one overflowing division": constants(a=[LEAST], b=[-1]) + " d = Div(a, b) y = Cast <to = 1> (d)",
    "Conv of impossible windows": "w = Constant <value = float[1, 1, 1] {1}> () "
    f"y = Conv <strides = [0], dilations = [-1], pads = [{LEAST}, {MOST}]> (x, w)",
    "DepthToSpace of nothing": "k = Constant <value = float[1, 4, 1, 1] {1, 2, 3, 4}> () y = DepthToSpace <blocksize = 0> (k)",
    "Cast to no type": "y = Cast <to = 999> (x)",
    "axis far out": "y = Softmax <axis = -99> (x)",
    "an equation that is none": 'y = Einsum <equation = "((((">(x)',
    "sizes added to themselves": "c0 = Shape(x)" + chain(3000, " c{j} = Add(c{i}, c{i})") + " y = Cast <to = 1> (c3000)",
    "sizes multiplied by themselves": "c0 = Shape(w)" + chain(100, " c{j} = Mul(c{i}, c{i})") + " y = Cast <to = 1> (c100)",
    "rising powers of sums of sizes": "s = Shape(v) " + constants(k=[0], l=[1]) + " a = Gather(s, k) b = Gather(s, l) c0 = Add(a, b)"
    + chain(200, " d{i} = Mul(c{i}, c0) c{j} = Add(d{i}, a)") + " y = Cast <to = 1> (c200)",
    "nested quotients of sizes": "c0 = Shape(x) " + constants(k=2, t=1) + chain(300, " d{i} = Add(c{i}, t) c{j} = Div(d{i}, k)")
    + " y = Cast <to = 1> (c300)",
    "a sum that doubles": "c0 = Abs(x)" + chain(2000, " c{j} = Add(c{i}, c{i})") + " y = Neg(c2000)",
    "a product that doubles": "c0 = Abs(x)" + chain(2000, " c{j} = Mul(c{i}, c{i})") + " y = Neg(c2000)",
    "Fibonacci": "c0 = Abs(x) c1 = Neg(x)" + " ".join(f"c{i + 2} = Add(c{i}, c{i + 1})" for i in range(2000)) + " y = Neg(c2001)",
    "a very wide sum": chain(2000, "c{i} = Neg(x)") + " y = Sum(" + ", ".join(f"c{i}" for i in range(2000)) + ")",
    "a rank of hundreds": constants(k=[0]) + " c0 = Abs(x)" + chain(300, " c{j} = Unsqueeze(c{i}, k)") + " y = Neg(c300)",
}  # fmt: skip


def assert_harmless(made: onnx.ModelProto) -> None:
    try:
        result = ortfuse.optimize(made, level="all").model
    except OrtfuseError:
        return
    assert result.ByteSize() < made.ByteSize() + (4 << 20)


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_does_not_go_off(kind: str) -> None:
    assert_harmless(model(BOMBS[kind], inputs="float[n] x, float[a, 3] w, float[a, b] v"))


def test_a_normalisation_over_a_declared_size_beyond_memory() -> None:
    body = constants(a=[-1], e=1e-5) + " s = Mul(x, x) m = ReduceMean(s, a) v = Add(m, e) r = Sqrt(v) y = Div(x, r)"
    assert_harmless(model(body, inputs=f"float[b, {2**40}] x"))


STEPS = {
    "Neg": "c{j} = Neg(c{i})",
    "Identity": "c{j} = Identity(c{i})",
    "a sum": "c{j} = Add(c{i}, x)",
    "a factor": "c{j} = Mul(c{i}, k)",
    "Transpose": "c{j} = Transpose <perm = [1, 0, 2]> (c{i})",
    "Reshape": "c{j} = Reshape(c{i}, t)",
}


@pytest.mark.parametrize("kind", STEPS)
def test_a_deep_chain(kind: str) -> None:
    body = constants(k=1.5, t=[0, -1, 4]) + " c0 = Abs(x) " + chain(1500, STEPS[kind]) + " y = Neg(c1500)"
    assert_harmless(model(body, inputs="float[a, 3, 4] x"))


def test_a_chain_of_twenty_thousand_nodes() -> None:
    made = model("c0 = Abs(x) " + chain(20_000, "c{j} = Neg(c{i})") + " y = Abs(c20000)")
    assert len(ortfuse.optimize(made, passes="dce").model.graph.node) == 20_002


FUNCTION = '<domain: "local", opset_import: ["": 20, "local": 1]> '
TWICE = "c = local.f{i}(a) b = local.f{i}(c)"
CALLS = {
    "each calls another twice": (40, "b = Neg(a)", TWICE),
    "each calls another twice, and sizes double": (40, "b = Concat <axis = 0> (a, a)", TWICE),
    "each calls another twice, and ranks grow": (
        40, "k = Constant <value = int64[1] {0}> () b = Unsqueeze(a, k)", TWICE,
    ),
    "a thousand deep": (1000, "b = Neg(a)", "b = local.f{i}(a)"),
}  # fmt: skip


@pytest.mark.parametrize("argument", ["x", "k"])
@pytest.mark.parametrize("kind", CALLS)
def test_functions_that_multiply(kind: str, argument: str) -> None:
    depth, first, step = CALLS[kind]
    bodies = [first, *(step.format(i=i) for i in range(depth))]
    rest = " ".join(f"{FUNCTION} f{i} (a) => (b) {{ {body} }}" for i, body in enumerate(bodies))
    assert_harmless(model(constants(k=[1.0]) + f" y = local.f{depth}({argument})", functions=rest))


@pytest.mark.parametrize("bodies", [["b = local.f0(a)"], ["b = local.f1(a)", "b = local.f0(a)"]])
def test_functions_that_recurse_are_an_error(bodies: list[str]) -> None:
    rest = " ".join(f"{FUNCTION} f{i} (a) => (b) {{ {body} }}" for i, body in enumerate(bodies))
    with pytest.raises(OrtfuseError, match="functions call themselves"):
        ortfuse.optimize(model("y = local.f0(x)", functions=rest))


@pytest.mark.parametrize("after", ["", " r{d} = Concat <axis = 0> (t{d}, t{d})"])
def test_loops_in_loops(after: str) -> None:
    inner, name = "t = Neg(s)", "t"
    for d in range(20):
        inner = (
            f"t{d} = Loop(m, , s) <body = b{d} (int64 i{d}, bool d{d}, float[k] s) => (bool o{d}, float[k] {name})"
            f" {{ o{d} = Identity(d{d}) {inner} }}>" + after.format(d=d)
        )
        name = f"r{d}" if after else f"t{d}"
    assert_harmless(model(f"s = Abs(x) {inner} y = Neg({name})", inputs="float[n] x, int64 m"))


@pytest.mark.parametrize("declared", ["double[k] s", "float[k, l] s", "int64 s"])
def test_a_loop_body_whose_declared_types_contradict_it(declared: str) -> None:
    body = (
        f"q = Loop(m, , x) <body = b (int64 i, bool d, {declared}) => (bool o, float[k] t)"
        " { o = Identity(d) u = Abs(x) t = Concat <axis = 0> (u, u) }> y = Neg(q)"
    )
    assert_harmless(model(body, inputs="float[n] x, int64 m"))


NAMES = ["ortfuse_const_0", "ortfuse_const_1", "fold", "node_Gelu_0", "const", "0", "../x", "x" * 5000]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_ortfuse_might_give_stays_that_of_its_value(name: str) -> None:
    made = model(
        constants(h=0.5, r=1.4142135623730951, o=1.0)
        + " d = Div(a, r) e = Erf(d) f = Add(e, o) g = Mul(a, f) m = Mul(g, h) n = Neg(z) y = Add(m, n)",
        inputs="float[b, s, 4] a, float[b, s, 4] z",
    )
    for node in made.graph.node:
        node.input[:] = [name if old == "z" else old for old in node.input]
    made.graph.input[1].name = name
    result = ortfuse.optimize(made, level="all").model
    assert [value.name for value in result.graph.input] == ["a", name]
    assert ortfuse.verify(made, result).ok


def with_external(place: str, entries: dict[str, str]) -> onnx.ModelProto:
    """A model with an external tensor: an initializer, in a node's attribute, in a branch, or in a function."""
    tensor = numpy_helper.from_array(np.arange(600, dtype=np.float32), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    node = helper.make_node("Constant", [], ["w"], value=tensor)
    if place == "initializer":
        made = model("y = Add(x, w)", inputs="float[600] x")
        made.graph.initializer.append(tensor)
    elif place == "attribute":
        made = model("y = Add(x, w)", inputs="float[600] x")
        made.graph.node.insert(0, node)
    elif place == "branch":
        branch = "() => (float[600] {0}) {{ {0} = Add(x, w) }}"
        made = model(
            f"y = If (c) <then_branch = a {branch.format('p')}, else_branch = b {branch.format('q')}>",
            inputs="float[600] x, bool c",
        )
        for attribute in made.graph.node[0].attribute:
            attribute.g.initializer.append(tensor)
    else:
        made = model("y = local.f(x)", inputs="float[600] x", functions=f"{FUNCTION} f (a) => (b) {{ b = Add(a, w) }}")
        made.functions[0].node.insert(0, node)
    return made


PLACES = ["initializer", "attribute", "branch", "function"]
OUTSIDE = {
    "absolute": "{folder}/secret",
    "dot-dot": "../secret",
    "dot-dot within": "below/../../secret",
    "symbolic link": "link",
    "link to a folder": "linked/secret",
    "chain of links": "second",
    "link to itself": "loop",
    "device": "zero",
    "Windows drive": "C:\\secret",
    "folder": "below",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", OUTSIDE)
def test_nothing_outside_of_the_folder_is_read(kind: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret! " * 300)
    folder = tmp_path / "model"
    (folder / "below").mkdir(parents=True)
    for name, target in (
        ("link", tmp_path / "secret"),
        ("linked", tmp_path),
        ("second", "link"),
        ("loop", "loop"),
        ("zero", "/dev/zero"),
    ):
        (folder / name).symlink_to(target)
    onnx.save(with_external(place, {"location": OUTSIDE[kind].format(folder=tmp_path)}), folder / "m.onnx")
    with pytest.raises(ModelFileError, match=r"'w'|attribute"):
        ortfuse.optimize(folder / "m.onnx").save(folder / "o.onnx")
    assert not (folder / "o.onnx").exists()


EXTENTS = [
    {"offset": "1"}, {"offset": "-8"}, {"offset": str(2**64)}, {"offset": "0x0"}, {"offset": "1e3"}, {"offset": ""},
    {"length": "0"}, {"length": "2401"}, {"length": "-1"}, {"length": str(2**70)}, {"offset": str(MOST), "length": "2400"},
]  # fmt: skip


@pytest.mark.parametrize("extent", EXTENTS, ids=str)
def test_an_extent_beyond_the_file_is_an_error(extent: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(2400))
    onnx.save(with_external("initializer", {"location": "w.bin", **extent}), tmp_path / "m.onnx")
    with pytest.raises(OrtfuseError):
        ortfuse.optimize(tmp_path / "m.onnx")


def test_tensors_may_share_bytes(tmp_path: Path) -> None:
    numbers = np.arange(700, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(numbers.tobytes())
    made = with_external("initializer", {"location": "w.bin", "offset": "0"})
    second = onnx.TensorProto()
    second.CopyFrom(made.graph.initializer[0])
    second.name = "v"
    second.external_data[1].value = "400"
    made.graph.initializer.append(second)
    made.graph.node.append(helper.make_node("Max", ["y", "v"], ["z"]))
    made.graph.output[0].name = "z"
    onnx.save(made, tmp_path / "m.onnx")
    ortfuse.optimize(tmp_path / "m.onnx").save(tmp_path / "o.onnx")
    kept = [
        value.const_value.numpy()
        for value in load(tmp_path / "o.onnx").graph.initializers.values()
        if value.const_value
    ]
    assert {float(array[0]) for array in kept} == {0.0, 100.0}


@pytest.mark.parametrize("dims", [[2**40], [2**62, 2**62], [-1], [600, 0, 2**62], [601], []])
@pytest.mark.parametrize("field", ["raw_data", "float_data"])
def test_an_initializer_that_claims_another_size_is_an_error(dims: list[int], field: str, tmp_path: Path) -> None:
    made = with_external("initializer", {})
    tensor = made.graph.initializer[0]
    tensor.ClearField("data_location")
    setattr(tensor, field, bytes(2400)) if field == "raw_data" else tensor.float_data.extend([0.0] * 600)
    tensor.dims[:] = dims
    onnx.save(made, tmp_path / "m.onnx")
    with pytest.raises(OrtfuseError):
        ortfuse.optimize(tmp_path / "m.onnx")


WRITER = """
import sys, time
import numpy as np, onnx_ir
from ortfuse.io.load_and_save import load, save
one, other = (load(path) for path in sys.argv[2:])
save(one, sys.argv[1])
print("written", flush=True)
while True:
    save(one, sys.argv[1])
    save(other, sys.argv[1])
"""


@pytest.mark.parametrize("external", [False, True])
def test_killing_the_writer_at_any_moment_leaves_one_whole_model(external: bool, tmp_path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    sources = []
    for number in (1, 2):
        made = model("y = Add(x, w)", inputs="float[50000] x")
        made.graph.initializer.append(numpy_helper.from_array(np.full(50_000, number, np.float32), "w"))
        (tmp_path / str(number)).mkdir()
        sources.append(tmp_path / str(number) / "m.onnx")
        onnx.save(made, sources[-1], save_as_external_data=external, location="w.bin", size_threshold=0)
    (tmp_path / "out").mkdir()
    target, rng = tmp_path / "out" / "m.onnx", random.Random(0)
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", WRITER, target, *sources], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.05 + rng.random() / 10)
            os.kill(writer.pid, signal.SIGKILL)
        weight = load(target).graph.initializers["w"].const_value
        assert weight is not None
        assert len(set(weight.numpy().tolist())) == 1


FULL = """
import resource, sys
from ortfuse.errors import OutputError
from ortfuse.io.load_and_save import load, save
model = load(sys.argv[2])
for size in (0, 1, 100, 1000, 50_000, 199_999):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        save(model, sys.argv[1])
    except OutputError:
        pass
    else:
        sys.exit(f"{size} bytes are not enough")
"""


@pytest.mark.parametrize("external", [False, True])
def test_a_disk_that_fills_up_leaves_the_old_model(external: bool, tmp_path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    made = model("y = Add(x, w)", inputs="float[50000] x")
    made.graph.initializer.append(numpy_helper.from_array(np.ones(50_000, np.float32), "w"))
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=external, location="w.bin", size_threshold=0)
    (tmp_path / "out").mkdir()
    load_and_save = [sys.executable, "-c", FULL, tmp_path / "out" / "o.onnx", tmp_path / "m.onnx"]
    onnx.save(model("y = Neg(x)"), tmp_path / "out" / "o.onnx")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    subprocess.run(load_and_save, check=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["absolute", "dot-dot", "dot-dot within", "Windows drive"])
def test_a_model_of_another_library_reads_nothing_outside_either(
    kind: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither onnx nor onnx_ir looks at the names when it loads a model without its data."""
    (tmp_path / "secret").write_bytes(b"secret! " * 300)
    (tmp_path / "model" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "model")
    proto = with_external(place, {"location": OUTSIDE[kind].format(folder=tmp_path)})
    onnx.save(proto, "m.onnx")
    for model in (proto, ir.from_proto(proto), ir.load("m.onnx")):
        with pytest.raises(ModelFileError, match=r"'w'|attribute"):
            ortfuse.optimize(model, output="o.onnx")


def test_data_below_the_folder_of_a_tensor_are_read(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "w.bin").write_bytes(np.ones(600, np.float32).tobytes())
    onnx.save(with_external("initializer", {"location": "below/../below/w.bin"}), tmp_path / "m.onnx")
    loaded = ir.load(tmp_path / "m.onnx")
    result = ortfuse.optimize(loaded)
    assert ortfuse.verify(tmp_path / "m.onnx", result.model).state == "equal"
