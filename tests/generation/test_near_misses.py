"""Decoders that are almost what a generator is made of: what is no function of lengths, or read twice, is never taken for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from cached_decoders import write
from edited_decoders import ATTENTION, EMBEDDED, MASK, RANDOM, SECOND, SUM, Edits, given, handed_out, is_right, made

import ortfuse
from ortfuse.errors import GenerationError


def test_two_layers_share_a_cache(tmp_path: Path) -> None:
    done = made(tmp_path, [(SUM, SECOND.format(scores="  ab = Add(a1b, mask)"))])
    assert sum(node.op_type == "GroupQueryAttention" for node in done.model.graph) == 2
    assert not done.kept
    is_right(tmp_path, done)


def test_a_cache_of_two_layers_holds_8_bit_integers(tmp_path: Path) -> None:
    """Both read it with the same scales."""
    made(tmp_path, [(SUM, SECOND.format(scores="  ab = Add(a1b, mask)"))])
    done = ortfuse.generator(tmp_path / "m.onnx", tmp_path / "int8", max_length=60, int8_caches=True)
    assert {cache.dtype for cache in done.interface.caches} == {"int8"}
    exact, rounded = ortfuse.Generator(tmp_path / "out"), ortfuse.Generator(tmp_path / "int8")
    prompt = [[1, 2, 3, 4, 5, 6, 7, 8, 9]]
    scores, other = exact.prompt(prompt), rounded.prompt(prompt)
    for _ in range(12):
        assert np.abs(scores - other).max() < 0.1 * scores.std()
        token = scores.argmax(-1)[:, None]
        scores, other = exact.step(token)[:, -1], rounded.step(token)[:, -1]


def test_a_layer_without_a_cache_reads_that_of_another(tmp_path: Path) -> None:
    """The first attention appends itself, the second reads what it hands out, as in Gemma 3n."""
    gone = ["  new_k = Concat<axis = 2>(past_k, k2)\n", "  new_v = Concat<axis = 2>(past_v, v2)\n"]
    first = "  y0, new_k, new_v = Attention(q, k2, v2, mask, past_k, past_v)\n"
    moved = [
        "  k3 = Transpose<perm = [0, 1, 2, 3]>(new_k)\n", "  v3 = Transpose<perm = [0, 1, 2, 3]>(new_v)\n",
                     "  k4 = Gather<axis = 1>(k3, repeated)\n", "  v = Gather<axis = 1>(v3, repeated)\n",
                     "  k = Transpose<perm = [0, 1, 3, 2]>(k4)\n",
    ]  # fmt: skip
    second = SECOND.format(scores="  ab = Add(a1b, mask)")
    edits = [
        ('"" : 21', '"" : 23'),
        *((one, "") for one in (*gone, *moved)),
        (ATTENTION, first + "".join(moved)),
        (SUM, second),
    ]
    done = made(tmp_path, edits)
    assert sum(node.op_type == "GroupQueryAttention" for node in done.model.graph) == 2
    assert not done.kept
    is_right(tmp_path, done)


def test_keys_that_are_values_too(tmp_path: Path) -> None:
    edits = [
        (", float[batch, 2, past, 16] past_v", ""),
        (", float[batch, 2, total, 16] new_v", ""),
        ("  new_v = Concat<axis = 2>(past_v, v2)\n", ""),
        ("(new_v)", "(new_k)"),
    ]
    done = made(tmp_path, edits)
    assert [cache.past for cache in done.interface.caches] == ["past_key_values.0.key"]
    assert not (tmp_path / "out" / "genai_config.json").exists()
    is_right(tmp_path, done)


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        ([(SUM, SECOND.format(scores="  ab = Identity(a1b)"))], "its cache is read by something else, too"),
        (
            [(SUM, "  mk = ReduceMean<keepdims = 0>(new_k, one_two)\n  m1 = Reshape(mk, flat)\n  m2 = MatMul(m1, wm)\n"
              "  y3 = Add(y2, m2)\n  y = Add(y3, x)")],
            "its cache is read by something else, too",
        ),
        (
            [
                handed_out("float[batch, 4, total, 16] rep"),
                ("  v = Gather<axis = 1>(v3, repeated)", "  v = Gather<axis = 1>(v3, repeated)\n  rep = Identity(v)"),
            ],
            "its cache is read by something else, too",
        ),
        (
            [
                handed_out("float[batch, 4, sequence, total] att"),
                ("  y0 = MatMul(w, v)", "  y0 = MatMul(w, v)\n  att = Identity(w)"),
            ],
            "its scores are used",
        ),
        ([(ATTENTION, "  y0 = Attention<is_causal = 1>(q, k4, v)\n")], "from the first key on"),
        ([(ATTENTION, "  y0 = Attention<is_causal = 1>(q, k4, v, mask)\n")], "from the first key on"),
    ],
    ids=["unmasked", "mean", "output", "scores", "causal", "causal and masked"],
)  # fmt: skip
def test_caches_that_must_grow(edits: Edits, why: str, tmp_path: Path) -> None:
    numbers = {
        "one_two": np.array([1, 2]), "flat": np.array([0, 1, 16]), "wm": RANDOM.standard_normal((16, 64)).astype(np.float32)
    }  # fmt: skip
    with pytest.raises(GenerationError, match=why):
        made(tmp_path, [('"" : 21', '"" : 23'), *edits], numbers)


def test_causal_attention_that_appends_itself(tmp_path: Path) -> None:
    gone = [
        "  new_k = Concat<axis = 2>(past_k, k2)\n", "  new_v = Concat<axis = 2>(past_v, v2)\n",
        "  k3 = Transpose<perm = [0, 1, 2, 3]>(new_k)\n", "  v3 = Transpose<perm = [0, 1, 2, 3]>(new_v)\n",
        "  k4 = Gather<axis = 1>(k3, repeated)\n", "  v = Gather<axis = 1>(v3, repeated)\n",
        "  k = Transpose<perm = [0, 1, 3, 2]>(k4)\n",
    ]  # fmt: skip
    attention = "  y0, new_k, new_v = Attention<is_causal = 1>(q, k2, v2, , past_k, past_v)\n"
    done = made(tmp_path, [('"" : 21', '"" : 23'), (ATTENTION, attention), *((one, "") for one in gone)])
    assert not done.kept
    is_right(tmp_path, done)


@pytest.mark.parametrize("kind", ["bool", "float", "int32"])
def test_masks_of_other_types(kind: str, tmp_path: Path) -> None:
    padded = "  mc = Cast<to = 9>(attention_mask)\n  mu = Unsqueeze(mc, one_two)\n  both = And(seen, mu)\n"
    edits = [given(f"{kind}[batch, whole] attention_mask"), (MASK, f"{padded}  mask = Where(both, none, low)")]
    done = made(tmp_path, edits, {"one_two": np.array([1, 2])})
    assert done.interface.mixed_lengths
    is_right(tmp_path, done)


def test_the_mask_of_an_encoder_is_another(tmp_path: Path) -> None:
    body = (
        "  mf = Cast<to = 1>({name})\n  m3 = Unsqueeze(mf, two0)\n  em = Mul(states, m3)\n"
        "  e = ReduceMean<keepdims = 1>(em, at_one)\n  x = Add(x0, e)"
    )
    for name in ("attention_mask", "encoder_attention_mask"):
        edits = [
            given(f"float[batch, source, 64] states, int64[batch, source] {name}"),
            (EMBEDDED, body.format(name=name)),
        ]
        if name == "attention_mask":
            with pytest.raises(GenerationError, match="give the input another one"):
                made(tmp_path, edits, {"two0": np.array([2])})
        else:
            done = made(tmp_path, edits, {"two0": np.array([2])})
            assert done.comparison is not None
            assert done.comparison.equal
            assert set(done.interface.fixed) == {"states", name}


def test_axes_of_the_batch_with_other_names(tmp_path: Path) -> None:
    done = made(tmp_path, [("float[batch, 2, past, 16] past_k", "float[b1, 2, p1, 16] past_k")])
    assert not done.kept
    is_right(tmp_path, done)


@pytest.mark.parametrize("edits", [[("[batch,", "[1,")], [("[batch,", "[1,"), ("sequence", "1")]])
def test_a_batch_of_one(edits: Edits, tmp_path: Path) -> None:
    done = made(tmp_path, edits)
    assert not done.kept
    model = ortfuse.Generator(tmp_path / "out")
    assert len(model.generate([[1, 2]], max_new_tokens=4)[0]) == 4
    with pytest.raises(GenerationError, match="exported for a batch of 1"):
        model.generate([[1, 2], [3, 4]], max_new_tokens=4)


def test_one_token_a_run(tmp_path: Path) -> None:
    done = made(tmp_path, [("sequence", "1")])
    assert done.interface.longest_run == 1
    model = ortfuse.Generator(tmp_path / "out")
    both = model.generate([[1, 2, 3], [4, 5, 6]], max_new_tokens=6)
    assert both == [model.generate([prompt], max_new_tokens=6)[0] for prompt in ([1, 2, 3], [4, 5, 6])]
    with pytest.raises(GenerationError, match="prompts of one length"):
        model.generate([[1, 2], [3]], max_new_tokens=4)


def test_heads_that_are_repeated_in_turn(tmp_path: Path) -> None:
    """The kernel repeats each head for the next queries, so that each head of queries gets keys and values of its own."""
    done = made(tmp_path, [("[0, 0, 1, 1]", "[0, 1, 0, 1]")])
    assert not done.kept
    assert {cache.shape for cache in done.interface.caches} == {(-1, 4, 60, 16)}
    is_right(tmp_path, done)


def test_the_mask_is_different_in_other_sequences(tmp_path: Path) -> None:
    mask = """  bs = Shape<start = 0, end = 1>(ids)
  b0 = Squeeze(bs)
  br = Range(zero, b0, one)
  bu = Unsqueeze(br, axes)
  bg = Greater(bu, zero)
  jz = Equal(j, zero)
  bad = And(bg, jz)
  good = Not(bad)
  shown = And(seen, good)
  mask = Where(shown, none, low)"""
    with pytest.raises(GenerationError, match="other keys are visible"):
        made(tmp_path, [(MASK, mask)], {"axes": np.array([1, 2, 3])})


def test_a_window_that_grows_is_none(tmp_path: Path) -> None:
    mask = """  d = Sub(i, j)
  late = Greater(t0, c40)
  size = Where(late, c20, c7)
  near = Less(d, size)
  both = And(seen, near)
  mask = Where(both, none, low)"""
    numbers = {name: np.array(number) for name, number in (("c40", 40), ("c20", 20), ("c7", 7))}
    with pytest.raises(GenerationError, match="other keys are visible"):
        made(tmp_path, [(MASK, mask)], numbers)


def test_external_data(tmp_path: Path) -> None:
    path = write(tmp_path / "plain.onnx")
    onnx.save(onnx.load(path), tmp_path / "m.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    done = ortfuse.generator(tmp_path / "m.onnx", tmp_path / "out", max_length=60, verify=True)
    is_right(tmp_path, done)


def test_axes_without_names(tmp_path: Path) -> None:
    model = onnx.load(write(tmp_path / "m.onnx"))
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    onnx.save(model, tmp_path / "m.onnx")
    done = ortfuse.generator(tmp_path / "m.onnx", tmp_path / "out", max_length=60, verify=True)
    assert not done.kept
    assert done.interface.mixed_lengths
    is_right(tmp_path, done)
