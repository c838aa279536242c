"""Embeddings and their normalisation as one operator, which is made where `--force` asks for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import ortfuse
from ortfuse.io.convert_model_objects import enter
from ortfuse.verification import Session

PIN = {"embedding": "com.microsoft.EmbedLayerNormalization"}
NUMBERS = np.random.default_rng(0).standard_normal


def model(body: str, kind: str = "int64") -> onnx.ModelProto:
    """A model of the text, with tables of 7, 5 and 2 rows as constants."""
    made: onnx.ModelProto = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 20]>
        g ({kind}[b,s] ids, {kind}[b,s] kinds, {kind}[1,s] places, float[7,8] w, float[5,8] p, float[2,8] k, float[8] g) => (y)
        {{ {body} y = LayerNormalization<epsilon=0.01>(t, g, g) }}"""
    )
    for value in [value for value in made.graph.input if len(value.name) == 1]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        made.graph.initializer.append(onnx.numpy_helper.from_array(NUMBERS(shape).astype(np.float32), value.name))
        made.graph.input.remove(value)
    if "kinds)" not in body:
        made.graph.input.remove(made.graph.input[1])
    return made


def operators(proto: onnx.ModelProto, pins: dict[str, str] | None = None) -> tuple[list[str], Any]:
    result = ortfuse.optimize(proto, force=pins or {}).model
    return [node.op_type for node in result.graph.node if node.op_type != "Constant"], result


BERT = "a = Gather(w, ids) c = Gather(p, places) d = Gather(k, kinds) e = Add(a, d) t = Add(e, c)"
DISTIL = "a = Gather(w, ids) c = Gather(p, places) t = Add(a, c)"
INPUTS = {
    "ids": np.array([[0, 6, -1], [3, -7, 2]]),
    "kinds": np.array([[0, 1, -1], [1, 0, -2]]),
    "places": np.array([[0, -1, 4]]),
}


@pytest.mark.parametrize("body", [BERT, DISTIL])
@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_embeddings_are_one_operator_where_it_is_forced(body: str, kind: str) -> None:
    proto = model(body, kind)
    names, result = operators(proto, PIN)
    assert names.count("EmbedLayerNormalization") == 1
    assert not {"Gather", "LayerNormalization"} & {*names}
    inputs = {value.name: INPUTS[value.name].astype(kind) for value in proto.graph.input}
    before, after = (next(iter(_run(one, inputs).values())) for one in (proto, result))
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    with pytest.raises(Exception, match="out of range"):
        _run(result, {**inputs, "ids": inputs["ids"] + 7})


def _run(proto: onnx.ModelProto, inputs: dict[str, Any]) -> dict[str, Any]:
    return Session(enter(proto)[0], optimise=False, threads=1, isolated=False).run(dict(inputs))


def test_embeddings_stay_as_they_are_without_a_pin() -> None:
    names, _ = operators(model(BERT))
    assert names.count("Gather") == 3
    assert "EmbedLayerNormalization" not in names


def test_the_sum_is_the_third_output_where_it_is_needed() -> None:
    proto = model(f"{DISTIL}")
    proto.graph.node.append(onnx.helper.make_node("Neg", ["t"], ["z"]))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, None))
    names, _ = operators(proto, PIN)
    assert names.count("EmbedLayerNormalization") == 1
    assert "Gather" not in names
