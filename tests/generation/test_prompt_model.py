"""Decoders in two models, or in two branches of one: the first step computes keys and values of cross-attention for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cached_decoders import WIDTH, write
from onnx import numpy_helper
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app_of
from ortfuse.cli.parsing import COMMANDS
from ortfuse.errors import GenerationError

KEYS, VALUES = "float[batch, 4, source, 16]", "float[batch, 4, source, 16]"
COMPUTED = """
  cs = Constant<value_ints = [0, 0, 4, 16]>()
  ck0 = MatMul(states, wk2)
  cv0 = MatMul(states, wv2)
  ck1 = Reshape(ck0, cs)
  cv1 = Reshape(cv0, cs)
  {key} = Transpose<perm = [0, 2, 1, 3]>(ck1)
  {value} = Transpose<perm = [0, 2, 1, 3]>(cv1)
"""
CROSSED = """
  cs9 = Constant<value_ints = [0, 0, 4, 16]>()
  cw = Constant<value_float = 0.25>()
  cq0 = MatMul(x0, wq2)
  cq1 = Reshape(cq0, cs9)
  cq = Transpose<perm = [0, 2, 1, 3]>(cq1)
  ckt = Transpose<perm = [0, 1, 3, 2]>({key})
  ca0 = MatMul(cq, ckt)
  ca = Mul(ca0, cw)
  cp = Softmax(ca)
  cy0 = MatMul(cp, {value})
  cy1 = Transpose<perm = [0, 2, 1, 3]>(cy0)
  cz = Constant<value_ints = [0, 0, 64]>()
  cy = Reshape(cy1, cz)
  x = Add(x0, cy)"""
NO_PAST = [
    ("p = Shape<start = 2, end = 3>(past_k)", "p = Constant<value_ints = [0]>()"),
    ("Concat<axis = 2>(past_k, k2)", "Identity(k2)"),
    ("Concat<axis = 2>(past_v, v2)", "Identity(v2)"),
    ("float[batch, 2, past, 16] past_k, float[batch, 2, past, 16] past_v, ", ""),
]
INPUTS, OUTPUTS = ("past_encoder_key", "past_encoder_value"), ("present_encoder_key", "present_encoder_value")


def numbers() -> dict[str, Any]:
    random = np.random.default_rng(8)
    return {
        name: random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / np.float32(6)
        for name in ("wq2", "wk2", "wv2")
    }


def pair(
    folder: Path,
    inputs: tuple[str, str] = INPUTS,
    outputs: tuple[str, str] = OUTPUTS,
    computed: str = COMPUTED,
    edits: Sequence[tuple[str, str]] = (),
) -> tuple[Path, Path]:
    """A decoder with past keys and values of both attentions, and one for the prompt, which computes those of the second."""
    crossed = dict(zip(("key", "value"), outputs, strict=True))
    prompt = write(
        folder / "prompt.onnx",
        NO_PAST,
        numbers(),
        more_in=", float[batch, source, 64] states",
        more_out="".join(f", {KEYS} {name}" for name in outputs),
        before=computed.format(**crossed) + CROSSED.format(**crossed),
    )
    step = write(
        folder / "step.onnx",
        edits,
        {"wq2": numbers()["wq2"]},
        more_in="".join(f", {KEYS} {name}" for name in inputs),
        before=CROSSED.format(key=inputs[0], value=inputs[1]),
    )
    return prompt, step


def merged(folder: Path, handed_on: str) -> Path:
    """Both as branches of one model, of which the second hands on the keys and values of the encoder, or nothing."""
    prompt, step = (onnx.load(path) for path in pair(folder))
    for before, after in zip(INPUTS, OUTPUTS, strict=True):
        empty = numpy_helper.from_array(np.zeros((0, 4, 1, 16), np.float32))
        node = (
            onnx.helper.make_node("Identity", [before], [after])
            if handed_on == "passed"
            else onnx.helper.make_node("Constant", [], [after], value=empty)
        )
        step.graph.node.append(node)
    step.graph.output.extend(one for one in prompt.graph.output if one.name in OUTPUTS)
    branches = {
        name: onnx.helper.make_graph(list(one.graph.node), name, [], list(one.graph.output))
        for name, one in (("then_branch", step), ("else_branch", prompt))
    }
    outputs = [onnx.ValueInfoProto.FromString(one.SerializeToString()) for one in prompt.graph.output]
    for one in outputs:
        one.name = f"{one.name}_out"
    choice = onnx.helper.make_node("If", ["use_cache_branch"], [one.name for one in outputs], **branches)
    states = next(one for one in prompt.graph.input if one.name == "states")
    chosen = onnx.helper.make_tensor_value_info("use_cache_branch", onnx.TensorProto.BOOL, [1])
    graph = onnx.helper.make_graph(
        [choice], "merged", [*step.graph.input, states, chosen], outputs, list(prompt.graph.initializer)
    )
    made = onnx.helper.make_model(graph, opset_imports=prompt.opset_import, ir_version=10)
    onnx.save(made, folder / "merged.onnx")
    return folder / "merged.onnx"


def is_right(folder: Path, done: Any) -> None:
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first
    assert not done.kept
    assert done.interface.once == ("states",)
    assert set(done.decoder.fixed) == {"states"}
    assert sum(node.op_type == "MatMul" for node in done.once.graph) == 2
    assert {"wk2", "wv2"}.isdisjoint(done.model.graph.initializers)
    model = ortfuse.Generator(folder / "out")
    states = np.random.default_rng(1).standard_normal((2, 5, WIDTH)).astype(np.float32)
    both = model.generate([[1, 2, 3], [4]], max_new_tokens=10, fixed={"states": states})
    for number, prompt in enumerate([[1, 2, 3], [4]]):
        own = {"states": states[number : number + 1]}
        assert model.generate([prompt], max_new_tokens=10, fixed=own)[0] == both[number]


@pytest.mark.parametrize("handed_on", ["passed", "empty"])
def test_the_first_branch_computes_what_the_other_takes(handed_on: str, tmp_path: Path) -> None:
    done = ortfuse.generator(merged(tmp_path, handed_on), tmp_path / "out", max_length=60, verify=True)
    assert done.decoder.branch == "use_cache_branch"
    assert done.decoder.crossed == tuple(
        (before, f"{after}_out") for before, after in zip(INPUTS, OUTPUTS, strict=True)
    )
    is_right(tmp_path, done)


@pytest.mark.parametrize("names", [(INPUTS, OUTPUTS), (("first", "second"), ("other", "one_more"))])
def test_a_prompt_that_was_exported_apart(names: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    prompt, step = pair(tmp_path, *names)
    done = ortfuse.generator(step, tmp_path / "out", prompt_model=prompt, max_length=60, verify=True)
    assert done.decoder.crossed == tuple(zip(*names, strict=True))
    is_right(tmp_path, done)


def test_without_the_prompt_the_caches_of_the_encoder_are_given(tmp_path: Path) -> None:
    _, step = pair(tmp_path)
    done = ortfuse.generator(step, max_length=60, verify=True)
    assert done.interface.fixed == INPUTS
    assert done.comparison is not None
    assert done.comparison.equal


def test_the_command_takes_both(tmp_path: Path) -> None:
    prompt, step = pair(tmp_path)
    given = ["generator", str(step), "--prompt-model", str(prompt), "-o", str(tmp_path / "out"), "--max-length", "60"]
    ran = CliRunner().invoke(app_of(COMMANDS), [*given, "--verify"])
    assert ran.exit_code == 0, ran.output
    assert (tmp_path / "out" / "once.onnx").is_file()


def refused(folder: Path, why: str, given: Mapping[str, Any]) -> None:
    prompt, step = pair(folder, **given)
    with pytest.raises(GenerationError, match=why):
        ortfuse.generator(step, folder / "out", prompt_model=prompt, max_length=60)
    assert not (folder / "out").exists()


def test_keys_and_values_that_are_taken_for_each_other(tmp_path: Path) -> None:
    """Names are no proof: the first step is run by both models."""
    refused(tmp_path, "other scores for a prompt", {"outputs": (OUTPUTS[1], OUTPUTS[0])})


def test_what_depends_on_the_prompt_is_not_computed_once(tmp_path: Path) -> None:
    computed = COMPUTED.replace("MatMul(states, wv2)", "MatMul(grown, wv2)").replace(
        "  ck0 =", "  n0 = Shape<start = 1, end = 2>(ids)\n  n1 = Cast<to = 1>(n0)\n  grown = Mul(states, n1)\n  ck0 ="
    )
    refused(tmp_path, "present_encoder_value of the prompt's model depends on the prompt", {"computed": computed})


def test_a_step_that_was_traced_for_one_token(tmp_path: Path) -> None:
    """It has no mask among several, so that prompts are given token by token."""
    prompt, step = pair(tmp_path, edits=[("  mask = Where(seen, none, low)", "  mask = Identity(none)")])
    done = ortfuse.generator(step, tmp_path / "out", prompt_model=prompt, max_length=60, verify=True)
    assert done.interface.longest_run == 1
    assert not done.kept
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first


def test_inputs_that_the_prompt_does_not_give(tmp_path: Path) -> None:
    _, step = pair(tmp_path)
    prompt = write(tmp_path / "other.onnx", NO_PAST[:3])
    with pytest.raises(GenerationError, match="cannot be told: give both names that end alike"):
        ortfuse.generator(step, prompt_model=prompt, max_length=60)
