"""Generators of decoders with several outputs, and with the scores of the last token alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from edited_decoders import EMBEDDED, SCORES, TABLE, given, handed_out, is_right, made

from ortfuse.errors import GenerationError


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
    """A sum over tokens after the last attention keeps the row from being taken above it."""
    scores = "  yc = CumSum(y, cone)\n" + AFTER.replace("Slice(y,", "Slice(yc,")
    edits = [(SCORES, scores), ("float[batch, sequence, 50] scores", "float[batch, 1, 50] scores")]
    numbers = {"minus_one": np.array([-1]), "far": np.array([2**62]), "cone": np.array(1)}
    done = made(tmp_path, edits, numbers, last_logits=True)
    assert done.interface.last_logits
    assert not done.interface.mixed_lengths
    is_right(tmp_path, done)
