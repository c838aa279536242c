"""Caches of keys and values as 8-bit integers: what becomes so, what does not, and what a decoder then computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import ortfuse
from ortfuse.errors import OptionError, OrtfuseError
from ortfuse.ir.traits import MICROSOFT
from ortfuse.runtime.int8_kv_caches import KEY, integer_caches

TEXT = """<ir_version: 10, opset_import: ["": 23]>
g (float[b,s,32] x, float[b,2,p,HEAD] past_k, float[b,2,p,HEAD] past_v MASK)
    => (float[b,s,32] y, float[b,2,t,HEAD] present_k, float[b,2,t,HEAD] present_v MORE)
<float[32,64] wq = {WQ}, float[32,NARROW] wk = {WK}, float[32,NARROW] wv = {WV}, float[64,32] wo = {WO}> {
    q = MatMul(x, wq)
    k = MatMul(x, wk)
    v = MatMul(x, wv)
    a, present_k, present_v = Attention<q_num_heads=HEADS, kv_num_heads=2, is_causal=1>(q, k, v, GIVEN, past_k, past_v)
    y = MatMul(a, wo)
    ALSO
}"""


def decoder(head: int = 16, mask: bool = False, also: str = "", more: str = "") -> onnx.ModelProto:
    """A layer of attention on 2 heads of keys, with its caches as inputs and outputs."""
    rng = np.random.default_rng(3)
    text = TEXT.replace("ALSO", also).replace("MORE", more)
    shapes = {"WQ": (32, 64), "WK": (32, 2 * head), "WV": (32, 2 * head), "WO": (64, 32)}
    for name, shape in shapes.items():
        numbers = rng.normal(size=shape).astype(np.float32).ravel() / 4
        text = text.replace(f"{{{name}}}", "{" + ", ".join(map(str, numbers.tolist())) + "}")
    text = text.replace("MASK", ", float[1,1,s,t] mask" if mask else "").replace("GIVEN", "mask" if mask else "")
    sizes = {"HEADS": 64 // head, "HEAD": head, "NARROW": 2 * head}
    for name, size in sizes.items():
        text = text.replace(name, str(size))
    model = onnx.parser.parse_model(text)
    for value in model.graph.input:
        if value.name == "mask":
            value.type.tensor_type.shape.dim[3].dim_param = "p + s"
    return model


def rows(rng: np.random.Generator, length: int, past: int, batch: int = 1, head: int = 16) -> dict[str, Any]:
    given = {"x": (batch, length, 32), "past_k": (batch, 2, past, head), "past_v": (batch, 2, past, head)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in given.items()}


def operators(model: ir.Model) -> list[tuple[str, str]]:
    return [(node.domain, node.op_type) for node in model.graph]


def test_caches_become_integers_that_the_model_takes_and_gives(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    inputs = [rows(rng, 1, 20, batch=3), rows(rng, 6, 9), rows(rng, 1, 5, batch=2), rows(rng, 7, 30)]
    path = tmp_path / "d.onnx"
    onnx.save(decoder(), path)
    done = ortfuse.convert(path, "int8-caches", inputs=inputs, max_error=0.1, output=tmp_path / "d8.onnx")
    assert (done.operators, done.islands, done.generated_ranges) == (1, {}, False)
    assert done.token_bytes == (4 * 2 * 2 * 16, 2 * 2 * 16)
    assert 1e-4 < done.errors["y"] < 0.1
    assert list(done.errors) == ["y"]
    assert (MICROSOFT, "GroupQueryAttention") in operators(done.model)
    assert not {op for _, op in operators(done.model)} & {"QuantizeLinear", "DequantizeLinear", "Attention"}
    ends = {value.name: value.dtype for value in (*done.model.graph.inputs, *done.model.graph.outputs)}
    assert {name for name, dtype in ends.items() if dtype == ir.DataType.INT8} == {
        "past_k", "past_v", "present_k", "present_v",
    }  # fmt: skip
    verdict = ortfuse.verify(path, tmp_path / "d8.onnx", inputs=inputs)
    assert verdict.ok, verdict.summary()
    assert not ortfuse.verify(path, tmp_path / "d8.onnx", inputs=inputs, max_error=1e-4).ok


@pytest.mark.parametrize("mask", [False, True])
def test_step_by_step_it_computes_as_on_the_whole_text(tmp_path: Path, mask: bool) -> None:
    rng = np.random.default_rng(1)
    text = rng.normal(size=(1, 12, 32)).astype(np.float32)
    whole = {"x": text, "past_k": np.zeros((1, 2, 0, 16), np.float32), "past_v": np.zeros((1, 2, 0, 16), np.float32)}
    triangle = np.where(np.tri(12, dtype=bool), 0, -np.inf).astype(np.float32)[None, None]
    if mask:
        whole["mask"] = triangle
    observed = [{**whole, "past_k": np.zeros((1, 2, 0, 16), np.float32)}, rows(rng, 1, 8)]
    if mask:
        observed[1]["mask"] = np.zeros((1, 1, 1, 9), np.float32)
    model = decoder(mask=mask)
    expected = ort.InferenceSession(model.SerializeToString()).run(["y"], whole)[0]
    done = ortfuse.convert(model, "int8-caches", inputs=observed)
    session = ort.InferenceSession(done.model.SerializeToString())
    past = {"past_k": np.zeros((1, 2, 0, 16), np.int8), "past_v": np.zeros((1, 2, 0, 16), np.int8)}
    found = []
    for start, end in ((0, 5), (5, 6), (6, 9), (9, 12)):
        given = {"x": text[:, start:end], **past}
        if mask:
            given["mask"] = triangle[:, :, start:end, :end]
        y, key, value = session.run(["y", "present_k", "present_v"], given)
        past = {"past_k": key, "past_v": value}
        found.append(y)
    error = np.linalg.norm(np.concatenate(found, axis=1) - expected) / np.linalg.norm(expected)
    assert 1e-4 < error < 0.03
    assert past["past_k"].shape == (1, 2, 12, 16)


def test_benchmarks_round_the_caches_that_they_give(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    inputs = [rows(rng, 1, 20)]
    done = ortfuse.convert(decoder(), "int8-caches", inputs=inputs)
    found = ortfuse.benchmark({"float32": decoder(), "int8": done.model}, inputs=inputs, rounds=2)
    assert [row.name for row in found.latency] == ["float32", "int8"]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"head": 4}, "a known multiple of 8"),
        ({"also": "more = Neg(present_k)", "more": ", float[b,2,t,HEAD] more"}, "'present_k' is used by Neg"),
        ({"also": "more = Neg(past_k)", "more": ", float[b,2,p,HEAD] more"}, "'past_k' is used by Neg"),
    ],
)
def test_what_cannot_be_integers_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(OrtfuseError, match="no cache can be 8-bit integers") as caught:
        ortfuse.convert(decoder(**changed), "int8-caches")
    assert why in str(caught.value)


def test_a_model_without_attention_is_told_to_be_optimised_first() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    )
    with pytest.raises(OrtfuseError, match="optimise it first"):
        ortfuse.convert(model, "int8-caches")


def test_a_bound_that_is_not_kept_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(OrtfuseError, match=r"more than 1e-06"):
        ortfuse.convert(decoder(), "int8-caches", max_error=1e-6, output=tmp_path / "d8.onnx")
    assert not (tmp_path / "d8.onnx").exists()


def test_caches_are_inputs_and_outputs_so_they_cannot_be_kept() -> None:
    with pytest.raises(OptionError, match="keep_io"):
        ortfuse.convert(decoder(), "int8-caches", keep_io=True)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"past_k": {}}', '{"past_k": {"present": "y", "scales": 1, "heads": 2}}']
)
def test_metadata_of_others_say_nothing(content: str) -> None:
    model = ir.from_proto(decoder())
    model.metadata_props[KEY] = content
    assert integer_caches(model) == ()


def test_metadata_of_caches_that_are_no_integers_say_nothing() -> None:
    model = ir.from_proto(decoder())
    model.metadata_props[KEY] = json.dumps({"past_k": {"present": "present_k", "scales": [1.0] * 16, "heads": 2}})
    assert integer_caches(model) == ()
