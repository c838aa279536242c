"""Decoders that are almost what a generator is made of: what is no function of lengths, or read twice, is never taken for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cached_decoders import write

import ortfuse
from ortfuse.errors import GenerationError
from ortfuse.generation.interface_names import InterfaceNames
from ortfuse.generation.plain_loop import PlainLoop, input_types
from ortfuse.io.convert_model_objects import enter
from ortfuse.runtime.session import Session

Edits = Sequence[tuple[str, str]]
RANDOM = np.random.default_rng(9)
TABLE = RANDOM.standard_normal((80, 64)).astype(np.float32)
PROMPTS = [[5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8, 9], [11], [4, 4]]

MASK = "  mask = Where(seen, none, low)"
SUM = "  y = Add(y2, x)"
EMBEDDED = "  x = Identity(x0)"
SCORES = "  scores = MatMul(y, head)"
ATTENTION = "  a0 = MatMul(q, k)\n  a1 = Mul(a0, quarter)\n  a = Add(a1, mask)\n  w = Softmax(a)\n  y0 = MatMul(w, v)\n"


def given(declaration: str) -> tuple[str, str]:
    """An edit that adds an input."""
    return "int64[batch, sequence] ids", f"int64[batch, sequence] ids, {declaration}"


def handed_out(declaration: str) -> tuple[str, str]:
    """An edit that adds an output in front of the scores."""
    return "=> (", f"=> ({declaration}, "


def made(
    path: Path, edits: Edits = (), numbers: Mapping[str, Any] | None = None, **options: Any
) -> ortfuse.GeneratorResult:
    model = write(path / "m.onnx", edits=edits, numbers=numbers)
    return ortfuse.generator(model, path / "out", max_length=60, verify=True, **options)


def looped(path: Path, names: InterfaceNames, prompt: Sequence[int], steps: int, fixed: Any = None) -> list[int]:
    """What a decoder writes in a plain loop."""
    source = enter(path, copy=True)[0]
    loop = PlainLoop(Session(source), names, input_types(source))
    scores, found = loop.step(np.array([prompt]), fixed), []
    for _ in range(steps):
        found.append(int(scores[0, -1].argmax()))
        scores = loop.step(np.array([found[-1:]]), fixed)
    return found


def is_right(path: Path, done: ortfuse.GeneratorResult) -> None:
    """Whole generations are those of the decoder, also of prompts of several lengths in one batch."""
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first
    model = ortfuse.Generator(path / "out")
    wanted = [looped(path / "m.onnx", done.decoder, prompt, 12) for prompt in PROMPTS]
    assert [model.generate([prompt], max_new_tokens=12)[0] for prompt in PROMPTS] == wanted
    if done.interface.mixed_lengths:
        assert model.generate(PROMPTS, max_new_tokens=12) == wanted


SECOND = """  xx = Add(y2, x)
  q0b = MatMul(xx, wq)
  q1b = Reshape(q0b, qs)
  qb = Transpose<perm = [0, 2, 1, 3]>(q1b)
  a0b = MatMul(qb, k)
  a1b = Mul(a0b, quarter)
{scores}
  wb = Softmax(ab)
  y0b = MatMul(wb, v)
  y1b = Transpose<perm = [0, 2, 1, 3]>(y0b)
  y2b = Reshape(y1b, ys)
  y = Add(y2b, xx)"""

BY_POSITION = """
  jf = Cast<to = 1>(position_ids)
  jg = Add(jf, three)
  jl = Log(jg)
  sc = Unsqueeze(jl, two0)
  yt = Tanh(y0)
  yy0 = Mul(yt, sc)
  yy = Tanh(yy0)
  y1 = Transpose<perm = [0, 2, 1, 3]>(yy)"""


def test_two_layers_share_a_cache(tmp_path: Path) -> None:
    done = made(tmp_path, [(SUM, SECOND.format(scores="  ab = Add(a1b, mask)"))])
    assert sum(node.op_type == "GroupQueryAttention" for node in done.model.graph) == 2
    assert not done.kept
    is_right(tmp_path, done)


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


@pytest.mark.parametrize(
    ("declaration", "before", "mixed"),
    [
        ("int64[1, sequence]", "  pe = Gather(places, position_ids)\n  x = Add(x0, pe)", True),
        ("int64[sequence]", "  pe = Gather(places, position_ids)\n  x = Add(x0, pe)", True),
        (
            "int64[3, batch, sequence]",
            "  p3 = Gather(places, position_ids)\n  pe = ReduceSum<keepdims = 0>(p3, z1)\n  x = Add(x0, pe)",
            True,
        ),
        (
            "int64[3, batch, sequence]",
            "  m = Mod(ids, c3)\n  pp = Add(position_ids, m)\n  p3 = Gather(places, pp)\n"
            "  pe = ReduceSum<keepdims = 0>(p3, z1)\n  x = Add(x0, pe)",
            False,
        ),
    ],
)
def test_positions_of_other_ranks(declaration: str, before: str, mixed: bool, tmp_path: Path) -> None:
    numbers = {"places": TABLE, "z1": np.array([0]), "c3": np.array(3)}
    done = made(tmp_path, [given(f"{declaration} position_ids"), (EMBEDDED, before)], numbers)
    assert done.interface.mixed_lengths == mixed
    is_right(tmp_path, done)


def test_one_row_of_positions_for_heads(tmp_path: Path) -> None:
    """[1, sequence, 1] stands against [heads, sequence, size]: its first axis is not that of the sequences."""
    edits = [given("int64[1, sequence] position_ids"), ("\n  y1 = Transpose<perm = [0, 2, 1, 3]>(y0)", BY_POSITION)]
    done = made(tmp_path, edits, {"three": np.float32(3), "two0": np.array([2])})
    assert not done.interface.mixed_lengths
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


def test_hidden_states_are_neither_scores_nor_states(tmp_path: Path) -> None:
    edits = [
        given("float[batch, source, 64] states"),
        (EMBEDDED, "  e = ReduceMean<keepdims = 1>(states, at_one)\n  x = Add(x0, e)"),
        handed_out("float[batch, sequence, 64] hidden"),
        (SCORES, f"  hidden = Identity(y)\n{SCORES}"),
    ]
    done = made(tmp_path, edits)
    assert done.decoder.logits == "scores"
    assert done.decoder.fixed == ("states",)
    assert not done.decoder.states
    assert done.comparison is not None
    assert done.comparison.equal


def test_scores_that_cannot_be_told(tmp_path: Path) -> None:
    edits = [
        handed_out("float[batch, sequence, 50] first"),
        (SCORES, f"  first = MatMul(x, head)\n{SCORES}"),
    ]
    with pytest.raises(GenerationError, match="among first, scores; name it with logits=NAME"):
        made(tmp_path, edits)
    done = made(tmp_path, edits, roles={"logits": "scores"})
    is_right(tmp_path, done)


def test_states_are_matched_by_what_they_are_computed_from(tmp_path: Path) -> None:
    body = """  x1 = Add(x0, s0)
  n0 = ReduceMean<keepdims = 1>(x1, at_one)
  x2 = Mul(x1, s1)
  x3 = Tanh(x2)
  n1 = ReduceMax<keepdims = 1>(x3, at_one)
  x = Add(x0, x3)"""
    edits = [
        given("float[batch, 1, 64] s0, float[batch, 1, 64] s1"),
        handed_out("float[batch, 1, 64] n1, float[batch, 1, 64] n0"),
        (EMBEDDED, body),
    ]
    done = made(tmp_path, edits)
    assert done.decoder.states == (("s0", "n0"), ("s1", "n1"))
    is_right(tmp_path, done)


@pytest.mark.parametrize(
    ("declaration", "body"),
    [
        ("int64[batch, sequence] types", "  t2 = Gather(places, types)\n  x = Add(x0, t2)"),
        ("float[batch, sequence, 64] picture", "  x = Add(x0, picture)"),
    ],
)
def test_inputs_for_each_token_need_a_role(declaration: str, body: str, tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match="has elements for each new token"):
        made(tmp_path, [given(declaration), (EMBEDDED, body)], {"places": TABLE[:2]})


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


CUT = "  {0}0 = Concat<axis = 2>(past_{1}, {1}2)\n  {0} = Slice({0}0, before, big, two0)"
CUTS = [
    *((f"  new_{k} = Concat<axis = 2>(past_{k}, {k}2)", CUT.format(f"new_{k}", k)) for k in "kv"),
    ("(new_k)", "(new_k0)"),
    ("(new_v)", "(new_v0)"),
]
WINDOW = (
    "  seen = LessOrEqual(j, i)",
    "  causal = LessOrEqual(j, i)\n  ij = Sub(i, j)\n  near = Less(ij, width)\n  seen = And(causal, near)",
)


def cut(kept: int, width: int) -> dict[str, Any]:
    """The numbers of a decoder that keeps some tokens, and sees as many as `width`."""
    return {
        "before": np.array([-kept]), "big": np.array([2**62]), "two0": np.array([2]), "width": np.array(width),
    }  # fmt: skip


@pytest.mark.parametrize("edits", [CUTS, [*CUTS, WINDOW]])
def test_caches_that_are_cut_to_less_than_is_seen(edits: Edits, tmp_path: Path) -> None:
    """A prompt sees tokens that a later step has no more."""
    numbers = {name: one for name, one in cut(6, 8).items() if name != "width" or WINDOW in edits}
    with pytest.raises(GenerationError, match=r"no layer can keep its cache in place.+other keys are visible"):
        made(tmp_path, edits, numbers)


@pytest.mark.parametrize(("kept", "width"), [(6, 7), (2, 3), (30, 7), (80, 7)])
def test_caches_that_are_cut_to_what_is_seen(kept: int, width: int, tmp_path: Path) -> None:
    done = made(tmp_path, [*CUTS, WINDOW], cut(kept, width))
    assert not done.kept
    assert {cache.shape for cache in done.interface.caches} == {(-1, 2, 60, 16)}
    windows = {
        node.attributes["local_window_size"].value for node in done.model.graph if node.op_type.startswith("Group")
    }
    assert windows == {width}
    is_right(tmp_path, done)


def test_one_token_at_a_time_sees_what_is_kept(tmp_path: Path) -> None:
    """Without a mask, and without any window besides the cut."""
    edits = [*CUTS, ("  a = Add(a1, mask)", "  a = Identity(a1)"), ("sequence]", "1]"), ("sequence,", "1,")]
    numbers = {name: one for name, one in cut(6, 8).items() if name != "width"}
    done = made(tmp_path, edits, numbers)
    assert not done.kept
    assert {
        node.attributes["local_window_size"].value for node in done.model.graph if node.op_type.startswith("Group")
    } == {7}
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first


def test_caches_of_a_fixed_length(tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match="past_k has a fixed length"):
        made(tmp_path, [("past, 16]", "30, 16]"), ("total, 16]", "31, 16]"), ("sequence]", "1]"), ("sequence,", "1,")])


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


FROM_MASK = """  c0 = CumSum(attention_mask, axis_one)
  c1 = Mul(c0, attention_mask)
  so = Shape<start = 1, end = 2>(ids)
  back = Sub(z1, so)
  pids = Slice(c1, back, big, at_one)
  pe = Gather(places, pids)
  x = Add(x0, pe)"""


def test_the_mask_is_as_long_as_past_and_new_tokens(tmp_path: Path) -> None:
    """Its axis has a name of its own, by which the graph alone does not tell how many positions it gives."""
    shown = "  mc = Cast<to = 9>(attention_mask)\n  mu = Unsqueeze(mc, one_two)\n  both = And(seen, mu)\n"
    edits = [
        given("int64[batch, whole] attention_mask"),
        (EMBEDDED, FROM_MASK),
        (MASK, f"{shown}  mask = Where(both, none, low)"),
    ]
    numbers = {
        "places": TABLE, "axis_one": np.array(1), "z1": np.array([0]), "big": np.array([2**62]), "one_two": np.array([1, 2])
    }  # fmt: skip
    done = made(tmp_path, edits, numbers)
    assert done.interface.mixed_lengths
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


TRIANGLE = """  at_two = Constant<value_ints = [2]>()
  at_three = Constant<value_ints = [3]>()
  nought = Constant<value_ints = [0]>()
  rows = Slice(triangle, p, t, at_two)
  both = Slice(rows, nought, t, at_three)
  mask = Where(both, none, low)"""
EMBEDDING = """  p9 = Shape<start = 2, end = 3>(past_k)
  s9 = Shape<start = 1, end = 2>(ids)
  t9 = Add(p9, s9)
  nought = Constant<value_ints = [0]>()
  pe = Slice(places, p9, t9, nought)
  x = Add(x0, pe)"""


@pytest.mark.parametrize(
    ("edit", "numbers"),
    [
        ((MASK, TRIANGLE), {"triangle": np.tril(np.ones((1, 1, 40, 40), bool))}),
        ((MASK, TRIANGLE), {"triangle": np.tril(np.ones((1, 1, 40, 40), bool)) ^ np.tril(np.ones((40, 40), bool), -7)}),
        ((EMBEDDED, EMBEDDING), {"places": TABLE[:40]}),
    ],
    ids=["causal", "window", "embedding"],
)
def test_slices_of_tables_are_rows_of_positions(
    edit: tuple[str, str], numbers: Mapping[str, Any], tmp_path: Path
) -> None:
    done = made(tmp_path, [edit], numbers)
    assert not done.kept
    assert done.interface.max_length == 40
    assert done.interface.mixed_lengths
    is_right(tmp_path, done)


ROTATED = """  {0}t = Transpose<perm = [0, 2, 1, 3]>({0}1)
  {0}_a, {0}_b = Split<axis = 3, num_outputs = 2>({0}t)
  {0}_n = Neg({0}_b)
  {0}_r = Concat<axis = 3>({0}_n, {0}_a)
  {0}_1 = Mul({0}t, cosines)
  {0}_2 = Mul({0}_r, sines)
  {1} = Add({0}_1, {0}_2)"""
ANGLES = """
  jf = Cast<to = 1>(i)
  half = Mul(jf, steps)
  angles = Concat<axis = -1>(half, half)
  cosines = Cos(angles)
  sines = Sin(angles)
