"""Generators of real exports: whole generations agree with the decoder's, batches of prompts with single ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from cached_decoders import write

import ortfuse
from ortfuse.api.generator import generator
from ortfuse.errors import GenerationError

GOLDEN = Path(__file__).parents[2] / "golden" / "models"
DECODERS = sorted(
    path.stem for name in ("gpt2", "llama", "gemma", "deepseek_v3") for path in GOLDEN.glob(f"{name}_cache.*.onnx")
) + sorted(path.stem for name in ("t5", "whisper") for path in GOLDEN.glob(f"{name}_decoder.sdpa.*.onnx"))


def made(name: str, folder: Path, **options: object) -> ortfuse.GeneratorResult:
    return generator(GOLDEN / f"{name}.onnx", folder, max_length=64, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", DECODERS)
def test_generations_are_equal(name: str, tmp_path: Path) -> None:
    done = made(name, tmp_path / "out", verify=True, last_logits=True)
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first
    assert done.comparison.largest_error < 1e-4
    assert not done.kept
    assert all(cache.in_place for cache in done.interface.caches)
    assert done.unsampled


@pytest.mark.parametrize(
    "name", ["gpt2_cache.sdpa.ts", "llama_cache.sdpa.dynamo", "gemma_cache.sdpa.ts", "deepseek_v3_cache.sdpa.dynamo"]
)
@pytest.mark.parametrize("last_logits", [False, True])
def test_prompts_of_several_lengths_are_one_batch(name: str, last_logits: bool, tmp_path: Path) -> None:
    made(name, tmp_path / "out", last_logits=last_logits)
    model = ortfuse.Generator(tmp_path / "out")
    prompts = [[5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8, 9], [11]]
    together = model.generate(prompts, max_new_tokens=30)
    assert together == [model.generate([prompt], max_new_tokens=30)[0] for prompt in prompts]


@pytest.mark.parametrize("name", ["t5_decoder.sdpa.ts"])
def test_biases_by_distance_follow_each_sequence(name: str, tmp_path: Path) -> None:
    made(name, tmp_path / "out")
    model = ortfuse.Generator(tmp_path / "out")
    random = np.random.default_rng(0)
    fixed = {"encoder_attention_mask": np.ones((2, 9), np.int64)}
    for one in model.interface.fixed[1:]:
        fixed[one] = random.standard_normal((2, 4, 9, 8)).astype(np.float32)
    prompts = [[3, 4, 5, 6, 7], [9]]
    together = model.generate(prompts, max_new_tokens=20, fixed=fixed)
    for number, prompt in enumerate(prompts):
        own = {key: value[number : number + 1] for key, value in fixed.items()}
        assert model.generate([prompt], max_new_tokens=20, fixed=own)[0] == together[number]


def test_a_prompt_may_come_in_pieces(tmp_path: Path) -> None:
    made("llama_cache.sdpa.dynamo", tmp_path / "out")
    model = ortfuse.Generator(tmp_path / "out")
    prompt = list(range(1, 20))
    whole = model.prompt([prompt])
    model.prompt([prompt[:7]])
    pieces = model.step(np.array([prompt[7:]]))[:, -1]
    np.testing.assert_allclose(whole, pieces, atol=1e-4)
    assert model.lengths.tolist() == [19]


def test_caches_stay_where_they_are(tmp_path: Path) -> None:
    made("gpt2_cache.sdpa.ts", tmp_path / "out")
    model = ortfuse.Generator(tmp_path / "out")
    model.prompt([[1, 2, 3]])
    names = [cache.past for cache in model.interface.caches]
    before = [model._session.buffer(name).ctypes.data for name in names]
    model.step(np.array([[4]]))
    assert [model._session.buffer(name).ctypes.data for name in names] == before


def test_growing_caches_work_without_a_shared_buffer(tmp_path: Path) -> None:
    """As Optimum runs it: past and present are arrays of their own."""
    made("llama_cache.sdpa.ts", tmp_path / "out")
    model = ortfuse.Generator(tmp_path / "out")
    wanted = model.generate([[1, 2, 3]], max_new_tokens=12)[0]
    session = ortfuse.session(tmp_path / "out" / "model.onnx")
    names = [value.name for value in session.get_outputs()]
    caches = {cache.past: np.zeros((1, 2, 0, 8), np.float32) for cache in model.interface.caches}
    tokens, found = [1, 2, 3], []
    given = np.array([tokens])
    for _ in range(12):
        mask = np.ones((1, len(tokens)), np.int64)
        out = dict(zip(names, session.run(None, {"input_ids": given, "attention_mask": mask, **caches}), strict=True))
        token = int(out["logits"][0, -1].argmax())
        found.append(token)
        tokens.append(token)
        given = np.array([[token]])
        caches = {cache.past: out[cache.present] for cache in model.interface.caches}
    assert found == wanted


def test_tables_limit_the_length(tmp_path: Path) -> None:
    done = generator(GOLDEN / "gpt2_cache.sdpa.ts.onnx", max_length=4096)
    rows = next(
        tensor.dims[0]
        for tensor in onnx.load(GOLDEN / "gpt2_cache.sdpa.ts.onnx").graph.initializer
        if tensor.name.endswith("wpe.weight")
    )
    assert done.interface.max_length == rows


def test_without_caches_it_is_no_decoder() -> None:
    with pytest.raises(GenerationError, match="no keys and values of earlier steps"):
        generator(GOLDEN / "bert.sdpa.ts.onnx")


def test_a_role_that_names_nothing() -> None:
    with pytest.raises(GenerationError, match="no input or output of this name"):
        generator(GOLDEN / "gpt2_cache.sdpa.ts.onnx", roles={"tokens": "nothing"})


@pytest.mark.parametrize(
    ("role", "name"),
    [("tokens", "past_key_0"), ("logits", "present_key_0"), ("mask", "input_ids"), ("positions", "past_key_0")],
)
def test_a_role_that_an_input_or_output_cannot_have(role: str, name: str) -> None:
    with pytest.raises(GenerationError, match=f"{role}={name}: it is not an"):
        generator(GOLDEN / "llama_cache.sdpa.ts.onnx", roles={role: name})


def test_older_releases_have_less() -> None:
    plain = generator(GOLDEN / "llama_cache.sdpa.ts.onnx", max_length=40, runtime="1.20")
    assert plain.oldest_runtime is not None
    assert tuple(map(int, plain.oldest_runtime.split("."))) <= (1, 20)
    with pytest.raises(GenerationError, match="takes at most 9 inputs"):
        generator(GOLDEN / "t5_decoder.sdpa.ts.onnx", max_length=40, runtime="1.20")


def _windowed(folder: Path) -> Path:
    near = "  d = Sub(i, j)\n  near = Less(d, seven)\n  both = And(seen, near)\n  mask = Where(both, none, low)"
    return write(folder / "window.onnx", [("  mask = Where(seen, none, low)", near)], {"seven": np.array(7, np.int64)})


@pytest.mark.parametrize("limit", [{"runtime": "1.20,1.24"}, {"target": "wasm", "runtime": "1.19"}])
def test_windows_need_a_release_that_counts_their_keys_or_takes_a_bias(limit: dict[str, str], tmp_path: Path) -> None:
    path = _windowed(tmp_path)
    with pytest.raises(
        GenerationError, match=r"local_window_size .* is 7, and the kernel takes none, as one key more is seen"
    ):
        generator(path, max_length=40, **limit)
    assert generator(path, max_length=40, runtime="1.24").oldest_runtime == "1.24"


def test_a_window_is_a_bias_for_releases_that_show_one_key_more(tmp_path: Path) -> None:
    done = generator(_windowed(tmp_path), tmp_path / "out", max_length=40, runtime="1.22,1.24", verify=True)
    assert done.comparison is not None
    assert done.comparison.equal
    assert done.oldest_runtime == "1.22"
    (attention,) = (node for node in done.model.graph if node.op_type == "GroupQueryAttention")
    assert "local_window_size" not in attention.attributes
    model = ortfuse.Generator(tmp_path / "out")
    prompts = [list(range(1, 20)), [4, 2]]
    assert model.generate(prompts, max_new_tokens=12) == [
        model.generate([one], max_new_tokens=12)[0] for one in prompts
    ]


def test_a_generator_is_no_decoder(tmp_path: Path) -> None:
    made("gpt2_cache.sdpa.ts", tmp_path / "out")
    with pytest.raises(GenerationError, match="is a generator already"):
        generator(tmp_path / "out" / "model.onnx")


def test_a_decoder_that_was_optimised_for_short_prompts(tmp_path: Path) -> None:
    ortfuse.optimize(
        GOLDEN / "llama_cache.sdpa.ts.onnx", size_range={"sequence": (1, 16)}, output=tmp_path / "short.onnx"
    )
    done = generator(tmp_path / "short.onnx", max_length=64, verify=True, prompts=[[1, 2, 3]])
    assert done.comparison is not None
    assert done.comparison.equal
    assert not done.kept
