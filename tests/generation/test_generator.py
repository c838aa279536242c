"""Class Generator and the command: stop tokens, sampling, streams, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import ortfuse
from ortfuse.cli.app import app_of
from ortfuse.cli.parsing import COMMANDS
from ortfuse.errors import GenerationError, OptionError
from ortfuse.generation.genai_config import SpecialTokens, write_genai_config
from ortfuse.generation.generator_interface import interface_of
from ortfuse.generation.sampling import Chooser, Sampling
from ortfuse.ir.dims import symbols
from ortfuse.runtime.inputs.input_roles import Use
from ortfuse.runtime.inputs.random_inputs import input_specs, make_inputs
from ortfuse.runtime.session import Session

GOLDEN = Path(__file__).parents[2] / "golden" / "models"
PROMPT = [4, 8, 15]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("generator") / "out"
    ortfuse.generator(GOLDEN / "llama_cache.sdpa.ts.onnx", made, max_length=48)
    return made


def test_stop_tokens_end_a_sequence(folder: Path) -> None:
    model = ortfuse.Generator(folder)
    whole = model.generate([PROMPT, [7]], max_new_tokens=20)
    stop = whole[0][5]
    first = whole[0].index(stop)
    ended = model.generate([PROMPT, [7]], max_new_tokens=20, stop_tokens=[stop])
    assert ended[0] == whole[0][: first + 1]
    expected = whole[1][: whole[1].index(stop) + 1] if stop in whole[1] else whole[1]
    assert ended[1] == expected


def test_streams_hand_out_each_token(folder: Path) -> None:
    model = ortfuse.Generator(folder)
    whole = model.generate([PROMPT], max_new_tokens=6)[0]
    assert [token for (token,) in model.stream([PROMPT], max_new_tokens=6)] == whole


def test_a_generator_that_computes_shared_prefixes_once(tmp_path: Path) -> None:
    done = ortfuse.generator(
        GOLDEN / "llama_cache.sdpa.ts.onnx",
        tmp_path / "out",
        max_length=48,
        shared_prefix=True,
        verify=True,
        new_tokens=6,
    )
    assert done.comparison is not None
    assert done.comparison.equal
    assert done.comparison.batch
    model, runs = ortfuse.Generator(tmp_path / "out"), list[int]()
    run = model._session.run
    model._session.run = lambda feeds, asked: (runs.append(feeds["input_ids"].size), run(feeds, asked))[1]  # type: ignore[method-assign]
    prompts = [[4, 8, 15, 16, 23], [4, 8, 15, 16, 42, 7]]
    shared = model.generate(prompts, max_new_tokens=1)
    assert runs == [4, 1, 2]
    assert model.generate(prompts, max_new_tokens=1, shared_prefix=False) == shared
    assert runs[3:] == [12]


def test_prefixes_that_cannot_be_shared() -> None:
    with pytest.raises(GenerationError, match="leave --shared-prefix out"):
        ortfuse.generator(GOLDEN / "whisper_decoder.sdpa.ts.onnx", max_length=48, shared_prefix=True)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_a_batch_is_taken_away(folder: Path, side: str) -> None:
    model, prompts = ortfuse.Generator(folder), [PROMPT, [7], [3, 9]]
    rows, mask = np.zeros((3, 3), np.int64), np.zeros((3, 3), np.int64)
    for number, prompt in enumerate(prompts):
        begin = 3 - len(prompt) if side == "left" else 0
        rows[number, begin : begin + len(prompt)] = prompt
        mask[number, begin : begin + len(prompt)] = 1
    alone = [model.generate([prompt], max_new_tokens=9)[0] for prompt in prompts]
    assert model.generate(rows, attention_mask=mask, max_new_tokens=9) == alone
    assert model.generate(rows.tolist(), attention_mask=mask.tolist(), max_new_tokens=9) == alone


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        ([[1, 0, 1], [1, 1, 1]], "hides a token between others"),
        ([[0, 0, 0], [1, 1, 1]], "at least one token"),
        ([[1, 1, 1]], "needs a row for each prompt"),
        ([[0, -9, 1], [1, 1, 1]], "other numbers than 1"),
    ],
)
def test_masks_that_do_not_fit(folder: Path, mask: list[list[int]], why: str) -> None:
    with pytest.raises(GenerationError, match=why):
        ortfuse.Generator(folder).generate([PROMPT, PROMPT], attention_mask=mask)


@pytest.mark.parametrize("last_logits", [False, True])
def test_the_model_refuses_padding_on_the_left(last_logits: bool, tmp_path: Path) -> None:
    done = ortfuse.generator(
        GOLDEN / "llama_cache.sdpa.ts.onnx", tmp_path / "out", max_length=48, last_logits=last_logits
    )
    session = Session(tmp_path / "out" / "model.onnx")
    feeds = {
        cache.past: np.zeros([2 if size < 0 else size for size in cache.shape], cache.dtype)
        for cache in done.interface.caches
    }
    feeds["input_ids"] = np.array([PROMPT, PROMPT])
    session.run(feeds | {"attention_mask": np.array([[1, 1, 1], [1, 0, 0]])})
    with pytest.raises(Exception, match="attention_mask_must_have_its_padding_on_the_right"):
        session.run(feeds | {"attention_mask": np.array([[1, 1, 1], [0, 0, 1]])})


def test_an_option_that_there_is_not(folder: Path) -> None:
    with pytest.raises(TypeError, match="new_tokens is no option"):
        ortfuse.Generator(folder).generate([PROMPT], new_tokens=3)  # type: ignore[call-arg]


def test_sampling_is_seeded_and_bounded(folder: Path) -> None:
    model = ortfuse.Generator(folder)
    drawn = [model.generate([PROMPT], max_new_tokens=20, sampling=Sampling(2.0, seed=seed))[0] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    greedy = model.generate([PROMPT], max_new_tokens=20)[0]
    assert model.generate([PROMPT], max_new_tokens=20, sampling=Sampling(1.0, top_k=1))[0] == greedy
    assert model.generate([PROMPT], max_new_tokens=20, sampling=Sampling(0.0))[0] == greedy


def test_very_low_temperatures_take_the_best_token() -> None:
    assert Chooser(Sampling(temperature=1e-310)).choose(np.array([[1.0, 3.0, -np.inf, 2.0]])) == [1]


@pytest.mark.parametrize("sampling", [None, Sampling()])
def test_scores_that_are_no_numbers_choose_no_token(sampling: Sampling | None) -> None:
    with pytest.raises(GenerationError, match="no numbers"):
        Chooser(sampling).choose(np.array([[1.0, np.nan]]))


def test_top_p_keeps_the_fewest_tokens() -> None:
    scores = np.log(np.array([[0.5, 0.3, 0.15, 0.05]]))
    chooser = Chooser(Sampling(top_p=0.7, seed=0))
    assert {int(chooser.choose(scores)[0]) for _ in range(200)} == {0, 1}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"temperature": -1}, "at least 0"),
        ({"temperature": float("nan")}, "at least 0"),
        ({"temperature": float("inf")}, "at least 0"),
        ({"top_k": 1.5}, "a whole number"),
        ({"top_p": 0}, "top_p is above 0"),
    ],
)
def test_sampling_refuses_what_makes_no_sense(given: dict[str, float], why: str) -> None:
    with pytest.raises(GenerationError, match=why):
        Sampling(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompts", "new", "why"),
    [
        ([], 4, "at least one token"),
        ([[1], []], 4, "at least one token"),
        ([[1] * 40], 9, "more than the 48"),
        ([[1]], 0, "at least one token is generated"),
        ([[1.5]], 4, "whole numbers from 0 on"),
        ([[3, -1]], 4, "whole numbers from 0 on"),
        ([["text"]], 4, "whole numbers from 0 on"),
        ([1, 2], 4, "a list of token ids for each sequence"),
        ([[10**6]], 4, "tokens from 1000000 to 1000000"),
    ],
)
def test_prompts_that_do_not_fit(folder: Path, prompts: list[list[int]], new: int, why: str) -> None:
    with pytest.raises(GenerationError, match=why):
        ortfuse.Generator(folder).generate(prompts, max_new_tokens=new)


def test_a_stream_ends_when_another_generation_starts(folder: Path) -> None:
    model = ortfuse.Generator(folder)
    stream = model.stream([PROMPT], max_new_tokens=6)
    next(stream)
    model.generate([[7]], max_new_tokens=2)
    with pytest.raises(GenerationError, match="another generation was started"):
        next(stream)


def test_a_stream_ends_when_a_step_is_run_in_between(folder: Path) -> None:
    model = ortfuse.Generator(folder)
    stream = model.stream([PROMPT], max_new_tokens=6)
    next(stream)
    model.step(np.array([[7]]))
    with pytest.raises(GenerationError, match="a step was run in between"):
        next(stream)


def test_single_runs_that_do_not_fit(folder: Path) -> None:
    model = ortfuse.Generator(folder)
    assert model.cached() == {}
    with pytest.raises(GenerationError, match="as was started"):
        model.step(np.array([[1]]))
    model.start(1)
    with pytest.raises(GenerationError, match="at least one token"):
        model.step(np.zeros((1, 0), np.int64))
    with pytest.raises(GenerationError, match="a list of tokens"):
        model.generate([[1]], max_new_tokens=2, stop_tokens=2)  # type: ignore[arg-type]


def test_full_buffers_are_an_error(folder: Path) -> None:
    model = ortfuse.Generator(folder)
    model.prompt([[1] * 48])
    with pytest.raises(GenerationError, match="49 tokens are more than the 48"):
        model.step(np.array([[1]]))


def test_several_tokens_after_others_need_one_sequence(folder: Path) -> None:
    model = ortfuse.Generator(folder)
    model.prompt([[1], [2]])
    with pytest.raises(GenerationError, match="one sequence only"):
        model.step(np.array([[1, 2], [3, 4]]))


def test_smaller_buffers(folder: Path) -> None:
    assert ortfuse.Generator(folder, max_length=8).max_length == 8
    with pytest.raises(GenerationError, match="takes 2 to 48"):
        ortfuse.Generator(folder, max_length=49)


def test_a_plain_model_is_no_generator() -> None:
    with pytest.raises(GenerationError, match="no generator of ortfuse"):
        ortfuse.Generator(GOLDEN / "bert.sdpa.ts.onnx")
    with pytest.raises(GenerationError, match="not those of this release"):
        interface_of({"ortfuse_generator": "{}"}, "m.onnx")
    with pytest.raises(GenerationError, match="not those of this release"):
        interface_of({"ortfuse_generator": "3"}, "m.onnx")


def test_the_configuration_of_genai(folder: Path) -> None:
    config = json.loads((folder / "genai_config.json").read_text())
    decoder = config["model"]["decoder"]
    assert (decoder["num_attention_heads"], decoder["num_key_value_heads"], decoder["head_size"]) == (4, 2, 8)
    assert decoder["num_hidden_layers"] == 2
    assert config["search"]["past_present_share_buffer"]
    assert config["model"]["context_length"] == 48


def test_the_tokenizer_comes_along(tmp_path: Path) -> None:
    source = tmp_path / "tokenizer"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    (source / "generation_config.json").write_text('{"eos_token_id": [7, 9], "bos_token_id": 1}')
    ortfuse.generator(GOLDEN / "llama_cache.sdpa.ts.onnx", tmp_path / "out", max_length=48, tokenizer=source)
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    config = json.loads((tmp_path / "out" / "genai_config.json").read_text())["model"]
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, [7, 9], 7)


def test_a_folder_without_a_tokenizer_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(GenerationError, match="no files of a tokenizer"):
        ortfuse.generator(
            GOLDEN / "llama_cache.sdpa.ts.onnx", tmp_path / "out", tokenizer=tmp_path, progress=said.append
        )
    assert not said
    assert not (tmp_path / "out").exists()


def test_the_decoder_is_never_replaced(tmp_path: Path) -> None:
    decoder = Path(shutil.copy(GOLDEN / "llama_cache.sdpa.ts.onnx", tmp_path / "model.onnx"))
    with pytest.raises(OptionError, match="has the decoder"):
        ortfuse.generator(decoder, tmp_path)


def test_a_stale_configuration_of_genai_is_removed(folder: Path, tmp_path: Path) -> None:
    model = onnx_ir.load(folder / "model.onnx")
    interface = replace(interface_of(model.metadata_props, "model.onnx"), fixed=("states",))
    (tmp_path / "genai_config.json").write_text("{}")
    assert write_genai_config(tmp_path, interface, model, SpecialTokens()) is None
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path: Path) -> None:
    model, out = str(GOLDEN / "llama_cache.sdpa.ts.onnx"), tmp_path / "out"
    given = [
        "generator",
        model,
        "-o",
        str(out),
        "--max-length",
        "40",
        "--verify",
        "--last-logits",
        "--json",
        str(tmp_path / "j"),
    ]
    ran = CliRunner().invoke(app_of(COMMANDS), given)
    assert ran.exit_code == 0, ran.output
    assert "4 of 4 caches stay in place, in buffers for 40 tokens" in ran.output
    assert "verified on cpu: the same tokens" in ran.output
    assert json.loads((tmp_path / "j").read_text())["interface"]["last_logits"]
    assert (out / "model.onnx").is_file()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--role", "token=x"], "give tokens=NAME"),
        (["--max-length", "0"], "max-length"),
        (["--max-length", "1"], "at least 2"),
        (["--json", "out/model.onnx"], "is a file in --output too"),
        (["--report", "out/genai_config.json"], "is a file in --output too"),
        (["--prompt-model", "out/once.onnx"], "is --prompt-model too"),
    ],
)
def test_the_command_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], why: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "once.onnx").write_bytes(b"")
    call = ["generator", str(GOLDEN / "llama_cache.sdpa.ts.onnx"), "-o", "out", *given]
    ran = CliRunner().invoke(app_of(COMMANDS), call)
    assert ran.exit_code == 2
    assert why in " ".join((ran.output + ran.stderr).split())


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ortfuse.OrtfuseError, match="is a file"):
        ortfuse.generator(GOLDEN / "llama_cache.sdpa.ts.onnx", tmp_path / "out")
    with pytest.raises(ortfuse.OrtfuseError, match=r"cannot be made: .* is a file"):
        ortfuse.generator(GOLDEN / "llama_cache.sdpa.ts.onnx", tmp_path / "out" / "inside")


@pytest.mark.parametrize("name", ["llama_cache.sdpa.ts", "gemma_cache.sdpa.ts", "gpt2_cache.eager.ts"])
def test_caches_of_integers_are_close(name: str, tmp_path: Path) -> None:
    model = GOLDEN / f"{name}.onnx"
    ortfuse.generator(model, tmp_path / "float", max_length=60)
    done = ortfuse.generator(model, tmp_path / "int8", max_length=60, int8_caches=True)
    assert {cache.dtype for cache in done.interface.caches} == {"int8"}
    one, other = ortfuse.Generator(tmp_path / "float"), ortfuse.Generator(tmp_path / "int8")
    wanted, got = one.prompt([PROMPT]), other.prompt([PROMPT])
    for token in range(1, 30):
        error = np.abs(got - wanted).mean() / wanted.std()
        assert error < 0.15
        assert error > 0 or token == 1  # a prompt does not read its keys back
        wanted, got = (model.step(np.array([[token]]))[:, -1] for model in (one, other))
    assert all(array.dtype == np.int8 for array in other.cached().values())


def test_weights_of_four_bits(tmp_path: Path) -> None:
    done = ortfuse.generator(
        GOLDEN / "llama_cache.sdpa.ts.onnx", tmp_path / "out", max_length=40, int4=True, verify=True
    )
    assert done.int4 == sum(node.op_type == "MatMulNBits" for node in done.model.graph) > 10
    assert len(ortfuse.Generator(tmp_path / "out").generate([PROMPT], max_new_tokens=5)[0]) == 5


def test_a_shared_prefix_is_computed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ortfuse.Generator(folder)
    prompts = [[3, 1, 4, 1, 5, 9], [3, 1, 4, 1, 5, 2, 6], [3, 1, 4, 1, 5, 5]]
    wanted = model.generate(prompts, max_new_tokens=20)
    lengths = []
    run = model._run
    monkeypatch.setattr(model, "_run", lambda tokens, *given: (lengths.append(tokens.shape), run(tokens, *given))[1])
    assert model.generate(prompts, max_new_tokens=20, shared_prefix=True) == wanted
    assert lengths[:4] == [(1, 5), (1, 1), (1, 2), (1, 1)]
    assert lengths[4] == (3, 1)
    assert model.generate([[1, 2], [3, 4]], max_new_tokens=4, shared_prefix=True) == model.generate(
        [[1, 2], [3, 4]], max_new_tokens=4
    )


@pytest.mark.parametrize("release", [(1, 18), (1, 19)])
def test_releases_that_count_from_zero_share_no_prefix_of_themselves(
    release: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ortfuse.generator(GOLDEN / "llama_cache.sdpa.ts.onnx", tmp_path / "out", max_length=48, shared_prefix=True)
    model = ortfuse.Generator(tmp_path / "out")
    prompts = [[4, 8, 15, 16, 23], [4, 8, 15, 16, 42, 7]]
    wanted = model.generate(prompts, max_new_tokens=6)
    monkeypatch.setattr(type(model._session), "release", release)
    lengths, run = list[tuple[int, ...]](), model._run
    monkeypatch.setattr(model, "_run", lambda tokens, *given: (lengths.append(tokens.shape), run(tokens, *given))[1])
    assert model.generate(prompts, max_new_tokens=6) == wanted
    assert lengths[0] == (2, 6)
    with pytest.raises(GenerationError, match="leave shared_prefix out, or install"):
        model.generate(prompts, max_new_tokens=6, shared_prefix=True)
    one_more = [row[:5] for row in prompts]
    assert model.generate(one_more, max_new_tokens=6, shared_prefix=True) == model.generate(one_more, max_new_tokens=6)


def test_releases_that_count_from_zero_take_one_token_after_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no prompt is given in pieces of several tokens."""
    model = ortfuse.Generator(folder)
    model.interface = replace(model.interface, longest_run=8)
    monkeypatch.setattr(type(model._session), "release", (1, 18))
    model.start(1)
    model.step(np.array([[4] * 9]))
    with pytest.raises(GenerationError, match="append one at a time, or install"):
        model.step(np.array([[4, 8]]))
    for prompts in ([[4] * 10], [[4] * 10, [8] * 10]):
        with pytest.raises(GenerationError, match="append one at a time, or install"):
            model.generate(prompts, max_new_tokens=2)


