"""Generators for other targets: what their attention takes, prompts in pieces, and generations in Node.js where it is there."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from cached_decoders import LAYOUTS, write

import ortfuse
from ortfuse.errors import GenerationError
from ortfuse.generation.genai_config import SpecialTokens, write_genai_config
from ortfuse.inspection.describe_targets import problem_of_running
from ortfuse.targets import spec_of

GOLDEN = Path(__file__).parents[2] / "golden" / "models"
LONG = [(7 * number) % 40 + 3 for number in range(70)]

WINDOW = (
    "  seen = LessOrEqual(j, i)",
    "  four = Constant<value_int = 4>()\n  first = Sub(i, four)\n  inside = Greater(j, first)\n"
    "  before = LessOrEqual(j, i)\n  seen = And(before, inside)",
)
BIAS = (
    "  mask = Where(seen, none, low)",
    "  d = Sub(j, i)\n  df = Cast<to = 1>(d)\n  slope = Mul(df, slopes)\n  mask = Where(seen, slope, low)",
)
SOFTCAP = (
    "  a = Add(a1, mask)",
    "  cap = Constant<value_float = 5.0>()\n  c1 = Div(a1, cap)\n  c2 = Tanh(c1)\n  c3 = Mul(c2, cap)\n  a = Add(c3, mask)",
)
SLOPES = {"slopes": np.array([0.5, 0.25, 0.125, 0.0625], np.float32).reshape(4, 1, 1)}


def decoder(folder: Path, *edits: tuple[str, str], sink: bool = False) -> Path:
    """A decoder of one layer."""
    return write(folder / "m.onnx", edits, SLOPES if BIAS in edits else None, **(LAYOUTS["sink"] if sink else {}))


def in_half(path: Path) -> Path:
    """A decoder in float16."""
    made = path.with_name("half.onnx")
    ortfuse.convert(path, to="float16", output=made)
    return made


@functools.cache
def missing(target: str) -> str:
    """Why nothing runs on a target here; "" if it does."""
    return problem_of_running(spec_of(target))


@pytest.fixture(params=["wasm", "webgpu"])
def in_node(request: pytest.FixtureRequest) -> str:
    """A target whose models run in Node.js."""
    target: str = request.param
    if why := missing(target):
        pytest.skip(f"{target} does not run here: {why}")
    return target


# Without another runtime


def test_buffers_are_copied_to_a_target_that_is_elsewhere(tmp_path: Path) -> None:
    ortfuse.generator(GOLDEN / "llama_cache.sdpa.ts.onnx", tmp_path / "out", max_length=48)
    here, elsewhere = ortfuse.Generator(tmp_path / "out"), ortfuse.Generator(tmp_path / "out", target="cpu")
    prompts = [[5, 6, 7], [1, 2]]
    wanted = here.generate(prompts, max_new_tokens=12)
    assert elsewhere.generate(prompts, max_new_tokens=12) == wanted
    shared = [[5, 6, 7, 8], [5, 6, 9]]
    assert elsewhere.generate(shared, max_new_tokens=8, shared_prefix=True) == here.generate(shared, max_new_tokens=8)
    for one in (here, elsewhere):
        one.prompt([[5, 6, 7]])
    for name, array in here.cached().items():
        np.testing.assert_allclose(elsewhere.cached()[name], array, atol=1e-6)


def test_a_prompt_is_given_in_pieces_where_attention_takes_few_queries(tmp_path: Path) -> None:
    path = decoder(tmp_path)
    done = ortfuse.generator(path, tmp_path / "few", max_length=100, target="webgpu")
    ortfuse.generator(path, tmp_path / "any", max_length=100)
    assert done.interface.longest_run == 31
    few, many = ortfuse.Generator(tmp_path / "few", target="cpu"), ortfuse.Generator(tmp_path / "any")
    for prompts in ([LONG], [LONG, LONG[:5]], [LONG[:4], LONG[1:5]], [LONG, LONG[:40] + LONG[:3]]):
        wanted = many.generate(prompts, max_new_tokens=8)
        assert few.generate(prompts, max_new_tokens=8) == wanted
        assert few.generate(prompts, max_new_tokens=8, shared_prefix=True) == wanted
    few.start(1)
    many.start(1)
    np.testing.assert_allclose(few.step(np.array([LONG])), many.step(np.array([LONG])), atol=1e-4)
    few.start(2)
    with pytest.raises(GenerationError, match="one sequence only"):
        few.step(np.array([LONG, LONG]))
    config = write_genai_config(tmp_path / "few", done.interface, done.model, SpecialTokens())
    assert config is not None
    assert '"chunk_size": 31' in config.read_text()


def test_short_buffers_need_no_pieces(tmp_path: Path) -> None:
    assert not ortfuse.generator(decoder(tmp_path), max_length=31, target="webgpu").interface.longest_run


@pytest.mark.parametrize(
    ("options", "edits", "sink", "why"),
    [
        ({"target": "webgpu"}, [SOFTCAP], False, "executes it only without a bound of its scores"),
        ({"target": "webgpu", "int8_caches": True}, [], False, "the kernel takes keys that are floating-point numbers"),
        ({"target": "directml"}, [SOFTCAP, BIAS], False, "executes it only without a bias of the distance"),
        ({"target": "cuda"}, [], False, "executes it only in float16, which `ortfuse convert"),
        ({"runtime": "1.17"}, [], False, "does not take float as query"),
        ({"runtime": "1.20"}, [BIAS], False, "executes it only without a bias of the distance"),
        ({"runtime": "1.22"}, [], True, "executes it only without a sink"),
        ({"runtime": "1.19"}, [SOFTCAP], False, "executes it only without a bound of its scores"),
        ({"runtime": "1.24", "int8_caches": True}, [], False, "takes at most 12 inputs"),
    ],
)  # fmt: skip
def test_attention_that_a_target_does_not_take(
    options: dict[str, Any], edits: Sequence[tuple[str, str]], sink: bool, why: str, tmp_path: Path
) -> None:
    with pytest.raises(GenerationError, match=why):
        ortfuse.generator(decoder(tmp_path, *edits, sink=sink), max_length=40, **options)


@pytest.mark.parametrize(
    ("edits", "runtime"), [([SOFTCAP, BIAS], None), ([SOFTCAP, BIAS], "1.22"), ([SOFTCAP, WINDOW], "1.23")]
)
def test_a_bias_is_added_to_capped_scores(
    edits: Sequence[tuple[str, str]], runtime: str | None, tmp_path: Path
) -> None:
    done = ortfuse.generator(decoder(tmp_path, *edits), max_length=40, runtime=runtime, verify=True, new_tokens=12)
    assert not done.kept
    (attention,) = (node for node in done.model.graph if node.op_type == "GroupQueryAttention")
    assert attention.attributes.get_float("softcap") == 5.0
    assert "local_window_size" not in attention.attributes
    assert attention.inputs[10] is not None
    assert done.ok, done.comparison


def test_cuda_takes_float16_without_a_bias(tmp_path: Path) -> None:
    done = ortfuse.generator(
        in_half(decoder(tmp_path, WINDOW)), max_length=40, target="cuda", verify=True, new_tokens=8
    )
    assert not done.kept
    assert done.ok
    assert done.comparison is not None
    assert ("cuda" in done.not_run) == (done.comparison.target == "cpu")
    biased = shutil.copy(GOLDEN / "t5_decoder.sdpa.ts.onnx", tmp_path)
    with pytest.raises(GenerationError, match="without a bias of the distance"):
        ortfuse.generator(in_half(Path(biased)), max_length=40, target="cuda")


# In Node.js


@pytest.mark.parametrize("name", ["llama_cache.sdpa.ts", "gpt2_cache.eager.dynamo", "t5_decoder.sdpa.ts"])
def test_generations_of_exports_are_the_same_in_node(in_node: str, name: str, tmp_path: Path) -> None:
    made: Callable[..., ortfuse.GeneratorResult] = ortfuse.generator
    done = made(GOLDEN / f"{name}.onnx", tmp_path, max_length=128, target=in_node, verify=True, new_tokens=4)
    assert done.comparison is not None
    assert done.comparison.target == in_node
    assert done.ok, done.comparison.first


@pytest.mark.parametrize(
    ("edits", "sink"), [([WINDOW], False), ([BIAS], False), ([], True), ([WINDOW], True)],
    ids=["window", "bias", "sink", "window and sink"],
)  # fmt: skip
def test_generations_are_the_same_in_node(
    in_node: str, edits: Sequence[tuple[str, str]], sink: bool, tmp_path: Path
) -> None:
    path = decoder(tmp_path, *edits, sink=sink)
    done = ortfuse.generator(path, tmp_path / "out", max_length=240, target=in_node, verify=True, new_tokens=4)
    assert not done.kept
    assert done.comparison is not None
    assert done.comparison.target == in_node
    assert done.ok, done.comparison.first


def test_capped_scores_and_a_bias_are_the_same_in_wasm(tmp_path: Path) -> None:
    if why := missing("wasm"):
        pytest.skip(f"wasm does not run here: {why}")
    path = decoder(tmp_path, SOFTCAP, BIAS)
    done = ortfuse.generator(path, tmp_path / "out", max_length=48, target="wasm", verify=True, new_tokens=4)
    assert not done.kept
    assert done.comparison is not None
    assert done.comparison.target == "wasm"
    assert done.ok, done.comparison.first


def test_integer_caches_in_wasm(tmp_path: Path) -> None:
    if why := missing("wasm"):
        pytest.skip(f"wasm does not run here: {why}")
    ortfuse.generator(decoder(tmp_path), tmp_path / "out", max_length=48, target="wasm", int8_caches=True, new_tokens=8)
    found = [
        ortfuse.Generator(tmp_path / "out", target=target).generate([LONG[:5]], max_new_tokens=8)
        for target in ("cpu", "wasm")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("packed", [False, True])
def test_weights_of_four_bits_in_wasm_are_unpacked_unless_packed_ones_are_asked_for(
    tmp_path: Path, packed: bool
) -> None:
    force = {"force": {"matmul_nbits": "none"}} if packed else {}
    done = ortfuse.generator(decoder(tmp_path), tmp_path / "out", max_length=48, target="wasm", int4=True, **force)
    left = sum(node.op_type == "MatMulNBits" for node in done.model.graph)
    assert done.int4 > 0
    assert (left, done.unpacked) == ((done.int4, 0) if packed else (0, done.int4))
    stored = {value.dtype for value in ir.load(tmp_path / "out" / "model.onnx").graph.initializers.values()}
    assert (ir.DataType.UINT8 if packed else ir.DataType.UINT4) in stored
    if packed or missing("wasm"):
        return
    found = [
        ortfuse.Generator(tmp_path / "out", target=target).generate([LONG[:5]], max_new_tokens=8)
        for target in ("cpu", "wasm")
    ]
    assert found[0] == found[1]
