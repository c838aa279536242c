"""Decoders whose caches are laid out in other ways, with sinks, or with states of constant size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cached_decoders import GROUPS, HEADS, LAYOUTS, MODEL, PLAIN, SIZE, WIDTH, write
from onnx import numpy_helper, parser

import ortfuse
from ortfuse.errors import GenerationError
from ortfuse.generation.generator_interface import GeneratorInterface
from ortfuse.generation.once_model import split_off_once


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, tmp_path: Path) -> None:
    done = ortfuse.generator(
        write(tmp_path / "m.onnx", **LAYOUTS[layout]), tmp_path / "out", max_length=60, verify=True
    )
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first
    assert not done.kept
    node = next(node for node in done.model.graph if node.op_type == "GroupQueryAttention")
    assert (node.attributes["num_heads"].value, node.attributes["kv_num_heads"].value) == (HEADS, GROUPS)
    assert (len(node.inputs) > 11) == (layout == "sink")
    assert done.interface.mixed_lengths
    assert {cache.shape for cache in done.interface.caches} == {(-1, GROUPS, 60, SIZE)}


STATE = {
    "more_in": ", float[batch, 3, 64] window",
    "more_out": ", float[batch, 3, 64] next_window",
    "before": """
  both = Concat<axis = 1>(window, x0)
  minus_three = Constant<value_ints = [-3]>()
  end = Constant<value_ints = [9223372036854775807]>()
  next_window = Slice(both, minus_three, end, at_one)
  c0 = Transpose<perm = [0, 2, 1]>(both)
  c1 = Conv<group = 64, kernel_shape = [4]>(c0, kernel)
  x = Transpose<perm = [0, 2, 1]>(c1)""",
}


def test_states_of_constant_size_are_handed_on(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", **STATE)
    model = onnx.load(path)
    kernel = np.random.default_rng(5).standard_normal((64, 1, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(kernel, "kernel"))
    onnx.save(model, path)
    done = ortfuse.generator(path, tmp_path / "out", max_length=60, verify=True)
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first
    assert [state.before for state in done.interface.states] == ["window"]
    assert not done.interface.mixed_lengths
    running = ortfuse.Generator(tmp_path / "out")
    first = running.generate([[1, 2, 3]], max_new_tokens=10)
    assert running.generate([[1, 2, 3]], max_new_tokens=10) == first
    with pytest.raises(GenerationError, match="prompts of one length"):
        running.generate([[1, 2], [3]], max_new_tokens=3)


def merged(path: Path) -> Path:
    """A model with a branch for the first step, as Optimum merges two exports."""
    cached = onnx.load(write(path))
    first = parser.parse_model(
        MODEL.format(**PLAIN)
        .replace("p = Shape<start = 2, end = 3>(past_k)", "p = Constant<value_ints = [0]>()")
        .replace("Concat<axis = 2>(past_k, k2)", "Identity(k2)")
        .replace("Concat<axis = 2>(past_v, v2)", "Identity(v2)")
    )
    branches = {
        name: onnx.helper.make_graph(list(model.graph.node), name, [], list(model.graph.output))
        for name, model in (("then_branch", cached), ("else_branch", first))
    }
    outputs = list(cached.graph.output)
    choice = onnx.helper.make_node("If", ["use_cache_branch"], [f"{one.name}_out" for one in outputs], **branches)
    for one in outputs:
        renamed = onnx.ValueInfoProto()
        renamed.CopyFrom(one)
        renamed.name = f"{one.name}_out"
        cached.graph.output.append(renamed)
    del cached.graph.output[: len(outputs)]
    del cached.graph.node[:]
    cached.graph.node.append(choice)
    cached.graph.input.append(onnx.helper.make_tensor_value_info("use_cache_branch", onnx.TensorProto.BOOL, [1]))
    onnx.save(cached, path)
    return path


def test_the_branch_with_a_past_serves_for_the_first_step(tmp_path: Path) -> None:
    done = ortfuse.generator(merged(tmp_path / "m.onnx"), tmp_path / "out", max_length=60, verify=True)
    assert done.decoder.branch == "use_cache_branch"
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first
    assert not done.kept
    assert not any(node.op_type == "If" for node in done.model.graph)


CROSS = {
    "more_in": ", float[batch, source, 64] states",
    "before": """
  cs = Constant<value_ints = [0, 0, 4, 16]>()
  cw = Constant<value_float = 0.25>()
  cq0 = MatMul(x0, wq2)
  ck0 = MatMul(states, wk2)
  cv0 = MatMul(states, wv2)
  cq1 = Reshape(cq0, cs)
  ck1 = Reshape(ck0, cs)
  cv1 = Reshape(cv0, cs)
  cq = Transpose<perm = [0, 2, 1, 3]>(cq1)
  ck = Transpose<perm = [0, 2, 3, 1]>(ck1)
  cv = Transpose<perm = [0, 2, 1, 3]>(cv1)
  ca0 = MatMul(cq, ck)
  ca = Mul(ca0, cw)
  cp = Softmax(ca)
  cy0 = MatMul(cp, cv)
  cy1 = Transpose<perm = [0, 2, 1, 3]>(cy0)
  cz = Constant<value_ints = [0, 0, 64]>()
  cy = Reshape(cy1, cz)
  x = Add(x0, cy)""",
}


def test_what_depends_on_an_encoder_alone_is_computed_once(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", **CROSS)
    model, random = onnx.load(path), np.random.default_rng(8)
    for name in ("wq2", "wk2", "wv2"):
        numbers = random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / np.float32(6)
        model.graph.initializer.append(numpy_helper.from_array(numbers, name))
    onnx.save(model, path)
    done = ortfuse.generator(path, tmp_path / "out", max_length=60, verify=True)
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first
    assert done.interface.once == ("states",)
    assert [name.endswith(".once") for name in done.interface.fixed] == [True, True]
    assert sum(node.op_type == "MatMul" for node in done.once.graph) == 2
    running = ortfuse.Generator(tmp_path / "out")
    states = random.standard_normal((2, 5, WIDTH)).astype(np.float32)
    together = running.generate([[1, 2, 3], [4]], max_new_tokens=10, fixed={"states": states})
    elsewhere = ortfuse.Generator(tmp_path / "out", target="cpu")
    assert elsewhere.generate([[1, 2, 3], [4]], max_new_tokens=10, fixed={"states": states}) == together
    for number, prompt in enumerate([[1, 2, 3], [4]]):
        own = {"states": states[number : number + 1]}
        assert running.generate([prompt], max_new_tokens=10, fixed=own)[0] == together[number]
    with pytest.raises(GenerationError, match="the input states needs an array"):
        running.generate([[1]], max_new_tokens=3)


def test_an_output_that_depends_on_an_encoder_alone_stays_one() -> None:
    """Its node stays in the generator, with those that read it."""
    model = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["": 21]>
        g (float[b, s, 8] x, float[b, t, 8] states, float[8, 8] w) => (float[b, s, t] logits, float[b, t, 8] seen) {
            seen = Relu(states) k = MatMul(states, w) turned = Transpose<perm = [0, 2, 1]>(k) logits = MatMul(x, turned)
        }""")
    weight = model.graph.inputs.pop()
    weight.const_value = ir.tensor(np.eye(8, dtype=np.float32), name="w")
    model.graph.register_initializer(weight)
    interface = GeneratorInterface("x", "mask", (), (), ("states",), "logits", 0, 10, False, True, False)
    once, found = split_off_once(model, interface)
    assert once is not None
    assert [node.op_type for node in once.graph] == ["MatMul", "Transpose"]
    assert [node.op_type for node in model.graph] == ["Relu", "MatMul"]
    assert (found.once, found.fixed) == (("states",), ("states", "turned.once"))
    onnx.shape_inference.infer_shapes(ir.to_proto(model), check_type=True, strict_mode=True)
    assert {value.name for value in model.graph.outputs} == {"logits", "seen"}
    assert all(value.producer() is not None for value in model.graph.outputs)