def test_a_prefix_is_not_shared_with_other_inputs(tmp_path: Path) -> None:
    ortfuse.generator(GOLDEN / "t5_decoder.sdpa.ts.onnx", tmp_path / "out", max_length=40)
    with pytest.raises(GenerationError, match="leave shared_prefix out"):
        ortfuse.Generator(tmp_path / "out").generate([[1, 2], [1, 3]], max_new_tokens=2, shared_prefix=True)


@pytest.mark.parametrize("name", ["llama_cache.sdpa.ts", "gpt2_cache.eager.ts"])
def test_a_generator_is_a_model_like_others(name: str, tmp_path: Path) -> None:
    ortfuse.generator(GOLDEN / f"{name}.onnx", tmp_path / "out", max_length=48)
    wanted = ortfuse.Generator(tmp_path / "out").generate([PROMPT, [7]], max_new_tokens=20)
    for folder in ("again", "half"):
        (tmp_path / folder).mkdir()
    again = ortfuse.optimize(tmp_path / "out" / "model.onnx", verify=True, output=tmp_path / "again" / "model.onnx")
    assert again.verdict is not None
    assert again.verdict.ok
    assert ortfuse.Generator(tmp_path / "again").generate([PROMPT, [7]], max_new_tokens=20) == wanted
    ortfuse.convert(tmp_path / "out" / "model.onnx", output=tmp_path / "half" / "model.onnx")
    half = ortfuse.Generator(tmp_path / "half")
    assert half.prompt([PROMPT]).dtype == np.float16
    assert len(half.generate([PROMPT, [7]], max_new_tokens=20)[1]) == 20