"""
ROTARY = [
    ("  q = Transpose<perm = [0, 2, 1, 3]>(q1)", ANGLES + ROTATED.format("q", "q")),
    ("  k2 = Transpose<perm = [0, 2, 1, 3]>(k1)", ROTATED.format("k", "k2")),
]
OTHER_VALUES = """  xx = Add(y2, x)
  q0b = MatMul(xx, wq)
  q1b = Reshape(q0b, qs)
  qb = Transpose<perm = [0, 2, 1, 3]>(q1b)
  u0 = MatMul(xx, second)
  u1 = Reshape(u0, two_heads)
  u2 = Transpose<perm = [0, 2, 1, 3]>(u1)
  new_u = Concat<axis = 2>(past_u, u2)
  u = Gather<axis = 1>(new_u, repeated)
  a0b = MatMul(qb, k)
  a1b = Mul(a0b, quarter)
  ab = Add(a1b, mask)
  wb = Softmax(ab)
  y0b = MatMul(wb, u)
  y1b = Transpose<perm = [0, 2, 1, 3]>(y0b)
  y2b = Reshape(y1b, ys)
  y3b = MatMul(y2b, out_of_second)
  y = Add(y3b, xx)"""
STEPS = {"steps": (1 / 10000 ** (np.arange(8) / 8)).astype(np.float32)}


@pytest.mark.parametrize("single", [False, True])
def test_angles_by_position(single: bool, tmp_path: Path) -> None:
    """Of one token a run, no other steps are looked at; its one row is no table of one row."""
    done = made(tmp_path, [*ROTARY, *([("sequence", "1")] if single else [])], STEPS)
    assert done.interface.max_length == 60
    (node,) = (node for node in done.model.graph if node.op_type == "GroupQueryAttention")
    assert node.attributes["do_rotary"].value == 1
    assert done.interface.mixed_lengths != single
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first


def test_one_token_a_run_with_a_causal_mask_of_its_own(tmp_path: Path) -> None:
    """The shapes are right for one token alone, so that no other steps can be evaluated."""
    mask = "  tq = Concat<axis = 0>(at_one, t)\n  row = Expand(none, tq)\n  mask = Where(seen, row, low)"
    done = made(tmp_path, [("sequence", "1"), (MASK, mask)])
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first


def test_a_second_attention_reads_rotated_keys(tmp_path: Path) -> None:
    done = made(tmp_path, [*ROTARY, (SUM, SECOND.format(scores="  ab = Add(a1b, mask)"))], STEPS)
    assert not done.kept
    assert done.interface.mixed_lengths
    is_right(tmp_path, done)


@pytest.mark.parametrize(("first", "second"), [(16, 20), (20, 16), (12, 12)])
@pytest.mark.parametrize("rotary", [False, True])
def test_layers_that_share_keys_have_heads_of_one_size(first: int, second: int, rotary: bool, tmp_path: Path) -> None:
    """The keys of 16 are padded as the larger values are, for both layers; so are the values of the other layer."""
    edits = [
        *(
            (f"float[batch, 2, {length}, 16] {side}_v", f"{sized}{first}] {side}_v, {sized}{second}] {side}_u")
            for length, side in (("past", "past"), ("total", "new"))
            for sized in [f"float[batch, 2, {length}, "]
        ),
        ("MatMul(x, wv)", "MatMul(x, first)"),
        ("Reshape(v0, ks)", "Reshape(v0, two_heads)"),
        ("[0, 0, 64]", "[0, 0, -1]"),
        ("  y2 = Reshape(y1, ys)", "  y3 = Reshape(y1, ys)\n  y2 = MatMul(y3, out_of_first)"),
        (SUM, OTHER_VALUES),
        *(ROTARY if rotary else ()),
    ]
    weights = {
        "first": (64, 2 * first), "second": (64, 2 * second), "out_of_first": (4 * first, 64), "out_of_second": (4 * second, 64)
    }  # fmt: skip
    random = np.random.default_rng(7)
    numbers = {name: (random.standard_normal(shape) / 6).astype(np.float32) for name, shape in weights.items()}
    done = made(tmp_path, edits, {**STEPS, **numbers, "two_heads": np.array([0, 0, 2, -1])})
    assert not done.kept
    assert sum(node.op_type == "GroupQueryAttention" for node in done.model.graph) == 2
    assert {cache.shape for cache in done.interface.caches} == {(-1, 2, 60, 24 if max(first, second) > 16 else 16)}
    is_right(tmp_path, done)


def test_angles_that_know_the_length(tmp_path: Path) -> None:
    scaled = ANGLES.replace("jf = Cast<to = 1>(i)", "ji = Cast<to = 1>(i)\n  tf = Cast<to = 1>(t)\n  jf = Div(ji, tf)")
    done = made(tmp_path, [(ROTARY[0][0], scaled + ROTATED.format("q", "q")), ROTARY[1]], STEPS)
    assert not done.interface.mixed_lengths
    is_right(tmp_path, done)


LAST = "  yl = Slice(y, minus_one, far, at_one)\n  scores = MatMul(yl, head)"
AFTER = '  yl = Slice(y, minus_one, far, at_one)\n  ym = Einsum<equation = "bij->bij">(yl)\n  scores = MatMul(ym, head)'


@pytest.mark.parametrize(
    ("scores", "is_read"),
    [(LAST, True), ("  yl = Gather<axis = 1>(y, minus_one)\n  scores = MatMul(yl, head)", True), (AFTER, False)],
    ids=["slice", "gather", "not by row"],
)
def test_scores_of_the_last_token_alone(scores: str, is_read: bool, tmp_path: Path) -> None:
    edits = [(SCORES, scores), ("float[batch, sequence, 50] scores", "float[batch, 1, 50] scores")]
    numbers = {"minus_one": np.array([-1]), "far": np.array([2**62])}
    if not is_read:
        # The last layer is computed for the last token alone.
        with pytest.raises(GenerationError, match="there are 1 queries and sequence new keys"):
            made(tmp_path, edits, numbers)
        return
    done = made(tmp_path, edits, numbers)
    assert done.interface.last_logits
    assert done.interface.mixed_lengths
    is_right(tmp_path, done)


def test_scores_of_the_last_token_of_a_layer_that_stays(tmp_path: Path) -> None:
    """What comes after the last attention keeps the row from being taken above it."""
    scores = "  yc = CumSum(y, cone)\n" + AFTER.replace("Slice(y,", "Slice(yc,")
    edits = [(SCORES, scores), ("float[batch, sequence, 50] scores", "float[batch, 1, 50] scores")]
    numbers = {"minus_one": np.array([-1]), "far": np.array([2**62]), "cone": np.array(1)}
    done = made(tmp_path, edits, numbers, last_logits=True)
    assert done.interface.last_logits
    assert not done.interface.mixed_lengths
    is_right(tmp_path, done)


AXIS = "  along = Constant<value_ints = [1]>()\n"
MEETING = {
    "mean": (SUM, AXIS + "  mean = ReduceMean(x, along)\n  y3 = Add(y2, x)\n  y = Add(y3, mean)", "ReduceMean"),
    "other sequences": (
        SUM,
        "  along = Constant<value_ints = [0]>()\n  mean = ReduceMean(x, along)\n  y3 = Add(y2, x)\n  y = Add(y3, mean)",
        "ReduceMean",
    ),
    "backwards": (
        EMBEDDED,
        """  end = Constant<value_ints = [-9223372036854775807]>()
  back = Constant<value_ints = [-1]>()
  reversed = Slice(x0, back, end, at_one, back)
  x = Add(x0, reversed)""",
        "GroupQueryAttention",
    ),
    "first token": (
        EMBEDDED,
        "  start = Constant<value_ints = [0]>()\n  first = Slice(x0, start, at_one, at_one)\n  x = Add(x0, first)",
        "takes tokens of a run at 0",
    ),
    "sums": (EMBEDDED, "  x1 = CumSum(x0, one)\n  x = Add(x0, x1)", "CumSum"),
    "number of tokens": (SUM, "  sf = Cast<to = 1>(s)\n  y3 = Add(y2, x)\n  y = Add(y3, sf)", "lengths of a run"),
    "positions in the run": (
        EMBEDDED,
        "  s0 = Squeeze(s)\n  i1 = Range(zero, s0, one)\n  p1 = Gather(rows, i1)\n  x = Add(x0, p1)",
        "lengths of a run",
    ),
    "late": (
        EMBEDDED,
        "  late = Greater(t0, c40)\n  lf = Cast<to = 1>(late)\n  x1 = Mul(x0, lf)\n  x = Add(x0, x1)",
        "lengths of a run",
    ),
}


@pytest.mark.parametrize("kind", MEETING)
def test_tokens_that_meet_outside_of_attention_need_one_length(kind: str, tmp_path: Path) -> None:
    old, new, why = MEETING[kind]
    done = made(tmp_path, [(old, new)], {"c40": np.array(40), "rows": TABLE})
    assert not done.interface.mixed_lengths
    assert why in done.one_length
    is_right(tmp_path, done)
    model = ortfuse.Generator(tmp_path / "out")
    for shared in (False, True):
        with pytest.raises(GenerationError, match=r"one length|leave shared_prefix out"):
            model.generate(PROMPTS, max_new_tokens=3, shared_prefix=shared)


TURNED = (
    "  xt = Transpose<perm = [0, 2, 1]>(x0)\n  c = {conv}\n  ct = Transpose<perm = [0, 2, 1]>(c)\n  x = Add(x0, ct)"
)
APART = {
    "an expert for each token": """  router = MatMul(x0, wr)
  best, expert = TopK<axis = -1>(router, at_one)
  own = Gather(experts, expert)
  flat = Squeeze(own, at_two)
  x = Mul(x0, flat)""",
    "the weights of its expert": """  router = MatMul(x0, wr)
  best, expert = TopK<axis = -1>(router, at_one)
  tuple = Unsqueeze(expert, at_two)
  own = GatherND(experts, tuple)
  flat = Squeeze(own, at_two)
  x = Mul(x0, flat)""",
    "channels": TURNED.format(conv="Conv(xt, kernel1)"),
}


@pytest.mark.parametrize("kind", APART)
def test_tokens_that_stay_apart_take_several_lengths(kind: str, tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    numbers = {"wr": (64, 4), "experts": (4, 64), "kernel1": (64, 64, 1)}
    arrays = {name: (random.standard_normal(shape) / 8).astype(np.float32) for name, shape in numbers.items()}
    done = made(tmp_path, [(EMBEDDED, APART[kind])], {**arrays, "at_two": np.array([2])})
    assert done.interface.mixed_lengths, done.one_length
    is_right(tmp_path, done)


@pytest.mark.parametrize(
    "conv", ["Conv<pads = [2, 0]>(xt, kernel3)", "Conv<pads = [1, 1]>(xt, kernel3)", "Conv<pads = [1, 0]>(xt, kernel2)"]
)
def test_convolutions_over_tokens_need_one_length(conv: str, tmp_path: Path) -> None:
    kernels = {f"kernel{size}": np.full((64, 64, size), 0.01, np.float32) for size in (2, 3)}
    done = made(tmp_path, [(EMBEDDED, TURNED.format(conv=conv))], kernels)
    assert "Conv" in done.one_length
    is_right(tmp_path, done)


def test_positions_that_wrap_are_those_of_each_sequence(tmp_path: Path) -> None:
    wrapped = "  iw = Mod(i0, eight)\n  p1 = Gather(rows, iw)\n  x = Add(x0, p1)"
    done = made(tmp_path, [(EMBEDDED, wrapped)], {"eight": np.array(8), "rows": TABLE})
    assert done.interface.mixed_lengths, done.one_length
    is_right(tmp_path, done)


def test_a_mask_that_is_another_for_prompts_of_one_length(tmp_path: Path) -> None:
    mask = "  s0 = Squeeze(s)\n  odd = Equal(s0, c40)\n  shown = Or(seen, odd)\n  mask = Where(shown, none, low)"
    with pytest.raises(GenerationError, match="after 0 tokens, for 40 new ones, other keys are visible"):
        made(tmp_path, [(MASK, mask)], {"c40": np.array(40)})