def test_random_masks_of_generators_are_masks(folder: Path) -> None:
    specs = {one.name: one for one in input_specs(ir.load(folder / "model.onnx"))}
    assert specs["attention_mask"].role.mask == Use.KEEP
    drawn = make_inputs(
        list(specs.values()), {name: 4 for one in specs.values() for dim in one.shape for name in symbols(dim)}, 1
    )
    assert set(drawn["attention_mask"].ravel()) <= {0, 1}


@pytest.mark.parametrize("name", ["llama_cache.sdpa.ts", "gpt2_cache.sdpa.ts"])
def test_decoders_of_float16(name: str, tmp_path: Path) -> None:
    """Their scores are computed in float32 before the caches are in place, and within the kernel after it."""
    ortfuse.convert(GOLDEN / f"{name}.onnx", output=tmp_path / "half.onnx")
    done = ortfuse.generator(tmp_path / "half.onnx", tmp_path / "out", max_length=48, verify=True)
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first
    assert not done.kept
    assert {cache.dtype for cache in done.interface.caches} == {"float16"}
    model = ortfuse.Generator(tmp_path / "out")
    prompts = [PROMPT, [7]]
    assert model.generate(prompts, max_new_tokens=12) == [
        model.generate([one], max_new_tokens=12)[0] for one in prompts
    ]


def test_many_weights_lie_in_a_data_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortfuse.api.generator.WEIGHTS_INSIDE", 1000)
    ortfuse.generator(GOLDEN / "llama_cache.sdpa.ts.onnx", tmp_path / "apart", max_length=32, verify=True)
    monkeypatch.undo()
    ortfuse.generator(GOLDEN / "llama_cache.sdpa.ts.onnx", tmp_path / "inside", max_length=32)
    assert (tmp_path / "apart" / "model.onnx.data").exists() and not (tmp_path / "inside" / "model.onnx.data").exists()
    written = [
        ortfuse.Generator(tmp_path / name).generate([[5, 6, 7]], max_new_tokens=8) for name in ("apart", "inside")
    ]
    assert written[0] == written[1]
